"""The network of a task is delayed, reset or cut: a right program gives the same result, and a mistake is caught."""

from __future__ import annotations

from functools import partial

import pytest
import recovery_programs as programs

from pytest_ddl import Sweep, check_training
from pytest_ddl.equivalence.runs.question import ArgumentError
from pytest_ddl.faults.verdict import RecoveryVerdict

pytestmark = pytest.mark.slow

GIVEN = {"global_batch_size": programs.BATCH, "timeout": 120}
WORKERS = "multi_worker_mirrored"
SERVERS = "parameter_server[processes=separate]"
PARTITION = "net-partition worker:1 in step 6, collective 1"


# Each commit runs a reset under each strategy, and the restart after a partition.
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("strategy", "faults"),
    [
        (WORKERS, "net-delay worker:0 before step 3"),
        (WORKERS, "net-partition worker:1 before step 3 for 1 s"),
        (SERVERS, "net-delay chief:0 before step 3"),
        (SERVERS, "net-partition ps:0 before step 3 for 1 s"),
    ],
    ids=str,
)
def test_a_short_disturbance_changes_nothing(strategy, faults):
    report = check_training(programs.checkpointed, strategy, faults=faults, exact=True, **GIVEN)
    assert report.passed, str(report)
    assert {(trial.verdict, trial.attempts) for trial in report.trials} == {(RecoveryVerdict.EXACT, 1)}


@pytest.mark.nightly(each_commit=("parameter_server[processes=separate]",))
@pytest.mark.parametrize(
    ("strategy", "faults"),
    [
        (WORKERS, "net-reset worker:1 in step 4, collective 1"),
        (SERVERS, "net-reset worker:1 in step 4, batch 0"),
    ],
)
def test_a_reset_costs_a_restart_at_most(strategy, faults):
    # TensorFlow connects again, and raises only if it waits for an answer on one of the connections.
    report = check_training(programs.checkpointed, strategy, faults=faults, max_lost_steps=2, **GIVEN)
    assert report.passed, str(report)
    (trial,) = report.trials
    assert trial.attempts <= 2


@pytest.mark.nightly
def test_a_long_partition_costs_a_restart():
    report = check_training(programs.checkpointed, WORKERS, faults=PARTITION, exact=True, max_lost_steps=2, **GIVEN)
    assert report.passed, str(report)
    (trial,) = report.trials
    assert (trial.verdict, trial.attempts, trial.work_lost) == (RecoveryVerdict.EXACT, 2, 1)
    assert trial.detected is not None


@pytest.mark.nightly
def test_a_mistake_in_the_recovery_from_a_partition_is_caught():
    program = partial(programs.checkpointed, sin="forgets the step")
    report = check_training(program, WORKERS, faults=PARTITION, **GIVEN)
    assert not report.passed
    assert report.trials[0].verdict is RecoveryVerdict.REPLAYED, str(report)


@pytest.mark.nightly
@pytest.mark.parametrize("faults", ["net-reset worker:0 before step 3", Sweep("net-partition")])
def test_a_fault_of_the_network_is_refused_where_there_is_none(faults):
    with pytest.raises(ArgumentError, match="no connections between processes of their own"):
        check_training(programs.checkpointed, "mirrored", faults=faults, **GIVEN)
