"""Diagnose what keeps clusters from working on this machine: limits, a full disk, proxies or the network.

Each function returns one line with the cause and the fix, or the values to change. This module imports only the
standard library.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import socket
import tempfile
from collections.abc import Mapping, Sequence
from typing import NamedTuple

_LOCAL = ("localhost", "127.0.0.1")
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy", "all_proxy")
_MORE_FILES = "raise the number of open files, for example with `ulimit -n 4096`"
_LIMITS = ((resource.RLIMIT_AS, "address space", "-v"), (resource.RLIMIT_DATA, "data segment", "-d"))

LONGER = "if it is only slow, give more seconds with --ddl-start-timeout or PYTEST_DDL_START_TIMEOUT"
"""Advice for a start that was not done by its deadline."""


class LaunchError(RuntimeError):
    """Worker processes cannot be started. The message states the reason."""


def without_proxy_here(environ: Mapping[str, str], hosts: Sequence[str] = _LOCAL) -> dict[str, str]:
    """Return environment variables that keep connections within a cluster away from a proxy.

    They include the user's own entries. TensorFlow's processes communicate with gRPC, which uses ``http_proxy`` for
    127.0.0.1 too. gRPC reads ``no_grpc_proxy`` first, and ``no_proxy`` only if ``no_grpc_proxy`` is not set.

    :param hosts: hosts of the cluster. By default, it is within this machine.
    """
    if not any(environ.get(name) or environ.get(name.upper()) for name in _PROXIES):
        return {}
    changed = {}
    for name, other in (("no_proxy", "NO_PROXY"), ("NO_PROXY", "no_proxy"), ("no_grpc_proxy", "no_grpc_proxy")):
        # A program may read only one of the two spellings, so a new variable must contain the user's entries too.
        given = environ.get(name) or environ.get(other) or ""
        entries = [entry.strip() for entry in given.split(",") if entry.strip()]
        if (given or name != "no_grpc_proxy") and "*" not in entries:
            changed[name] = ",".join([*entries, *(host for host in hosts if host not in entries)])
    return changed


def loopback_problem() -> Obstacle | None:
    """Return why processes of this machine cannot talk to each other over 127.0.0.1, or ``None`` if they can."""
    try:
        with socket.socket() as listener, socket.socket() as client:
            listener.bind((_LOCAL[1], 0))
            listener.listen()
            client.settimeout(2.0)
            client.connect(listener.getsockname())
    except OSError as error:
        return Obstacle(
            f"the loopback device is down: connecting to 127.0.0.1 failed ({error.strerror or error}), and the "
            "processes of a cluster communicate over it",
            "bring it up with `ip link set lo up`, also in a container or network namespace without a network",
        )
    return None


class Obstacle(NamedTuple):
    """Something that keeps clusters from working on this machine, and what to do about it."""

    found: str
    fix: str

    def __str__(self) -> str:
        return f"{self.found}; {self.fix}"


def limits() -> Obstacle | None:
    """Return the memory limits of this process and its workers, or ``None`` without limits."""
    found = []
    for number, what, option in _LIMITS:
        soft, _hard = resource.getrlimit(number)
        if soft != resource.RLIM_INFINITY:
            found.append(f"the {what} of this process is limited to {soft / 2**30:.1f} GiB (ulimit {option})")
    if not found:
        return None
    what = f"{' and '.join(found)}, and TensorFlow reserves many GiB"
    return Obstacle(what, "try `ulimit -v unlimited -d unlimited`")


def how_it_ended(status: int | None) -> str:
    """Describe how a process ended unexpectedly, with the likely cause."""
    if status is None:
        return "its exit status is unknown"
    cause: Obstacle | str | None = limits()
    if status >= 0:
        how = f"it exited with status {status}"
    else:
        how = f"it was killed by {signal.Signals(-status).name}"
        memory = "the kernel does this when memory runs out: see `dmesg`, free memory or run fewer processes"
        cause = cause or (memory if -status == signal.SIGKILL else "")
    return f"{how} ({cause})" if cause else how


def cannot_start(error: OSError) -> str:
    """Explain why the system refuses a process, or the pipes and sockets to it, with the fix."""
    why = error.strerror or str(error)
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return f"no more files can be opened ({why}); {_MORE_FILES}"
    if error.errno == errno.EAGAIN:
        return (
            f"no more processes can be started ({why}); end other processes, or raise their number with "
            "`ulimit -u unlimited`, in a container with its pids limit"
        )
    if error.errno in (errno.ENOMEM, errno.ENOBUFS):
        return f"no more processes can be started ({why}); free memory or run fewer processes"
    return f"a process cannot be started: {why}"


def temporary_folder() -> str:
    """Return the folder for temporary files, also if nothing can be written to any."""
    try:
        return tempfile.gettempdir()
    except OSError:
        return os.environ.get("TMPDIR") or "/tmp"


_GONE = (errno.ENOENT, errno.ESTALE, errno.ENOTCONN, errno.EIO, errno.EHOSTDOWN, errno.ETIMEDOUT)
"""Errors of a folder that is not there, or not any more."""


def cannot_write(error: OSError, folder: object) -> str:
    """Explain why files cannot be made in the folder for temporary files, with the fix."""
    if error.errno == errno.EFBIG:
        fix = "the size of files is limited (ulimit -f): try `ulimit -f unlimited`"
    elif error.errno in (errno.EMFILE, errno.ENFILE):
        fix = _MORE_FILES
    elif error.errno in _GONE:
        fix = (
            "it was removed or unmounted, or its server does not answer: restore it, or choose another with the "
            "environment variable TMPDIR (or --ddl-shared-dir)"
        )
    else:
        fix = "free space there, or set the environment variable TMPDIR to a folder with free space"
    return f"pytest-ddl cannot write to {folder}: {error.strerror or error}; {fix}"
