"""Concurrent closures: one device is given what they consumed, and state that they add to ends at the sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from pytest_ddl.equivalence.causes import CAUSES
from pytest_ddl.equivalence.evidence.replica_calls import are_equal, strange_examples
from pytest_ddl.equivalence.probes import one_by_one
from pytest_ddl.equivalence.probes.one_by_one import first_difference
from pytest_ddl.equivalence.runs.alignment import align
from pytest_ddl.equivalence.runs.sums import with_sums
from pytest_ddl.equivalence.verdict.judge import judge
from pytest_ddl.equivalence.verdict.report import Report
from pytest_ddl.records import GradientRecord, GradientStage, RankRecord, StepRecord, TrainingRecord, VariableRecord
from pytest_ddl.records import VariableKind as Kind
from pytest_ddl.run_facts import Call
from pytest_ddl.strategies.spec import Capabilities
from pytest_ddl.training.execute import as_one_step
from pytest_ddl.training.settings import RunSettings

DATA = np.random.default_rng(4).normal(size=(24, 3))
ORDER = np.arange(24)
SHUFFLED = np.random.default_rng(5).permutation(24)
SETTINGS = RunSettings(global_batch_size=4, precision="float64", one_by_one=True, keep_calls=True, whole=True)
VARIABLES = (
    VariableRecord(0, "weight", Kind.TRAINABLE, (3,), "float64"),
    VariableRecord(1, "examples_seen", Kind.STATE, (), "float64"),
    VariableRecord(2, "average", Kind.STATE, (3,), "float64"),
    VariableRecord(3, "sum_of_losses", Kind.STATE, (), "float64"),
)


def batches(order: np.ndarray, data: np.ndarray = DATA) -> tuple[Call, ...]:
    return tuple((part, part.sum(axis=1)) for part in np.split(data[order], 6))


@dataclass(frozen=True)
class Closures:
    """Program of linear regression that adds to a number, keeps a moving average, and sums its losses."""

    own: tuple[Call, ...]
    factor: float = 1.0
    """Factor of its gradients."""
    lost: int = 0
    """Number of changes of ``examples_seen`` that it loses."""
    hidden: bool = False
    """True if its replica function is not given the batch."""

    def run(self, settings: RunSettings, asynchronous: bool = False) -> TrainingRecord:
        given = self.own if settings.feed is None else settings.feed.calls
        weight, seen, average, losses = np.zeros(3), 0.0, np.zeros(3), 0.0
        gradients = []
        for number, (x, y) in enumerate(given):
            errors = x @ weight - y
            gradient = self.factor * 2 * x.T @ errors / len(x)
            gradients.append(GradientRecord(0, GradientStage.COMPUTED, number, {0: gradient}))
            weight = weight - (0.0 if settings.still else 0.05) * gradient
            average = 0.9 * average + 0.1 * x.mean(axis=0)
            losses += float(np.mean(errors**2))
            seen += len(x) if number >= self.lost else 0
        initial = {0: (np.zeros(3),), 1: (np.asarray(0.0),), 2: (np.zeros(3),), 3: (np.asarray(0.0),)}
        final = {0: (weight,), 1: (np.asarray(seen),), 2: (average,), 3: (np.asarray(losses),)}
        facts = {"own_schedule": True, "scheduled": len(given), "workers": 2} if asynchronous else {}
        if not self.hidden:
            facts["calls"] = given
        step = StepRecord(1, None, snapshot=final, gradients=tuple(gradients))
        rank = RankRecord(0, "chief:0", (0,), VARIABLES, initial, (step,), {}, asynchronous=asynchronous, facts=facts)
        capabilities = Capabilities(coordinator=True)
        return TrainingRecord("parameter_server", 1, (rank,), 4, "float64", 0, capabilities=capabilities)

    reference = distributed = anew = run


def one_at_a_time(closures: Closures, device: Closures) -> Report:
    runs = align(device.run(SETTINGS), closures.run(SETTINGS), SETTINGS, device)
    names = ("RUN", "STEP-EQ", "STATE-EQ")
    return runs.explained(judge(runs.reference, runs.distributed, checks=names))


def concurrent(closures: Closures, device: Closures) -> Report:
    report = judge(device.run(SETTINGS), closures.run(SETTINGS, asynchronous=True))
    return with_sums(report, SETTINGS, device)


@pytest.mark.parametrize("order", [ORDER, SHUFFLED])
def test_one_device_is_given_the_batches_of_the_closures(order: np.ndarray) -> None:
    report = one_at_a_time(Closures(batches(order)), Closures(batches(ORDER)))
    assert report.passed, str(report)


@pytest.mark.parametrize("factor", [-1.0, 1.2, 2.0])
@pytest.mark.parametrize("order", [ORDER, SHUFFLED])
def test_other_gradients_are_found_in_any_order(order: np.ndarray, factor: float) -> None:
    report = one_at_a_time(Closures(batches(order), factor), Closures(batches(ORDER)))
    assert report.findings[0].check == "STEP-EQ"
    assert report.reference is not None
    assert report.distributed is not None
    shown = first_difference(report.reference, report.distributed)
    assert shown is not None
    assert f"computes {factor:.3g} x the gradients of one device" in shown


def test_a_batch_that_is_not_observed_is_decided_only_by_equal_numbers() -> None:
    right = one_at_a_time(Closures(batches(ORDER), hidden=True), Closures(batches(ORDER), hidden=True))
    assert right.passed, str(right)
    for other in (Closures(batches(SHUFFLED), hidden=True), Closures(batches(ORDER), factor=1.2, hidden=True)):
        report = one_at_a_time(other, Closures(batches(ORDER), hidden=True))
        assert report.verdict == "inconclusive"
        assert "the examples were not observed" in str(report.inconclusive)


def test_examples_that_one_device_never_consumes_are_not_fed() -> None:
    report = one_at_a_time(Closures(batches(SHUFFLED, 0.5 * DATA)), Closures(batches(ORDER)))
    assert report.verdict == "inconclusive"
    assert "24 of 24 examples" in str(report.inconclusive)


def test_another_number_of_calls_decides_nothing() -> None:
    report = one_at_a_time(Closures(batches(SHUFFLED)[:5]), Closures(batches(ORDER)))
    assert report.verdict == "inconclusive"
    assert "called 5 times, and on one device 6 times" in str(report.inconclusive)


def test_a_part_of_the_data_may_be_another_part() -> None:
    whole = batches(SHUFFLED)
    assert strange_examples(batches(ORDER)[:4], whole[:4]) is None
    # One device has consumed an example twice, so it has seen all.
    assert strange_examples((*batches(ORDER)[:4], batches(ORDER)[0]), whole) is not None
    assert strange_examples((*batches(ORDER), batches(ORDER)[0]), whole) is None
    assert not are_equal(whole, batches(ORDER))


@pytest.mark.parametrize(("one_device", "shuffled"), [(ORDER, ORDER), (ORDER, SHUFFLED), (SHUFFLED, ORDER)])
@pytest.mark.parametrize("readers", [1, 2])
def test_examples_that_closures_never_consume_are_missed(
    one_device: np.ndarray, shuffled: np.ndarray, readers: int
) -> None:
    passes = 3 * batches(one_device)
    half = batches(shuffled)[:3]
    reason = strange_examples(passes, 6 * half, readers)
    assert reason is not None
    assert "6 times that one device consumed 3 times, and 12 of 24 examples never" in reason
    # Two workers that read all data may begin a fourth pass, one of them while the other still is in its second.
    assert (strange_examples(passes, (*2 * batches(shuffled), *2 * half), readers) is None) is (readers == 2)
    assert strange_examples(passes, 3 * batches(shuffled), readers) is None


def test_an_example_that_one_device_draws_again_may_be_drawn_again() -> None:
    drawn = [np.random.default_rng(seed).integers(0, 24, 144) for seed in (6, 7)]
    ours, theirs = (tuple((DATA[part], DATA[part].sum(axis=1)) for part in np.split(all_of, 36)) for all_of in drawn)
    assert strange_examples(ours, theirs) is None
    assert strange_examples(6 * batches(ORDER), theirs) is not None


def test_an_example_with_another_target_is_no_other_example() -> None:
    ours, theirs = batches(ORDER)[:4], [*batches(SHUFFLED)[:4]]
    x, y = theirs[1]
    theirs[1] = x, np.roll(y, 1)
    assert strange_examples(ours, theirs) is not None
    # Labels of a few classes do not identify examples.
    classes = [tuple((x, (y > 0).astype(int)) for x, y in part) for part in (ours, batches(SHUFFLED)[:4])]
    assert strange_examples(*classes) is None


@pytest.mark.parametrize(("lost", "cause"), [(0, None), (2, "lost-update")])
def test_state_that_closures_add_to_ends_at_the_sum(lost: int, cause: str | None) -> None:
    """The moving average and the sum of losses depend on the order, so that their values decide nothing."""
    report = concurrent(Closures(batches(SHUFFLED), lost=lost), Closures(batches(ORDER)))
    found = [(finding.check, finding.cause, finding.variable) for finding in report.findings]
    assert found == ([("PS", cause, "examples_seen")] if cause else []), str(report)
    assert cause is None or cause in CAUSES


def test_sums_of_batches_that_are_not_observed_are_in_doubt() -> None:
    report = concurrent(Closures(batches(SHUFFLED), hidden=True), Closures(batches(ORDER), hidden=True))
    assert report.verdict == "inconclusive"
    assert "it is not known whether changes were lost" in str(report.inconclusive)


def test_equal_batches_do_not_show_what_is_a_sum() -> None:
    """The sum of losses would be equal in any order, and depends on the weights."""
    same = batches(ORDER)[:1] * 6
    closures = Closures(same)
    reference, distributed = closures.run(SETTINGS), closures.run(SETTINGS, asynchronous=True)
    (rank,) = distributed.ranks
    stale = {**rank.steps[0].snapshot, 3: (rank.steps[0].snapshot[3][0] * 1.1,)}
    rank = replace(rank, steps=(replace(rank.steps[0], snapshot=stale),))
    report = with_sums(judge(reference, replace(distributed, ranks=(rank,))), SETTINGS, closures)
    assert not report.findings


def answered(again: Report) -> Report:
    """Return the report of the probe, whose repeated comparison gives a report."""
    closures, device = Closures(batches(SHUFFLED)), Closures(batches(ORDER))
    plain = judge(device.run(SETTINGS), closures.run(SETTINGS, asynchronous=True))
    plain = replace(plain, doubts=(), results=tuple(replace(result, findings=()) for result in plain.results))
    assert one_by_one.wanted(plain, ())

    def compare_once(_settings: RunSettings, _checks: Sequence[str] | None, _runs: int = 1) -> Report:
        return again

    return one_by_one.probe(plain, SETTINGS, compare_once)


def test_what_the_repeated_run_leaves_open_is_a_doubt() -> None:
    assert answered(one_at_a_time(Closures(batches(SHUFFLED)), Closures(batches(ORDER)))).verdict == "pass"
    wrong = answered(one_at_a_time(Closures(batches(SHUFFLED), 1.2), Closures(batches(ORDER))))
    assert [finding.check for finding in wrong.findings] == ["PS"]
    assert "same learning rate" in (wrong.findings[0].fix or "")
    for other in (Closures(batches(SHUFFLED)[:5]), Closures(batches(SHUFFLED, 0.5 * DATA))):
        assert answered(one_at_a_time(other, Closures(batches(ORDER)))).verdict == "inconclusive"


def test_a_whole_run_is_one_step() -> None:
    record = Closures(batches(ORDER)).run(SETTINGS).ranks[0]
    (step,) = record.steps
    late = replace(step, index=3, gradients=step.gradients[:1])
    before = replace(step, snapshot=record.initial, loss=1.0)
    several = replace(record, steps=(before, replace(step, index=2)), final={0: (np.ones(3),)}, facts={"late": late})
    (whole,) = as_one_step(several).steps
    assert (whole.index, whole.loss) == (1, None)
    assert np.array_equal(whole.snapshot[0][0], np.ones(3))
    assert np.array_equal(whole.snapshot[1][0], step.snapshot[1][0])
    assert [gradient.call for gradient in whole.gradients] == list(range(13))
