"""Interface of launchers, which start the worker processes of clusters and choose the addresses of their servers.

The pool and the clusters use only the names of this module. The local launcher implements it for this machine. A plugin
can implement it for other machines: each worker needs one stream of bytes in each direction, for example the stdin and
stdout of :mod:`pytest_ddl.cluster.stdio_worker`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from pytest_ddl.cluster.obstacles import LaunchError
from pytest_ddl.cluster.resources import Ledger
from pytest_ddl.strategies.spec import Topology


class WorkerProcess(Protocol):
    """Worker process as the controller sees it: its channel, its output and its end.

    The channel carries one request at a time, and each request has one reply. Both are opaque bytes.
    """

    def fileno(self) -> int:
        """Return a file descriptor that becomes readable when :meth:`receive` has something to return or to raise."""

    def send(self, data: bytes) -> None:
        """Send a request. It may wait until the worker reads, because a large request is sent by a thread.

        :raises OSError: if the worker has ended.
        """

    def receive(self) -> bytes:
        """Return the next reply. Do not read beyond its end, because :meth:`fileno` would not announce that part.

        :raises EOFError: if the worker has ended or has closed its channel. An ``OSError`` has the same meaning.
        :raises BlockingIOError: if only a part of the reply has arrived. The method is called again when there is more.
            A launcher that waits for the rest instead waits without a deadline if the worker is suspended.
        """

    def signal(self, number: int) -> None:
        """Send a signal to the worker and its process group. Do nothing if the worker has ended.

        After ``SIGSTOP``, return once the worker is suspended.
        """

    def wait(self, timeout: float = 0.0) -> int | None:
        """Wait at most ``timeout`` seconds for the end of the worker. Return ``None`` if it still runs.

        Otherwise return its exit status, or minus the number of the signal that ended it.

        :raises LaunchError: if the launcher has ended before the status was known.
        """

    def read_stacks(self) -> str:
        """Return the text that the worker has written about its stacks since the last call."""

    def output(self, since: tuple[int, int] = (0, 0)) -> tuple[str, str]:
        """Return the output on stdout and stderr after these offsets. It can be read after the end of the worker."""

    def output_offsets(self) -> tuple[int, int]:
        """Return the present sizes of stdout and stderr in bytes."""

    def close(self) -> None:
        """Close the channel and discard the output. A worker that still runs ends when it notices this."""


PLACE = "_PYTEST_DDL_PLACE"
"""Environment variable of a rank: the number of ranks before it that are on the same machine.

A launcher for several hosts fills it in, if it is in the environment of a cluster. On one machine it stays empty,
because it would be the number of the rank.
"""


class Reservation(Protocol):
    """Addresses for the servers of one cluster. No other cluster gets them until they are released."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """``"host:port"`` for each port of the topology. All processes of the cluster can connect to them."""

    def release(self) -> None:
        """Release the addresses. A second call does nothing."""


class Launcher(Protocol):
    """Interface of a launcher, which starts processes that run :class:`pytest_ddl.cluster.worker.Worker`."""

    @property
    def address(self) -> str | None:
        """Address at which other processes of the session can use this launcher, or ``None`` if they cannot.

        Under pytest-xdist, the function that makes launchers gets the address of the controller's launcher.
        """

    @property
    def ended(self) -> str:
        """Description of how the launcher ended, or an empty string while it can start workers.

        The pool replaces a launcher that has ended.
        """

    @property
    def ledger(self) -> Ledger:
        """Slots of the machines on which the workers run: ``"cpu"`` for ranks that run at once, and ``"gpu"``.

        If its capacity has no ``"gpu"``, that number is set once a worker has counted the GPUs.
        """

    def reserve(self, topology: Topology) -> Reservation:
        """Choose the machine of each process of a cluster, and lease the addresses of its servers.

        :raises LaunchError: if the processes could not connect to any address, or if ``topology.hosts`` is
            more than the launcher has. An ``OSError`` of the system is also reported.
        """

    def launch(
        self, reservation: Reservation, tasks: Sequence[int], environ: Mapping[str, str]
    ) -> Sequence[WorkerProcess]:
        """Start some processes of the cluster that has this reservation.

        :param tasks: positions of the processes in the topology, which lists first the ranks and then the servers.
            When the cluster starts, these are all positions; later, only those of the processes to restart.
        :raises LaunchError: if a process cannot be started.
        """

    def fileno(self) -> int | None:
        """Return a file descriptor that becomes readable when :meth:`poll` is needed, or ``None`` if it never is."""

    def poll(self) -> None:
        """Read news of the processes that start the workers, without waiting for any.

        :raises LaunchError: if the launcher has ended.
        """

    def hosts_without(self, folder: Path) -> Sequence[str]:
        """Return the names of the hosts whose ranks do not see a folder of this machine.

        :raises LaunchError: if the hosts cannot work together.
        """

    def text_of_rank(self, text: str) -> str:
        """Return a text that a rank has written, with the paths of this machine."""

    def offer(self, address: str) -> None:
        """Let ranks connect to a Unix socket of this process; see :mod:`pytest_ddl.cluster.doors`."""

    def close(self) -> None:
        """End all workers and the processes that started them."""


class OneMachine:
    """Base of launchers whose ranks see the files and the sockets of this process."""

    def hosts_without(self, folder: Path) -> Sequence[str]:
        return ()

    def text_of_rank(self, text: str) -> str:
        return text

    def offer(self, address: str) -> None:
        """Do nothing, because ranks connect directly."""


def reserve(launcher: Launcher, topology: Topology) -> Reservation:
    """Return a reservation of a launcher, which must be on as many hosts as the variant wants.

    :raises LaunchError: as :meth:`Launcher.reserve`, or if the launcher has one machine only.
    """
    reservation = launcher.reserve(topology)
    # Only launchers over several hosts say where the processes are.
    if topology.hosts not in (0, len(set(getattr(reservation, "hosts", (0,))))):
        reservation.release()
        raise LaunchError(
            f"hosts={topology.hosts} needs as many hosts, and this launcher has one machine; choose hosts with "
            "--ddl-launcher, for example netns[hosts=2], or leave hosts out"
        )
    return reservation


MakeLauncher = Callable[[dict[str, str], Path, str | None], Launcher]
"""Function ``make(environ, folder, address)`` that starts a launcher; see ``pytest_ddl_register_launchers``."""
