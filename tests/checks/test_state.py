"""STATE-EQ on records: state is compared as declared, and its own defects are distinguished from consequences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from simulated_training import Program, pair

from pytest_ddl.equivalence.causes import fix_of
from pytest_ddl.equivalence.causes.special import SPECIAL
from pytest_ddl.equivalence.checks.optimizer_state import check_optimizer_state
from pytest_ddl.equivalence.checks.replica_equality import check_replica_equality
from pytest_ddl.equivalence.checks.state import check_state
from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.evidence.slices import Slices
from pytest_ddl.equivalence.evidence.tolerance import Tolerance
from pytest_ddl.equivalence.findings import CheckResult, Outcome
from pytest_ddl.equivalence.verdict.judge import judge
from pytest_ddl.records import Array, LayerRecord, RankRecord, TrainingRecord, VariableKind, VariableRecord

STATE = 3
"""Index of the simulator's ``ema/average``."""
Change = Callable[[int, int, Array], Array]


def _changed(record: TrainingRecord, change: Change, **fields: object) -> TrainingRecord:
    """The record with another value of the state on each replica after each step, and another declaration."""

    def of(rank: RankRecord) -> RankRecord:
        steps = tuple(
            replace(
                step,
                snapshot={
                    **step.snapshot,
                    STATE: tuple(
                        change(replica, step.index, value)
                        for replica, value in zip(rank.replicas, step.snapshot[STATE], strict=True)
                    ),
                },
            )
            for step in rank.steps
        )
        variables = tuple(replace(v, **fields) if v.index == STATE else v for v in rank.variables)
        return replace(rank, steps=steps, variables=variables)

    return replace(record, ranks=tuple(map(of, record.ranks)))


def _state(reference: TrainingRecord, distributed: TrainingRecord) -> CheckResult:
    return check_state(Comparison(reference, distributed, Tolerance(reference)))


TWO = Program(replicas=2)


def _both(change: Change, program: Program = TWO, **fields: object) -> CheckResult:
    reference, distributed = pair(program)
    return _state(reference, _changed(distributed, change, **fields))


def test_state_of_one_device_passes() -> None:
    result = _state(*pair(Program(replicas=2)))
    assert result.outcome is Outcome.PASS
    assert "1 variable(s)" in result.reason


def test_copies_that_go_apart_are_named_with_their_mean() -> None:
    result = _both(lambda replica, _step, value: value + (1 - 2 * replica))
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
    assert _both(change, **declared).outcome is Outcome.PASS
    wrong = _both(lambda replica, step, value: change(replica, step, value) + 0.5, **declared)
    assert [finding.cause for finding in wrong.findings] == ["state-not-aggregated"]
    assert f"read as {aggregation}" in wrong.findings[0].message


def test_state_that_declares_no_reduction_is_local_by_declaration() -> None:
    result = _both(lambda replica, _step, value: value + replica, synchronization="on_read")
    assert result.outcome is Outcome.NOT_APPLICABLE


def test_a_state_that_is_not_finite_is_a_finding() -> None:
    assert _both(lambda _replica, _step, value: value * np.nan).outcome is Outcome.FAIL


def test_a_counter_that_counts_replicas_is_named() -> None:
    def counting(per_step: int) -> Change:
        return lambda _replica, step, _value: np.asarray(per_step * step, np.int64)

    reference, distributed = pair(Program(replicas=2))
    given = {"dtype": "int64", "shape": ()}
    ours, theirs = _changed(reference, counting(1), **given), _changed(distributed, counting(2), **given)
    result = _state(ours, theirs)
    assert [finding.cause for finding in result.findings] == ["iteration-count-wrong"]
    assert "by 2 per step" in (result.findings[0].evidence or "")


def test_statistics_of_a_layer_that_is_not_synchronized_are_attributed_to_it() -> None:
    program = Program(replicas=2, layers=(LayerRecord("ema", "BatchNormalization", {"synchronized": False}),))
    result = _both(lambda _replica, _step, value: value + 0.1, program)
    assert [finding.cause for finding in result.findings] == ["per-replica-normalization"]
    assert not result.findings[0].exact


def test_the_declared_mean_over_an_uneven_batch_is_an_approximation() -> None:
    program = Program(replicas=2, batches=(12, 11, 12))
    result = _both(lambda _r, step, value: value + (step > 1), program, synchronization="on_read", aggregation="mean")
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
        return _changed(base, lambda _r, step, _value: desired[step] + (shift if step == 2 else 0.0))

    parts = {replica: part(shift) for replica, shift in enumerate(apart)}
    values = [np.asarray(run.value(STATE, 2)) for run in parts.values()]
    found = _changed(
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
        assert _both(apart, name=name).outcome is Outcome.NOT_APPLICABLE
        reference, distributed = pair(Program(replicas=2))
        report = judge(reference, _changed(distributed, apart, name=name))
        assert report.passed, str(report)


def test_state_that_follows_from_wrong_weights_is_no_finding_of_its_own() -> None:
    reference, distributed = pair(Program(replicas=2), scale=2.0)
    report = judge(reference, _changed(distributed, lambda _r, _s, value: value + 0.1))
    assert [finding.cause for finding in report.findings] == ["gradient-scaled-by-replica-count"]


def test_wrong_state_does_not_explain_wrong_weights() -> None:
    reference, distributed = pair(Program(replicas=2), worker_shift_at=2)
    report = judge(reference, _changed(distributed, lambda replica, _s, value: value + replica))
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
    result = _state(reference, _without(distributed, VariableKind.STATE))
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

    changed = _changed(distributed, scale, name=name, shape=())
    changed = replace(
        changed, ranks=tuple(replace(r, initial={**r.initial, STATE: (np.float64(8),) * 2}) for r in changed.ranks)
    )
    same = _changed(reference, lambda _replica, _step, value: np.asarray(8.0, value.dtype), shape=())
    same = replace(same, ranks=tuple(replace(r, initial={**r.initial, STATE: (np.float64(8),)}) for r in same.ranks))
    assert [f.cause for f in _state(same, changed).findings] == ["loss-scale-not-synchronised"]


def test_state_that_differs_for_another_reason_is_not_excused() -> None:
    """Replicas agree on a wrong value: a declared lack of aggregation does not explain that."""
    expect = {"state-not-aggregated": "Keras does not aggregate moving statistics"}
    reference, distributed = pair(TWO)
    apart = _changed(distributed, lambda replica, _step, value: value + (1 - 2 * replica))
    assert judge(reference, apart, expect=expect).passed
    alike = _changed(distributed, lambda _replica, _step, value: value + 0.5)
    report = judge(reference, alike, expect=expect)
    assert report.verdict == "inconclusive"
    (reason,) = report.inconclusive
    assert reason.startswith("STATE-EQ: state-not-aggregated is declared, and nothing shows that ema/average differs")


def test_shares_of_a_sum_that_are_averaged_have_a_fix_of_their_own() -> None:
    reference, distributed = pair(TWO)

    def share(_replica: int, step: int, _value: Array) -> Array:
        first, now = (np.asarray(reference.value(STATE, at)) for at in (0, step))
        return np.asarray(first + (now - first) / 2)

    for declared in ({"synchronization": "on_read"}, {}):
        (finding,) = _state(reference, _changed(distributed, share, aggregation="mean", **declared)).findings
        assert (finding.cause, finding.exact) == ("state-not-aggregated", True)
        assert "VariableAggregation.SUM" in (finding.fix or "")


@pytest.mark.parametrize(
    ("parts", "exact", "named"),
    [
        ({1: (0.5, 0.5), 2: (0.5, 0.5), 3: (0.75, 0.25), 4: (0.5, 0.5)}, True, True),
        # Equal parts may be a value that is halved, and a report says so.
        (dict.fromkeys(range(1, 5), (0.5, 0.5)), False, True),
        ({1: (0.5, 0.5), 2: (0.5, 0.5), 3: (0.75, 0.5), 4: (0.5, 0.5)}, False, False),
    ],
    ids=["apart in step 3", "alike", "too much in step 3"],
)
def test_shares_that_each_replica_adds_for_itself_are_advised_to_be_added_up(
    parts: dict[int, tuple[float, float]], exact: bool, named: bool
) -> None:
    reference, distributed = pair(TWO)

    def added(replica: int, step: int, _value: Array) -> Array:
        values = [np.asarray(reference.value(STATE, at)) for at in range(step + 1)]
        changes = [(new - old) * parts[at][replica] for at, (old, new) in enumerate(pairwise(values), start=1)]
        return np.asarray(values[0] + sum(changes))

    comparison = Comparison(reference, _changed(distributed, added), Tolerance(reference))
    (finding, *_) = check_state(comparison).findings
    assert (finding.step, finding.cause, finding.exact) == (1, "state-not-aggregated", exact)
    assert (finding.fix == SPECIAL["averaged-shares"]) is named
    for apart in check_replica_equality(comparison).findings:
        assert apart.step == 3
        assert (apart.fix == SPECIAL["averaged-shares"]) is named


def test_parts_of_which_only_the_first_is_read_are_advised_to_be_added_up() -> None:
    def part(replica: int, _step: int, value: Array) -> Array:
        return value * (0.25 + 0.5 * replica)

    declared = {"synchronization": "on_read", "aggregation": "only_first_replica"}
    (finding,) = _both(part, **declared).findings
    assert (finding.cause, finding.exact) == ("state-not-aggregated", True)
    assert finding.fix == SPECIAL["parts-read-from-one"]
    (of_layer,) = _both(part, **declared, of_keras=True).findings
    (no_part,) = _both(lambda replica, step, value: part(replica, step, value) + 0.1 * step, **declared).findings
    assert SPECIAL["parts-read-from-one"] not in (of_layer.fix, no_part.fix)


def test_state_that_every_replica_adds_in_full() -> None:
    reference, distributed = pair(TWO)

    def doubled(_replica: int, step: int, _value: Array) -> Array:
        values = [np.asarray(reference.value(STATE, at)) for at in (0, step)]
        return np.asarray(values[0] + 2 * (values[1] - values[0]))

    (finding,) = _state(reference, _changed(distributed, doubled)).findings
    assert finding.cause == "state-scaled-by-replica-count"
    (other,) = _both(lambda _replica, step, value: value + 0.1 * step).findings
    assert other.cause != "state-scaled-by-replica-count"


def test_equal_values_that_an_assignment_adds_up_are_named() -> None:
    (finding,) = _both(lambda _replica, _step, value: 2 * value, aggregation="sum").findings
    assert (finding.cause, finding.exact) == ("state-scaled-by-replica-count", True)
    assert finding.fix == SPECIAL["summed-values"]
    (other,) = _both(lambda _replica, _step, value: 2 * value + 0.1, aggregation="sum").findings
    assert other.cause != "state-scaled-by-replica-count"


def _averaging(
    assigned: str, *, decay: float = 0.9, elements: int | None = None, **declared: object
) -> tuple[TrainingRecord, TrainingRecord]:
    """A running sum of shares that two replicas hold: ``decay * v + share``, and how the replicas combine it.

    ``assigned`` names what the replicas make of it: "own" values, or the "mean" or "sum" of them. All elements of the
    sum after the first ``elements`` stay zero.
    """
    reference, distributed = pair(TWO)
    shape = np.shape(reference.value(STATE, 1))
    shares = np.random.default_rng(1).normal(size=(2, 4, *shape))
    shares.reshape(2, 4, -1)[..., slice(elements, None) if elements else slice(0)] = 0.0
    ours, theirs = np.zeros(shape), np.zeros((2, *shape))
    found: list[list[Array]] = [[], [], []]
    for step in range(4):
        ours = decay * ours + shares[:, step].sum(0)
        # The first step is right, so that the old value is not zero when replicas go wrong.
        values = decay * theirs + shares[:, step] if step else np.stack([ours, ours])
        if step and assigned != "own":
            values = np.stack([values.mean(0) if assigned == "mean" else values.sum(0)] * 2)
        theirs = values
        for kept, value in zip(found, (ours, *theirs), strict=True):
            kept.append(value)
    return (
        _changed(reference, lambda _replica, step, _value: found[0][step - 1]),
        _changed(distributed, lambda replica, step, _value: found[1 + replica][step - 1], **declared),
    )


@pytest.mark.parametrize(
    ("assigned", "declared", "cause", "evidence"),
    [
        ("mean", {"aggregation": "mean"}, "state-not-aggregated", "aggregation=MEAN averages the shares"),
        ("own", {}, "state-not-aggregated", "the share of its own replica"),
        ("sum", {"aggregation": "sum"}, "state-scaled-by-replica-count", "aggregation=SUM adds the old value up too"),
    ],
)
def test_running_sums_of_shares_are_reduced_before_they_are_assigned(
    assigned: str, declared: dict[str, object], cause: str, evidence: str
) -> None:
    (finding,) = _state(*_averaging(assigned, **declared)).findings
    assert (finding.cause, finding.exact) == (cause, True)
    assert "0.9 times the old value" in (finding.evidence or "")
    assert evidence in (finding.evidence or "")
    assert finding.fix == SPECIAL["sum-of-old-values" if assigned == "sum" else "share-with-decay"]


def test_one_number_that_is_wrong_in_the_last_step_only_is_reported() -> None:
    reference, distributed = (
        replace(record, ranks=tuple(replace(rank, steps=rank.steps[:2]) for rank in record.ranks))
        for record in _averaging("own", elements=1)
    )
    (finding,) = _state(reference, distributed).findings
    assert finding.step == 2
    assert "times the old value" not in (finding.evidence or ""), "one number fits any factor"


def test_no_aggregation_is_advised_that_the_state_declares() -> None:
    for aggregation in ("mean", "sum", "only_first_replica"):
        result = _both(lambda _replica, step, value: value + 0.1 * step**2, aggregation=aggregation)
        (finding,) = result.findings
        assert not finding.exact
        assert "VariableAggregation" not in (finding.fix or "")


def test_copies_whose_mean_is_wrong_are_not_advised_to_declare_a_mean() -> None:
    (wrong,) = _both(lambda replica, step, value: value + step**2 * (1.0 + replica)).findings
    assert "AGGREGATION.MEAN" not in (wrong.fix or "").upper()
    (right,) = _both(lambda replica, _step, value: value + (1 - 2 * replica)).findings
    assert right.fix == fix_of("state-not-aggregated")


@pytest.mark.parametrize("one_device_assigns", [True, False])
def test_a_copy_that_keeps_its_value_shows_a_condition(one_device_assigns: bool) -> None:
    """One device copies the bias into it in step 2, as into a target network. One replica does too, or only it does."""
    reference, distributed = pair(TWO)

    def copied(assigns: Callable[[int], bool]) -> Change:
        bias = np.asarray(reference.value(1, 2))
        return lambda replica, step, value: bias if step >= 2 and assigns(replica) else np.zeros_like(value)

    ours = _changed(reference, copied(lambda _replica: one_device_assigns))
    theirs = _changed(distributed, copied(lambda replica: replica == 1))
    report = judge(ours, theirs)
    (finding,) = report.findings
    assert finding.cause == "state-not-aggregated"
    assert "replica 1 changes it in step 2, and replica 0 keeps the old value" in (finding.evidence or "")
    assert (finding.fix or "").startswith("Look at the condition under which the program assigns it")
    assert judge(ours, _changed(distributed, copied(lambda _replica: one_device_assigns))).passed


def test_equal_copies_of_a_state_without_an_aggregation_are_not_called_unaggregated() -> None:
    reference, distributed = pair(TWO)
    report = judge(reference, _changed(distributed, lambda _replica, step, value: value + 0.1 * step**2))
    (finding,) = report.findings
    assert finding.cause is None
    assert "all copies are equal although it declares no aggregation" in (finding.evidence or "")
    assert finding.look_at[0] == "the condition under which the program assigns ema/average"
