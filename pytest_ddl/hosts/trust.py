"""Prove to each other that two processes know the same key, before anything else is read from a connection.

A program that is sent over such a connection runs without further checks. So the controller and a task exchange three
frames of fixed sizes first, and read nothing beyond them:

==========  ===========  ==========================================================================================
frame       from         fields
==========  ===========  ==========================================================================================
challenge   controller   :data:`VERSION`, nonce of the controller
answer      task         purpose, ticket, name of the task, nonce of the task, MAC
verdict     controller   verdict, MAC
==========  ===========  ==========================================================================================

Each MAC is HMAC-SHA256 over the role of its sender and all fields so far. The role makes it useless to send a MAC back
to its sender. The nonces make it useless to record it: each side has chosen one of them for this connection only. All
fields have fixed sizes, so no two lists of fields are the same bytes.

:mod:`multiprocessing.connection` does less. Its MACs cover only a nonce, neither role nor name. Its two directions are
independent of each other. The side that answers chooses the digest, and MD5 is one of them. Nothing ends a handshake
that a peer does not go on with.

The module imports only the standard library, and so does all that a task needs before it starts a program.
"""

from __future__ import annotations

import hmac
import os
import secrets
import socket
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

KEY_VARIABLE = "PYTEST_DDL_KEY"
"""Environment variable with the key in hexadecimal digits."""
KEY_FILE_VARIABLE = "PYTEST_DDL_KEY_FILE"
"""Environment variable with the path of a file that contains the key."""
KEY_BYTES = 32
HANDSHAKE_WAIT = 5.0
"""Maximum seconds for the three frames together."""
VERSION = b"pytest-ddl 1\0\0\0\0"
_NONCE, _MAC, _NAME, _TICKET = 32, 32, 64, 16
_CHALLENGE = len(VERSION) + _NONCE
_ANSWER = 1 + _TICKET + _NAME + _NONCE + _MAC
_VERDICT = 1 + _MAC
_TASK, _CONTROLLER = b"task\0\0\0\0\0\0", b"controller"
"""Roles, of equal sizes."""
_MAKE_KEY = "make one with `openssl rand -hex 32`, and give the same to all tasks"
_MAX_KEY_FILE = 4096
_FEW = 8
"""A random key has far more different bytes than this."""


class Key(bytes):
    """Key of a run, which a traceback or a debugger does not show by accident."""

    def __repr__(self) -> str:
        return "<key>"


class KeyProblemError(ValueError):
    """There is no usable key. The message is one line with the fix, and does not contain the key."""


class HandshakeError(ConnectionError):
    """The other side has not proven that it knows the key. The message is one line."""


class RefusedError(HandshakeError):
    """The controller knows the key, and refuses the task for another reason."""


class Purpose(Enum):
    """Purpose of a connection that a task opens."""

    CONTROL = b"c"
    """Orders of the controller, and its exit status."""
    PROGRAM = b"p"
    """Stdin and stdout of a program that the controller has ordered. The ticket says which."""


class HandshakeVerdict(Enum):
    WELCOME = b"w"
    TAKEN = b"t"
    """Another process is connected as this task."""
    UNKNOWN = b"u"
    """There is no such task, or no such ticket."""


_REASONS = {
    HandshakeVerdict.TAKEN: "another process is already connected as {name}",
    HandshakeVerdict.UNKNOWN: "it does not expect {name}: TF_CONFIG there differs from TF_CONFIG here",
}


@dataclass(frozen=True)
class Claim:
    """Identity that a task claims."""

    purpose: Purpose
    name: str
    """Name of the task, such as ``worker:1``."""
    ticket: bytes = bytes(_TICKET)

    def fields(self) -> bytes:
        name = self.name.encode()
        if len(name) > _NAME or len(self.ticket) != _TICKET:
            raise ValueError(f"{self.name!r} is too long for the name of a task")
        return self.purpose.value + self.ticket + name.ljust(_NAME, b"\0")


@dataclass(frozen=True)
class HandshakeProof:
    """A claim whose task knows the key, and all bytes of the handshake so far."""

    claim: Claim
    said: bytes


def new_ticket() -> bytes:
    return secrets.token_bytes(_TICKET)


def read_key(environ: Mapping[str, str]) -> Key:
    """Return the key of the run.

    :raises KeyProblemError: if there is none, or if others may know it.
    """
    text, path = environ.get(KEY_VARIABLE), environ.get(KEY_FILE_VARIABLE)
    if text and path:
        raise KeyProblemError(f"{KEY_VARIABLE} and {KEY_FILE_VARIABLE} are both set; unset one of them")
    if path:
        return _checked(_read_file(path), f"the file {path} of {KEY_FILE_VARIABLE}", raw=True)
    if text:
        return _checked(text.encode(), KEY_VARIABLE, raw=False)
    raise KeyProblemError(
        f"{KEY_VARIABLE} and {KEY_FILE_VARIABLE} are not set: without a key, anyone in the network could run programs "
        f"here; {_MAKE_KEY}"
    )


def _read_file(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            found = os.fstat(file.fileno())
            own = found.st_uid == os.geteuid()
            # A Secret of Kubernetes belongs to root. A user other than root reads it through the group of the pod.
            if found.st_mode & (stat.S_IRWXO | (stat.S_IRWXG if own else stat.S_IWGRP)):
                raise KeyProblemError(
                    f"{KEY_FILE_VARIABLE}={path}: other users can read or write the key "
                    f"(mode {stat.S_IMODE(found.st_mode):04o}); run `chmod 600 {path}`, or set defaultMode: 0400 for a "
                    "Secret of Kubernetes"
                )
            return file.read(_MAX_KEY_FILE)
    except OSError as error:
        raise KeyProblemError(f"{KEY_FILE_VARIABLE}={path} cannot be read ({error.strerror}); {_MAKE_KEY}") from None


def _checked(found: bytes, where: str, *, raw: bool) -> Key:
    key = found if raw and len(found) == KEY_BYTES else b""
    if not key:
        try:
            key = bytes.fromhex(found.decode("ascii").strip())
        except ValueError:
            key = b""
    if len(key) != KEY_BYTES:
        also = f", and not {KEY_BYTES} bytes" if raw else ""
        raise KeyProblemError(f"{where} has not {2 * KEY_BYTES} hexadecimal digits{also}; {_MAKE_KEY}")
    if len(set(key)) < _FEW:
        raise KeyProblemError(f"{where} is a key that can be guessed; {_MAKE_KEY}")
    return Key(key)


def _mac(key: bytes, role: bytes, said: bytes) -> bytes:
    return hmac.digest(key, role + said, "sha256")


def _receive(connection: socket.socket, size: int, deadline: float) -> bytes:
    """Return exactly so many bytes."""
    data = b""
    while len(data) < size:
        # The deadline is that of the whole handshake: a byte now and then must not prolong it.
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise HandshakeError(f"no handshake within {HANDSHAKE_WAIT:.0f} s")
        connection.settimeout(remaining)
        try:
            part = connection.recv(size - len(data))
        except TimeoutError:
            continue
        except OSError as error:
            raise HandshakeError(f"the connection broke ({error.strerror})") from None
        if not part:
            raise HandshakeError(f"the connection was closed after {len(data)} of {size} bytes")
        data += part
    return data


def _send(connection: socket.socket, data: bytes, deadline: float) -> None:
    connection.settimeout(max(deadline - time.monotonic(), 0.001))
    try:
        connection.sendall(data)
    except OSError as error:
        raise HandshakeError(f"the connection broke ({error.strerror or error})") from None


def examine(connection: socket.socket, key: bytes, deadline: float) -> HandshakeProof:
    """Let the other side of a connection prove that it is a task of this run. :func:`conclude` answers it.

    :param deadline: of the handshake, in seconds of :func:`time.monotonic`.
    :raises HandshakeError: if it proves nothing.
    """
    challenge = VERSION + secrets.token_bytes(_NONCE)
    _send(connection, challenge, deadline)
    answer = _receive(connection, _ANSWER, deadline)
    said = challenge + answer[:-_MAC]
    if not hmac.compare_digest(_mac(key, _TASK, said), answer[-_MAC:]):
        raise HandshakeError("it does not know the key")
    # From here on, the bytes are those of a process that knows the key. It may still be of another version.
    try:
        name = answer[1 + _TICKET :][:_NAME].rstrip(b"\0").decode("ascii")
        return HandshakeProof(Claim(Purpose(answer[:1]), name, answer[1:][:_TICKET]), said)
    except ValueError:
        raise HandshakeError("it knows the key, and says something unknown: its pytest-ddl differs") from None


def conclude(
    connection: socket.socket, key: bytes, proof: HandshakeProof, verdict: HandshakeVerdict, deadline: float
) -> None:
    """Prove to the task that this is the controller, and send it the verdict.

    :raises HandshakeError: if the connection has broken.
    """
    said = proof.said + verdict.value
    _send(connection, verdict.value + _mac(key, _CONTROLLER, said), deadline)
    connection.settimeout(None)


def prove(connection: socket.socket, key: bytes, claim: Claim) -> None:
    """Prove to the controller that this is a task of its run, and let it prove the same.

    :raises RefusedError: if the controller refuses the task.
    :raises HandshakeError: if it does not prove that it knows the key.
    """
    deadline = time.monotonic() + HANDSHAKE_WAIT
    challenge = _receive(connection, _CHALLENGE, deadline)
    if not challenge.startswith(VERSION):
        raise RefusedError("it is not the controller of pytest-ddl, or one of another version")
    said = challenge + claim.fields() + secrets.token_bytes(_NONCE)
    _send(connection, said[_CHALLENGE:] + _mac(key, _TASK, said), deadline)
    try:
        verdict = _receive(connection, _VERDICT, deadline)
    except HandshakeError as error:
        raise RefusedError(f"it has not accepted the key ({error}); give all tasks the same key") from None
    if not hmac.compare_digest(_mac(key, _CONTROLLER, said + verdict[:1]), verdict[1:]):
        raise RefusedError("it does not know the key; give all tasks the same key")
    connection.settimeout(None)
    if verdict[:1] != HandshakeVerdict.WELCOME.value:
        raise RefusedError(_REASONS[HandshakeVerdict(verdict[:1])].format(name=claim.name))
