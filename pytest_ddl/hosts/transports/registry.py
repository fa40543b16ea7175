"""List the transports, and make the launcher of the one that ``--ddl-launcher`` names."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ddl.hosts.transport import (
    MakeTransport,
    Transport,
    TransportArgumentError,
    TransportArguments,
    TransportError,
    this_python,
)
from pytest_ddl.hosts.transports.docker import Docker
from pytest_ddl.hosts.transports.kubernetes import Kubernetes
from pytest_ddl.hosts.transports.mpi import Mpi
from pytest_ddl.hosts.transports.netns import Netns
from pytest_ddl.hosts.transports.ray_nodes import Ray
from pytest_ddl.hosts.transports.slurm import Slurm
from pytest_ddl.hosts.transports.ssh import Ssh
from pytest_ddl.hosts.transports.tf_config import TfConfig
from pytest_ddl.installing import install_line

if TYPE_CHECKING:
    from pytest_ddl.cluster.launcher import Launcher
    from pytest_ddl.hosts.group import HostGroup
    from pytest_ddl.hosts.project import Project

BUILT_IN = (Ssh, Slurm, Kubernetes, Docker, Mpi, Ray, TfConfig, Netns)
"""Transports of this package, in the order of the docs."""
_LAUNCHER = re.compile(r"(?P<name>[\w.-]+)(?:\[(?P<settings>[^\]]*)\])?")


def built_in_transports() -> dict[str, MakeTransport]:
    """Return the functions that make the transports of this package, by name."""
    return {transport.name: transport for transport in BUILT_IN}


def parse_launcher(text: str) -> tuple[str, dict[str, str]]:
    """Split a value of ``--ddl-launcher``, such as ``netns[hosts=2,mbit=200]``, into its name and settings.

    :raises ValueError: if the text has another form. The message is one line.
    """
    match = _LAUNCHER.fullmatch(text.strip())
    settings = {}
    for part in filter(None, (part.strip() for part in (match["settings"] or "").split(","))) if match else ():
        key, equals, value = (piece.strip() for piece in part.partition("="))
        match = match if equals and key else None
        settings[key] = value
    if match is None:
        raise ValueError(f"{text!r} is not of the form name or name[key=value,…]")
    return match["name"], settings


def launcher_over(
    name: str,
    make: MakeTransport,
    given: Mapping[str, str],
    hosts: str,
    project: Project | None = None,
    *,
    start_timeout: float,
    warm: bool = False,
) -> Callable[[dict[str, str], Path, str | None], Launcher]:
    """Return a function that starts the launcher of a transport.

    :param given: settings of the transport, and ``python``, the path of Python on the hosts.
    :param hosts: value of ``--ddl-hosts``.
    :param project: files to copy to each host, for ``--ddl-sync``.
    :param start_timeout: value of ``--ddl-start-timeout``.
    :param warm: use the warm servers of the hosts.
    """

    def start(environ: dict[str, str], folder: Path, _address: str | None) -> Launcher:
        with _needs_execnet(name):
            from pytest_ddl.hosts.remote import RemoteLauncher
        made = _made(name, make, given, hosts, folder, environ)
        python = this_python(given)
        return RemoteLauncher(made, environ, folder, python, project, start_timeout=start_timeout, warm=warm)

    return start


def group_of(launcher: str, hosts: str, folder: Path) -> HostGroup:
    """Connect to the hosts of a transport of this package.

    :param launcher: value of ``--ddl-launcher``.
    :param hosts: value of ``--ddl-hosts``.
    :raises ValueError: if a value is wrong. The message is one line.
    :raises LaunchError: if the transport has no hosts.
    """
    name, given = parse_launcher(launcher)
    transports = built_in_transports()
    if name not in transports:
        raise ValueError(f"{name!r} is not a transport to several hosts; valid: {', '.join(transports)}")
    with _needs_execnet(name):
        from pytest_ddl.hosts.group import HostGroup
    return HostGroup(_made(name, transports[name], given, hosts, folder, os.environ), folder, this_python(given))


def _made(
    name: str, make: MakeTransport, given: Mapping[str, str], hosts: str, folder: Path, environ: Mapping[str, str]
) -> Transport:
    from pytest_ddl.cluster.obstacles import LaunchError

    own = {key: value for key, value in given.items() if key != "python"}
    arguments = TransportArguments(name, folder, environ, hosts, own)
    try:
        transport = make(arguments)
    except TransportError as error:
        raise LaunchError(str(error)) from None
    if hosts and not arguments.asked_for_hosts:
        with contextlib.suppress(AttributeError):
            transport.close()
        raise TransportArgumentError(f"{name} finds its hosts by itself: leave out --ddl-hosts={hosts}")
    return transport


@contextlib.contextmanager
def _needs_execnet(name: str) -> Iterator[None]:
    from pytest_ddl.cluster.obstacles import LaunchError

    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "execnet":
            raise
        needs = f"--ddl-launcher={name} needs the package execnet; run `{install_line('hosts')}`"
        raise LaunchError(needs) from None
