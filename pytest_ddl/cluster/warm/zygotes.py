"""Let a launcher fork the zygote of its run from a warm server."""

from __future__ import annotations

import functools
import socket
from collections.abc import Callable, Mapping

from pytest_ddl.cluster.obstacles import LaunchError
from pytest_ddl.cluster.warm import servers


class WarmZygotes:
    """Source of the zygote of one run. It implements :class:`pytest_ddl.cluster.local_launcher.ZygoteSource`."""

    def __init__(self) -> None:
        self._leave: Callable[[], None] | None = None

    def fork(
        self, environ: Mapping[str, str], address: str, owner: socket.socket, log: int, *, isolated: bool
    ) -> servers.WarmZygote | None:
        """Return a zygote of a warm server that fits, or ``None``.

        :raises LaunchError: if the folder of the servers cannot be used.
        """
        key = servers.key_of(environ)
        try:
            forked = servers.fork(key, environ, address, owner, log, isolated=isolated)
        except servers.WarmError as error:
            raise LaunchError(f"--ddl-warm: {error}") from None
        if forked is None:
            self._leave = functools.partial(servers.leave, key, environ)
        return forked

    def leave(self) -> None:
        """Start a server for the next run, if this run found none."""
        if self._leave is not None:
            self._leave()
