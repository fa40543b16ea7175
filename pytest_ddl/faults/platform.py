"""Do what a platform does: strike servers and hosts, and continue, end or restart processes after a fault."""

from __future__ import annotations

import signal
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from pytest_ddl.cluster.cluster import Cluster
from pytest_ddl.equivalence.runs.program import Stuck
from pytest_ddl.faults.rank import point_log
from pytest_ddl.faults.rank.fault import KINDS, Effect, Fault
from pytest_ddl.faults.rank.observer import FaultPlan
from pytest_ddl.hosts.partitions import Partitions
from pytest_ddl.training.settings import RunSettings

_LATER = {
    "stop": signal.SIGCONT,
    "term": signal.SIGKILL,
    "term-group": signal.SIGKILL,
    "notice": signal.SIGKILL,
}
"""Kind of fault -> signal that follows after its duration."""
_EXIT_WAIT = 5.0
"""Maximum seconds until a killed process has ended."""


@dataclass
class _Pending:
    fault: Fault
    index: int
    """Index of the process in the cluster."""
    path: Path
    """Log of the rank at whose point the fault strikes."""
    at: float | None = None
    """Time at which it struck."""


class Platform:
    """Platform on which one attempt of a program runs. A context manager; leaving it connects all hosts again."""

    def __init__(
        self, settings: RunSettings, plan: FaultPlan, deadline: float, partitions: Partitions | None = None
    ) -> None:
        """Prepare for an attempt.

        :param deadline: end of the attempt, on the clock of :func:`time.monotonic`.
        :param partitions: way to cut hosts off, if there is one.
        """
        self._partitions = partitions
        self._settings, self._plan = settings, plan
        self._deadline = deadline
        self.ends: dict[str, int | None] = {}
        """Fault that ended a server -> exit status of its process."""

    def __enter__(self) -> Platform:
        return self

    def __exit__(self, *_exception: object) -> None:
        # The next attempt starts on hosts that reach each other, as a platform chooses them.
        if self._partitions is not None:
            self._partitions.heal()

    def watching(self, cluster: Cluster, stuck: Stuck | None) -> Stuck:
        """Return the callback with which a cluster lets the platform act while the ranks work."""
        if self._plan.writes:
            cluster.retired = cluster.retired or "the system calls of its processes are filtered"
        if self._plan.faults:
            # A delay of one rank, or a handler of a signal, may outlive the attempt.
            cluster.retired = cluster.retired or "a fault was injected into it"
        self._cluster, self._stuck = cluster, stuck
        tasks = [str(task) for task in cluster.tasks]
        self._pending = [
            _Pending(fault, tasks.index(fault.task), self._log_of(tasks.index(fault.task), cluster.num_ranks))
            for fault in self._plan.faults
            if fault.task in self._plan.servers
            or (fault.task in tasks and (fault.kind in _LATER or KINDS[fault.kind].network))
        ]
        self._until = 0.0
        """Time until which a process is delayed on purpose, so that nothing can be said about who waits for whom."""
        return self._act

    def _log_of(self, index: int, num_ranks: int) -> Path:
        rank = index if index < num_ranks else 0
        return point_log.path_of(self._settings.tmp_path, self._settings.attempt, rank)

    def _act(self, answered: Collection[int]) -> bool:
        """Do what is due. Return whether all ranks that have not answered wait for each other."""
        if self._partitions is not None:
            self._partitions.heal_due()
        for pending in list(self._pending):
            fault = pending.fault
            if pending.at is None:
                if not _has_struck(pending.path, str(fault)):
                    continue
                # The clock of this process: the rank may run on a host with another one.
                pending.at = time.monotonic()
                if self._partitions is not None and KINDS[fault.kind].of_host:
                    self._partitions.cut(self._cluster.reservation, pending.index, fault.duration)
                    point_log.confirmation(pending.path, fault).touch()
                elif fault.task in self._plan.servers and not KINDS[fault.kind].network:
                    self._strike_server(pending)
            self._until = max(self._until, pending.at + fault.duration)
            if fault.kind not in _LATER or str(fault) in self.ends:
                self._pending.remove(pending)
            elif time.monotonic() >= pending.at + fault.duration:
                self._pending.remove(pending)
                if pending.index not in answered:
                    self._cluster.signal(pending.index, _LATER[fault.kind])
        return time.monotonic() > self._until and self._stuck is not None and self._stuck(answered)

    def _strike_server(self, pending: _Pending) -> None:
        """Strike a server, confirm it to the coordinator, which waits for that, and start a worker again.

        Only a worker is started again: the variables of a parameter server are lost, so the coordinator must end too
        (TensorFlow's guide "Parameter server training", known limitations).
        """
        fault, cluster = pending.fault, self._cluster
        number = KINDS[fault.kind].signal
        assert number is not None
        cluster.signal(pending.index, number)
        if fault.effect is Effect.ENDS:
            status = cluster.wait_for_exit(pending.index, fault.duration or _EXIT_WAIT)
            if status is None:
                cluster.signal(pending.index, signal.SIGKILL)
                status = cluster.wait_for_exit(pending.index)
            self.ends[str(fault)] = status
        point_log.confirmation(pending.path, fault).touch()
        if fault.effect is Effect.ENDS and fault.task.startswith("worker:"):
            cluster.restart(pending.index, self._deadline)


def _has_struck(path: Path, fault: str) -> bool:
    return any(str(one.struck) == fault for one in point_log.read(path))
