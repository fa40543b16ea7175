"""Lease TCP ports on this machine, so that no other cluster of any process uses them.

TensorFlow does not accept a bound socket. A port therefore has to be chosen and released before TensorFlow binds it.
The lease of TCP port N is the bound *UDP* port N. The kernel allows one holder, releases the port even after
``kill -9``, and no file is left. The ports are below the kernel's ephemeral range, so that outgoing connections of
other programs do not use them.
"""

from __future__ import annotations

import os
import random
import socket

HOST = "127.0.0.1"
FIRST_PORT, LAST_PORT = 18000, 32000
"""Range of ports: below Linux's default ephemeral range (from 32768) and above the ports of most services."""


class PortLease:
    """Lease of TCP ports of this machine. No other cluster takes them until they are released.

    :raises OSError: if there are not enough free ports.
    """

    def __init__(self, count: int) -> None:
        self._held: dict[int, socket.socket] = {}
        # Random numbers of the operating system, because a test that seeds `random` must not make two runs collide.
        order = random.Random(os.urandom(8)).sample(range(FIRST_PORT, LAST_PORT), LAST_PORT - FIRST_PORT)
        for port in order:
            if len(self._held) == count:
                break
            held = _lease(port)
            if held is not None:
                self._held[port] = held
        if len(self._held) < count:
            self.release()
            raise OSError(f"no {count} free ports between {FIRST_PORT} and {LAST_PORT} on this machine")

    @property
    def ports(self) -> tuple[int, ...]:
        return tuple(self._held)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Address of each port on the loopback device, as ``"host:port"``."""
        return tuple(f"{HOST}:{port}" for port in self._held)

    def release(self) -> None:
        """Release the ports. A second call does nothing."""
        while self._held:
            self._held.popitem()[1].close()


def _lease(port: int) -> socket.socket | None:
    held = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        held.bind((HOST, port))
        with socket.socket() as probe:
            # The port of an ended server stays in TIME_WAIT, in which TensorFlow can bind it too.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("", port))
    except OSError:
        held.close()
        return None
    return held
