"""Run the main loop of one rank or server of a cluster.

A separate thread reads the requests. So the worker notices the end of the controller even while its main thread
waits in a collective. It then kills itself and its process group. This module must not import the
checks, and it imports TensorFlow only through the strategy that it builds.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import pickle
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from pytest_ddl.cluster import covering
from pytest_ddl.cluster.network import servers_kept_local
from pytest_ddl.cluster.protocol import (
    Boot,
    EndNotice,
    Failure,
    Reply,
    Request,
    RequestKind,
    UnreadableError,
    decode,
    encode,
)
from pytest_ddl.cluster.relocating import FolderPlaces
from pytest_ddl.cluster.resources import HOST, PortLease
from pytest_ddl.cluster.ship import importable
from pytest_ddl.cluster.state import user_files, user_modules
from pytest_ddl.cluster.state.user_files import is_user_file
from pytest_ddl.faults.rank import RELAYED
from pytest_ddl.strategies.base import RankContext, StrategyDefinition, capabilities_of

if TYPE_CHECKING:
    from pytest_ddl.cluster.state.process_state import ProcessState
    from pytest_ddl.strategies.spec import BuildContext

STACKS_SIGNAL = signal.SIGUSR1
_current: RankContext | None = None


def current_rank() -> RankContext | None:
    """Return the rank that runs in this process, or ``None`` outside a rank."""
    return _current


def own_rank() -> RankContext:
    """Return the rank in which this code runs.

    :raises RuntimeError: outside a rank.
    """
    if _current is None:
        raise RuntimeError("there is no current strategy: this code does not run in a rank of a cluster")
    return _current


def current_strategy() -> Any:
    """Return the strategy of the rank in which this code runs.

    :raises RuntimeError: outside a rank.
    """
    return own_rank().strategy


class Worker:
    """Worker process. It answers requests one at a time, in its main thread."""

    state: ProcessState
    """State of the process between tests. It exists only in a rank, after the strategy was built."""
    context: RankContext
    """This rank as the user's code sees it. It exists only in a rank, after the strategy was built."""

    def __init__(self, requests: Connection, replies: Connection, stacks_fd: int) -> None:
        """Prepare to serve requests.

        :param requests: channel from which requests are read. The worker kills its process group at its end.
        :param replies: channel to which replies are written. It may be the same object.
        :param stacks_fd: file descriptor to which the stacks of all threads are written at :data:`STACKS_SIGNAL`.
        """
        self._incoming, self._outgoing = requests, replies
        self._requests: queue.SimpleQueue[Request] = queue.SimpleQueue()
        self._pushed_back: list[Request] = []
        self._unanswered: Request | None = None
        self._idle_limit: float | None = None
        """Seconds to wait for the next request before this process ends."""
        self._pid = os.getpid()
        self._places = FolderPlaces.of(os.environ)
        self._modules: Mapping[str, str] = {}
        """Files of the user's modules that the pytest process had imported when this rank was started, by name."""
        os.register_at_fork(after_in_child=self._disconnect)
        # A C signal handler writes the stacks, so it works even if a thread holds the interpreter lock.
        faulthandler.register(STACKS_SIGNAL, file=stacks_fd, all_threads=True)
        faulthandler.enable(file=2)

    def _disconnect(self) -> None:
        self._incoming.close()
        self._outgoing.close()

    def main(self) -> int:
        """Serve requests until one asks to stop. Return the exit status of the process."""
        threading.Thread(target=self._read, name="ddl-control", daemon=True).start()
        boot = self.next_request()
        covering.begin()
        # Imported here because the pytest process imports this file too, but does not need process_state.
        from pytest_ddl.cluster.state.process_state import ProcessState

        try:
            facts = self._boot(boot.body)
        except BaseException as error:
            self.reply(boot, failure=Failure.of(error))
            return 1
        if boot.body.context.rank >= 0:
            self.state = ProcessState()
        self.reply(boot, facts)
        _set_aside()
        while (request := self.next_request()).kind is not RequestKind.STOP:
            self.answer(request)
            if self._unanswered is not None:
                why = "the pytest session of this rank ended without an answer; see the rank's output"
                self.reply(self._unanswered, failure=Failure("SessionEnded", why, ""))
            if request.kind is RequestKind.CALL:
                _set_aside()
        self.reply(request)
        return 0

    def next_request(self) -> Request:
        """Wait for the next request, and apply the changes around the pytest process that the request contains."""
        self._end_stray_child()
        while True:
            self._unanswered = request = self._pushed_back.pop() if self._pushed_back else self._wait()
            try:
                if request.surroundings and request.kind is not RequestKind.STOP:
                    self.state.surround(request.surroundings)
            except OSError as error:
                self.reply(request, failure=Failure.of(error))
            else:
                return request

    def _wait(self) -> Request:
        while True:
            try:
                request = self._requests.get(timeout=self._idle_limit)
            except queue.Empty:
                # Exit at once: nothing in this process needs a clean end, and the zygote ends its children.
                os._exit(0)
            self._idle_limit = None
            if request.kind is not RequestKind.STAY:
                return request

    def push_back(self, request: Request) -> None:
        """Put a request back. It is the next one that :meth:`next_request` returns."""
        self._unanswered = None
        self._pushed_back.append(request)

    def reply(self, request: Request, body: Any = None, failure: Failure | None = None) -> None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        self._end_stray_child()
        if request.kind not in (RequestKind.SETTLE, RequestKind.STOP):  # which may come after all files were read
            covering.save()
        user_files.note(user_modules.loaded().values())
        self._send(Reply(request.id, body, failure or self._other_code()))
        self._unanswered = None

    def _other_code(self) -> Failure | None:
        """Return the failure of a rank that has imported an installed package in place of the user's files."""
        if not user_files.on_host_of_agent():
            return None
        for name, file in self._modules.items():
            own = getattr(sys.modules.get(name), "__file__", None)
            if own and own != file and not is_user_file(own):
                why = f"this rank has imported {name} from {own}, an installed package, and not from {file}"
                fix = "uninstall it on the hosts, or install it there in editable mode (pip install -e)"
                return Failure("OtherCode", f"{why}; {fix}", "")
        return None

    def text_here(self, text: str) -> str:
        """Return a text with the paths of the pytest process."""
        return text if self._places is None else self._places.text_of_rank(text)

    def notify(self) -> None:
        """Send a notice that the current request has ended with an exception. Its report is not made yet."""
        self._end_stray_child()
        if self._unanswered is not None:
            self._send(EndNotice(self._unanswered.id))

    def _send(self, message: Reply | EndNotice) -> None:
        data = encode(message)
        self._outgoing.send_bytes(data if self._places is None else self._places.of_rank(data))

    def answer(self, request: Request) -> None:
        """Carry out a request that needs no open session, and reply. The loops of a session call this too."""
        if request.kind is RequestKind.CALL:
            self._guarded(request, lambda: request.body.call())
        elif request.kind is RequestKind.SETTLE:
            self._guarded(request, lambda: self.state.settle())
            self._idle_limit = request.body
        elif request.kind is RequestKind.OPEN_SESSION:
            from pytest_ddl.cluster.rank_session import RankSession

            self._guarded(request, lambda: RankSession(self, request).run(), reply=False)
        else:
            message = f"{request.kind.value} needs an open session that has the item, and no session is open"
            self.reply(request, failure=Failure("ProtocolError", message, ""))

    def _guarded(self, request: Request, action: Callable[[], Any], reply: bool = True) -> None:
        try:
            result = action()
        except BaseException as error:
            self.notify()
            self.reply(request, failure=Failure.of(error))
        else:
            if reply:
                self.reply(request, result)

    def _end_stray_child(self) -> None:
        """End a process that a test forked and that returned to this code. It must not answer for the rank."""
        if os.getpid() != self._pid:
            note = "a process that the test forked returned from the test; it ends here. End it with os._exit().\n"
            os.write(2, note.encode())
            os._exit(1)

    def _read(self) -> None:
        try:
            while True:
                data = self._incoming.recv_bytes()
                self._requests.put(decode(data if self._places is None else self._places.for_rank(data)))
        except (EOFError, OSError):
            pass
        except UnreadableError:
            # This request cannot be answered, so the rank ends. The traceback is its last output.
            traceback.print_exc()
        os.killpg(0, signal.SIGKILL)

    def _boot(self, boot: Boot) -> dict[str, Any]:
        global _current
        context = _relayed(boot.context)
        if boot.directory is not None:
            os.chdir(boot.directory)
        sys.path[:] = boot.path
        sys.argv[:] = boot.argv
        local = all(address.startswith(f"{HOST}:") for address in context.addresses)
        self._modules = boot.modules
        with importable(boot.modules):
            definition = pickle.loads(boot.definition)
            with servers_kept_local() if local else contextlib.nullcontext():
                strategy = definition.build(context)
        if context.device == "gpu":
            # Only here, because it needs TensorFlow.
            from pytest_ddl.strategies.gpu_check import check_gpus

            check_gpus(context.topology.devices_per_process)
        if context.rank < 0:
            return {"num_replicas": 0}
        num_replicas = _prove_connected(strategy, definition, boot)
        _current = self.context = RankContext(
            spec=context.spec,
            strategy=strategy,
            task=str(context.task),
            rank=context.rank,
            num_ranks=len(context.topology.ranks),
            num_replicas=num_replicas,
            device=context.device,
            capabilities=capabilities_of(definition),
        )
        return {"num_replicas": num_replicas}


def _set_aside() -> None:
    """Let later collections of garbage skip what is alive now.

    TensorFlow keeps the functions that it has traced, so each call leaves thousands of objects, which would be visited
    after each later run. No module of the user is loaded now, so what is alive belongs to packages and stays.
    """
    # What is garbage now would never be freed.
    gc.collect()
    gc.freeze()


def _relayed(context: BuildContext) -> BuildContext:
    """Return the context with the addresses of relays, if faults of the network are to strike through this rank."""
    if context.rank < 0 or RELAYED not in os.environ:
        return context
    # Only here, because few runs need a relay.
    from pytest_ddl.faults.rank.relay import relayed

    tasks = [str(task) for task in context.topology.servers or context.topology.ranks]
    if len(tasks) != len(context.addresses):
        return context
    hidden = PortLease(1)
    _leases.append(hidden)
    return replace(context, addresses=relayed(context.addresses, tasks, str(context.task), *hidden.addresses))


_leases: list[PortLease] = []
"""Leases of this process, which keep them until it ends."""


def _prove_connected(strategy: Any, definition: StrategyDefinition, boot: Boot) -> int:
    """Check that the strategy includes the whole cluster, so that no rank silently trains without the others.

    If there are several ranks, a first all-reduce must also include every replica. Return the number of replicas.

    :raises RuntimeError: if replicas are missing.
    """
    num_replicas = getattr(strategy, "num_replicas_in_sync", 0)
    expected = definition.num_replicas(boot.context.spec)
    if expected and num_replicas != expected:
        raise RuntimeError(
            f"{boot.context.spec} has num_replicas_in_sync={num_replicas} on {boot.context.task}, expected {expected}"
        )
    if len(boot.context.topology.ranks) > 1 and not boot.restarted:
        import tensorflow as tf

        def count() -> Any:
            context = tf.distribute.get_replica_context()
            return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.constant(1.0))

        counted = strategy.experimental_local_results(strategy.run(count))[0]
        if int(counted) != num_replicas:
            seen = f"{int(counted)} of {num_replicas} replicas"
            raise RuntimeError(f"the first all-reduce of {boot.context.spec} included only {seen}")
    return int(num_replicas)
