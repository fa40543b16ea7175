"""COLL-LOG and COLL-VALUE: logs of ranks that get out of step, and reductions that lose something."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from pytest_ddl.equivalence.causes import fix_of
from pytest_ddl.equivalence.checks.collective_log import check_collective_log, mismatch
from pytest_ddl.equivalence.checks.collective_value import check_collective_value
from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.evidence.tolerance import Tolerance
from pytest_ddl.equivalence.findings import Outcome
from pytest_ddl.records import CollectiveRecord, RankRecord, ReductionRecord, StepRecord, TrainingRecord

TRAIN, EVALUATE, SAVE = "train.py:10", "train.py:20", "train.py:30"


def reduced(where=TRAIN, shape=(41,), dtype="float32", step=0, kind="all_reduce", **more):
    return CollectiveRecord(kind, "SUM", shape, dtype, where, step=step, **more)


def run(*logs: Sequence[CollectiveRecord]) -> TrainingRecord:
    ranks = tuple(
        RankRecord(number, f"worker:{number}", (number,), collectives=tuple(log)) for number, log in enumerate(logs)
    )
    return TrainingRecord("multi_worker_mirrored", len(logs), ranks, 12, "float64", 0)


def judged(record):
    return check_collective_log(Comparison(record, record, Tolerance(record, ())))


STEPS = [reduced(step=step) for step in range(3)]


def test_equal_logs_pass_and_say_how_much_they_hold():
    result = judged(run(STEPS, STEPS, STEPS))
    assert (result.outcome, result.reason) == (Outcome.PASS, "3 collectives in the same order on 3 ranks")


@pytest.mark.parametrize("logs", [[STEPS], [[], []]])
def test_nothing_to_compare_is_no_pass(logs):
    assert judged(run(*logs)).outcome is Outcome.NOT_APPLICABLE


def test_ranks_may_save_from_different_lines():
    chief, other = [*STEPS, reduced(SAVE, ())], [*STEPS, reduced(EVALUATE, ())]
    assert mismatch(run(chief, other)) is None


def test_what_is_gathered_may_differ_in_size():
    assert mismatch(run([reduced(kind="all_gather", shape=(3, 4))], [reduced(kind="all_gather", shape=(5, 4))])) is None


def test_groups_are_counted_apart():
    host = reduced(shape=(), group=2)
    assert mismatch(run([host, *STEPS], [*STEPS, host])) is None


@pytest.mark.parametrize(
    ("chief", "other", "step"),
    [
        ([*STEPS, reduced(EVALUATE, (), step=3)], STEPS, 4),
        # Equal shapes meet unnoticed until the last has no partner.
        ([STEPS[0], reduced(EVALUATE, step=1), *STEPS[1:]], STEPS, 2),
        ([STEPS[0], reduced(EVALUATE, (), step=1)], STEPS[:2], 2),
        ([reduced(EVALUATE, ()), *STEPS], STEPS, 1),
    ],
)
def test_a_collective_of_one_rank_is_named_with_its_line(chief, other, step):
    for rank, logs in enumerate(((chief, other), (other, chief))):
        found = mismatch(run(*logs))
        assert found is not None
        assert (found.cause, found.rank, found.step) == ("rank-conditional-collective", rank, step)
        assert EVALUATE in found.message


def test_the_place_where_ranks_parted_is_said():
    """One rank leaves its second batch out and asks for the next one."""
    flag = reduced("train.py:5", (1, 1), "int64", step=1)
    found = mismatch(run([*STEPS[:1], flag], STEPS[:2]))
    assert (found.cause, found.rank) == ("rank-conditional-collective", 0)
    parted = "agree up to train.py:10 in step 1. Then rank 0 went on to train.py:5 and rank 1 went on to train.py:10"
    assert parted in found.message
    assert "if chief" not in fix_of(found.cause)


def test_a_further_step_is_no_condition():
    found = mismatch(run([*STEPS, reduced(step=3)], STEPS))
    assert found is not None
    assert (found.cause, found.step, found.rank) == ("unequal-steps", 4, 0)


def test_fewer_variables_in_one_call_is_a_condition():
    parts = ("8x4 float32", "4 float32", "4x1 float32")
    found = mismatch(run([reduced(parts=parts)], [reduced(shape=(40,), parts=parts[:2])]))
    assert found is not None
    assert found.cause == "rank-conditional-collective"
    assert "reduces 3 tensors" in found.message


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        ([reduced(shape=(32,)), reduced(shape=(4,))], [reduced(shape=(4,)), reduced(shape=(32,))]),
        ([reduced(TRAIN), reduced(EVALUATE)], [reduced(EVALUATE), reduced(TRAIN)]),
        ([reduced(names=("a",)), reduced(names=("b",))], [reduced(names=("b",)), reduced(names=("a",))]),
        ([reduced(names=("a", "b"))], [reduced(names=("b", "a"))]),
        ([reduced(parts=("32 float32", "4 float32"))], [reduced(parts=("4 float32", "32 float32"))]),
    ],
)
def test_another_order_is_named(mine, theirs):
    found = mismatch(run(mine, theirs))
    assert found is not None
    assert found.cause == "collective-order-mismatch"


@pytest.mark.parametrize("other", [reduced(shape=(42,)), reduced(dtype="int32")])
def test_another_shape_or_type_is_named(other):
    result = judged(run([reduced()], [other]))
    (finding,) = result.findings
    assert (finding.cause, finding.symptom, finding.step) == ("collective-shape-mismatch", "silent", 1)


# -- COLL-VALUE -----------------------------------------------------------------------------------


def reductions(given, received, op="SUM", reference=None):
    """Two replicas in one process that reduce once."""
    told = tuple(
        ReductionRecord(replica, 0, op, str(np.asarray(part).dtype), np.asarray(part), np.asarray(received))
        for replica, part in enumerate(given)
    )
    rank = RankRecord(0, "local", (0, 1), steps=(StepRecord(1, None, reductions=told),))
    record = TrainingRecord("mirrored", 2, (rank,), 12, "float64", 0)
    alone = () if reference is None else (ReductionRecord(0, 0, op, "float16", reference, reference),)
    one = TrainingRecord("one_device", 1, (replace(rank, steps=(StepRecord(1, None, reductions=alone),)),), 12, "", 0)
    return check_collective_value(Comparison(one, record, Tolerance(one, ())))


HALF = [np.float16(40000)] * 2


@pytest.mark.parametrize(
    ("given", "received", "op"),
    [
        ([np.float32(0.1), np.float32(0.2)], np.float32(0.1) + np.float32(0.2), "SUM"),
        ([np.float32(0.1), np.float32(0.2)], (np.float32(0.1) + np.float32(0.2)) / np.float32(2), "MEAN"),
        ([np.int64(2**62), np.int64(1)], np.int64(2**62 + 1), "SUM"),
        ([np.float16(np.inf), np.float16(1)], np.float16(np.inf), "SUM"),
    ],
)
def test_right_reductions_pass(given, received, op):
    assert reductions(given, received, op).outcome is Outcome.PASS


@pytest.mark.parametrize(
    ("given", "received", "cause"),
    [
        ([np.int8(100), np.int8(100)], np.int8(-56), "reduction-overflow"),
        (HALF, np.float16(np.inf), "reduction-overflow"),
        ([np.float32(1), np.float32(2)], np.float32(2), None),
        ([np.int32(1), np.int32(2)], np.int32(4), None),
    ],
)
def test_a_wrong_reduction_is_found(given, received, cause):
    result = reductions(given, received)
    (finding,) = result.findings
    assert (result.outcome, finding.cause, finding.step) == (Outcome.FAIL, cause, 1)
    assert finding.evidence


def test_what_overflows_on_one_device_too_is_not_the_strategys():
    assert reductions(HALF, np.float16(np.inf), reference=np.float16(np.inf)).outcome is Outcome.PASS


def test_no_reduction_is_no_pass():
    record = run([], [])
    assert check_collective_value(Comparison(record, record, Tolerance(record, ()))).outcome is Outcome.NOT_APPLICABLE
