"""Check before a run that the hosts can work together: versions, folders, and connections between each pair.

Distributed training over hosts that cannot reach each other hangs without a message. Each finding here is one line with
the host, the cause and the fix.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytest_ddl.cluster.launcher import LaunchError
from pytest_ddl.cluster.resources import FIRST_PORT, LAST_PORT
from pytest_ddl.hosts import questions
from pytest_ddl.hosts.link import HostLink

_WHAT = "asking for versions and addresses"


def check(links: Sequence[HostLink], deadline: float) -> list[dict[str, Any]]:
    """Return the facts of each host.

    :param deadline: in seconds of :func:`time.monotonic`.
    :raises LaunchError: if the hosts cannot work together. The message names each problem.
    """
    here = questions.facts(os.getcwd())
    requests = [link.request("ask", "facts", [os.getcwd()]) for link in links]
    facts = [link.answer(request, deadline, _WHAT) for link, request in zip(links, requests, strict=True)]
    problems = [
        f"{link.host.name}: {problem}"
        for link, found in zip(links, facts, strict=True)
        for problem in differences(here, found)
    ]
    if not problems:
        problems = _unreachable(links, facts, deadline)
    if problems:
        raise LaunchError("the hosts cannot work together:\n" + "\n".join(f"  {problem}" for problem in problems))
    return facts


def without(links: Sequence[HostLink], folder: Path, deadline: float) -> list[str]:
    """Return the names of the hosts that do not see a file that this process writes into a folder.

    :param deadline: in seconds of :func:`time.monotonic`.
    """
    mark = folder / "seen-by-hosts"
    mark.write_text(secrets.token_hex())
    requests = [link.request("ask", "read", [str(mark)]) for link in links]
    try:
        seen = [link.answer(request, deadline, "reading a file") for link, request in zip(links, requests, strict=True)]
        return [link.host.name for link, text in zip(links, seen, strict=True) if text != mark.read_text()]
    finally:
        mark.unlink()


def differences(here: dict[str, Any], there: dict[str, Any]) -> list[str]:
    """Return what keeps a host from running the same tests as this process, each with its fix."""
    found = []
    python = there["executable"]
    # Functions travel as bytecode, which each minor version of Python has for itself.
    if _minor(here["python"]) != _minor(there["python"]):
        found.append(
            f"Python {there['python']} ({python}), but {here['python']} runs pytest; choose one with "
            "--ddl-launcher=…[python=PATH]"
        )
    for name, version in here["packages"].items():
        other = there["packages"].get(name, "")
        if version != other:
            fix = f"{python} -m pip install {name}=={version}" if version else f"{python} -m pip uninstall {name}"
            found.append(f"{name} {other or 'is missing'}, but {version or 'none'} here; run `{fix}` there")
    if here["source"] != there["source"] and here["packages"]["pytest-ddl"] == there["packages"]["pytest-ddl"]:
        found.append("pytest-ddl has the same version but other files than here; install the same commit there")
    if not there["has_directory"]:
        found.append(
            f"the folder {os.getcwd()} of the tests does not exist there; copy it, or run from a shared folder"
        )
    return found


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]


def _unreachable(links: Sequence[HostLink], facts: Sequence[dict[str, Any]], deadline: float) -> list[str]:
    """Let each host connect to a leased port of each other host. Return what failed."""
    if len(links) < 2:
        return []
    leases = [link.request("lease", 1) for link in links]
    try:
        what = "leasing a port"
        ports = [link.answer(lease, deadline, what)[0] for link, lease in zip(links, leases, strict=True)]
        opened = [link.request("ask", "listen", [port]) for link, port in zip(links, ports, strict=True)]
        for link, request in zip(links, opened, strict=True):
            link.answer(request, deadline, "listening at a port")
        addresses = [link.host.address or found["address"] for link, found in zip(links, facts, strict=True)]
        problems = [
            f"{link.host.name}: its address is {address}, which means the host itself on every host; give the address "
            "of its network to the transport"
            for link, address in zip(links, addresses, strict=True)
            if address.startswith("127.") or address == "localhost"
        ]
        return problems or _try_to_connect(links, list(zip(addresses, ports, strict=True)), deadline)
    finally:
        for link, lease in zip(links, leases, strict=True):
            link.request("ask", "hush", [])
            link.tell("release", lease)


def _try_to_connect(links: Sequence[HostLink], places: Sequence[tuple[str, int]], deadline: float) -> list[str]:
    others = [[index for index in range(len(links)) if index != own] for own in range(len(links))]
    requests = [
        link.request("ask", "connect", [[list(places[other]) for other in targets]])
        for link, targets in zip(links, others, strict=True)
    ]
    problems = []
    for link, targets, request in zip(links, others, requests, strict=True):
        for target, problem in zip(targets, link.answer(request, deadline, "connecting"), strict=True):
            if problem:
                problems.append(
                    f"{link.host.name} cannot reach {links[target].host.name}: {problem}; allow ports {FIRST_PORT} to "
                    f"{LAST_PORT} between the hosts, or give another address"
                )
    return problems
