"""Answer what the controller asks about a host: versions, addresses, connections and folders.

The functions run in the agent. They take and return only values that execnet can send. Other modules may have questions
too: the controller names one as ``"module:function"``.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import importlib
import os
import platform
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest_ddl
from pytest_ddl.cluster import session_folder
from pytest_ddl.cluster.cgroups import usable_cores
from pytest_ddl.installing import version_of

PACKAGES = ("pytest-ddl", "tensorflow", "keras", "tf_keras", "numpy", "pytest", "hypothesis")
"""Packages of which a rank must have the controller's version, or lack it as the controller does."""
CONNECT_WAIT = 3.0
"""Maximum seconds until a connection between two hosts is established."""
_ANYWHERE, _ANYWHERE6 = ("192.0.2.1", 9), ("2001:db8::1", 9)
"""Addresses of documentation networks (RFC 5737, RFC 3849). No packet is sent there: a route names the own address."""


def facts(directory: str) -> dict[str, Any]:
    """Return what must be equal on all hosts, and the own address and the number of cores.

    :param directory: working directory of pytest, which must exist on each host.
    """
    return {
        "python": platform.python_version(),
        "executable": sys.executable,
        "packages": {name: version_of(name) or "" for name in PACKAGES},
        "source": digest(os.path.dirname(os.path.abspath(pytest_ddl.__file__))),
        "hostname": socket.gethostname(),
        "address": own_address(),
        "address6": own_address6(),
        "cores": float(usable_cores()),
        "affinity": sorted(os.sched_getaffinity(0)),
        "machine": session_folder.kernel(),
        "has_directory": os.path.isdir(directory),
        "gpus": gpus(),
    }


def gpus() -> list[str]:
    """Return the names of the GPUs for ``CUDA_VISIBLE_DEVICES`` that a process of this host may use.

    Device files are counted, because TensorFlow is not imported in the agent.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip() not in ("", "-1")]
    return [str(index) for index in range(len(glob.glob("/dev/nvidia[0-9]*") or glob.glob("/dev/dxg")))]


def digest(folder: str) -> str:
    """Return a digest of the Python files in a folder and its subfolders."""
    hashed = hashlib.sha256()
    for place, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(name for name in files if name.endswith(".py")):
            path = os.path.join(place, name)
            hashed.update(os.path.relpath(path, folder).encode())
            with open(path, "rb") as file:
                hashed.update(file.read())
    return hashed.hexdigest()[:16]


def digest_of(path: str) -> str:
    """Return a digest of a file, or an empty string if it cannot be read."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()[:16]
    return ""


def other_files(digests: Mapping[str, str]) -> list[str]:
    """Return the files of these that are missing on this host, or have another digest."""
    return [path for path, digest in digests.items() if digest_of(path) != digest]


def own_address() -> str:
    """Return the IP address of this host on its way to others, or that of the loopback device without a network."""
    if routed := _on_the_way_to(socket.AF_INET, _ANYWHERE):
        return routed
    with contextlib.suppress(OSError):
        # No default route, as in a network of these hosts only. Then the name of this host may have an address.
        for _family, _kind, _protocol, _name, place in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET):
            if not str(place[0]).startswith("127."):
                return str(place[0])
    return "127.0.0.1"


def own_address6() -> str:
    """Return the IPv6 address of this host on its way to others, or an empty text. It is used in messages only."""
    return _on_the_way_to(socket.AF_INET6, _ANYWHERE6)


def _on_the_way_to(family: socket.AddressFamily, place: tuple[str, int]) -> str:
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        # A datagram socket sends nothing when it connects. The kernel only chooses the route and its address.
        probe.connect(place)
        return str(probe.getsockname()[0])
    return ""


def function_of(question: str) -> Callable[..., Any]:
    """Return the function that the controller names."""
    module, _colon, name = question.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function


_listening: list[socket.socket] = []


def listen(port: int) -> None:
    """Accept connections at a leased port, until :func:`hush`, so that other hosts can try to connect."""
    _listening.append(socket.create_server(("", port), backlog=64))


def hush() -> None:
    """Close what :func:`listen` has opened."""
    while _listening:
        _listening.pop().close()


def connect(places: Sequence[tuple[str, int]]) -> list[str]:
    """Return why each of these addresses cannot be reached from this host. An empty string means that it can."""
    if not places:
        return []
    with ThreadPoolExecutor(min(len(places), 32)) as several:
        return list(several.map(_connect, places))


def _connect(place: tuple[str, int]) -> str:
    host, port = place
    try:
        # First only the name: a failed look-up and a failed connection have different fixes.
        addresses = sorted({str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)})
    except OSError as error:
        return f"its name {host!r} is not known there ({error.strerror or error})"
    if all(":" in address for address in addresses):
        return (
            f"{host} has only addresses of IPv6 there ({', '.join(addresses)}), which are not supported between hosts"
        )
    try:
        with socket.create_connection((host, port), CONNECT_WAIT):
            return ""
    except TimeoutError:
        return f"no answer from {', '.join(addresses)} port {port} within {CONNECT_WAIT:.0f} s"
    except OSError as error:
        return f"connecting to {', '.join(addresses)} port {port} failed ({error.strerror or error})"


def read(path: str) -> str:
    """Return the text of a small file, or an empty string if there is none."""
    with contextlib.suppress(OSError), open(path, encoding="utf-8") as file:
        return file.read()
    return ""
