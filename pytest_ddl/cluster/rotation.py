"""Move the processes of a cluster to other places, so that each rank has each host in turn."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

from pytest_ddl.cluster.launcher import Launcher, Reservation, WorkerProcess
from pytest_ddl.strategies.spec import Topology

ROTATION = "_PYTEST_DDL_ROTATION"
"""Environment variable of a cluster with the number of places by which its ranks move."""


def rotated(launcher: Launcher, environ: MutableMapping[str, str]) -> Launcher:
    """Return a launcher that moves the processes of a cluster as :data:`ROTATION` says, and remove the variable."""
    places = int(environ.pop(ROTATION, 0))
    return RotatedLauncher(launcher, places) if places else launcher


class RotatedReservation:
    """Reservation in which each process has the place of another one."""

    def __init__(self, whole: Reservation, places: Sequence[int], listeners: Sequence[int]) -> None:
        """Move processes.

        :param places: index of the place of each process.
        :param listeners: process that listens at each address; see :attr:`Topology.listeners`.
        """
        found = dict(zip(listeners, whole.addresses, strict=True))
        # An address stays with its process unless all that listen change places among themselves.
        moves = len(found) == len(whole.addresses) and {places[one] for one in listeners} == set(listeners)
        places = places if moves else range(len(places))
        self.whole, self.places = whole, tuple(places)
        self.addresses = tuple(found[places[one]] for one in listeners) if moves else tuple(whole.addresses)
        # A launcher for one machine has no numbers of hosts.
        hosts = getattr(whole, "hosts", (0,) * len(places))
        self.hosts = tuple(hosts[place] for place in places)

    def release(self) -> None:
        self.whole.release()


class RotatedLauncher:
    """Launcher that gives rank r the place of rank r + n, and each server that of another server."""

    def __init__(self, launcher: Launcher, places: int) -> None:
        """Use another launcher.

        :param places: number of places by which the processes move.
        """
        self._launcher, self._by = launcher, places

    def reserve(self, topology: Topology) -> RotatedReservation:
        places: list[int] = []
        for group in (topology.ranks, topology.servers):
            first, count = len(places), len(group)
            places += [first + (index + self._by) % count for index in range(count)]
        return RotatedReservation(self._launcher.reserve(topology), places, topology.listeners)

    def launch(
        self, reservation: Reservation, tasks: Sequence[int], environ: Mapping[str, str]
    ) -> Sequence[WorkerProcess]:
        assert isinstance(reservation, RotatedReservation)
        return self._launcher.launch(reservation.whole, [reservation.places[task] for task in tasks], environ)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._launcher, name)
