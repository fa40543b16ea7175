"""Faults strike the servers of a coordinator: a lost worker costs at most its closure, a lost server a restart."""

from __future__ import annotations

from functools import partial

import pytest
import recovery_programs as programs

from pytest_ddl import Sweep, check_training
from pytest_ddl.equivalence.runs.question import ArgumentError
from pytest_ddl.faults.report import Limits
from pytest_ddl.faults.verdict import RecoveryVerdict
from pytest_ddl.hints import FrontEnd

pytestmark = pytest.mark.slow

GIVEN = {"global_batch_size": programs.BATCH, "timeout": 120}
SERVERS = "parameter_server[processes=separate]"


def sweep_of(*points, tasks=("worker:0", "worker:1"), kind="kill"):
    return Sweep(kind, points=points, tasks=tasks, writes=False)


# Each strikes at many points. Each commit runs one sweep.
# The test of the command strikes at every point, too.
@pytest.mark.nightly
def test_a_worker_that_is_lost_between_steps_costs_nothing():
    report = check_training(programs.checkpointed, SERVERS, faults=sweep_of("before step 4"), exact=True, **GIVEN)
    assert report.passed, str(report)
    assert [trial.attempts for trial in report.trials] == [1, 1]


def test_a_worker_that_is_lost_in_a_step_costs_its_closure_at_most():
    report = check_training(programs.checkpointed, SERVERS, faults=sweep_of("in step 6, batch 0"), **GIVEN)
    assert report.passed, str(report)
    # The coordinator chooses the worker that runs the closure, in each trial anew. The other is lost without a cost.
    assert {trial.verdict for trial in report.trials} <= {RecoveryVerdict.EXACT, RecoveryVerdict.RETRIED}
    for trial in report.trials:
        _costs_its_closure_at_most(trial, 1)


def test_workers_that_are_all_lost_in_a_step_cost_its_closure():
    faults = ["kill worker:0 in step 6, batch 0", "kill worker:1 in step 6, batch 0"]
    report = check_training(programs.checkpointed, SERVERS, faults=faults, **GIVEN)
    assert report.passed, str(report)
    (trial,) = report.trials
    assert trial.verdict is RecoveryVerdict.RETRIED
    _costs_its_closure_at_most(trial, 2)


def _costs_its_closure_at_most(trial, lost):
    if trial.verdict is RecoveryVerdict.EXACT:
        return
    assert (trial.steps, trial.never, trial.attempts) == (1, programs.BATCH, 1)
    closures = "1 closure" if lost == 1 else f"{lost} closures"
    assert f"retried: lost 1 step, 12 examples never; {closures} in flight may cost" in trial.message
    assert FrontEnd.TEST.render(Limits(exact=True).broken_by(trial)) == "exact=True, and the run is only retried"


@pytest.mark.nightly
def test_a_parameter_server_that_is_lost_costs_a_restart():
    faults = sweep_of("in step 4, batch 0", tasks=["ps:0"])
    report = check_training(programs.checkpointed, SERVERS, faults=faults, exact=True, **GIVEN)
    assert report.passed, str(report)
    (trial,) = report.trials
    assert (trial.attempts, trial.work_lost) == (2, 1)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["term", "abort", "stop"])
def test_signals_reach_a_server(kind):
    report = check_training(
        programs.checkpointed, SERVERS, faults=sweep_of("after step 3", tasks=["worker:1"], kind=kind), **GIVEN
    )
    assert report.passed, str(report)
    assert report.trials[0].verdict is RecoveryVerdict.EXACT


@pytest.mark.nightly
def test_two_workers_are_lost_at_once():
    faults = ["kill worker:0 before step 2", "kill worker:1 before step 2"]
    report = check_training(programs.checkpointed, SERVERS, faults=faults, exact=True, **GIVEN)
    assert report.passed, str(report)
    assert report.trials[0].notes == ()


@pytest.mark.nightly(each_commit=("worker:0",))
@pytest.mark.parametrize("task", ["worker:0", "chief:0", "ps:0"])
def test_closures_that_run_concurrently_are_counted(task):
    faults = sweep_of("in training, batch 5", tasks=[task])
    report = check_training(programs.concurrent, SERVERS, faults=faults, **GIVEN)
    assert report.passed, str(report)
    # The order of the closures decides the bits, and chance can give it the order of the uninterrupted run.
    assert report.trials[0].verdict in (RecoveryVerdict.EXACT, RecoveryVerdict.EQUAL, RecoveryVerdict.RETRIED)


@pytest.mark.nightly
def test_a_save_of_concurrent_steps_may_be_interrupted_at_any_of_its_writes():
    faults = Sweep("kill", phases=["save"], tasks=["chief:0"])
    report = check_training(programs.concurrent, SERVERS, faults=faults, **GIVEN)
    assert report.passed, str(report)


@pytest.mark.nightly
def test_closures_that_are_scheduled_again_after_a_restart_are_too_many():
    program = partial(programs.concurrent, sin="counts again")
    report = check_training(program, SERVERS, faults="kill chief:0 in training, batch 5", **GIVEN)
    assert not report.passed
    (trial,) = report.trials
    assert (trial.verdict, trial.steps) == (RecoveryVerdict.REPLAYED, 3), str(report)
    assert "done counts 9 updates, 6 without the interruption" in trial.message


@pytest.mark.nightly(each_commit=("forgets the optimizer",))
@pytest.mark.parametrize("sin", ["forgets the weights", "forgets the optimizer"])
def test_the_right_number_of_updates_is_not_enough(sin):
    program = partial(programs.concurrent, sin=sin)
    report = check_training(program, SERVERS, faults="kill chief:0 in training, batch 5", **GIVEN)
    assert not report.passed
    (trial,) = report.trials
    assert trial.verdict is RecoveryVerdict.DIVERGED, str(report)
    assert "that no save has" in trial.message


@pytest.mark.nightly(each_commit=("parameter_server",))
@pytest.mark.parametrize(
    ("strategy", "told"),
    [
        (SERVERS, "a server runs no program, so it gets only kill, term, abort, stop"),
        ("parameter_server", "the servers have processes of their own with [processes=separate]"),
    ],
)
def test_a_fault_that_a_server_cannot_get_is_refused_before_anything_runs(strategy, told):
    with pytest.raises(ArgumentError, match=r"^faults: ") as caught:
        check_training(_never_runs, strategy, faults="exception worker:0 before step 2", **GIVEN)
    assert told in str(caught.value)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"faults": Sweep(tasks=["worker:7"])}, "faults: task='worker:7' does not exist; tasks: worker:0"),
        ({"faults": "every point", "restart_on": "miror"}, "restart_on='miror': "),
    ],
)
def test_a_wrong_argument_is_refused_before_anything_runs(given, told):
    with pytest.raises(ArgumentError) as caught:
        check_training(_never_runs, "mirrored", **given, **GIVEN)
    assert told in str(caught.value)


def _never_runs(run):
    raise AssertionError("it ran")
