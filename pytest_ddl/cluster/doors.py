"""Connect a rank to a Unix socket of the pytest process, which may run on another host.

On the pytest process's own host, a rank connects directly. An agent on another host offers a socket in its place, and
passes on the bytes: the environment variable :data:`DOORS` of its ranks names the folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
from pathlib import Path

from pytest_ddl.cluster.state.user_files import DOORS


def door_of(folder: str, address: str) -> str:
    """Return the path of the socket in an agent's folder that stands for a socket of the pytest process."""
    return str(Path(folder) / hashlib.sha256(address.encode()).hexdigest()[:16])


def connect(address: str) -> socket.socket:
    """Connect to a Unix socket of the pytest process.

    :raises OSError: if nobody listens there, and no agent stands for it.
    """
    with contextlib.suppress(OSError):
        return _connect(address)
    # A folder that hosts share shows the socket of another host, and refuses the connection.
    folder = os.environ.get(DOORS)
    return _connect(door_of(folder, address) if folder else address)


def _connect(path: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(path)
    except BaseException:
        connection.close()
        raise
    return connection
