"""Programs in half precision: the right ones pass under every strategy, the mistakes are found and named."""

from __future__ import annotations

from functools import partial

import half_precision_programs as programs
import pytest

from pytest_ddl import check_training

pytestmark = pytest.mark.slow

fit, loop, module = programs.fit, programs.loop, programs.module
SCALED, AGGREGATED = "gradient-scaled-by-replica-count", "gradient-not-aggregated"
PENALIZED = "regularization-scaled-by-replica-count"


def compare(program, strategy="mirrored", **given):
    return check_training(program, strategy, **{"global_batch_size": 12, **given})


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_casts_by_hand_pass(dtype):
    report = compare(partial(module, dtype=dtype, decay=0.01))
    assert report.passed, str(report)
    assert report.distributed.precision == "float32"
    assert f"instead of casts to {dtype}, and also in casts to {dtype}" in report.notes[0]


@pytest.mark.nightly
@pytest.mark.slow
def test_a_policy_is_judged_in_float64_and_in_its_own_precision():
    report = compare(fit)
    assert report.passed, str(report)
    assert report.distributed.precision == "float64"
    assert "instead of mixed_float16, and also in mixed_float16" in report.notes[0]


@pytest.mark.nightly
@pytest.mark.slow
def test_a_mistake_is_named_in_float16():
    report = compare(partial(module, wrong="mean"))
    assert report.verdict == "fail"
    assert report.findings[0].cause == SCALED, str(report)


@pytest.mark.nightly
def test_a_mistake_that_only_half_precision_makes_is_found():
    report = compare(programs.wrong_in_half_precision)
    assert report.verdict == "fail"
    assert report.findings[0].cause == SCALED, str(report)
    assert "the difference was found in mixed_float16" in report.notes[0]


OF_EACH_KIND = ("fit pure bfloat16", "fit one layer", "fit tf_keras", "loop tf_keras", "sum in float16", "own scale")
"""The evaluation checks all right programs; each takes several comparisons."""


@pytest.mark.nightly(each_commit=("loop tf_keras",))
@pytest.mark.slow
@pytest.mark.parametrize("name", OF_EACH_KIND)
def test_right_programs_pass(name):
    report = compare(programs.RIGHT[name][0])
    assert report.passed, str(report)


@pytest.mark.nightly(each_commit=("one_device", "multi_worker_mirrored", "central_storage"))
@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "name"),
    [
        ("one_device", "fit bfloat16"),
        ("one_device", "casts eager"),
        ("mirrored[replicas=3]", "fit bfloat16 Adam"),
        ("mirrored[replicas=3]", "casts eager"),
        ("multi_worker_mirrored", "loop"),
        ("multi_worker_mirrored", "sum in float16"),
        ("central_storage", "own scale"),
        ("parameter_server", "loop"),
        ("parameter_server", "loop bfloat16 Adam"),
    ],
)
def test_right_programs_pass_under_every_strategy(strategy, name):
    report = compare(programs.RIGHT[name][0], strategy)
    assert report.passed, str(report)


@pytest.mark.nightly(each_commit=("mixed_float16",))
@pytest.mark.slow
@pytest.mark.parametrize(("policy", "optimizer"), [("mixed_float16", "Adam"), ("mixed_bfloat16", "SGD")])
def test_the_own_precision_by_itself_is_no_false_alarm(policy, optimizer):
    report = compare(partial(fit, policy=policy, optimizer=optimizer), precision="native")
    assert report.verdict != "fail", str(report)
    assert not any('precision="float64"' in why for why in report.inconclusive)


MISTAKES = [
    (partial(loop, wrong="mean"), SCALED),
    (partial(loop, wrong="twice", policy="mixed_bfloat16"), SCALED),
    (partial(loop, wrong="scale", flavour="tf_keras"), SCALED),
    (partial(module, wrong="twice"), SCALED),
    (partial(module, wrong="scale", scale=128.0), SCALED),
    (partial(module, wrong="missing_division", dtype="float32", sent="float16"), SCALED),
    (partial(module, wrong="unreduced"), AGGREGATED),
    (partial(module, wrong="unreduced", dtype="bfloat16"), AGGREGATED),
    (partial(module, wrong="mean", dtype="bfloat16"), SCALED),
    (partial(module, wrong="penalty", decay=0.01, dtype="bfloat16"), PENALIZED),
    (partial(module, wrong="penalty", decay=0.01, dtype="float16"), PENALIZED),
    (partial(module, wrong="mean", eager=True), SCALED),
]


@pytest.mark.nightly(each_commit=("2", "6", "10"))
@pytest.mark.slow
@pytest.mark.parametrize(("program", "cause"), MISTAKES, ids=range(len(MISTAKES)))
def test_mistakes_are_found_and_named(program, cause):
    report = compare(program)
    assert report.verdict == "fail", str(report)
    assert cause in [finding.cause for finding in report.findings], str(report)
