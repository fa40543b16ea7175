"""Programs of engines that transports call on this machine."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence

from pytest_ddl.hosts.transport import TransportError

WAIT = 30.0
"""Maximum seconds for a program that asks its engine."""
_LOGGED = re.compile(r"[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+ ")
"""Beginning of a line in the log of a program of Kubernetes."""


def require(name: str, program: str, fix: str) -> None:
    """Check that a program is installed.

    :param name: name of the transport.
    :param fix: what the user can do, for example which package to install.
    :raises TransportError: if it is not.
    """
    if shutil.which(program) is None:
        raise TransportError(f"--ddl-launcher={name}: the program {program} is not installed here; {fix}")


def output_of(name: str, command: Sequence[str], fix: str) -> str:
    """Return what a program prints.

    :raises TransportError: if it is not installed, fails, or takes longer than :data:`WAIT`.
    """
    require(name, command[0], fix)
    shown = " ".join(command)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise TransportError(f"--ddl-launcher={name}: `{shown}` took more than {WAIT:.0f} s") from None
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        # kubectl prints the same lines of its log before what it says to people.
        said = "; ".join([line for line in lines if not _LOGGED.match(line)] or lines[-1:])
        raise TransportError(f"--ddl-launcher={name}: `{shown}` failed: {said or f'status {done.returncode}'}")
    return done.stdout
