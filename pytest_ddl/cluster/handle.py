"""``ddl_cluster``: what a test in the controlling process can do with a cluster."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

from pytest_ddl.cluster import ship
from pytest_ddl.cluster.cluster import Cluster
from pytest_ddl.cluster.explain import RankError, explain
from pytest_ddl.cluster.protocol import Kind
from pytest_ddl.strategies.spec import StrategySpec


class ClusterHandle:
    """A running cluster. Tasks are named as in TF_CONFIG (``"worker:1"``) or by their position in :attr:`tasks`."""

    def __init__(self, cluster: Cluster, deadline: float) -> None:
        self._cluster = cluster
        self._deadline = deadline
        self._killed: set[int] = set()

    @property
    def spec(self) -> StrategySpec:
        """The variant that the cluster runs."""
        return self._cluster.spec

    @property
    def tasks(self) -> tuple[str, ...]:
        """All processes: the ranks first, then processes that only serve."""
        return tuple(str(task) for task in self._cluster.tasks)

    @property
    def num_replicas(self) -> int:
        """``num_replicas_in_sync`` of the strategy."""
        return self._cluster.num_replicas

    def run(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Call ``fn(*args, **kwargs)`` on every rank at once and return the results by rank.

        In ``fn``, :func:`pytest_ddl.current_strategy` is the strategy. Ranks that the test has killed are left out.

        :raises RankError: when it fails on a rank, with every rank's own traceback; also at the test's deadline.
        :raises ShippingError: when the function, an argument or a result cannot be pickled.
        """
        ranks = [rank for rank in range(self._cluster.num_ranks) if rank not in self._killed]
        if not ranks:
            raise RankError(f"all ranks of {self.spec} were killed, so {fn!r} would run nowhere")
        answers = self._cluster.ask(Kind.CALL, ship.pack(fn, args, kwargs), deadline=self._deadline, ranks=ranks)
        if not all(answer.ok for answer in answers):
            raise RankError(explain(answers), answers)
        return [ship.unpack(answer.body) for answer in answers]

    def kill(self, task: str | int) -> None:
        """Kill a process (SIGKILL) and wait until it is gone."""
        index = self._index(task)
        self._cluster.signal(index, signal.SIGKILL)
        self._cluster.wait_for_exit(index)
        self._killed.add(index)

    def restart(self, task: str | int) -> None:
        """Start a process anew under its old address; one that still runs is killed first.

        Under ``multi_worker_mirrored`` all workers are started anew, as after the failure of a worker in production:
        TensorFlow lets no worker join others that run.
        """
        self._killed -= set(self._cluster.restart(self._index(task), self._deadline))

    def suspend(self, task: str | int) -> None:
        """Stop a process without ending it (SIGSTOP), as a stalled machine would."""
        index = self._index(task)
        self._cluster.signal(index, signal.SIGSTOP)
        self._cluster.wait_until_stopped(index)

    def resume(self, task: str | int) -> None:
        """Let a suspended process go on (SIGCONT)."""
        self._cluster.signal(self._index(task), signal.SIGCONT)

    def logs(self, task: str | int) -> str:
        """What a process has printed so far, stdout before stderr."""
        return "".join(self._cluster.processes[self._index(task)].output())

    def stacks(self) -> dict[str, str]:
        """The Python stacks of all threads of the ranks that run, by task."""
        alive = [rank for rank in range(self._cluster.num_ranks) if rank not in self._killed]
        return {self.tasks[rank]: text for rank, text in self._cluster.stacks(alive).items()}

    def _index(self, task: str | int) -> int:
        if isinstance(task, int) and 0 <= task < len(self.tasks):
            return task
        if task in self.tasks:
            return self.tasks.index(str(task))
        raise ValueError(f"task={task!r} is not in this cluster; tasks: {', '.join(self.tasks)}")
