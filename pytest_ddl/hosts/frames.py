"""Messages between processes that have proven who they are: JSON, after its length in four bytes.

The module imports only the standard library.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
from typing import Any

MAX_BYTES = 1 << 16
"""Maximum size of a message. Longer ones are refused before they are read."""
PATIENCE = 15
"""Seconds after which a peer counts as lost whose machine does not answer any more."""
_LENGTH = struct.Struct("!I")


def send_message(connection: socket.socket, message: dict[str, Any]) -> None:
    """Send a message.

    :raises OSError: if the connection has ended.
    """
    data = json.dumps(message).encode()
    connection.sendall(_LENGTH.pack(len(data)) + data)


def receive_message(connection: socket.socket) -> dict[str, Any] | None:
    """Return the next message, or ``None`` at the end of the connection or of its order."""
    with contextlib.suppress(OSError, ValueError):
        (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
        if length <= MAX_BYTES:
            message = json.loads(_exactly(connection, length))
            return message if isinstance(message, dict) else None
    return None


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionResetError
        data += part
    return data


def notice_loss(connection: socket.socket) -> None:
    """Let the kernel end a TCP connection whose peer's machine is gone, also while nothing is sent (Linux)."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option, value in (
        ("TCP_KEEPIDLE", PATIENCE // 3),
        ("TCP_KEEPINTVL", PATIENCE // 3),
        ("TCP_KEEPCNT", 2),
        ("TCP_USER_TIMEOUT", 1000 * PATIENCE),
    ):
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
