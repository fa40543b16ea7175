"""Keep other hosts away from TensorFlow's servers in this process.

TensorFlow's servers listen on all interfaces (``0.0.0.0`` is fixed in its ``grpc_server_lib.cc``) and execute all
requests of a client (https://github.com/tensorflow/tensorflow/blob/master/SECURITY.md). :func:`servers_kept_local`
binds them to the loopback device, which takes no time. :func:`isolate` moves the whole process into a network
namespace. That also keeps other users of this machine away, but programs in the namespace reach no other host.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1
_LOOPBACK = b"lo"
_FIX = (
    "allow user namespaces (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, "
    "kernel.apparmor_restrict_unprivileged_userns; in a container its seccomp profile), or use --ddl-network=shared"
)


@contextlib.contextmanager
def servers_kept_local() -> Iterator[None]:
    """Bind each TCP server that this process starts inside the context to the loopback device.

    The kernel then refuses connections through any other device. Linux 5.7 and newer allow this to every process
    (commit "net: core: enable SO_BINDTODEVICE for non-root users"). An older kernel requires CAP_NET_RAW. Without this
    right the servers are not changed.
    """
    before = _sockets().keys()
    yield
    after = _sockets()
    for identity in after.keys() - before:
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(after[identity])) as server:
            listens = server.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            if listens and server.family in (socket.AF_INET, socket.AF_INET6):
                server.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, _LOOPBACK)


def _sockets() -> dict[str, int]:
    """Return the open sockets as identity -> descriptor. The same descriptor may belong to another socket later."""
    sockets = {}
    for name in os.listdir("/proc/self/fd"):
        # The listing includes the descriptor of listdir itself, which is already closed.
        with contextlib.suppress(FileNotFoundError):
            sockets[os.readlink(f"/proc/self/fd/{name}")] = int(name)
    return {identity: number for identity, number in sockets.items() if identity.startswith("socket:")}


class IsolationError(RuntimeError):
    """The kernel refuses a network namespace. The message is one line with the fix."""


def isolate() -> None:
    """Move this process from the network of the machine into a new one that has only a loopback device.

    A process without the right to do so also enters a new user namespace, in which it keeps its user and group.
    The process must have only one thread, because the kernel refuses a user namespace to others.

    :raises IsolationError: if the kernel allows neither.
    """
    try:
        _enter()
        _start_loopback()
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise IsolationError(f"the kernel refuses a network namespace ({reason}): {_FIX}") from error


def join_network(path: str) -> None:
    """Move this process into the network namespace at a path such as ``/proc/PID/ns/net``, if it is another one.

    :raises OSError: if the kernel refuses it.
    """
    if not os.path.exists(path) or os.path.samefile(path, "/proc/self/ns/net"):
        return
    with open(path, "rb") as namespace:
        # os.setns needs Python 3.12.
        _call("setns", namespace.fileno(), _CLONE_NEWNET)


def _enter() -> None:
    try:
        _unshare(_CLONE_NEWNET)
    except PermissionError:
        uid, gid = os.getuid(), os.getgid()
        _unshare(_CLONE_NEWUSER | _CLONE_NEWNET)
        # The kernel accepts a map of groups only from a process that cannot call setgroups: user_namespaces(7).
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def _unshare(flags: int) -> None:
    # os.unshare needs Python 3.12.
    _call("unshare", flags)


def _call(name: str, *numbers: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, name):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if getattr(libc, name)(*numbers) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _start_loopback() -> None:
    """Activate the loopback device, which is down in a new namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sh14x", _LOOPBACK, 0)
        _name, flags = struct.unpack("16sh14x", fcntl.ioctl(control, _SIOCGIFFLAGS, request))
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sh14x", _LOOPBACK, flags | _IFF_UP))
