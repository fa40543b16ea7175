"""LIVENESS: what ranks wait for is named from their logs, whether they hang or TensorFlow raises."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simulated_training import Program, pair

from pytest_ddl.equivalence.checks.liveness import check_liveness
from pytest_ddl.equivalence.checks.run import check_run
from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.evidence.tolerance import Tolerance
from pytest_ddl.equivalence.findings import Outcome
from pytest_ddl.equivalence.runs.watchdog import all_wait
from pytest_ddl.equivalence.verdict.judge import judge
from pytest_ddl.messages import summary
from pytest_ddl.records import CollectiveRecord, ErrorRecord, RankRecord, TrainingRecord
from pytest_ddl.training.collective_log import DECISION

IN_TENSORFLOW = (
    "Thread 0x1 (most recent call first):\n"
    '  File "/site-packages/tensorflow/python/eager/execute.py", line 53 in quick_execute\n'
    '  File "/home/me/train.py", line 12 in train\n'
)


def executed(where="train.py:10", shape=(41,), step=0, group=1):
    return CollectiveRecord("all_reduce", "SUM", shape, "float32", where, group=group, step=step)


def run(*ranks):
    """Each rank: its log, and the type and message of its error, or None."""
    made = tuple(
        RankRecord(
            number,
            f"worker:{number}",
            (number,),
            collectives=tuple(log),
            error=None if error is None else ErrorRecord(error[0], error[1], IN_TENSORFLOW, 3),
        )
        for number, (log, error) in enumerate(ranks)
    )
    return TrainingRecord("multi_worker_mirrored", len(made), made, 12, "float64", 0)


FINE = run(([], None))
STEPS = [executed(step=step) for step in range(3)]
STUCK = ("stuck", "waits")


def finding(check, record):
    result = check(Comparison(FINE, record, Tolerance(FINE, ())))
    assert result.outcome is Outcome.FAIL
    return result.findings[0]


@pytest.mark.parametrize("check", [check_run, check_liveness])
def test_a_collective_of_one_rank_is_why_it_hangs(check):
    record = run(([*STEPS, executed("train.py:20", step=3)], STUCK), (STEPS, None))
    found = finding(check, record)
    assert (found.cause, found.symptom, found.worker, found.step) == ("rank-conditional-collective", "hang", 0, 4)
    assert "train.py:20" in found.message


def test_equal_logs_leave_a_branch_of_the_graph():
    found = finding(check_run, run((STEPS, ("deadline", "")), (STEPS, None)))
    assert found.cause == "rank-conditional-collective"
    assert "tf.cond" in found.message


def test_all_in_the_same_collective_is_a_deadline():
    found = finding(check_run, run((STEPS, ("deadline", "")), (STEPS, ("deadline", ""))))
    assert (found.cause, found.symptom) == ("deadline-exceeded", "hang")


def test_a_rank_that_is_merely_slower_is_not_blamed():
    found = finding(check_run, run(([*STEPS, executed(step=3)], ("deadline", "")), (STEPS, ("deadline", ""))))
    assert found.cause == "deadline-exceeded"


def test_what_tensorflow_says_about_collectives_is_named_by_the_logs():
    error = ("InternalError", "Collective ops is aborted by: Collective instance 111 expected type 0 …")
    record = run(([executed("train.py:20", ()), *STEPS], error), (STEPS, ("stopped", "")))
    found = finding(check_run, record)
    assert (found.cause, found.symptom) == ("rank-conditional-collective", "crash")


def test_shapes_that_only_the_graph_knows():
    error = ("InvalidArgumentError", "Collective ops is aborted by: Shape mismatch in the collective instance 109.")
    assert finding(check_run, run((STEPS, error), (STEPS, None))).cause == "collective-shape-mismatch"


OF_A_PEER = (
    "Collective ops is aborted by: Shape mismatch in the collective instance 104. Op at device /task:1 expected shape "
    "[21] but another member in the group expected shape [15].\n"
    "Additional GRPC error information from remote target /task:0 while calling /tensorflow.WorkerService/Complete:\n"
    ':UNKNOWN:Error received from peer  {grpc_message:"Shape mismatch in the collective instance 104.", grpc_status:3}'
    "\nThe error could be from a previous operation. Restart your program to reset.\n\t [[{{node CollectiveReduce}}]]"
)


def test_shapes_that_another_rank_reports():
    error = ("InvalidArgumentError", OF_A_PEER)
    found = finding(check_run, run((STEPS, ("stopped", "")), (STEPS, error)))
    assert found.cause == "collective-shape-mismatch"
    assert "Shape mismatch in the collective" in summary(*error)
    assert "could be from a previous operation" not in summary(*error)


def test_replicas_of_one_process():
    error = ("RuntimeError", "Some replicas made a different number of replica_context().merge_call() calls.")
    assert finding(check_run, run(([], error))).cause == "rank-conditional-collective"


@pytest.mark.parametrize(
    "error",
    [
        ("ValueError", "my own"),
        ("UnavailableError", "Collective ops is aborted by: Connection reset by peer"),
    ],
)
def test_other_errors_stay_what_they_are(error):
    assert finding(check_run, run((STEPS, error), (STEPS, None))).cause == "worker-raised"


def decided(kind, group):
    return CollectiveRecord(DECISION, kind, None, "", "", group=group, step=2)


def test_workers_that_decide_differently_about_their_gradients_wait_for_each_other():
    logs = [[*STEPS, decided("finite", -2)], [*STEPS, decided("not finite", -1)]]
    assert all_wait(logs, [])
    found = finding(check_run, run(*((log, STUCK) for log in logs)))
    assert (found.cause, found.symptom, found.step) == ("non-finite-not-synchronised", "hang", 3)
    assert found.fix.code


def test_workers_that_decide_alike_are_merely_slow():
    logs = [[*STEPS, decided("finite", -2)]] * 2
    assert not all_wait(logs, [])
    assert finding(check_run, run(*((log, ("deadline", "")) for log in logs))).cause == "deadline-exceeded"


def test_an_error_of_its_own_explains_why_the_others_wait():
    found = finding(check_run, run(([*STEPS, executed(step=3)], STUCK), (STEPS, ("ValueError", "mine"))))
    assert found.cause == "worker-raised"


def test_ranks_that_end_pass():
    assert (
        check_liveness(Comparison(FINE, run((STEPS, None), (STEPS, None)), Tolerance(FINE, ()))).outcome is Outcome.PASS
    )


A, B = executed(), executed(group=2)


@pytest.mark.parametrize(
    ("logs", "answered", "stuck"),
    [
        ([[A, A], [A]], [1], True),
        ([[A, A], [A]], [], False),  # the second may still come
        ([[A], [A]], [1], False),  # the first may be computing
        ([[A, A], [A, B]], [], True),  # each waits in a group of its own
        ([[A, A], [A], [A, A]], [1], True),
        ([[A, A], [A], [A]], [1], False),  # the third is on its way
        ([[A], [A]], [0, 1], False),
    ],
)
def test_ranks_that_wait_for_ever(logs, answered, stuck):
    assert all_wait(logs, answered) is stuck


def test_a_rank_that_was_stopped_does_not_lack_a_call_of_watch() -> None:
    reference, distributed = pair(Program(replicas=2, workers=2))
    error = ErrorRecord("deadline", "deadline exceeded", "", 1)
    ranks = tuple(RankRecord(rank.rank, rank.task, rank.replicas, error=error) for rank in distributed.ranks)
    text = " ".join(str(judge(reference, replace(distributed, ranks=ranks))).split())
    assert "no variable was watched" not in text
    assert "call run.watch" not in text
