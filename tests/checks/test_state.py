"""STATE-EQ on records: state is compared as declared, and its own defects are distinguished from consequences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from simulated_state import STATE, TWO, Change, checked, checked_pair, with_state
from simulated_training import Program, pair

from pytest_ddl.equivalence.checks.optimizer_state import check_optimizer_state
from pytest_ddl.equivalence.checks.state import check_state
from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.evidence.slices import Slices
from pytest_ddl.equivalence.evidence.tolerance import Tolerance
from pytest_ddl.equivalence.findings import CheckResult, Outcome
from pytest_ddl.equivalence.verdict.judge import judge
from pytest_ddl.records import Array, LayerRecord, TrainingRecord, VariableKind, VariableRecord


def test_state_of_one_device_passes() -> None:
    result = checked(*pair(Program(replicas=2)))
    assert result.outcome is Outcome.PASS
    assert "1 variable(s)" in result.reason


def test_copies_that_go_apart_are_named_with_their_mean() -> None:
    result = checked_pair(lambda replica, _step, value: value + (1 - 2 * replica))
    assert [finding.cause for finding in result.findings] == ["state-not-aggregated"]
    assert "their mean is the value of one device" in (result.findings[0].evidence or "")


@pytest.mark.parametrize(
    ("aggregation", "change"),
    [
        ("mean", lambda replica, _step, value: value + (1 - 2 * replica)),
        ("sum", lambda replica, _step, value: value * (0.25 + 0.5 * replica)),
        ("only_first_replica", lambda replica, _step, value: value + replica),
    ],
)
def test_components_are_read_as_declared(aggregation: str, change: Change) -> None:
    declared = {"synchronization": "on_read", "aggregation": aggregation}
    assert checked_pair(change, **declared).outcome is Outcome.PASS
    wrong = checked_pair(lambda replica, step, value: change(replica, step, value) + 0.5, **declared)
    assert [finding.cause for finding in wrong.findings] == ["state-not-aggregated"]
    assert f"read as {aggregation}" in wrong.findings[0].message


def test_state_that_declares_no_reduction_is_local_by_declaration() -> None:
    result = checked_pair(lambda replica, _step, value: value + replica, synchronization="on_read")
    assert result.outcome is Outcome.NOT_APPLICABLE


def test_a_state_that_is_not_finite_is_a_finding() -> None:
    assert checked_pair(lambda _replica, _step, value: value * np.nan).outcome is Outcome.FAIL


def test_a_counter_that_counts_replicas_is_named() -> None:
    def counting(per_step: int) -> Change:
        return lambda _replica, step, _value: np.asarray(per_step * step, np.int64)

    reference, distributed = pair(Program(replicas=2))
    given = {"dtype": "int64", "shape": ()}
    ours, theirs = with_state(reference, counting(1), **given), with_state(distributed, counting(2), **given)
    result = checked(ours, theirs)
    assert [finding.cause for finding in result.findings] == ["iteration-count-wrong"]
    assert "by 2 per step" in (result.findings[0].evidence or "")


def test_statistics_of_a_layer_that_is_not_synchronized_are_attributed_to_it() -> None:
    program = Program(replicas=2, layers=(LayerRecord("ema", "BatchNormalization", {"synchronized": False}),))
    result = checked_pair(lambda _replica, _step, value: value + 0.1, program)
    assert [finding.cause for finding in result.findings] == ["per-replica-normalization"]
    assert not result.findings[0].exact


def test_the_declared_mean_over_an_uneven_batch_is_an_approximation() -> None:
    program = Program(replicas=2, batches=(12, 11, 12))
    result = checked_pair(
        lambda _r, step, value: value + (step > 1), program, synchronization="on_read", aggregation="mean"
    )
    assert [(f.cause, f.approximation, f.step) for f in result.findings] == [("mean-of-replica-means", True, 2)]


def _of_parts(
    aggregation: str,
    apart: tuple[float, float],
    combined: Callable[[Array, list[Array]], Array],
    weights_of: str = "one device",
) -> CheckResult:
    """Judge a state of the uneven step 2, in which weights differ: what parts give, and what the replicas make of it.

    ``apart`` is how far the value that each replica's examples give is from that of one device. ``weights_of`` says
    whose weights the runs on the parts have.
    """
    reference, distributed = pair(Program(replicas=2, batches=(12, 11, 12)), mean_of_means=True)
    desired = {step: np.asarray(reference.value(STATE, step)) for step in (1, 2, 3)}

    def part(shift: float) -> TrainingRecord:
        base = reference if weights_of == "one device" else replace(distributed, ranks=distributed.ranks[:1])
        return with_state(base, lambda _r, step, _value: desired[step] + (shift if step == 2 else 0.0))

    parts = {replica: part(shift) for replica, shift in enumerate(apart)}
    values = [np.asarray(run.value(STATE, 2)) for run in parts.values()]
    found = with_state(
        distributed,
        lambda _r, step, _value: combined(desired[1], values) if step == 2 else desired[step],
        aggregation=aggregation,
    )
    return check_state(Comparison(reference, found, Tolerance(reference, slices=Slices(2, replicas=parts))))


def _mean(_before: Array, values: list[Array]) -> Array:
    return np.asarray(np.mean(values, axis=0))


def _sum(before: Array, values: list[Array]) -> Array:
    return np.asarray(before + np.sum([value - before for value in values], axis=0))


def _first(_before: Array, values: list[Array]) -> Array:
    return values[0]


@pytest.mark.parametrize(
    ("aggregation", "apart", "combined"),
    [("sum", (0.5, 0.25), _sum), ("mean", (0.0, -0.5), _mean), ("only_first_replica", (0.5, -0.6), _first)],
    ids=["no sum", "a largest value", "of the first"],
)
def test_what_the_parts_give_is_a_finding_if_one_device_has_something_else(
    aggregation: str, apart: tuple[float, float], combined: Callable[[Array, list[Array]], Array]
) -> None:
    (finding,) = _of_parts(aggregation, apart, combined).findings
    assert (finding.cause, finding.exact, finding.follows) == ("state-not-aggregated", True, False)


def test_a_state_that_is_combined_as_the_weights_are_follows_from_them() -> None:
    (finding,) = _of_parts("mean", (0.5, 0.3), _mean, weights_of="the strategy").findings
    assert (finding.cause, finding.follows) == (None, True)


@pytest.mark.parametrize("aggregation", ["none", "sum", "mean", "only_first_replica"])
def test_a_mean_of_the_replicas_means_is_an_approximation_however_it_is_declared(aggregation: str) -> None:
    """Replicas may divide their means by the number of replicas and add them up, or reduce them before they assign."""
    (finding,) = _of_parts(aggregation, (5.0, -6.0), _mean).findings
    assert (finding.cause, finding.approximation, finding.exact) == ("mean-of-replica-means", True, True)
    (other,) = _of_parts(aggregation, (5.0, -5.0), _first).findings
    assert not other.approximation


def test_states_of_generators_are_not_compared() -> None:
    def apart(replica: int, _step: int, value: Array) -> Array:
        return value + replica

    for name in ("dropout/seed_generator/seed_generator_state", "StateVar"):
        assert checked_pair(apart, name=name).outcome is Outcome.NOT_APPLICABLE
        reference, distributed = pair(Program(replicas=2))
        report = judge(reference, with_state(distributed, apart, name=name))
        assert report.passed, str(report)


def test_state_that_follows_from_wrong_weights_is_no_finding_of_its_own() -> None:
    reference, distributed = pair(Program(replicas=2), scale=2.0)
    report = judge(reference, with_state(distributed, lambda _r, _s, value: value + 0.1))
    assert [finding.cause for finding in report.findings] == ["gradient-scaled-by-replica-count"]


def test_wrong_state_does_not_explain_wrong_weights() -> None:
    reference, distributed = pair(Program(replicas=2), worker_shift_at=2)
    report = judge(reference, with_state(distributed, lambda replica, _s, value: value + replica))
    assert [finding.cause for finding in report.findings] == ["state-not-aggregated", "replicas-diverged"]


def _without(record: TrainingRecord, *kinds: VariableKind) -> TrainingRecord:
    def kept(variables: tuple[VariableRecord, ...]) -> tuple[VariableRecord, ...]:
        return tuple(variable for variable in variables if variable.kind not in kinds)

    return replace(record, ranks=tuple(replace(rank, variables=kept(rank.variables)) for rank in record.ranks))


OPTIMIZER = (VariableKind.ITERATIONS, VariableKind.LEARNING_RATE, VariableKind.SLOT)


@pytest.mark.parametrize("kinds", [OPTIMIZER, (VariableKind.SLOT,)])
@pytest.mark.parametrize("reference_only", [True, False])
def test_an_optimizer_that_is_watched_on_one_side_only_fails(
    kinds: tuple[VariableKind, ...], reference_only: bool
) -> None:
    reference, distributed = pair(Program(replicas=2, momentum=0.9))
    if reference_only:
        distributed = _without(distributed, *kinds)
    else:
        reference = _without(reference, *kinds)
    result = check_optimizer_state(Comparison(reference, distributed, Tolerance(reference)))
    assert result.outcome is Outcome.FAIL
    assert "different variables are watched" in result.findings[0].message
    assert "slot" in result.findings[0].message
    assert judge(reference, distributed).verdict == "fail"


def test_state_that_is_watched_on_one_side_only_fails() -> None:
    reference, distributed = pair(Program(replicas=2))
    result = checked(reference, _without(distributed, VariableKind.STATE))
    assert result.outcome is Outcome.FAIL
    assert "state" in result.findings[0].message


def test_an_optimizer_that_one_worker_does_not_watch_fails() -> None:
    reference, distributed = pair(Program(replicas=2, workers=2, momentum=0.9))
    first, second = distributed.ranks
    alone = _without(replace(distributed, ranks=(second,)), *OPTIMIZER).ranks[0]
    result = check_optimizer_state(
        Comparison(reference, replace(distributed, ranks=(first, alone)), Tolerance(reference))
    )
    assert (result.outcome, result.findings[0].worker) == (Outcome.FAIL, 1)


@pytest.mark.parametrize(
    ("name", "factor"), [("loss_scale", 3.0), ("Variable", 2.0)], ids=["by name", "by its changes"]
)
def test_loss_scale_of_each_replica(name: str, factor: float) -> None:
    reference, distributed = pair(TWO)

    def scale(replica: int, step: int, value: Array) -> Array:
        return np.asarray(8.0 * factor ** (replica * step), value.dtype)

    changed = with_state(distributed, scale, name=name, shape=())
    changed = replace(
        changed, ranks=tuple(replace(r, initial={**r.initial, STATE: (np.float64(8),) * 2}) for r in changed.ranks)
    )
    same = with_state(reference, lambda _replica, _step, value: np.asarray(8.0, value.dtype), shape=())
    same = replace(same, ranks=tuple(replace(r, initial={**r.initial, STATE: (np.float64(8),)}) for r in same.ranks))
    assert [f.cause for f in checked(same, changed).findings] == ["loss-scale-not-synchronised"]


def test_state_that_differs_for_another_reason_is_not_excused() -> None:
    """Replicas agree on a wrong value: a declared lack of aggregation does not explain that."""
    expect = {"state-not-aggregated": "Keras does not aggregate moving statistics"}
    reference, distributed = pair(TWO)
    apart = with_state(distributed, lambda replica, _step, value: value + (1 - 2 * replica))
    assert judge(reference, apart, expect=expect).passed
    alike = with_state(distributed, lambda _replica, _step, value: value + 0.5)
    report = judge(reference, alike, expect=expect)
    assert report.verdict == "inconclusive"
    (reason,) = report.inconclusive
    assert reason.startswith("STATE-EQ: state-not-aggregated is declared, and nothing shows that ema/average differs")
