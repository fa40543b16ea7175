"""Let a test control a cluster from the pytest process, through the fixture ``ddl_cluster``."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

from pytest_ddl.cluster import ship
from pytest_ddl.cluster.call_warnings import current_filters, warn_again
from pytest_ddl.cluster.cluster import Cluster
from pytest_ddl.cluster.explain import RankError, explain
from pytest_ddl.cluster.protocol import RequestKind
from pytest_ddl.strategies.spec import StrategySpec


class ClusterHandle:
    """Handle on a running cluster.

    A task is named as in TF_CONFIG (``"worker:1"``) or by its position in :attr:`tasks`.
    """

    def __init__(
        self,
        cluster: Cluster,
        deadline: float,
        following: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Take control of a cluster.

        :param following: entered for each call of :meth:`run`, so that what ends a thread of the test is not lost.
        """
        self._cluster = cluster
        self._following = following
        self._deadline = deadline
        self._killed: set[int] = set()
        self.used = False
        """Whether the test ran something in the cluster, or did something to one of its processes."""

    @property
    def spec(self) -> StrategySpec:
        """Variant that the cluster runs."""
        return self._cluster.spec

    @property
    def tasks(self) -> tuple[str, ...]:
        """Names of all processes: first the ranks, then the processes that only serve."""
        return tuple(str(task) for task in self._cluster.tasks)

    @property
    def num_replicas(self) -> int:
        """``num_replicas_in_sync`` of the strategy."""
        return self._cluster.num_replicas

    def run(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Call ``fn(*args, **kwargs)`` on every rank at once and return the results by rank.

        In ``fn``, :func:`pytest_ddl.current_strategy` returns the strategy. Ranks that the test has killed are left
        out. Warnings of the call go through the filters of the running test, and are reported with its own.

        :raises RankError: if the call fails on a rank or if the test's deadline passes. The message contains the
            traceback of every failed rank.
        :raises ShippingError: if the function, an argument or a result cannot be pickled.
        """
        self.used = True
        with self._following():
            return self._run(fn, args, kwargs)

    def _run(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        ranks = [rank for rank in range(self._cluster.num_ranks) if rank not in self._killed]
        if not ranks:
            raise RankError(f"all ranks of {self.spec} were killed, so {fn!r} would run nowhere")
        job = replace(ship.pack(fn, args, kwargs), filters=current_filters())
        answers = self._cluster.ask(RequestKind.CALL, job, deadline=self._deadline, ranks=ranks)
        if not all(answer.ok for answer in answers):
            raise RankError(explain(answers, self._cluster.num_ranks), answers)
        warn_again(warning for answer in answers for warning in answer.body.warnings)
        return [ship.unpack(answer.body) for answer in answers]

    def kill(self, task: str | int) -> None:
        """Kill a process (SIGKILL) and wait until it has ended."""
        index = self._index(task)
        self._cluster.signal(index, signal.SIGKILL)
        self._cluster.wait_for_exit(index)
        self._killed.add(index)

    def restart(self, task: str | int) -> None:
        """Restart a process under its old address. Kill it first if it still runs.

        Under ``multi_worker_mirrored`` all workers are restarted, as after the failure of a worker in production.
        TensorFlow lets no worker join a group of running workers.
        """
        self._killed -= set(self._cluster.restart(self._index(task), self._deadline))

    def suspend(self, task: str | int) -> None:
        """Suspend a process without ending it (SIGSTOP), to imitate a stalled machine."""
        self._cluster.signal(self._index(task), signal.SIGSTOP)

    def resume(self, task: str | int) -> None:
        """Continue a suspended process (SIGCONT)."""
        self._cluster.signal(self._index(task), signal.SIGCONT)

    def logs(self, task: str | int) -> str:
        """Return the output of a process so far, stdout before stderr."""
        return "".join(self._cluster.processes[self._index(task)].output())

    def stacks(self) -> dict[str, str]:
        """Return the Python stacks of all threads, by task, for each rank that the test has not killed."""
        self.used = True
        alive = [rank for rank in range(self._cluster.num_ranks) if rank not in self._killed]
        return {self.tasks[rank]: text for rank, text in self._cluster.stacks(alive).items()}

    def _index(self, task: str | int) -> int:
        self.used = True
        if isinstance(task, int) and 0 <= task < len(self.tasks):
            return task
        if task in self.tasks:
            return self.tasks.index(str(task))
        raise ValueError(f"task={task!r} is not in this cluster; tasks: {', '.join(self.tasks)}")
