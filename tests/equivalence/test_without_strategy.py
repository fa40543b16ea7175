"""A program that raises under every strategy is tried without one before it is blamed."""

from __future__ import annotations

from functools import partial

import equivalence_programs
import pytest
import tutorial_programs as tutorials

from pytest_ddl import check_training

GIVEN = {"global_batch_size": 12, "steps": 2, "timeout": 100}


def _refused(train):
    return partial(tutorials.refused_by_one_device_strategy, train=train)


@pytest.mark.nightly(each_commit=("vae",))
@pytest.mark.slow
@pytest.mark.parametrize("program", tutorials.ALL, ids=lambda program: program.__name__)
def test_a_tutorial_that_keras_cannot_build_is_not_blamed(program):
    report = check_training(program, "mirrored", precision="native", **GIVEN)
    finding = report.findings[0]
    assert (report.verdict, finding.cause, finding.symptom) == ("fail", "unsupported-by-framework", "crash")
    assert "trains without a strategy, and raises under every tf.distribute strategy" in finding.message
    assert "OneDeviceStrategy included" in finding.message
    assert "self.built = True" in finding.message
    assert report.reference.num_steps == 2


@pytest.mark.nightly
@pytest.mark.slow
def test_what_is_advised_helps():
    report = check_training(tutorials.repaired_vae, "mirrored", **GIVEN)
    assert report.passed, str(report)
    wrong = check_training(partial(tutorials.vae, built=True), "mirrored", **GIVEN)
    assert wrong.findings[0].cause == "gradient-scaled-by-replica-count"


@pytest.mark.nightly(each_commit=("steps",))
@pytest.mark.slow
@pytest.mark.parametrize("train", [equivalence_programs.right, tutorials.by_batches], ids=["steps", "batches"])
def test_what_only_one_device_strategy_refuses_is_compared_without_it(train):
    report = check_training(_refused(train), "mirrored", **GIVEN)
    assert report.passed, str(report)
    assert "run without a strategy, because the program raises under OneDeviceStrategy" in str(report)
    assert "NotImplementedError: not on one device" in str(report)
    assert (report.reference.num_steps, report.distributed.num_steps) == (2, 2)


@pytest.mark.nightly
@pytest.mark.slow
def test_a_mistake_is_found_without_one_device_strategy_too():
    wrong = _refused(partial(tutorials.by_batches, share=False))
    report = check_training(wrong, "mirrored", **GIVEN)
    assert report.findings[0].cause == "gradient-scaled-by-replica-count", str(report)
