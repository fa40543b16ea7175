"""Find what a run has left behind: processes, files, leased ports and shared memory."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

SHARED = Path("/dev/shm")


def shared_memory() -> set[str]:
    """Return the names in ``/dev/shm``."""
    return set(os.listdir(SHARED)) if SHARED.is_dir() else set()


def held_ports(ports: Iterable[int]) -> list[int]:
    """Return the ports that a process still leases, or at which a server still listens."""
    found = []
    for port in ports:
        with socket.socket(type=socket.SOCK_DGRAM) as lease, socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                lease.bind(("127.0.0.1", port))
                server.bind(("127.0.0.1", port))
            except OSError:
                found.append(port)
    return found


def leftovers(outcome: Any, ports_file: Path, before: set[str]) -> dict[str, Any]:
    """Return what a finished run has left, by kind. It is empty if nothing is left.

    :param before: names of shared memory before the run.
    """
    ports = {int(line) for line in ports_file.read_text().split()} if ports_file.exists() else set()
    # A process of another run may use shared memory now. Only memory that no process has mapped is left behind.
    shared = {name for name in shared_memory() - before if not _is_mapped(str(SHARED / name))}
    shared &= shared_memory()  # another run may have removed its own meanwhile
    found = {
        "processes": outcome.processes,
        "files": outcome.files,
        "ports": held_ports(ports),
        "shared memory": sorted(shared),
    }
    return {kind: left for kind, left in found.items() if left}


def _is_mapped(path: str) -> bool:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if path in Path(f"/proc/{pid}/maps").read_text(errors="replace"):
                return True
    return False
