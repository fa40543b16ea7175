"""Cut hosts off from the others for a time, if the transport to them can do so."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from pytest_ddl.cluster.launcher import Launcher, Reservation
from pytest_ddl.hosts.transport import Host


@runtime_checkable
class Cuttable(Protocol):
    """Transport whose hosts can be cut off from each other. The connections to pytest stay."""

    def cut(self, host: Host) -> None:
        """Let nothing from or to a host arrive any more."""

    def heal(self, host: Host) -> None:
        """Undo :meth:`cut`."""


class Partitions:
    """Hosts of a run that are cut off now."""

    def __init__(self, transport: Cuttable, hosts: Sequence[Host]) -> None:
        self._transport, self._hosts = transport, hosts
        self._until: dict[str, tuple[Host, float]] = {}
        """Name of a host that is cut off -> the host, and the time at which it is connected again."""

    @classmethod
    def over(cls, launcher: Launcher) -> Partitions | None:
        """Return the partitions of a launcher; ``None`` if it cannot cut its hosts off, or has only one.

        :raises LaunchError: if the hosts cannot work together.
        """
        group = getattr(launcher, "group", None)
        transport = getattr(group, "transport", None)
        if group is None or not isinstance(transport, Cuttable) or len(group.hosts) < 2:
            return None
        return cls(transport, group.hosts)

    def cut(self, reservation: Reservation, process: int, seconds: float) -> None:
        """Cut the host of a process off.

        :param process: index of the process in its cluster.
        :param seconds: time after which :meth:`heal_due` connects it again.
        """
        host = self._hosts[reservation.hosts[process]]  # type: ignore[attr-defined]
        self._transport.cut(host)
        self._until[host.name] = host, time.monotonic() + seconds

    def heal_due(self) -> None:
        """Connect the hosts again whose time is over."""
        for name, (host, until) in list(self._until.items()):
            if time.monotonic() >= until:
                self._transport.heal(host)
                del self._until[name]

    def heal(self) -> None:
        """Connect all hosts again."""
        for host, _until in self._until.values():
            self._transport.heal(host)
        self._until = {}
