"""Run blocks of steps on command: a controller decides when all ranks of a launch run the next block.

Two launches that are alive at the same time can then take turns, and only one of them works at a time. The ranks
connect to a Unix socket, and both sides send lines of JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_ddl.bench.launching.machine import host_identity
from pytest_ddl.cluster import doors

LATE_TRACES = 5
"""Maximum number of blocks dropped as warm-up because something was traced in them; later ones are measured."""


RESUME_EVERY = 3.0
"""Interval in seconds at which stopped ranks are resumed for ``RESUME_SECONDS``, while the other side runs a block."""
RESUME_SECONDS = 0.1
_LONGEST_PARENT = 80
"""Maximum bytes of the parent folder's path: the path of a Unix socket contains it and has at most 107 bytes."""


class PacingError(RuntimeError):
    """Error if a rank did not connect, left, or did not answer in time."""


class _Line:
    """One end of a connection between the controller and a rank."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._reader = connected.makefile("r", encoding="utf-8")

    def send(self, message: dict[str, Any]) -> None:
        self._socket.sendall((json.dumps(message) + "\n").encode())

    def has_come(self, seconds: float) -> bool:
        """Return True if there is something to receive, after waiting at most this long for it."""
        return bool(select.select([self._socket], [], [], max(0.0, seconds))[0])

    def receive(self, deadline: float | None = None) -> dict[str, Any]:
        self._socket.settimeout(None if deadline is None else max(0.001, deadline - time.monotonic()))
        try:
            text = self._reader.readline()
        except TimeoutError:
            raise PacingError("a rank did not answer before the deadline") from None
        if not text:
            raise PacingError("a rank closed its connection")
        message: dict[str, Any] = json.loads(text)
        return message

    def close(self) -> None:
        for end in (self._reader, self._socket):
            with contextlib.suppress(OSError):
                end.close()


@dataclass(frozen=True)
class BlockOrder:
    """Order to a rank: run this many steps, or stop (0)."""

    steps: int
    canary: int = 0
    """Number of small all-reduces to time in place of steps."""
    drop: bool = False
    """True if the previous block belongs to the warm-up, because some rank traced in it."""


class Lane:
    """Ranks of one launch, which run their blocks together."""

    def __init__(self, lines: dict[int, _Line], traces: int = 0, processes: Collection[int] = ()) -> None:
        """Take over the connections of the ranks.

        :param traces: see :attr:`traces`.
        :param processes: processes of this machine that :meth:`pause` stops.
        """
        self._lines = lines
        self._processes = tuple(processes)
        self._paused = False
        self.traces = traces
        """Functions that all ranks together had traced when the last block ended, or before the first block."""
        self._dropped = 0
        self.was_dropped = False
        """True if the last block belongs to the warm-up, because a rank traced in it; the next order informs the ranks.
        At most ``LATE_TRACES`` blocks are dropped."""

    def run_block(self, steps: int, deadline: float, meanwhile: Callable[[], None] = lambda: None) -> list[float]:
        """Have every rank run ``steps`` steps, and return their seconds by rank.

        Check ``was_dropped`` before you use them.

        :param meanwhile: called every ``RESUME_EVERY`` seconds of a long block.
        :raises PacingError: if a rank left or did not finish before ``deadline`` (``time.monotonic``).
        """
        self._order({"steps": steps, "drop": self.was_dropped})
        done = self._answers(deadline, meanwhile)
        traces = sum(int(one["traces"]) for one in done)
        self.was_dropped = traces > self.traces and self._dropped < LATE_TRACES
        self._dropped += self.was_dropped
        self.traces = traces
        return [float(one["seconds"]) for one in done]

    def run_canary(self, calls: int, deadline: float, meanwhile: Callable[[], None] = lambda: None) -> float:
        """Have the ranks run so many small all-reduces. Return the seconds of the slowest rank.

        The ranks must have been started with a canary.

        :raises PacingError: as :meth:`run_block` does.
        """
        self._order({"steps": 0, "drop": False, "canary": calls})
        return max(float(one["seconds"]) for one in self._answers(deadline, meanwhile))

    def _answers(self, deadline: float, meanwhile: Callable[[], None]) -> list[dict[str, Any]]:
        done = []
        for rank in sorted(self._lines):
            while not self._lines[rank].has_come(min(RESUME_EVERY, deadline - time.monotonic())):
                if time.monotonic() >= deadline:
                    break
                meanwhile()
            done.append(self._lines[rank].receive(deadline))
        return done

    def pause(self) -> None:
        """Stop the ranks' processes, because a rank that only waits still fills the buffers of its input pipeline.

        Ranks on other machines go on.
        """
        if not self._paused:
            self._signal(signal.SIGSTOP)
            self._paused = True

    def resume(self) -> None:
        """Continue the ranks' processes after :meth:`pause`."""
        if self._paused:
            self._signal(signal.SIGCONT)
            self._paused = False

    def resume_briefly(self) -> None:
        """Let paused ranks run for a moment. Otherwise their peers treat them as dead after ten seconds of silence.

        The coordination service of ``multi_worker_mirrored`` (TF 2.21) would then end all of them.
        """
        if self._paused:
            self._signal(signal.SIGCONT)
            time.sleep(RESUME_SECONDS)
            self._signal(signal.SIGSTOP)

    def _signal(self, number: int) -> None:
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                # Each rank leads a process group, which contains what it has started.
                os.killpg(process, number)

    def stop(self) -> None:
        """Let the ranks that are still connected leave their loops."""
        self.resume()
        for line in self._lines.values():
            with contextlib.suppress(OSError):
                line.send({"steps": 0, "drop": self.was_dropped})

    def _order(self, order: dict[str, Any]) -> None:
        try:
            for line in self._lines.values():
                line.send(order)
        except OSError as error:
            raise PacingError(f"a rank closed its connection: {error}") from None

    def close(self) -> None:
        self.resume()
        for line in self._lines.values():
            line.close()


class Alternation:
    """Lanes of several launches that are alive together, of which one works while the others are stopped."""

    def __init__(self, lanes: Sequence[Lane], deadline: float) -> None:
        self._lanes, self.deadline = lanes, deadline
        self._stopped_at: dict[int, float] = {}

    def begin(self, lane: Lane) -> Callable[[], None]:
        """Let one launch work. Return what must be called from time to time while it does."""
        others = [other for other in self._lanes if other is not lane]

        def resume_briefly(least: float = 0.0) -> None:
            for other in others:
                # Counted over all turns of the others, not within one.
                if time.monotonic() - self._stopped_at[id(other)] >= least:
                    other.resume_briefly()
                    self._stopped_at[id(other)] = time.monotonic()

        for other in others:
            other.pause()
            self._stopped_at.setdefault(id(other), time.monotonic())
        resume_briefly(RESUME_EVERY)
        lane.resume()
        self._stopped_at.pop(id(lane), None)
        return resume_briefly

    def run_alone(self, lane: Lane, steps: int, before: int) -> list[float]:
        """Run a block of one launch, and return its seconds by rank.

        :param before: steps of a block before it, which is not timed: after a pause, threads wake up, caches are cold,
            and the buffers of the input pipeline are full.
        """
        meanwhile = self.begin(lane)
        lane.run_block(before, self.deadline, meanwhile)
        return lane.run_block(steps, self.deadline, meanwhile)


class Pacer:
    """Server to which ranks connect when they are warm. A context manager; leaving it closes every connection.

    :param parent: folder for the socket. The owner of the folder removes it if this process is killed.
    """

    def __init__(self, parent: Path) -> None:
        fits = len(os.fsencode(parent)) <= _LONGEST_PARENT
        self._folder = tempfile.TemporaryDirectory(prefix="ddl-pace-", dir=parent if fits else "/tmp")
        self.address = str(Path(self._folder.name) / "s")
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server.bind(self.address)
        self._server.listen(64)
        self._lanes: list[Lane] = []

    def accept(self, ranks: int, deadline: float) -> Lane:
        """Wait until all ranks of a launch are warm.

        :raises PacingError: if a rank is missing at ``deadline`` (``time.monotonic``), or the pacer was closed.
        """
        lines: dict[int, _Line] = {}
        try:
            greetings = self._take(ranks, deadline, lines)
        except BaseException:
            for line in lines.values():
                line.close()
            raise
        # The number of a process of another host is that of something else here.
        own = [int(one["process"]) for one in greetings if one.get("host", host_identity()) == host_identity()]
        lane = Lane(lines, sum(int(one["traces"]) for one in greetings), own)
        self._lanes.append(lane)
        return lane

    def _take(self, ranks: int, deadline: float, lines: dict[int, _Line]) -> list[dict[str, Any]]:
        """Fill ``lines`` by rank, and return the first message of each rank."""
        greetings = []
        while len(lines) < ranks:
            try:
                self._server.settimeout(max(0.001, deadline - time.monotonic()))
                connected, _address = self._server.accept()
            except TimeoutError:
                missing = sorted(set(range(ranks)) - set(lines))
                raise PacingError(f"rank(s) {', '.join(map(str, missing))} were not warm before the deadline") from None
            except OSError:
                raise PacingError("the launch ended before its ranks were warm") from None
            line = _Line(connected)
            try:
                greetings.append(line.receive(deadline))
            except BaseException:
                line.close()
                raise
            lines[int(greetings[-1]["rank"])] = line
        return greetings

    def close(self) -> None:
        for lane in self._lanes:
            lane.close()
        with contextlib.suppress(OSError):
            # This wakes up a thread that waits in accept.
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._folder.cleanup()

    def __enter__(self) -> Pacer:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


class Paced:
    """Connection of a rank to the pacer of its launch.

    :param traces: functions traced during the warm-up.
    """

    def __init__(self, address: str, rank: int, traces: int = 0) -> None:
        self._line = _Line(doors.connect(address))
        greeting = {"rank": rank, "traces": traces, "process": os.getpid(), "host": host_identity()}
        self._line.send(greeting)

    def order(self) -> BlockOrder:
        """Wait for the next order; it is to stop if the controller is gone.

        There is no deadline here: the controller has one, and ends a rank that exceeds it.
        """
        try:
            order = self._line.receive()
            return BlockOrder(int(order["steps"]), int(order.get("canary", 0)), bool(order["drop"]))
        except (PacingError, OSError):
            return BlockOrder(0)

    def done(self, seconds: float, traces: int) -> None:
        """Report how long a block took, and how many functions have been traced so far."""
        with contextlib.suppress(OSError):  # if the controller is gone, the next order is to stop
            self._line.send({"seconds": seconds, "traces": traces})

    def close(self) -> None:
        self._line.close()
