"""Start the processes of one strategy, send requests to all its ranks and collect their answers.

:meth:`Cluster.ask` has one deadline for all ranks and stops soon after a rank has failed. It raises no exception for
an error in a worker. The :class:`Answer` of a rank that did not reply states why, with the rank's stacks.
"""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import wait
from typing import Any

from pytest_ddl.cluster.explain import Answer, ClusterError, Fate, PortTakenError, start_error
from pytest_ddl.cluster.launcher import Launcher, Reservation, WorkerProcess, reserve
from pytest_ddl.cluster.obstacles import LaunchError
from pytest_ddl.cluster.protocol import (
    Boot,
    EndNotice,
    Failure,
    Request,
    RequestKind,
    UnreadableError,
    decode,
    encode,
)
from pytest_ddl.cluster.rotation import rotated
from pytest_ddl.cluster.sending import send, stacks_of
from pytest_ddl.cluster.ship import user_modules
from pytest_ddl.cluster.state.surroundings import Snapshot, Surroundings
from pytest_ddl.strategies.base import StrategyDefinition, topology_of
from pytest_ddl.strategies.spec import BuildContext, StrategySpec, Task

GRACE = 0.3
"""Seconds to wait for the other ranks after one has failed. Ranks with the same failure answer within this time."""
REPORT_WAIT = 10.0
"""Maximum seconds to wait for the report of a rank that has failed too. It takes longer if the machine is busy."""
POLL = 0.5
"""Seconds between calls of ``stuck``, which reads a small file of every rank."""
EXIT_WAIT = 2.0
"""Maximum seconds from the end of a rank's channel to its exit status."""
SETTLE_WAIT = 10.0
"""Maximum seconds for ranks to restore their state. They are idle and take milliseconds."""
TEAR_DOWN_WAIT = 60.0
"""Maximum seconds to tear down the fixtures that finished items have left. They are the user's code."""
STOP_WAIT = 5.0
"""Maximum seconds for open pytest sessions to tear down their remaining fixtures."""
START_ATTEMPTS = 3
"""Number of attempts to start a cluster. Another program can take a leased port before TensorFlow binds it."""


class Cluster:
    """Processes of one strategy. :meth:`start` makes a cluster and :meth:`close` ends it."""

    def __init__(
        self, spec: StrategySpec, launcher: Launcher, reservation: Reservation, tasks: Sequence[Task], num_ranks: int
    ) -> None:
        self.spec, self.tasks = spec, tuple(tasks)
        self.num_ranks = num_ranks
        self.dirty = ""
        """Reason why the cluster cannot be used any more, for example a dead or stuck rank. Empty if it can."""
        self.retired = ""
        """Reason why the cluster must not be given to another test, although it still answers. Empty if it may."""
        self.session_plan: Any = None
        """Plan of the pytest session that is open in the ranks, or ``None``."""
        self.num_replicas = 0
        self.processes: list[WorkerProcess] = []
        self._launcher = launcher
        self.reservation = reservation
        self._environ: dict[str, str] = {}
        self._boots: list[Boot] = []
        self._next_id = 0
        self._asked: dict[int, int] = {}  # index of a process -> id of its last request
        self._turn = threading.RLock()
        """Held during a request, because a rank answers one at a time. Its callback ``stuck`` may restart a server."""
        self._closed = False
        self._known = self._started = Snapshot.now()
        self.next_item: str | None = None
        """Id of the item for which the ranks keep fixtures of an earlier item."""
        self.on_session_end: Callable[[Sequence[Answer]], None] | None = None
        """Callback for the answers of the ranks when they tear down the fixtures that a finished item has left.

        It gets no answers if the ranks could not be asked. :attr:`dirty` then has the reason."""

    @classmethod
    def start(
        cls,
        spec: StrategySpec,
        definition: StrategyDefinition,
        launcher: Launcher,
        *,
        device: str = "cpu",
        environ: Mapping[str, str] | None = None,
        timeout: float = 60.0,
        make_arguments: bytes = b"",
    ) -> Cluster:
        """Start the processes, build the strategy on every rank and check that the ranks are connected.

        :raises ClusterError: if the strategy cannot be built. The message contains the reason of every failed rank.
        """
        for attempt in range(1, START_ATTEMPTS + 1):
            try:
                given = dict(environ or os.environ)
                return cls._start_once(spec, definition, launcher, device, given, timeout, make_arguments)
            except PortTakenError as error:
                if attempt == START_ATTEMPTS:
                    raise ClusterError(str(error)) from None
        raise AssertionError("unreachable")

    @classmethod
    def _start_once(
        cls,
        spec: StrategySpec,
        definition: StrategyDefinition,
        launcher: Launcher,
        device: str,
        environ: dict[str, str],
        timeout: float,
        make_arguments: bytes,
    ) -> Cluster:
        topology = topology_of(definition, spec)
        launcher = rotated(launcher, environ)
        try:
            reservation = reserve(launcher, topology)
        except (LaunchError, OSError) as error:
            raise ClusterError(f"{spec} could not be started: {error}") from None
        # TF_CONFIG in the pytest process describes another cluster, not the one to build here.
        environ.pop("TF_CONFIG", None)
        cluster = cls(spec, launcher, reservation, (*topology.ranks, *topology.servers), len(topology.ranks))
        try:
            every = range(len(cluster.tasks))
            cluster.processes = [*launcher.launch(reservation, every, environ)]
            context = BuildContext(
                spec, topology, cluster.tasks[0], 0, reservation.addresses, device, make_arguments=make_arguments
            )
            cluster._environ = environ
            known = cluster._known
            boot = Boot(
                pickle.dumps(definition), context, user_modules(), known.directory, known.path, tuple(sys.argv[:1])
            )
            cluster._boots = [
                replace(boot, context=replace(context, task=task, rank=index if index < cluster.num_ranks else -1))
                for index, task in enumerate(cluster.tasks)
            ]
            answers = cluster._gather(RequestKind.BOOT, cluster._boots, every, time.monotonic() + timeout)
            if not all(answer.ok for answer in answers):
                raise start_error(str(spec), answers)
            cluster.num_replicas = answers[0].body["num_replicas"]
        except BaseException:
            cluster.close()
            raise
        return cluster

    def ask(
        self,
        kind: RequestKind,
        body: Any = None,
        *,
        deadline: float,
        ranks: Sequence[int] | None = None,
        patience: Callable[[Any], float | None] | None = None,
        stuck: Callable[[Collection[int]], bool] | None = None,
    ) -> list[Answer]:
        """Send a request to all ranks, or to some, and wait until all answer, one fails or the deadline passes.

        Several threads may call this method. A thread waits until the request of another thread is answered.

        :param deadline: in seconds of :func:`time.monotonic`.
        :param patience: function that takes the body of a reply. It returns how many more seconds to wait for the
            other ranks, and ``None`` means until the deadline. After an exception in a rank, :data:`GRACE` is used.
        :param stuck: function that takes the ranks that have answered and returns whether the others can never
            answer. It is called every :data:`POLL` seconds.
        :raises ClusterError: if the cluster has ended, or if another thread's request lasts until the deadline.
        """
        with self._one_at_a_time(deadline):
            if self.dirty or self._closed:
                raise ClusterError(f"cluster {self.spec} has ended: {self.dirty or 'closed'}")
            chosen = range(self.num_ranks) if ranks is None else ranks
            return self._gather(kind, [body] * len(chosen), chosen, deadline, patience, stuck)

    @contextlib.contextmanager
    def _one_at_a_time(self, deadline: float) -> Iterator[None]:
        """Wait until no request of another thread is in progress, at most until the deadline."""
        left = min(max(deadline - time.monotonic(), 0.0), threading.TIMEOUT_MAX)
        if not self._turn.acquire(timeout=left):
            raise ClusterError(
                f"cluster {self.spec} answers one request at a time, and another thread still waits for an answer"
            )
        try:
            yield
        finally:
            self._turn.release()

    def _gather(
        self,
        kind: RequestKind,
        bodies: Sequence[Any],
        ranks: Sequence[int],
        deadline: float,
        patience: Callable[[Any], float | None] | None = None,
        stuck: Callable[[Collection[int]], bool] | None = None,
    ) -> list[Answer]:
        self._next_id += 1
        self._asked.update(dict.fromkeys(ranks, self._next_id))
        surroundings = self._surroundings(kind)
        started = time.monotonic()
        offsets = {rank: self.processes[rank].output_offsets() for rank in ranks}
        for rank, body in zip(ranks, bodies, strict=True):
            send(self.processes[rank], encode(Request(self._next_id, kind, body, surroundings)))
        try:
            answers = self._collect(ranks, deadline, patience, stuck)
        except LaunchError as error:
            self.dirty = self.dirty or str(error).partition("\n")[0]
            raise
        except BaseException:
            # After Ctrl-C, the ranks are still busy with the request.
            self.dirty = self.dirty or "interrupted"
            raise
        if any(not answer.ok for answer in answers.values()):
            self.retired = self.retired or "a rank failed"
        finished = time.monotonic() - started
        return [self._with_output(answers[rank], offsets[rank], finished) for rank in ranks]

    def _surroundings(self, kind: RequestKind) -> Surroundings:
        """Return the changes of the environment, working directory and import path since the last request."""
        if kind in (RequestKind.BOOT, RequestKind.SETTLE, RequestKind.STOP):
            return Surroundings()
        now = Snapshot.now()
        # A pytest session in the ranks has its own import path.
        now = now if self.session_plan is None else replace(now, path=self._known.path)
        changed = now.since(self._known)
        self._known = now
        return changed

    def settle(self, idle_limit: float | None = None) -> None:
        """Make the ranks restore the state from before this use. Retire the cluster if they cannot.

        :param idle_limit: seconds without a request after which the ranks exit. Ranks that hold fixtures for their
            next item do not exit.
        """
        limit = None if self.next_item else idle_limit
        try:
            answers = self.ask(RequestKind.SETTLE, limit, deadline=time.monotonic() + SETTLE_WAIT)
        except ClusterError as error:
            # A thread that the test has started still waits for an answer.
            self.dirty = self.dirty or str(error)
            return
        for answer in answers:
            if answer.ok and answer.body:
                self.retired = self.retired or f"on rank {answer.rank}: {', '.join(answer.body)}"

    def stay(self) -> None:
        """Let the ranks wait for their next request without a limit, without waiting for an answer."""
        for process in self.processes[: self.num_ranks]:
            send(process, encode(Request(0, RequestKind.STAY)))

    def _collect(
        self,
        ranks: Sequence[int],
        deadline: float,
        patience: Callable[[Any], float | None] | None,
        stuck: Callable[[Collection[int]], bool] | None,
    ) -> dict[int, Answer]:
        """Wait for the answers to the current request."""
        answers: dict[int, Answer] = {}
        reporting: set[int] = set()
        limit = deadline
        poll = math.inf if stuck is None else POLL
        while len(answers) < len(ranks):
            pending = [rank for rank in ranks if rank not in answers]
            for rank in self._ready(pending, min(limit - time.monotonic(), poll)):
                answer = self._answer(rank, reporting)
                if answer is None:
                    continue
                answers[rank] = answer
                wait_more = GRACE if not answer.ok else patience(answer.body) if patience is not None else None
                if wait_more is not None:
                    limit = min(limit, time.monotonic() + wait_more)
            if time.monotonic() >= limit:
                fate = Fate.DEADLINE if limit == deadline else Fate.STOPPED
                late = [rank for rank in ranks if rank not in answers]
                if fate is Fate.STOPPED and reporting.intersection(late):
                    late = [rank for rank in late if rank not in reporting]
                    reporting.clear()
                    limit = min(limit + REPORT_WAIT, deadline)
                answers.update(self._stop(fate, late) if late else {})
            elif stuck is not None and stuck(answers):
                answers.update(self._stop(Fate.STUCK, [rank for rank in ranks if rank not in answers]))
        return answers

    def _ready(self, ranks: Sequence[int], timeout: float) -> Iterator[int]:
        channels = {self.processes[rank].fileno(): rank for rank in ranks}
        news = self._launcher.fileno()
        ready = wait([*channels, *([] if news is None else [news])], max(timeout, 0.0))
        if news in ready:
            self._launcher.poll()
        return (channels[item] for item in ready if item in channels)

    def _answer(self, rank: int, reporting: set[int]) -> Answer | None:
        """Read one message of a rank. A notice adds the rank to ``reporting`` and gives ``None``.

        A reply to an older request makes the cluster dirty and gives ``None``. So does a reply of which only a part has
        arrived, without making the cluster dirty.
        """
        task = str(self.tasks[rank])
        try:
            reply = decode(self.processes[rank].receive())
        except BlockingIOError:
            return None
        except (EOFError, OSError):
            self.dirty = self.dirty or f"rank {rank} died"
            return Answer(rank, task, Fate.DIED, exit_status=self._exit_status(rank))
        except UnreadableError as error:
            self.dirty = self.dirty or f"the reply of rank {rank} is unreadable"
            text = f"the reply of this rank cannot be read in the pytest process: {error}"
            return Answer(rank, task, Fate.REPLIED, failure=Failure("UnreadableReply", text, ""))
        if reply.id != self._asked[rank]:
            self.dirty = self.dirty or f"rank {rank} answered an older request"
            return None
        if isinstance(reply, EndNotice):
            reporting.add(rank)
            return None
        return Answer(rank, task, Fate.REPLIED, reply.body, reply.failure)

    def _exit_status(self, rank: int) -> int | None:
        with contextlib.suppress(LaunchError):
            return self.processes[rank].wait(EXIT_WAIT)
        return None

    def _stop(self, fate: Fate, ranks: Sequence[int]) -> dict[int, Answer]:
        """Make answers with stacks for ranks that have not replied. The cluster is not used again."""
        self.dirty = self.dirty or fate.value
        stacks = self.stacks(ranks)
        return {rank: Answer(rank, str(self.tasks[rank]), fate, stacks=stacks[rank]) for rank in ranks}

    def _with_output(self, answer: Answer, since: tuple[int, int], seconds: float) -> Answer:
        stdout, stderr = self.processes[answer.rank].output(since)
        return replace(answer, stdout=stdout, stderr=stderr, seconds=seconds)

    def stacks(self, ranks: Sequence[int] | None = None) -> dict[int, str]:
        """Return the Python stacks of all threads of the ranks, by rank."""
        chosen = range(self.num_ranks) if ranks is None else ranks
        return stacks_of({rank: self.processes[rank] for rank in chosen})

    def signal(self, index: int, number: int) -> None:
        """Send a signal to a rank or server. The cluster is then not given to another test."""
        self.retired = self.retired or f"{self.tasks[index]} got signal {number}"
        self.processes[index].signal(number)

    def restart(self, index: int, deadline: float) -> list[int]:
        """Restart a process under its old address. Kill it first if it still runs.

        If the cluster has several ranks, restarting one of them restarts all of them. Return the indices of the
        restarted processes.

        :raises ClusterError: if a process cannot be started.
        """
        # Ranks that reduce together form one group, and TensorFlow lets no process join or leave it later.
        together = index < self.num_ranks and self.num_ranks > 1
        indices = list(range(self.num_ranks)) if together else [index]
        for one in indices:
            self.signal(one, signal.SIGKILL)
        for one in indices:
            self.wait_for_exit(one)
            self.processes[one].close()
        started = self._launcher.launch(self.reservation, indices, self._environ)
        for one, process in zip(indices, started, strict=True):
            self.processes[one] = process
        if together:
            # The reason was a problem of the old ranks, which have ended.
            self.dirty = ""
        # The new processes start with the original environment. Their first request brings the later changes.
        self._known = replace(self._started, directory=None)
        boots = [replace(self._boots[one], restarted=not together, directory=None) for one in indices]
        with self._one_at_a_time(deadline):
            answers = self._gather(RequestKind.BOOT, boots, indices, deadline)
        if not all(answer.ok for answer in answers):
            raise start_error(str(self.spec), answers)
        return indices

    def wait_for_exit(self, index: int, timeout: float = 5.0) -> int | None:
        """Wait until a process has ended. Return its status (negative: a signal), or ``None`` after the timeout."""
        return self.processes[index].wait(timeout)

    @property
    def alive(self) -> bool:
        """True if all processes still run. Between requests, a readable channel is that of a process that has ended."""
        with contextlib.suppress(LaunchError):
            silent = not self._closed and not wait([process.fileno() for process in self.processes], 0)
            return silent and all(process.wait() is None for process in self.processes)
        return False

    def tear_down_session(self, deadline: float | None = None) -> None:
        """Tear down the fixtures that finished items have left for a next one, and report the result.

        :param deadline: in seconds of :func:`time.monotonic`. The default is :data:`TEAR_DOWN_WAIT` from now.
        """
        report, self.on_session_end = self.on_session_end, None
        if report is None:
            return
        answers: Sequence[Answer] = ()
        if not self.dirty:
            until = time.monotonic() + TEAR_DOWN_WAIT if deadline is None else deadline
            try:
                answers = self.ask(RequestKind.END_SESSION, deadline=until)
            except (LaunchError, ClusterError) as error:
                self.dirty = self.dirty or str(error)
        report(answers)

    def _end_sessions(self) -> None:
        """End open pytest sessions in the usual way, so that fixtures of wider scopes are torn down."""
        self.tear_down_session()
        if self.session_plan is not None and not self.dirty and self.alive:
            with contextlib.suppress(LaunchError):
                self.ask(RequestKind.STOP, deadline=time.monotonic() + STOP_WAIT)

    def close(self) -> None:
        """End all processes and release the addresses. A second call does nothing."""
        if self._closed:
            return
        self._end_sessions()
        self._closed = True
        with contextlib.suppress(LaunchError):
            for process in self.processes:
                process.signal(signal.SIGKILL)
            for index in range(len(self.processes)):
                self.wait_for_exit(index)
        for process in self.processes:
            process.close()
        self.reservation.release()


__all__ = ["Answer", "Cluster", "ClusterError", "Fate", "Task"]
