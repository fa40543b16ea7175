"""Run ``pytest-ddl warm``: start a warm server, list the running ones, or stop them."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator

from pytest_ddl.bench.outcome import FAILED, OK
from pytest_ddl.cluster.warm import servers as warm
from pytest_ddl.cluster.warm.fitting import Server, key_of
from pytest_ddl.commands.frame import conducted
from pytest_ddl.harness import process_harness
from pytest_ddl.option_values import argument, positive


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Import TensorFlow once, in a process of its own (a warm server). Later runs of pytest --ddl-warm fork their "
        "worker processes from it, so they start without the seconds of the import. The server ends when no run has "
        "used it for some time. It is not used if installed packages or the environment have changed since."
    )
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--stop", action="store_true", help="end all warm servers of this user")
    action.add_argument("--status", action="store_true", help="list the warm servers of this user")
    parser.add_argument(
        "--idle",
        type=argument(positive("minutes", 15)),
        default=warm.IDLE_MINUTES,
        metavar="MINUTES",
        help="end the server after so many minutes without a run (default: %(default)g)",
    )


def main(options: argparse.Namespace) -> int:
    """Start, list or stop warm servers, and return the exit status."""
    return conducted("warm", lambda: _run(options), [((warm.WarmError,), FAILED, "")])


def _run(options: argparse.Namespace) -> int:
    if options.stop:
        print(f"ended: {warm.stop()}")  # noqa: T201
    elif options.status:
        _show()
    else:
        _start(options.idle)
    return OK


def _start(idle: float) -> None:
    environ = process_harness().worker_environ()
    key = key_of(environ)
    warm.start(key, environ, idle)
    server = warm.wait_until_ready(key)
    print(f"warm server {server.pid} is ready; it ends after {server.idle / 60:g} minutes without a run")  # noqa: T201
    print("use it with: pytest --ddl-warm")  # noqa: T201


def _show() -> None:
    found = warm.servers()
    for server in found:
        print("\n".join(_described(server)))  # noqa: T201
    if not found:
        print("no warm server is running")  # noqa: T201


def _described(server: Server) -> Iterator[str]:
    """Yield the lines about a server: whether it fits this environment, its age, its packages, its runs, its end."""
    misfit = server.misfit(os.environ)
    if misfit is None and server.key != key_of(process_harness().worker_environ()):
        misfit = "its Python, installed packages or environment are others"
    yield f"warm server {server.pid}: {f'not used here, because {misfit}' if misfit else 'ready'}"
    if server.started:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(server.started))
        yield f"    since:     {since} ({(time.time() - server.started) / 60:.0f} min ago)"
        yield f"    python:    {server.python}"
        yield f"    packages:  {', '.join(f'{name} {version}' for name, version in server.packages.items())}"
    use = warm.use_of(server)
    if use is None:
        return
    running = use["running"]
    yield f"    runs:      {use['runs']}, {f'{running} of them now' if running else 'none now'}"
    without = f"{server.idle / 60:g} minutes without a run"
    at = time.strftime("%H:%M:%S", time.localtime(time.time() + use["left"]))
    yield f"    ends:      after {without}" + ("" if running else f": at {at}, if no run uses it")
