"""Let each pytest process of a job with ``TF_CONFIG`` take its part: that of the controller, or that of a task.

The controller runs as always, and listens for the tasks meanwhile. A task collects and runs nothing: it starts what the
controller orders, and has its exit status. This module is imported only with ``--ddl-launcher=tf_config``.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import shutil
import socket
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from pytest_ddl.cluster import session_folder
from pytest_ddl.config import launcher_before_configuring
from pytest_ddl.hosts import trust
from pytest_ddl.hosts.questions import own_address
from pytest_ddl.hosts.rendezvous import Rendezvous, socket_path
from pytest_ddl.hosts.task import HostTask, TaskError
from pytest_ddl.hosts.transport import TransportArgumentError, TransportArguments, TransportError
from pytest_ddl.hosts.transports.registry import parse_launcher
from pytest_ddl.hosts.transports.tf_config import PATH_VARIABLE, TfConfig, TfConfigJob, check_settings, read_tf_config
from pytest_ddl.items.dispatch import in_rank

TASK = pytest.StashKey[Callable[[], int]]()
"""Function that is run instead of pytest, and returns its exit status."""
_PREFIX = f"--ddl-launcher={TfConfig.name}"


def run(config: pytest.Config) -> Generator[None, int, int]:
    """Wrap ``pytest_cmdline_main``.

    :raises pytest.UsageError: if ``TF_CONFIG``, the key or a setting is missing or wrong. The message is one line.
    """
    option = config.option
    if _is_subordinate(config) or option.ddl_list or option.help or option.version:
        return (yield)
    try:
        name, given = parse_launcher(launcher_before_configuring(config))
        if name != TfConfig.name:
            return (yield)
        own = {key: value for key, value in given.items() if key != "python"}
        port, wait = check_settings(TransportArguments(name, Path(), {}, option.ddl_hosts or "", own))
        job = read_tf_config(os.environ.get("TF_CONFIG", ""))
        key = trust.read_key(os.environ)
    except TransportError as error:
        raise pytest.UsageError(str(error)) from None
    except (TransportArgumentError, ValueError) as error:
        raise pytest.UsageError(f"{_PREFIX}: {error}") from None
    address, own_port = job.tasks[job.controller]
    place = address, port or own_port
    with _without_key(), _notes() as note:
        if job.own == job.controller:
            return (yield from _control(job, key, place, wait, note))
        config.stash[TASK] = lambda: _serve(HostTask(job.own, job.controller, place, key), wait, note)
        return (yield)


def _is_subordinate(config: pytest.Config) -> bool:
    """Return whether this is a worker of pytest-xdist, or a pytest session in a rank."""
    return hasattr(config, "workerinput") or in_rank()


@contextlib.contextmanager
def _without_key() -> Iterator[None]:
    """Remove the key from the environment, which is sent to other hosts: tests there can read and print it."""
    text = os.environ.pop(trust.KEY_VARIABLE, None)
    try:
        yield
    finally:
        if text is not None:
            os.environ[trust.KEY_VARIABLE] = text


@contextlib.contextmanager
def _notes() -> Iterator[Callable[[str], None]]:
    """Yield a function that writes a line to stderr, also while pytest captures that for a test."""
    stderr = os.dup(2)

    def note(line: str) -> None:
        with contextlib.suppress(OSError):
            os.write(stderr, f"pytest-ddl: {line}\n".encode())

    try:
        yield note
    finally:
        os.close(stderr)


def _control(
    job: TfConfigJob, key: bytes, place: tuple[str, int], wait: float, note: Callable[[str], None]
) -> Generator[None, int, int]:
    """Listen while pytest runs. Then send its exit status to the tasks."""
    try:
        listener = listen(*place)
    except TransportError as error:
        raise pytest.UsageError(str(error)) from None
    folder, lock = session_folder.make()
    others = [name for name in job.tasks if name != job.own]
    path = os.environ[PATH_VARIABLE] = socket_path(folder)
    rendezvous = Rendezvous(key, others, listener, path, wait, note)
    status, late = int(pytest.ExitCode.INTERNAL_ERROR), False
    try:
        status = int((yield))
        late = status != pytest.ExitCode.INTERRUPTED
        return status
    except pytest.UsageError:
        status, late = int(pytest.ExitCode.USAGE_ERROR), True
        raise
    finally:
        try:
            rendezvous.tell_status(status, late=late)
        finally:
            rendezvous.close()
            del os.environ[PATH_VARIABLE]
            os.close(lock)
            shutil.rmtree(folder, ignore_errors=True)


def _serve(task: HostTask, wait: float, note: Callable[[str], None]) -> int:
    try:
        status = task.serve(wait, note)
    except TaskError as error:
        note(f"{_PREFIX}: {error}")
        return int(pytest.ExitCode.INTERNAL_ERROR)
    except KeyboardInterrupt:
        return int(pytest.ExitCode.INTERRUPTED)
    note(f"the controller has ended with exit status {status}, and so does this task")
    return status


def listen(host: str, port: int) -> socket.socket:
    """Listen at this task's own address only.

    :param host: name or IP address of this task in ``TF_CONFIG``.
    :raises TransportError: if it is not an address of this machine, or the port is in use.
    """
    problem = ""
    for address in _own_addresses(host):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            return socket.create_server((address, port), family=family, backlog=128)
        except OSError as error:
            problem = problem or f"{address} port {port}: {error.strerror}"
    raise TransportError(
        f"{_PREFIX}: cannot listen at {host}:{port} of TF_CONFIG ({problem or 'it has no address here'}); give this "
        "task an address of its own machine, and a free port with [port=NUMBER]"
    )


def _own_addresses(host: str) -> list[str]:
    """Return the addresses at which the others may reach a name that is this machine's own, the best one first."""
    with contextlib.suppress(ValueError):
        return [str(ipaddress.ip_address(host))]
    if host == "localhost":
        return ["127.0.0.1"]
    addresses = []
    with contextlib.suppress(OSError):
        addresses = [str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
    # The name may not be known yet, or belong to a service. /etc/hosts of some systems has a loopback address for it.
    addresses.append(own_address())
    return [address for address in dict.fromkeys(addresses) if not ipaddress.ip_address(address).is_loopback]
