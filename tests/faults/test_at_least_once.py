"""A lost worker explains only what follows from its closure, and a restart only the values of a save."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from test_joining import BASELINE, RANK, REFERENCE, WEIGHTS, attempt, changed

from pytest_ddl.cluster.cluster import Answer, Fate
from pytest_ddl.equivalence.findings import Finding
from pytest_ddl.equivalence.verdict.judge import judge
from pytest_ddl.faults.at_least_once import judge_with_retries
from pytest_ddl.faults.rank.fault import Fault, Point
from pytest_ddl.faults.rank.observer import FaultPlan
from pytest_ddl.faults.rank.point_log import Reached
from pytest_ddl.faults.trials import TrialRun
from pytest_ddl.faults.verdict import RecoveryVerdict
from pytest_ddl.records import ErrorRecord
from pytest_ddl.training.lineage import digests

*_, LAST = RANK.steps
MOVED = replace(RANK, steps=(*RANK.steps[:-1], replace(LAST, snapshot=changed(LAST.snapshot, WEIGHTS))))


class Judged:
    """A report with these findings, and nothing else."""

    def __init__(self, findings=(), inconclusive=()):
        self.findings, self.inconclusive = list(findings), list(inconclusive)
        self.results, self.expectations, self.passed = [], {}, not findings and not inconclusive
        self.excused, self.known, self.tolerance = (), (), None


def of_a_lost_worker(last, judged, baseline=BASELINE):
    """The verdict of a run whose server ``worker:1`` was killed, and that went on without a restart."""
    fault = Fault("kill", "worker:1", Point("before", "step", 2))
    plan = FaultPlan(servers=("worker:0", "worker:1"), faults=(fault,))
    struck = (Reached(fault.point, 0.0, fault),)
    of_run = replace(attempt(last, 0), plan=plan, points=(struck,), ends={str(fault): -9})
    of_run = replace(of_run, attempt=replace(of_run.attempt, answers=[Answer(0, "chief:0", Fate.REPLIED)]))
    plain = replace(attempt(baseline.ranks[0], 4), plan=plan)
    run = TrialRun((fault,), (of_run,), 0.0)
    return judge_with_retries(run, TrialRun((), (plain,), 0.0), baseline, REFERENCE, judged)


def test_what_no_check_could_decide_is_not_said_to_be_retried():
    assert (
        of_a_lost_worker(MOVED, lambda _record: Judged(inconclusive=["nothing"])).verdict is RecoveryVerdict.UNDECIDED
    )


@pytest.mark.parametrize(
    ("check", "cause"), [("STEP-EQ", None), ("LOSS-EQ", "reported-loss-wrong"), ("OPT-STATE", "unequal-steps")]
)
def test_a_lost_worker_explains_no_other_difference(check, cause):
    finding = Finding(check, "something differs", cause=cause, error=1.0)
    trial = of_a_lost_worker(MOVED, lambda record: Judged([finding] if record.ranks[0] is MOVED else []))
    assert trial.verdict is RecoveryVerdict.DIVERGED
    assert "something differs" in trial.message


CONCURRENT = replace(BASELINE, ranks=(replace(RANK, asynchronous=True),))


def taken_together(taken):
    """The uninterrupted run, whose last two steps ran concurrently, with these batches."""
    *before, third, last = RANK.steps
    steps = (*before, replace(third, batches=()), replace(last, batches=taken))
    return replace(RANK, asynchronous=True, steps=steps)


@pytest.mark.parametrize(("times", "expected"), [(1, RecoveryVerdict.RETRIED), (2, RecoveryVerdict.EXAMPLES)])
def test_a_lost_worker_costs_the_batch_that_its_closure_had_taken(times, expected):
    *_, third, last = RANK.steps
    rank = taken_together((*third.batches, *last.batches, *(last.batches * times)))
    trial = of_a_lost_worker(rank, partial(judge, REFERENCE, checks=["BATCH"]), CONCURRENT)
    assert (trial.verdict, trial.twice) == (expected, 4 * times), trial.message


SAVED = RANK.steps[1].snapshot


MOVING = None
"""State of a save while steps went on."""


def state_of(values):
    return digests((variable, values) for variable in RANK.variables)


def after_a_restart(resumed, *states, begun=None, **last):
    """The verdict of a program with concurrent steps whose first attempt saved these states.

    :param begun: state in which it began a save that its fault ended.
    """
    saves = tuple(
        Reached(Point("after", "save", number), 0.0, state=state, moving=state is None)
        for number, state in enumerate(states, 1)
    )
    if begun is not None:
        number = len(states) + 1
        reached = Reached(Point("before", "save", number), 0.0, state=begun)
        saves += (reached, Reached(Point("in", "save", number, "write", 3), 0.0))
    first = attempt(replace(RANK, error=ErrorRecord("died", "was ended by SIGKILL", "", 3)), 0)
    first = replace(first, points=(saves,))
    ended = replace(RANK, **{"asynchronous": True, "steps": (LAST,), "resumed": {0: resumed}, **last})
    run = TrialRun((), (first, attempt(ended, 1)), 0.0)
    plain = TrialRun((), (attempt(RANK, 4),), 0.0)
    return judge_with_retries(run, plain, CONCURRENT, REFERENCE, lambda _record: Judged())


def test_a_program_that_continues_with_a_save_has_its_updates():
    assert after_a_restart(SAVED, state_of(SAVED)).verdict is RecoveryVerdict.EQUAL


def test_a_program_that_saved_nothing_may_begin_again():
    assert after_a_restart(RANK.initial).verdict is RecoveryVerdict.EQUAL


@pytest.mark.parametrize(
    ("resumed", "expected"),
    [
        (LAST.snapshot, RecoveryVerdict.EQUAL),
        (changed(LAST.snapshot, WEIGHTS), RecoveryVerdict.DIVERGED),
        (RANK.initial, RecoveryVerdict.UNDECIDED),
        ({}, RecoveryVerdict.UNDECIDED),
    ],
)
def test_a_program_that_finds_all_steps_done_ends_with_what_it_restored(resumed, expected):
    trial = after_a_restart(resumed, state_of(LAST.snapshot), steps=(), final={}, facts={"no_loop": True})
    assert trial.verdict is expected, trial.message


def test_values_that_no_save_has_are_named():
    trial = after_a_restart(changed(SAVED, WEIGHTS), state_of(SAVED))
    assert trial.verdict is RecoveryVerdict.DIVERGED
    assert "that no save has" in trial.message


def test_a_save_while_steps_go_on_decides_nothing():
    trial = after_a_restart(changed(SAVED, WEIGHTS), state_of(RANK.initial), MOVING)
    assert trial.verdict is RecoveryVerdict.UNDECIDED
    assert "steps went on during a save" in trial.message


def test_a_save_that_a_fault_ended_may_be_complete():
    assert after_a_restart(SAVED, begun=state_of(SAVED)).verdict is RecoveryVerdict.EQUAL
    trial = after_a_restart(changed(SAVED, WEIGHTS), begun=state_of(SAVED))
    assert trial.verdict is RecoveryVerdict.UNDECIDED
    assert "an attempt ended during a save" in trial.message


def test_values_that_appear_late_decide_nothing():
    weights = {item.index: SAVED[item.index] for item in RANK.variables if item.kind in WEIGHTS}
    assert after_a_restart(weights, state_of(SAVED)).verdict is RecoveryVerdict.UNDECIDED


def test_a_lower_count_of_keras_decides_nothing():
    trial = after_a_restart(SAVED, state_of(SAVED), steps=RANK.steps[2:3])
    assert trial.verdict is RecoveryVerdict.UNDECIDED
    assert "Keras counts them" in trial.message
