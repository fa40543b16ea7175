"""A sweep strikes at the points of a restore in a second attempt, which must exist again each time."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pytest_ddl.faults.rank.fault import KINDS, Effect, Fault, Point
from pytest_ddl.faults.rank.point_log import Reached
from pytest_ddl.faults.sweep import Injector
from pytest_ddl.faults.tasks import Tasks


@pytest.mark.parametrize("kind", sorted(name for name, kind in KINDS.items() if not kind.only_in))
def test_restores_follow_only_what_interrupts_each_time(kind):
    restore = Point("before", "restore", 1)
    # A reset connection has interrupted this run, as it may or may not.
    run = SimpleNamespace(
        attempts=[SimpleNamespace(points=()), SimpleNamespace(points=((Reached(restore, 0.0),), ()))],
        last=SimpleNamespace(failed=False),
    )
    schedule = (Fault(kind, "worker:1", Point("in", "step", 3, "collective", 2)),)
    injector = SimpleNamespace(tasks=Tasks(("worker:0", "worker:1")), _restores={})
    Injector._keep_restores(injector, schedule, run)
    surely = KINDS[kind].effect in (Effect.ENDS, Effect.RAISES)
    assert injector._restores == ({"worker:0": (schedule, [restore])} if surely else {})
