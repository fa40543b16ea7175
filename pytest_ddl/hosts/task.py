"""Be a task of a run whose controller is elsewhere: dial in, run the programs that it orders, and return its status."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import IO, Any

from pytest_ddl.hosts import trust
from pytest_ddl.hosts.frames import notice_loss, receive_message, send_message
from pytest_ddl.hosts.trust import Claim, Purpose, RefusedError

CONNECT_WAIT = 5.0
"""Maximum seconds for one attempt to connect."""
PAUSE, REFUSED_PAUSE = 0.3, 1.0
"""Seconds between two attempts, the second if the controller has refused. It reports each of these."""
REFUSED_WAIT = 5.0
"""Maximum seconds to go on after the controller has refused. It may not know yet that an earlier process has ended."""
PROGRAM_END_WAIT = 3.5
"""Maximum seconds until a program has ended by itself, after its stdin was closed. An agent needs up to 3 s."""
LAST_WORDS = 0.5
"""Maximum seconds to read the rest of a program's stderr. Its own children may hold that open."""


class TaskError(RuntimeError):
    """The task cannot say how the run has ended. The message is one line with the fix."""


class HostTask:
    """Task of a run. :meth:`serve` does all."""

    def __init__(self, name: str, controller: str, place: tuple[str, int], key: bytes) -> None:
        """Prepare a task.

        :param controller: name of the controller's task, for messages.
        :param place: address and port at which the controller listens.
        """
        self._name, self._key = name, key
        self._place = place
        self._where = f"the controller {controller} at {place[0]}:{place[1]}"
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()

    def serve(self, wait: float, note: Callable[[str], None]) -> int:
        """Dial in, and return the exit status of the controller when it has ended.

        :param wait: maximum seconds until the controller listens.
        :param note: function that shows a line.
        :raises TaskError: if the controller cannot be reached, refuses this task, or ends without a status.
        """
        control = self._dial_in(Claim(Purpose.CONTROL, self._name), wait)
        note(f"{self._name} has dialed in to {self._where}, which collects and runs the tests")
        with control:
            try:
                while (order := receive_message(control)) is not None:
                    if "status" in order:
                        return int(order["status"])
                    threading.Thread(target=self._run, args=(control, order), daemon=True).start()
            finally:
                self._end_programs()
        raise TaskError(
            f"{self._where} has ended without saying its exit status: it was killed, or its machine or network is "
            "gone; look at its output"
        )

    def _dial_in(self, claim: Claim, wait: float) -> socket.socket:
        started = time.monotonic()
        refused_at: float | None = None
        while True:
            pause = PAUSE
            try:
                return self._connect(claim)
            except RefusedError as error:
                pause, now = REFUSED_PAUSE, time.monotonic()
                refused_at = refused_at or now
                if now - refused_at > min(REFUSED_WAIT, wait):
                    raise TaskError(f"{self._where} refuses {self._name}: {error}") from None
            except OSError as error:
                if time.monotonic() - started > wait:
                    why = error.strerror or error
                    raise TaskError(
                        f"no connection to {self._where} within {wait:.0f} s ({why}): run the same pytest line in "
                        "every task, and allow this port in the network; [wait=SECONDS] allows more time"
                    ) from None
            threading.Event().wait(pause)

    def _connect(self, claim: Claim) -> socket.socket:
        connection = socket.create_connection(self._place, CONNECT_WAIT)
        try:
            trust.prove(connection, self._key, claim)
            notice_loss(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _run(self, control: socket.socket, order: dict[str, Any]) -> None:
        """Run a program whose stdin and stdout are a new connection. Then say how it has ended."""
        try:
            ticket, program = bytes.fromhex(order["run"]), [str(word) for word in order["program"]]
        except (KeyError, ValueError, TypeError):
            return
        problem = self._problem_of(ticket, program)
        with contextlib.suppress(OSError), self._lock:
            text = f"on the task {self._name}, {problem}" if problem else ""
            send_message(control, {"ended": ticket.hex(), "text": text})

    def _problem_of(self, ticket: bytes, program: list[str]) -> str:
        """Run a program to its end. Return what went wrong."""
        try:
            connection = self._connect(Claim(Purpose.PROGRAM, self._name, ticket))
        except OSError as error:
            return f"no connection for a program ({error})"
        with connection:
            ends = connection.fileno()
            try:
                process = subprocess.Popen(
                    program, stdin=ends, stdout=ends, stderr=subprocess.PIPE, start_new_session=True
                )
            except OSError as error:
                return f"`{shlex.join(program[:1])}` cannot be started ({error.strerror}); set [python=PATH]"
        with self._lock:
            self._running.add(process)
        said: deque[str] = deque(maxlen=3)
        assert process.stderr is not None
        reader = threading.Thread(target=_repeat, args=(process.stderr, said), daemon=True)
        reader.start()
        status = process.wait()
        reader.join(LAST_WORDS)
        with self._lock:
            self._running.discard(process)
        if not status:
            return ""
        ending = f"was killed by signal {-status}" if status < 0 else f"has ended with status {status}"
        return "; ".join([f"its Python {ending}", *said])

    def _end_programs(self) -> None:
        """Wait until the programs have ended by themselves. Their stdin is closed when the controller has ended."""
        deadline = time.monotonic() + PROGRAM_END_WAIT
        with self._lock:
            running = list(self._running)
        for process in running:
            try:
                process.wait(max(deadline - time.monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


def _repeat(stream: IO[bytes], said: deque[str]) -> None:
    """Write what a program says on stderr to the own one, and keep its last lines."""
    with stream, contextlib.suppress(OSError, ValueError):
        for line in stream:
            os.write(2, line)
            said.append(line.decode(errors="replace").strip())
