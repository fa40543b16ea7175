"""Do what a platform does with a rank that was signaled: continue it after a stop, end it after a grace."""

from __future__ import annotations

import signal
import time
from collections.abc import Collection
from pathlib import Path

from pytest_ddl.cluster.cluster import Cluster
from pytest_ddl.equivalence.runs.program import MakeWatch, Stuck
from pytest_ddl.training import point_log
from pytest_ddl.training.settings import RunSettings

_LATER = {"stop": signal.SIGCONT, "term": signal.SIGKILL, "term-group": signal.SIGKILL}
"""Kind of fault -> signal that follows after its duration."""


def watching(settings: RunSettings) -> MakeWatch:
    """Return the function that makes the watch of one attempt for its cluster."""

    def make(cluster: Cluster, stuck: Stuck | None) -> Stuck:
        if settings.writes:
            cluster.retired = cluster.retired or "the system calls of its processes are filtered"
        if settings.faults:
            # A delay of one rank, or a handler of a signal, may outlive the attempt.
            cluster.retired = cluster.retired or "a fault was injected into it"
        return _Watch(cluster, settings, stuck)

    return make


class _Watch:
    """Callable that the cluster calls repeatedly with the ranks that have answered; True if all others wait."""

    def __init__(self, cluster: Cluster, settings: RunSettings, stuck: Stuck | None) -> None:
        self._cluster = cluster
        self._stuck = stuck
        tasks = [str(task) for task in cluster.tasks]
        self._pending = {
            fault: (
                tasks.index(fault.task),
                point_log.path_of(settings.tmp_path, settings.attempt, tasks.index(fault.task)),
            )
            for fault in settings.faults
            if fault.kind in _LATER and fault.task in tasks
        }
        self._until = 0.0
        """Time until which a rank is delayed on purpose, so that nothing can be said about who waits for whom."""

    def __call__(self, answered: Collection[int]) -> bool:
        now = time.monotonic()
        for fault, (rank, path) in list(self._pending.items()):
            at = _struck_at(path, str(fault))
            if at is None:
                continue
            self._until = max(self._until, at + fault.duration)
            if now >= at + fault.duration:
                del self._pending[fault]
                if rank not in answered:
                    self._cluster.signal(rank, _LATER[fault.kind])
        return now > self._until and self._stuck is not None and self._stuck(answered)


def _struck_at(path: Path, fault: str) -> float | None:
    return next((one.at for one in point_log.read(path) if str(one.struck) == fault), None)
