"""How the replicas combined a state is found out from its values, and each way has a fix of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from simulated_state import STATE, TWO, Change, checked, checked_pair, with_state
from simulated_training import pair

from pytest_ddl.equivalence.causes import fix_of
from pytest_ddl.equivalence.causes.special import SPECIAL
from pytest_ddl.equivalence.checks.replica_equality import check_replica_equality
from pytest_ddl.equivalence.checks.state import check_state
from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.evidence.tolerance import Tolerance
from pytest_ddl.equivalence.verdict.judge import judge
from pytest_ddl.records import Array, TrainingRecord


def test_shares_of_a_sum_that_are_averaged_have_a_fix_of_their_own() -> None:
    reference, distributed = pair(TWO)

    def share(_replica: int, step: int, _value: Array) -> Array:
        first, now = (np.asarray(reference.value(STATE, at)) for at in (0, step))
        return np.asarray(first + (now - first) / 2)

    for declared in ({"synchronization": "on_read"}, {}):
        (finding,) = checked(reference, with_state(distributed, share, aggregation="mean", **declared)).findings
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

    comparison = Comparison(reference, with_state(distributed, added), Tolerance(reference))
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
    (finding,) = checked_pair(part, **declared).findings
    assert (finding.cause, finding.exact) == ("state-not-aggregated", True)
    assert finding.fix == SPECIAL["parts-read-from-one"]
    (of_layer,) = checked_pair(part, **declared, of_keras=True).findings
    (no_part,) = checked_pair(lambda replica, step, value: part(replica, step, value) + 0.1 * step, **declared).findings
    assert SPECIAL["parts-read-from-one"] not in (of_layer.fix, no_part.fix)


def test_state_that_every_replica_adds_in_full() -> None:
    reference, distributed = pair(TWO)

    def doubled(_replica: int, step: int, _value: Array) -> Array:
        values = [np.asarray(reference.value(STATE, at)) for at in (0, step)]
        return np.asarray(values[0] + 2 * (values[1] - values[0]))

    (finding,) = checked(reference, with_state(distributed, doubled)).findings
    assert finding.cause == "state-scaled-by-replica-count"
    (other,) = checked_pair(lambda _replica, step, value: value + 0.1 * step).findings
    assert other.cause != "state-scaled-by-replica-count"


def test_equal_values_that_an_assignment_adds_up_are_named() -> None:
    (finding,) = checked_pair(lambda _replica, _step, value: 2 * value, aggregation="sum").findings
    assert (finding.cause, finding.exact) == ("state-scaled-by-replica-count", True)
    assert finding.fix == SPECIAL["summed-values"]
    (other,) = checked_pair(lambda _replica, _step, value: 2 * value + 0.1, aggregation="sum").findings
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
        with_state(reference, lambda _replica, step, _value: found[0][step - 1]),
        with_state(distributed, lambda replica, step, _value: found[1 + replica][step - 1], **declared),
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
    (finding,) = checked(*_averaging(assigned, **declared)).findings
    assert (finding.cause, finding.exact) == (cause, True)
    assert "0.9 times the old value" in (finding.evidence or "")
    assert evidence in (finding.evidence or "")
    assert finding.fix == SPECIAL["sum-of-old-values" if assigned == "sum" else "share-with-decay"]


def test_one_number_that_is_wrong_in_the_last_step_only_is_reported() -> None:
    reference, distributed = (
        replace(record, ranks=tuple(replace(rank, steps=rank.steps[:2]) for rank in record.ranks))
        for record in _averaging("own", elements=1)
    )
    (finding,) = checked(reference, distributed).findings
    assert finding.step == 2
    assert "times the old value" not in (finding.evidence or ""), "one number fits any factor"


def test_no_aggregation_is_advised_that_the_state_declares() -> None:
    for aggregation in ("mean", "sum", "only_first_replica"):
        result = checked_pair(lambda _replica, step, value: value + 0.1 * step**2, aggregation=aggregation)
        (finding,) = result.findings
        assert not finding.exact
        assert "VariableAggregation" not in (finding.fix or "")


def test_copies_whose_mean_is_wrong_are_not_advised_to_declare_a_mean() -> None:
    (wrong,) = checked_pair(lambda replica, step, value: value + step**2 * (1.0 + replica)).findings
    assert "AGGREGATION.MEAN" not in (wrong.fix or "").upper()
    (right,) = checked_pair(lambda replica, _step, value: value + (1 - 2 * replica)).findings
    assert right.fix == fix_of("state-not-aggregated")


@pytest.mark.parametrize("one_device_assigns", [True, False])
def test_a_copy_that_keeps_its_value_shows_a_condition(one_device_assigns: bool) -> None:
    """One device copies the bias into it in step 2, as into a target network. One replica does too, or only it does."""
    reference, distributed = pair(TWO)

    def copied(assigns: Callable[[int], bool]) -> Change:
        bias = np.asarray(reference.value(1, 2))
        return lambda replica, step, value: bias if step >= 2 and assigns(replica) else np.zeros_like(value)

    ours = with_state(reference, copied(lambda _replica: one_device_assigns))
    theirs = with_state(distributed, copied(lambda replica: replica == 1))
    report = judge(ours, theirs)
    (finding,) = report.findings
    assert finding.cause == "state-not-aggregated"
    assert "replica 1 changes it in step 2, and replica 0 keeps the old value" in (finding.evidence or "")
    assert (finding.fix or "").startswith("Look at the condition under which the program assigns it")
    assert judge(ours, with_state(distributed, copied(lambda _replica: one_device_assigns))).passed


def test_equal_copies_of_a_state_without_an_aggregation_are_not_called_unaggregated() -> None:
    reference, distributed = pair(TWO)
    report = judge(reference, with_state(distributed, lambda _replica, step, value: value + 0.1 * step**2))
    (finding,) = report.findings
    assert finding.cause is None
    assert "all copies are equal although it declares no aggregation" in (finding.evidence or "")
    assert finding.look_at[0] == "the condition under which the program assigns ema/average"
