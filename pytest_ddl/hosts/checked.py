"""Check what launchers and transports return, which may belong to plugins, before anything is started with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from pytest_ddl.cluster.launcher import Launcher, MakeLauncher
from pytest_ddl.cluster.obstacles import LaunchError
from pytest_ddl.hosts.transport import Host, Transport, TransportArgumentError, TransportError

T = TypeVar("T")


def launcher_made(name: str, make: MakeLauncher, arguments: tuple[dict[str, str], Path, str | None]) -> Launcher:
    """Call the function that makes a launcher.

    :raises LaunchError: if it raises, or returns something else than a launcher.
    """
    try:
        launcher = make(*arguments)
    except (LaunchError, TransportArgumentError):
        raise
    except Exception as error:
        raise LaunchError(f"the launcher {name!r} cannot be made: {type(error).__name__}: {error}") from error
    missing = [member for member in vars(Launcher) if not member.startswith("_") and not hasattr(launcher, member)]
    if missing:
        raise LaunchError(f"the launcher {name!r} is no launcher: {launcher!r} has no {', '.join(missing)}")
    return launcher


def hosts_of(transport: Transport) -> list[Host]:
    """Return the hosts of a transport.

    :raises LaunchError: if there are none, or one is not as :class:`~pytest_ddl.hosts.transport.Host` describes it.
    """
    missing = [name for name in ("hosts", "command", "close") if not hasattr(transport, name)]
    if missing:
        raise LaunchError(f"{transport!r} is no transport: it has no {', '.join(missing)}")
    hosts = _called(transport, "hosts()", lambda: list(transport.hosts()))
    for host in hosts:
        if not (isinstance(host, Host) and isinstance(host.name, str) and isinstance(host.address, str)):
            raise _wrong(transport, "hosts()", f"returned {host!r}; it must return Host(name, address, slots) for each")
        if not isinstance(host.slots, int) or host.slots < 0:
            raise _wrong(transport, "hosts()", f"returned {host!r}; slots must be a number of ranks, or 0")
        if not isinstance(host.gpus, int) or host.gpus < -1:
            raise _wrong(
                transport, "hosts()", f"returned {host!r}; gpus must be a number, or -1 to let the agent count"
            )
    names = [host.name for host in hosts]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise _wrong(transport, "hosts()", f"returned the name {twice!r} twice; each host needs a name of its own")
    if not hosts:
        raise _wrong(transport, "hosts()", "returned no hosts; start some, or raise a TransportError that says why")
    return hosts


def command_of(transport: Transport, host: Host, program: Sequence[str]) -> list[str]:
    """Return the command of a transport that runs a program on a host.

    :raises LaunchError: if it is not a list of texts.
    """
    call = f"command({host.name!r}, …)"
    command = _called(transport, call, lambda: transport.command(host, program))
    if isinstance(command, str) or not isinstance(command, Sequence) or not command:
        raise _wrong(transport, call, f"returned {command!r}; it must return a list: the program and its arguments")
    for word in command:
        if not isinstance(word, str):
            raise _wrong(transport, call, f"returned {word!r} as a part of the command; each part must be a str")
    return list(command)


def _called(transport: Transport, call: str, action: Callable[[], T]) -> T:
    try:
        return action()
    except TransportError as error:
        raise LaunchError(str(error)) from None
    except Exception as error:
        raise _wrong(transport, call, f"raised {type(error).__name__}: {error}") from error


def _wrong(transport: Transport, call: str, what: str) -> LaunchError:
    return LaunchError(f"{type(transport).__qualname__}.{call} of the transport {what}")
