"""Interface of transports, which know the hosts of a run and how to start a program on one of them.

A transport is all that an engine such as Slurm or ssh needs. :class:`~pytest_ddl.hosts.remote.RemoteLauncher` does the
rest: it starts a Python on each host through the transport, and talks with it over its stdin and stdout.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pytest_ddl.messages import did_you_mean

_HOST = re.compile(r"(?P<name>[^\s,:]+)(?::(?P<slots>\d+))?")


class TransportError(RuntimeError):
    """The hosts cannot be used. The message is one line with the fix."""


class TransportArgumentError(ValueError):
    """A value of ``--ddl-launcher`` or ``--ddl-hosts`` is wrong. The message is one line."""


@dataclass(frozen=True)
class Host:
    """Machine on which processes of clusters run."""

    name: str
    """Name for messages, and for the transport to find the host again. Each host needs a name of its own."""
    address: str = ""
    """IP address or name at which the other hosts reach this one. If it is empty, the agent finds the IP address of the
    host's default route."""
    slots: int = 0
    """Weight of the host: the number of ranks that it takes before the others get more. 0 means its number of cores."""
    gpus: int = -1
    """Number of GPUs that ranks may use there. -1 means those that the agent finds: the ones of CUDA_VISIBLE_DEVICES on
    the host, or all."""


class Transport(Protocol):
    """Engine that starts programs on hosts. :class:`pytest_ddl.hosts.transports.ssh.Ssh` is a short example."""

    def hosts(self) -> Sequence[Host]:
        """Return the hosts. They stay the same until :meth:`close`.

        :raises TransportError: if there are none, with the reason and the fix.
        """

    def command(self, host: Host, program: Sequence[str]) -> Sequence[str]:
        """Return the command that runs a program on a host.

        The command runs on this machine. Its stdin and stdout must be those of the program, as a stream of bytes
        without changes. It ends when the program ends. When its stdin is closed, so is that of the program.

        :param program: the program and its arguments, such as ``["python3", "-c", "print(1)"]``. If the engine gives
            the command to a shell, quote it: ``shlex.join(program)``.
        """

    def close(self) -> None:
        """End what the transport has started. It is called after the programs have ended, and is not called twice.

        It is not called if pytest is killed. So what stays behind, such as a container or a network, should belong to a
        process that ends when its stdin closes.
        """


@dataclass(frozen=True)
class TransportArguments:
    """Values that a user has given to a transport."""

    name: str
    """Name of the transport in ``--ddl-launcher``."""
    folder: Path
    """Scratch folder of the session on this machine. pytest removes it at the end."""
    environ: Mapping[str, str]
    """Environment of the workers."""
    hosts: str = ""
    """Value of ``--ddl-hosts``, for example ``"a:2,b:2"``."""
    given: Mapping[str, str] = field(default_factory=dict)
    """Settings in the brackets of ``--ddl-launcher``, for example ``{"hosts": "2"}``."""
    asked_for_hosts: list[bool] = field(default_factory=list, compare=False)
    """Not empty once :meth:`host_list` was called. ``--ddl-hosts`` is refused for a transport that does not."""

    def settings(self, defaults: Mapping[str, str]) -> dict[str, str]:
        """Return the settings with the defaults of those that are not given.

        :raises ArgumentError: for a setting without a default.
        """
        for name in self.given:
            if name not in defaults:
                valid = ", ".join(f"{key}={value}" for key, value in defaults.items()) or "none"
                hint = did_you_mean(name, defaults)
                raise TransportArgumentError(f"{name!r} is not a setting of {self.name}{hint}; settings: {valid}")
        return {**defaults, **self.given}

    def host_list(self) -> list[Host]:
        """Return the hosts of ``--ddl-hosts``. Each is a name, or a name and its number of slots, as ``a:2``.

        :raises ArgumentError: if there are none, if one is written wrongly, or if one appears twice.
        """
        self.asked_for_hosts.append(True)
        hosts: list[Host] = []
        for part in filter(None, (part.strip() for part in self.hosts.split(","))):
            match = _HOST.fullmatch(part)
            if match is None:
                raise TransportArgumentError(
                    f"--ddl-hosts={self.hosts!r}: {part!r} is not of the form name or name:slots"
                )
            if any(host.name == match["name"] for host in hosts):
                raise TransportArgumentError(f"--ddl-hosts={self.hosts!r}: the host {match['name']!r} appears twice")
            hosts.append(Host(match["name"], slots=int(match["slots"] or 0)))
        if not hosts:
            raise TransportArgumentError(f"{self.name} needs hosts: add --ddl-hosts=NAME,NAME")
        return hosts


MakeTransport = Callable[[TransportArguments], Transport]
"""Function that makes a transport; see ``pytest_ddl_register_transports``. It may raise
:class:`TransportArgumentError`, or :class:`TransportError`."""


def this_python(arguments: Mapping[str, str]) -> str:
    """Return the Python that runs on the hosts: the setting ``python``, or this process's own path."""
    return arguments.get("python") or sys.executable
