"""Faults and points are texts that can be read back, and each kind has its strike."""

from __future__ import annotations

import pytest

from pytest_ddl.faults.rank.fault import KINDS, Fault, FaultError, Point
from pytest_ddl.faults.rank.striking import DISTURBANCES, STRIKES

POINTS = [
    Point("before", "training"),
    Point("before", "step", 3),
    Point("in", "step", 3, "batch", 0),
    Point("in", "step", 3, "collective", 2),
    Point("in", "save", 1, "write", 12),
    Point("in", "writing", 2, "write", 1),
    Point("in", "save", 1, "file", 2),
    Point("after", "restore", 1),
    Point("after", "training"),
]


@pytest.mark.parametrize("point", POINTS, ids=str)
def test_a_point_is_read_from_its_text(point):
    assert Point.parse(str(point)) == point


@pytest.mark.parametrize("kind", [name for name, kind in KINDS.items() if not kind.only_in])
@pytest.mark.parametrize("attempt", [1, 2])
def test_a_fault_is_read_from_its_text(kind, attempt):
    seconds = 0.5 if KINDS[kind].seconds else None
    fault = Fault(kind, "worker:1", Point("in", "step", 3, "collective", 2), attempt, seconds)
    assert Fault.parse(str(fault)) == fault


def test_each_kind_has_a_strike_or_belongs_to_a_write():
    assert {name for name, kind in KINDS.items() if not kind.only_in} == {*STRIKES, *DISTURBANCES}
    assert {name for name, kind in KINDS.items() if kind.network} == set(DISTURBANCES)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("kill worker:1", "is not a fault: write KIND TASK POINT"),
        ("kil worker:1 before step 3", "there is no fault 'kil' (did you mean 'kill'?)"),
        ("kill worker:1 before stop 3", "there is no phase 'stop' (did you mean 'step'?)"),
        ("kill worker:1 before step", "the phase 'step' needs a number, from 1"),
        ("kill worker:1 before step 0", "there is no step 0, because they are counted from 1"),
        ("kill worker:1 in step 3, collective 0", "there is no collective 0, because they are counted from 1"),
        ("kill worker:1 before training 2", "the phase 'training' has no number"),
        ("kill worker:1 in step 3", "'in' needs an event in the step and its number (batch, collective, write, file)"),
        ("kill worker:1 in step 3, reduction 1", "'in' needs an event in the step and its number"),
        ("kill worker:1 before step 3, collective 1", "'in' needs an event in the step and its number"),
        ("io-error worker:1 before step 3", "io-error strikes only at a write"),
        ("truncate worker:1 after save 1", "truncate strikes only at a file, for example 'in save 1, file 2'"),
        ("kill worker:1 before step 3 for 2 s", "the fault 'kill' has no duration"),
        ("stop worker:1 before step 3 for 0 s", "needs a duration above 0"),
        ("kill worker:1 before step 3 of attempt 0", "attempt=0 is not an attempt"),
    ],
)
def test_a_wrong_text_is_refused_in_one_line(text, told):
    with pytest.raises(FaultError) as caught:
        Fault.parse(text)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)
