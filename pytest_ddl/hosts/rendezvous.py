"""Place at which the other tasks of a run dial in to the controller, and at which its bridges ask for programs there.

Each task keeps one connection, over which it gets orders and, at the end, the exit status of the controller. A bridge
(:mod:`pytest_ddl.hosts.bridge`) asks through a Unix socket for a program on a task. The task gets a ticket, opens a
connection with it, and starts the program on that. The bridge gets this connection.

Before a connection has passed :mod:`pytest_ddl.hosts.trust`, it gets no more than a thread of its own for some seconds.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from pytest_ddl.hosts import trust
from pytest_ddl.hosts.frames import notice_loss, receive_message, send_message
from pytest_ddl.hosts.trust import HandshakeError, HandshakeVerdict, Purpose

MAX_STRANGERS = 64
"""Maximum number of connections that have not passed the handshake. The oldest one is closed for a new one."""
RETURN_WAIT = 3.0
"""Maximum seconds to wait for a task that was connected once, or that is late."""
PROGRAM_WAIT = 30.0
"""Maximum seconds until a task has opened the connection for a program."""
FAREWELL_WAIT = 2.0
"""Maximum seconds until the tasks have read the exit status."""
LATE_WAIT = 60.0
"""Maximum seconds at the end of a run for tasks that have not dialed in yet. They would wait for it in vain."""
MAX_NOTES = 20
"""Number of refused connections that are reported one by one."""
WATCHERS = "evaluator:"
"""Start of the names of tasks that run no programs and only wait for the exit status."""


class _Order:
    """Program that a bridge has asked for."""

    def __init__(self, task: str, bridge: socket.socket) -> None:
        self.task, self.bridge = task, bridge
        self.is_claimed = self.is_over = False
        self.is_joining = False
        """Whether a connection is on its way: the task may say that the program has ended before it is here."""
        self.connection: socket.socket | None = None
        self.is_handed_over = False
        self.problem: str | None = None
        """What went wrong, which is nothing in an empty text. ``None`` until the program has ended."""


class Rendezvous:
    """Listener of the controller. All waiting is done in threads, and none of them waits for another peer's bytes."""

    def __init__(
        self,
        key: bytes,
        tasks: Sequence[str],
        listener: socket.socket,
        path: str,
        wait: float,
        note: Callable[[str], None],
    ) -> None:
        """Listen for tasks and bridges.

        :param tasks: names of the tasks that run programs, without the controller's own.
        :param path: path of the Unix socket for bridges, in a folder that only this user can open.
        :param wait: maximum seconds from now until all tasks have dialed in.
        :param note: function that shows a line about a refused connection.
        """
        self._key, self._tasks, self._note = key, tuple(tasks), note
        self._deadline = time.monotonic() + wait
        self._wait = wait
        self._news = threading.Condition()
        self._sending = threading.Lock()
        self._controls: dict[str, socket.socket] = {}
        self._seen: set[str] = set()
        self._orders: dict[bytes, _Order] = {}
        self._strangers: dict[socket.socket, str] = {}
        """Connections that have not passed the handshake, the oldest one first."""
        self._refused = 0
        self._closed = False
        self._listener = listener
        self._local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._local.bind(path)
        self._local.listen(64)
        for door, serve in ((self._listener, self._admit), (self._local, self._start_bridge)):
            threading.Thread(target=self._accept, args=(door, serve), name="ddl-door", daemon=True).start()

    def _accept(self, door: socket.socket, serve: Callable[[socket.socket, Any], None]) -> None:
        while True:
            try:
                connection, address = door.accept()
            except OSError:
                if self._closed:
                    return
                # No file descriptor is free, for example. The next connection may end in the meantime.
                time.sleep(0.05)
                continue
            try:
                serve(connection, address)
            except RuntimeError:
                # The machine permits no further thread now. A task dials in again.
                connection.close()

    # ----- tasks -----

    def _admit(self, connection: socket.socket, address: Any) -> None:
        name = f"{address[0]}:{address[1]}"
        with self._news:
            if len(self._strangers) >= MAX_STRANGERS:
                oldest = next(iter(self._strangers))
                del self._strangers[oldest]
                # Shut down and not closed: its own thread uses the number of the socket, and closes it.
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
            _in_thread(self._examine, connection, name)
            self._strangers[connection] = name

    def _examine(self, connection: socket.socket, address: str) -> None:
        deadline = time.monotonic() + trust.HANDSHAKE_WAIT
        try:
            try:
                proof = trust.examine(connection, self._key, deadline)
            finally:
                with self._news:
                    self._strangers.pop(connection, None)
            claim = proof.claim
            if claim.purpose is Purpose.CONTROL:
                self._control(connection, proof, address, deadline)
            else:
                self._connect_program(connection, proof, deadline)
        except OSError as error:
            connection.close()
            self._report(address, str(error))

    def _report(self, address: str, reason: str) -> None:
        # With the lock, so that no line comes after close().
        with self._news:
            self._refused += 1
            if not self._closed and self._refused <= MAX_NOTES:
                self._note(f"refused a connection from {address}: {reason}")
                if self._refused == MAX_NOTES:
                    self._note("more refused connections are not reported")

    def _control(self, connection: socket.socket, proof: trust.HandshakeProof, address: str, deadline: float) -> None:
        """Keep the connection over which a task gets its orders, until it ends."""
        name = proof.claim.name
        with self._news:
            known = name in self._tasks or name.startswith(WATCHERS)
            verdict = HandshakeVerdict.WELCOME if known else HandshakeVerdict.UNKNOWN
            if name in self._controls:
                verdict = HandshakeVerdict.TAKEN
            if verdict is HandshakeVerdict.WELCOME:
                self._controls[name] = connection
        try:
            trust.conclude(connection, self._key, proof, verdict, deadline)
            if verdict is not HandshakeVerdict.WELCOME:
                reason = "is already connected" if verdict is HandshakeVerdict.TAKEN else "is not a task of this run"
                raise HandshakeError(f"{name} {reason}")
            notice_loss(connection)
            with self._news:
                self._seen.add(name)
                self._news.notify_all()
            while (message := receive_message(connection)) is not None:
                self._end_order(message)
        finally:
            if verdict is HandshakeVerdict.WELCOME:
                self._lose(name)
                connection.close()

    def _lose(self, name: str) -> None:
        """Forget a task, and end the bridges of its programs."""
        with self._news:
            self._controls.pop(name, None)
            lost = [ticket for ticket, order in self._orders.items() if order.task == name]
            for ticket in lost:
                self._finish(self._orders.pop(ticket), f"the task {name} has ended")
            self._news.notify_all()

    def _end_order(self, message: dict[str, Any]) -> None:
        """Take a task's message that a program has ended, or was not started."""
        with self._news, contextlib.suppress(KeyError, ValueError, TypeError):
            order = self._orders.pop(bytes.fromhex(message["ended"]))
            self._finish(order, str(message["text"]))

    def _finish(self, order: _Order, problem: str) -> None:
        order.problem = problem
        # Otherwise the thread that hands the connection over waits for this change.
        if order.is_handed_over:
            _end_bridge(order.bridge, problem)
        self._news.notify_all()

    def _connect_program(self, connection: socket.socket, proof: trust.HandshakeProof, deadline: float) -> None:
        with self._news:
            order = self._orders.get(proof.claim.ticket)
            if order is not None and (order.is_claimed or order.task != proof.claim.name):
                order = None
            if order is not None:
                order.is_claimed = order.is_joining = True
        try:
            verdict = HandshakeVerdict.UNKNOWN if order is None else HandshakeVerdict.WELCOME
            trust.conclude(connection, self._key, proof, verdict, deadline)
            if order is None:
                raise HandshakeError(f"{proof.claim.name} has a ticket that was not given, or was used already")
            notice_loss(connection)
            with self._news:
                if order.is_over:
                    raise HandshakeError(f"nobody needs the program on {proof.claim.name} any more")
                order.connection = connection
        finally:
            if order is not None:
                with self._news:
                    order.is_joining = False
                    self._news.notify_all()

    # ----- bridges -----

    def _start_bridge(self, connection: socket.socket, _address: Any) -> None:
        _in_thread(self._serve_bridge, connection)

    def _serve_bridge(self, bridge: socket.socket) -> None:
        with bridge:
            asked = receive_message(bridge)
            if asked is None:
                return
            task = asked.get("task")
            problem = self._problem_of(self._tasks if task is None else [str(task)])
            if problem or task is None:
                _tell(bridge, {"problem": problem})
                return
            ticket, order = trust.new_ticket(), _Order(str(task), bridge)
            with self._news:
                self._orders[ticket] = order
                control = self._controls.get(order.task)
            try:
                if control is None:
                    raise ConnectionResetError
                self._order(control, {"run": ticket.hex(), "program": asked.get("program")})
                self._hand_over(order)
            except OSError:
                _tell(bridge, {"problem": f"the task {order.task} has ended"})
            finally:
                with self._news:
                    order.is_over = True
                    self._orders.pop(ticket, None)
                    # It may have come just after the time to wait for it.
                    if order.connection is not None:
                        order.connection.close()

    def _problem_of(self, names: Sequence[str]) -> str:
        """Wait until these tasks have dialed in. Return what is missing at the end of that time."""

        def missing() -> list[str]:
            return [name for name in names if name not in self._controls]

        with self._news:
            waits = [0.0 if self._closed else RETURN_WAIT]
            if not all(name in self._seen for name in names):
                waits.append(self._deadline - time.monotonic())
            self._news.wait_for(lambda: self._closed or not missing(), max(waits))
            gone = missing()
            if not gone:
                return ""
            never = [name for name in gone if name not in self._seen]
        if never:
            return (
                f"{', '.join(never)} has not dialed in within {self._wait:.0f} s; run the same line with the same "
                "key in every task, and look at the output of that task; [wait=SECONDS] allows more time"
            )
        return f"{', '.join(gone)} has ended; look at the output of that task"

    def _order(self, control: socket.socket, message: dict[str, Any]) -> None:
        # Several bridges may ask at once, and parts of two messages must not mix.
        with self._sending:
            send_message(control, message)

    def _hand_over(self, order: _Order) -> None:
        """Give a bridge the connection of its program, and wait until the bridge ends."""

        def is_decided() -> bool:
            if order.connection is not None or self._closed:
                return True
            return order.problem is not None and not order.is_joining

        with self._news:
            self._news.wait_for(is_decided, PROGRAM_WAIT)
            if order.connection is None:
                why = order.problem or f"the task {order.task} has not opened a connection within {PROGRAM_WAIT:.0f} s"
                _tell(order.bridge, {"problem": why})
                return
            # With the lock, so that the end of the program is said after its connection, and once.
            with order.connection:
                socket.send_fds(order.bridge, [b"x"], [order.connection.fileno()])
            order.is_handed_over = True
            if order.problem is not None:
                _end_bridge(order.bridge, order.problem)
        while order.bridge.recv(1):
            pass

    # ----- end -----

    def tell_status(self, status: int, *, late: bool = True) -> None:
        """Send the exit status of the controller to all tasks, and wait until they have read it.

        :param late: also wait for tasks that have not dialed in yet.
        """
        with self._news:
            missing = [name for name in self._tasks if name not in self._seen]
            until = min(self._deadline - time.monotonic(), LATE_WAIT) if late else 0.0
            if missing and until > 0:
                self._note(f"waiting for {', '.join(missing)}, which will have the same exit status")
                self._news.wait_for(lambda: all(name in self._seen for name in missing), until)
            controls = list(self._controls.values())
        for control in controls:
            with contextlib.suppress(OSError):
                self._order(control, {"status": status})
        with self._news:
            # A task ends its programs, and closes the connection then.
            self._news.wait_for(lambda: not any(one in controls for one in self._controls.values()), FAREWELL_WAIT)

    def close(self) -> None:
        """Close all connections."""
        with self._news:
            self._closed = True
            self._news.notify_all()
            for open_one in [*self._strangers, *self._controls.values(), self._listener, self._local]:
                # A blocked thread notices that its socket is shut down, but not that it is closed.
                with contextlib.suppress(OSError):
                    open_one.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._local.close()


def _in_thread(target: Callable[..., None], *arguments: Any) -> None:
    threading.Thread(target=target, args=arguments, name="ddl-guest", daemon=True).start()


def _tell(connection: socket.socket, message: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):
        send_message(connection, message)


def _end_bridge(bridge: socket.socket, problem: str) -> None:
    _tell(bridge, {"problem": problem})
    with contextlib.suppress(OSError):
        bridge.shutdown(socket.SHUT_RDWR)


def socket_path(folder: str) -> str:
    return os.path.join(folder, "tasks")
