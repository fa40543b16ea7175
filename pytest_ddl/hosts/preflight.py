"""Check before a run that the hosts can work together: versions, folders, and connections between each pair.

Distributed training over hosts that cannot reach each other hangs without a message. Each problem here is one line with
the host, the cause and the fix.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_ddl.cluster.obstacles import LaunchError, cannot_write
from pytest_ddl.cluster.resources import FIRST_PORT, LAST_PORT
from pytest_ddl.hosts import questions
from pytest_ddl.hosts.link import HostLink

_QUESTIONS = questions.__name__
_COPY = "add --ddl-sync, which copies the files of rootdir to each host"


@dataclass(frozen=True)
class Problem:
    """Reason why a host cannot work together with the others."""

    host: str
    found: str
    fix: str


def ask(
    links: Sequence[HostLink], question: str, arguments: Sequence[list[Any]], what: str, deadline: float
) -> list[Any]:
    """Call a function on each host, at the same time, with its own arguments. Return the answers.

    :param question: function as ``"module:name"``.
    :param what: what it does, for the message if there is no answer.
    :param deadline: in seconds of :func:`time.monotonic`.
    :raises LaunchError: if a host does not answer.
    """
    requests = [link.request("ask", question, own) for link, own in zip(links, arguments, strict=True)]
    return [link.answer(request, deadline, what) for link, request in zip(links, requests, strict=True)]


def examine(
    links: Sequence[HostLink], deadline: float, *, needs_directory: bool = True
) -> tuple[list[dict[str, Any]], list[Problem]]:
    """Return the facts of each host, and what keeps the hosts from working together.

    :param needs_directory: whether each host must have the working directory of this process.
    :raises LaunchError: if a host does not answer.
    """
    here = questions.facts(os.getcwd())
    where = [[os.getcwd()]] * len(links)
    facts = ask(links, f"{_QUESTIONS}:facts", where, "asking for versions and addresses", deadline)
    problems = [
        Problem(link.host.name, found, fix)
        for link, there in zip(links, facts, strict=True)
        for found, fix in differences(here, there if needs_directory else {**there, "has_directory": True})
    ]
    return facts, problems or unreachable(links, facts, deadline)


def without(links: Sequence[HostLink], folder: Path, deadline: float) -> list[str]:
    """Return the names of the hosts that do not see a file that this process writes into a folder.

    :raises LaunchError: if a host does not answer, or if this process cannot write there.
    """
    secret = secrets.token_hex()
    # Each worker of pytest-xdist has its own.
    mark = folder / f"seen-by-hosts-{secrets.token_hex(8)}"
    try:
        mark.write_text(secret)
        seen = ask(links, f"{_QUESTIONS}:read", [[str(mark)]] * len(links), f"reading a file in {folder}", deadline)
        return [link.host.name for link, text in zip(links, seen, strict=True) if text != secret]
    except OSError as error:
        raise LaunchError(cannot_write(error, folder)) from None
    finally:
        with contextlib.suppress(OSError):
            mark.unlink()


def other_files(links: Sequence[HostLink], paths: Collection[str], deadline: float) -> list[Problem]:
    """Return the hosts on which files of the user are missing, or have another content than here.

    Their ranks would run other tests than pytest has collected.
    """
    here = {path: questions.digest_of(path) for path in sorted(paths)}
    what = "comparing the files of the tests"
    answers = ask(links, f"{_QUESTIONS}:other_files", [[here]] * len(links), what, deadline)
    fix = f"{_COPY}, copy what differs, or run from a folder that all hosts share"
    return [
        Problem(link.host.name, f"{_files(own)} not as here, or missing", fix)
        for link, own in zip(links, answers, strict=True)
        if own
    ]


def _files(paths: Sequence[str]) -> str:
    return f"{paths[0]} is" if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more files are"


def differences(here: dict[str, Any], there: dict[str, Any]) -> list[tuple[str, str]]:
    """Return what keeps a host from running the same tests as this process, each with its fix."""
    different = []
    python = there["executable"]
    # Functions travel as bytecode, which each minor version of Python has for itself.
    if _minor(here["python"]) != _minor(there["python"]):
        what = f"Python {there['python']} ({python}), but {here['python']} runs pytest"
        different.append((what, "choose one with --ddl-launcher=…[python=PATH]"))
    for name, version in here["packages"].items():
        other = there["packages"].get(name, "")
        if version != other:
            command = f"install {name}=={version}" if version else f"uninstall {name}"
            what = f"{name} {other or 'is missing'}, but {version or 'none'} here"
            different.append((what, f"run `{python} -m pip {command}` there"))
    if here["source"] != there["source"] and here["packages"]["pytest-ddl"] == there["packages"]["pytest-ddl"]:
        different.append(("pytest-ddl has the same version but other files than here", "install the same commit there"))
    if not there["has_directory"]:
        what = f"the folder {os.getcwd()} of the tests does not exist there"
        different.append((what, f"{_COPY}, copy it, or run from a folder that all hosts share"))
    return different


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]


def unreachable(links: Sequence[HostLink], facts: Sequence[dict[str, Any]], deadline: float) -> list[Problem]:
    """Let each host connect to a leased port of each host, also to its own. Return what failed."""
    leases = [link.request("lease", 1) for link in links]
    try:
        what = "leasing a port"
        ports = [link.answer(lease, deadline, what)[0] for link, lease in zip(links, leases, strict=True)]
        ask(links, f"{_QUESTIONS}:listen", [[port] for port in ports], "listening at a port", deadline)
        addresses = [link.host.address or found["address"] for link, found in zip(links, facts, strict=True)]
        problems = [
            Problem(link.host.name, problem, "the transport must give its IPv4 address, or a name: Host(name, address)")
            for link, address, found in zip(links, addresses, facts, strict=True)
            if len(links) > 1 and (problem := _wrong_address(link.host.address, address, found["address6"]))
        ]
        return problems or _try_to_connect(links, list(zip(addresses, ports, strict=True)), deadline)
    finally:
        for link, lease in zip(links, leases, strict=True):
            link.request("ask", f"{_QUESTIONS}:hush", [])
            link.tell("release", lease)


def _wrong_address(given: str, address: str, address6: str) -> str:
    """Return why other hosts cannot use an address, or an empty text.

    :param given: address that the transport gives, or an empty text.
    :param address6: IPv6 address of the host's default route, or an empty text.
    """
    if ":" in address:
        return f"its address {address} is one of IPv6, which is not supported between hosts"
    if not (address.startswith("127.") or address == "localhost"):
        return ""
    if given:
        return f"its address is {address}, which means the host itself on every host"
    if address6:
        return f"it has no IPv4 route, and its IPv6 address {address6} is not supported between hosts"
    return "it has no default route, so its address is not known"


def _try_to_connect(links: Sequence[HostLink], places: Sequence[tuple[str, int]], deadline: float) -> list[Problem]:
    arguments = [[[list(place) for place in places]]] * len(links)
    answers = ask(links, f"{_QUESTIONS}:connect", arguments, "connecting", deadline)
    problems = [
        Problem(
            link.host.name,
            f"it does not reach itself at its address {place[0]}: {answer[number]}",
            "the transport must give the address of this host, and run its programs there",
        )
        for number, (link, place, answer) in enumerate(zip(links, places, answers, strict=True))
        if answer[number]
    ]
    fix = f"allow ports {FIRST_PORT} to {LAST_PORT} between the hosts, or give another address"
    return problems or [
        Problem(link.host.name, f"it cannot reach {links[target].host.name}: {answer}", fix)
        for link, own in zip(links, answers, strict=True)
        for target, answer in enumerate(own)
        if answer
    ]
