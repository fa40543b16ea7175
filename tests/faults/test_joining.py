"""A program that continues is located by its values, and its verdict is about the values and examples of its end."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from simulated_training import Program, simulate

from pytest_ddl.equivalence.runs.program import Attempt
from pytest_ddl.equivalence.runs.resuming import joined
from pytest_ddl.equivalence.verdict.judge import judge
from pytest_ddl.faults.judging import judge_trial
from pytest_ddl.faults.rank.fault import Fault, Point
from pytest_ddl.faults.rank.point_log import Reached
from pytest_ddl.faults.report import Limits
from pytest_ddl.faults.trials import TrialAttempt, TrialRun
from pytest_ddl.faults.verdict import RecoveryVerdict, Trial
from pytest_ddl.records import ErrorRecord, RankRecord, VariableKind, VariableRecord
from pytest_ddl.strategies.spec import StrategySpec
from pytest_ddl.training.lineage import ResumedPlace, lineage_of, place_of
from pytest_ddl.training.settings import RunSettings

PROGRAM = Program(replicas=2, momentum=0.9, batches=(4, 4, 4, 4))
REFERENCE = simulate(replace(PROGRAM, replicas=1))
BASELINE = simulate(PROGRAM)
(RANK,) = BASELINE.ranks
DIED = ErrorRecord("died", "was ended by SIGKILL", "", 3)


def attempt(rank, done):
    points = tuple(Reached(Point("after", "step", number), 0.0) for number in range(1, done + 1))
    spec = StrategySpec("mirrored", {"replicas": 2})
    return TrialAttempt(Attempt([rank], [], 2, time.monotonic()), (points,), spec, RunSettings())


def verdict(last, baseline=BASELINE, done=3):
    first = attempt(replace(baseline.ranks[0], error=DIED), done)
    run = TrialRun((), (first, attempt(last, len(last.steps))), 0.0)
    plain = TrialRun((), (attempt(baseline.ranks[0], 4),), 0.0)
    return judge_trial(run, plain, baseline, partial(judge, REFERENCE, repeated=True))


def continued(after, **given):
    """A last attempt that has restored the values after a step."""
    values = RANK.steps[after - 1].snapshot if after else RANK.initial
    steps = tuple(replace(step, index=place) for place, step in enumerate(RANK.steps[after:], 1))
    return replace(RANK, **{"steps": steps, "resumed": {after: values}, "facts": {"no_loop": False}, **given})


def changed(values, kinds, by=1.0):
    concerned = {item.index for item in RANK.variables if item.kind in kinds}
    return {at: tuple(part + by for part in parts) if at in concerned else parts for at, parts in values.items()}


WEIGHTS = (VariableKind.TRAINABLE,)


@pytest.mark.parametrize("after", range(5))
def test_a_program_that_restores_is_exact(after):
    trial = verdict(continued(after))
    assert (trial.verdict, trial.resumed_at, trial.work_lost) == (RecoveryVerdict.EXACT, after, max(0, 3 - after))


def test_values_that_were_restored_within_the_loop_count():
    # The loop began with new variables, and restored with its first batch.
    late = continued(2, resumed={0: RANK.initial})
    assert (verdict(late).verdict, verdict(late).resumed_at) == (RecoveryVerdict.EXACT, 2)
    lazy = continued(2, resumed={0: {}})
    assert (verdict(lazy).verdict, verdict(lazy).resumed_at) == (RecoveryVerdict.EXACT, 2)


def test_steps_that_a_later_restore_replaced_do_not_count():
    warmed = continued(2, steps=(RANK.steps[0], *RANK.steps[2:]), resumed={0: RANK.initial})
    trial = verdict(warmed)
    assert (trial.verdict, trial.resumed_at) == (RecoveryVerdict.EXACT, 2)
    place = place_of(warmed, lineage_of(RANK))
    assert (place.start, place.replaced, place.late) == (1, 1, True)


def test_a_restore_after_the_last_step_replaces_all_steps():
    # The steps of the last attempt only create the variables.
    end = RANK.steps[3].snapshot
    warmed = continued(0, steps=RANK.steps[:1], final=end)
    trial = verdict(warmed, done=4)
    assert (trial.verdict, trial.resumed_at) == (RecoveryVerdict.EXACT, 4)
    assert verdict(replace(warmed, final={}), done=4).verdict is RecoveryVerdict.LOST


def test_steps_that_change_no_weight_are_told_apart_by_the_end():
    still = [replace(step, snapshot={**step.snapshot, **_weights(RANK.initial)}) for step in RANK.steps[:1]]
    without = [item.index for item in RANK.variables if item.kind is not VariableKind.TRAINABLE]
    steps = tuple(replace(step, snapshot=_without(step.snapshot, without)) for step in (*still, *RANK.steps[1:]))
    kept = tuple(item for item in RANK.variables if item.index not in without)
    rank = replace(RANK, variables=kept, steps=steps, initial=_without(RANK.initial, without))
    baseline = replace(BASELINE, ranks=(rank,))
    trial = verdict(replace(rank, resumed={0: rank.initial}), baseline)
    assert (trial.verdict, trial.resumed_at) == (RecoveryVerdict.EXACT, 0)


def _weights(values):
    trainable = {item.index for item in RANK.variables if item.kind is VariableKind.TRAINABLE}
    return {index: parts for index, parts in values.items() if index in trainable}


def _without(values, indices):
    return {index: parts for index, parts in values.items() if index not in indices}


def test_wrong_values_of_a_program_with_no_steps_left_are_seen():
    wrong = changed(RANK.steps[3].snapshot, WEIGHTS)
    trial = verdict(continued(4, resumed={4: wrong}), done=4)
    assert trial.verdict is RecoveryVerdict.DIVERGED, trial
    assert trial.finding.cause == "resume-lost-state"
    lost = changed(RANK.steps[3].snapshot, (VariableKind.SLOT,))
    assert verdict(continued(4, resumed={4: lost}), done=4).verdict is RecoveryVerdict.DIVERGED


def test_an_attempt_that_restores_nothing_and_trains_nothing_is_undecided():
    silent = continued(4, resumed={0: RANK.initial}, facts={"no_loop": True})
    assert verdict(silent, done=4).verdict is RecoveryVerdict.UNDECIDED
    assert verdict(replace(silent, resumed={}), done=4).verdict is RecoveryVerdict.UNDECIDED
    unbuilt = replace(silent, resumed={0: {}}, facts={"no_loop": False})
    assert verdict(unbuilt, done=4).verdict is RecoveryVerdict.UNDECIDED
    assert verdict(continued(4, facts={"no_loop": True}), done=4).verdict is RecoveryVerdict.EXACT
    # A loop that begins with new weights and the last batch behind it has lost all steps.
    assert verdict(replace(silent, facts={"no_loop": False}), done=4).verdict is RecoveryVerdict.LOST


def test_weights_of_no_step_are_not_counted_as_steps():
    wrong = continued(2, resumed={0: changed(RANK.steps[1].snapshot, WEIGHTS, 0.01)})
    wrong = replace(
        wrong, steps=tuple(replace(step, snapshot=changed(step.snapshot, WEIGHTS, 0.01)) for step in wrong.steps)
    )
    trial = verdict(wrong)
    assert (trial.verdict, trial.steps) == (RecoveryVerdict.DIVERGED, 0)
    assert trial.finding.cause == "resume-lost-state"


def test_equal_bits_are_not_exact_if_no_example_was_observed():
    ranks = tuple(replace(r, steps=tuple(replace(s, batches=()) for s in r.steps)) for r in BASELINE.ranks)
    unseen = replace(BASELINE, ranks=ranks)
    last = continued(2, steps=tuple(replace(s, batches=()) for s in continued(2).steps))
    trial = verdict(last, unseen)
    assert trial.verdict is RecoveryVerdict.EQUAL
    assert "which examples were trained on was not observed" in trial.notes


def test_equal_bits_are_not_exact_if_other_numbers_were_reported():
    def told(rank, number):
        return replace(rank, steps=tuple(replace(s, values={"mean": number}) for s in rank.steps))

    baseline = replace(BASELINE, ranks=(told(RANK, 1.0),))
    assert verdict(told(continued(2), 1.0), baseline).verdict is RecoveryVerdict.EXACT
    assert verdict(told(continued(2), 2.0), baseline).verdict is not RecoveryVerdict.EXACT


def returning(rank, step, number):
    """A rank that has reported a number outside of a loop, after a step."""
    return replace(rank, results={"value": {"total": number}}, result_steps={"value": step})


@pytest.mark.parametrize(("number", "exact"), [(5.0, True), (3.0, False)])
def test_equal_bits_are_not_exact_if_another_result_was_returned_at_the_end(number, exact):
    baseline = replace(BASELINE, ranks=(returning(RANK, 4, 5.0),))
    trial = verdict(returning(continued(2), 4, number), baseline)
    assert (trial.verdict is RecoveryVerdict.EXACT) is exact


@pytest.mark.parametrize(("step", "exact"), [(0, True), (2, False)])
def test_a_result_before_the_loop_belongs_to_the_step_that_was_restored(step, exact):
    """The last attempt has restored step 2, and reports a number before its loop shows this."""
    baseline = replace(BASELINE, ranks=(returning(RANK, step, 5.0),))
    trial = verdict(returning(continued(2), 0, 3.0), baseline)
    assert (trial.verdict is RecoveryVerdict.EXACT) is exact


def test_examples_with_other_contents_are_not_said_to_come_twice():
    steps = continued(2).steps
    other = replace(
        steps[0],
        batches=tuple(
            replace(b, example_ids=tuple(f"other {name}" for name in b.example_ids)) for b in steps[0].batches
        ),
    )
    trial = verdict(continued(2, steps=(other, *steps[1:])))
    # The bits are those of the uninterrupted run, but not the examples.
    assert trial.verdict is RecoveryVerdict.EXAMPLES
    assert "0 examples trained on twice, 4 examples never, and 4 examples that the uninterrupted run does not have" in (
        trial.message
    )


def test_variables_of_the_same_name_keep_their_models():
    def variable(index, name, kind=VariableKind.TRAINABLE):
        return VariableRecord(index, name, kind, shape=(), dtype="float64")

    def rank(*variables, **values):
        parts = {int(at[1:]): (np.array(value),) for at, value in values.items()}
        return RankRecord(0, "worker:0", (0,), variables=variables, resumed={0: parts})

    first = rank(variable(0, "w"), variable(1, "w"), variable(2, "m", VariableKind.SLOT))
    second = rank(variable(0, "w"), variable(1, "m", VariableKind.SLOT), variable(2, "w"), v0=1.0, v1=2.0, v2=3.0)
    found = joined(first, second, 0).resumed[0]
    assert {index: float(parts[0]) for index, parts in found.items()} == {0: 1.0, 2: 2.0, 1: 3.0}


def test_a_place_is_not_moved_by_values_that_are_expected():
    known = ((0, frozenset({"ta"})), (1, frozenset({"ta"})), (2, frozenset({"tb"})))
    place = ResumedPlace(known)
    place.see(0, frozenset({"ta"}))
    assert (place.start, place.starts) == (1, {0, 1})
    place.see(1, frozenset({"tb"}))
    assert (place.start, place.replaced) == (1, 0)
    place.see(2, frozenset({"tz"}))
    assert place.start == 1


@pytest.mark.parametrize("limits", [{"max_lost_steps": 3}, {"always_loadable": True}])
def test_a_limit_of_a_run_that_continued_at_an_unknown_step_is_broken(limits):
    trial = Trial((Fault.parse("kill worker:0 before step 1"),), RecoveryVerdict.EQUAL, attempts=2)
    assert "it is not known where the run continued" in Limits(**limits).broken_by(trial)


def test_slots_that_a_new_optimizer_makes_in_its_first_step_are_named():
    slots = {item.index for item in RANK.variables if item.kind is VariableKind.SLOT}
    resumed = changed(RANK.steps[1].snapshot, (VariableKind.ITERATIONS,), by=-2)
    late = continued(2, resumed={2: {index: parts for index, parts in resumed.items() if index not in slots}})
    wrong = [changed(step.snapshot, (VariableKind.SLOT, *WEIGHTS), by=0.01) for step in late.steps]
    later = [
        replace(step, snapshot=changed(values, (VariableKind.ITERATIONS,), by=-2))
        for step, values in zip(late.steps, wrong, strict=True)
    ]
    trial = verdict(replace(late, steps=tuple(later)))
    assert (trial.verdict, trial.finding.cause) == (RecoveryVerdict.DIVERGED, "resume-lost-state")
    assert "the optimizer begins anew, without optimizer/momentum_0, optimizer/momentum_1" in trial.message
