"""Models and optimizers that the first batch builds are judged as well as those that exist before it."""

from __future__ import annotations

from functools import partial

import lazy_programs as programs
import pytest

from pytest_ddl import check_training

pytestmark = pytest.mark.slow

GIVEN = {"global_batch_size": 12, "steps": 4, "timeout": 150}
EAGER = {"eager-step": "the program shows what is built in eager mode"}
EAGER_PROGRAMS = (programs.keras_eager, programs.module)
NO_SLOTS = {"variable-did-not-move", "optimizer-state-mismatch"}
"""A weight that is left out has neither a change nor slots."""


def check(program, strategy, bug=""):
    expect = EAGER if program in EAGER_PROGRAMS else {}
    return check_training(partial(program, bug=bug), strategy, expect=expect, **GIVEN)


def test_a_model_built_by_fit_passes():
    report = check(programs.keras_fit, "mirrored")
    assert report.passed, str(report)
    assert all(variable.since == 0 for variable in report.reference.variables)


@pytest.mark.nightly(
    each_commit=(
        "mirrored-module",
        "mirrored-tf_keras_fit",
        "multi_worker_mirrored-keras_graph",
        "central_storage-keras_eager",
        "one_device-keras_graph",
    )
)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "program"),
    [
        ("mirrored", programs.keras_called_first),
        ("mirrored", programs.keras_eager),
        ("mirrored", programs.keras_fit_subclassed),
        ("mirrored", programs.module),
        ("mirrored", programs.tf_keras_embedding),
        ("mirrored", programs.tf_keras_fit),
        ("mirrored", programs.tf_keras_graph),
        ("multi_worker_mirrored", programs.keras_eager),
        ("multi_worker_mirrored", programs.keras_graph),
        ("multi_worker_mirrored", programs.tf_keras_graph),
        ("parameter_server", programs.keras_graph),
        ("parameter_server", programs.tf_keras_graph),
        ("central_storage", programs.keras_eager),
        ("central_storage", programs.tf_keras_graph),
        ("model_parallel", programs.keras_graph),
        ("mirrored", programs.restarted),
        ("one_device", programs.keras_graph),
        ("one_device", programs.tf_keras_fit),
    ],
)
def test_right_programs_pass(strategy, program):
    report = check(program, strategy)
    assert report.passed, str(report)
    # The initial values are true ones: they are compared, and none is a value that a step has changed.
    assert all(variable.since == 0 for variable in report.distributed.variables)


@pytest.mark.nightly
def test_an_initial_weight_that_differs_is_found():
    report = check(programs.tf_keras_graph, "mirrored", "unseeded")
    assert [finding.cause for finding in report.findings] == ["initial-weights-differ"], str(report)


@pytest.mark.nightly(each_commit=("mirrored-keras_fit_subclassed-mean",))
@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "program", "bug", "causes"),
    [
        ("mirrored", programs.keras_called_first, "mean", {"gradient-scaled-by-replica-count"}),
        ("mirrored", programs.keras_eager, "mean", {"gradient-scaled-by-replica-count"}),
        ("mirrored", programs.keras_fit_subclassed, "mean", {"gradient-scaled-by-replica-count"}),
        ("mirrored", programs.keras_fit, "unseeded", {"initial-weights-differ"}),
        ("mirrored", programs.keras_fit_subclassed, "unseeded", {"initial-weights-differ"}),
        ("mirrored", programs.tf_keras_fit, "mean", {"gradient-scaled-by-replica-count"}),
        ("mirrored", programs.tf_keras_graph, "unsynchronized", {"gradient-not-aggregated"}),
        ("mirrored", programs.tf_keras_embedding, "frozen", NO_SLOTS),
        ("mirrored", programs.module, "unsynchronized", {"gradient-not-aggregated"}),
        ("mirrored", programs.restarted, "momentum", {"resume-lost-state"}),
        ("multi_worker_mirrored", programs.keras_graph, "mean", {"gradient-scaled-by-replica-count"}),
        ("multi_worker_mirrored", programs.keras_graph, "unseeded", {"initial-weights-differ"}),
        ("multi_worker_mirrored", programs.keras_graph, "frozen", NO_SLOTS),
        ("parameter_server", programs.tf_keras_graph, "unseeded", {"initial-weights-differ"}),
        ("parameter_server", programs.keras_graph, "frozen", NO_SLOTS),
    ],
)
def test_defects_are_named(strategy, program, bug, causes):
    report = check(program, strategy, bug)
    assert report.verdict == "fail", str(report)
    assert report.findings[0].cause in causes, str(report)
    assert causes <= {finding.cause for finding in report.findings}, str(report)
