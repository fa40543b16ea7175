"""Leases of TCP ports on this machine, held against all other clusters whatever process owns them.

TensorFlow cannot be handed a bound socket, so a port has to be chosen, let go and bound again by
TensorFlow. The lease of TCP port N is the bound *UDP* port N: the kernel allows one holder, frees it
even after ``kill -9``, and no file is left. Taking ports below the kernel's ephemeral range keeps
everybody else's outgoing connections away.
"""

from __future__ import annotations

import os
import random
import socket

FIRST_PORT, LAST_PORT = 18000, 32000
"""Below Linux's default ephemeral range (from 32768), above the ports of most services."""


class PortLease:
    """Some ports of this machine that no other cluster takes while the lease is held.

    :raises OSError: when there are not enough free ports.
    """

    def __init__(self, count: int) -> None:
        self._held: dict[int, socket.socket] = {}
        # The operating system's randomness: a test that seeds `random` must not make two runs collide.
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

    def release(self) -> None:
        """Give the ports back; may be called twice."""
        while self._held:
            self._held.popitem()[1].close()


def _lease(port: int) -> socket.socket | None:
    held = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        held.bind(("127.0.0.1", port))
        with socket.socket() as probe:
            # Gone servers leave their port in TIME_WAIT, which does not stop TensorFlow either.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("", port))
    except OSError:
        held.close()
        return None
    return held
