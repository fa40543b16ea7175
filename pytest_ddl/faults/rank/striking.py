"""Carry out the faults that strike inside a rank: one function for each kind."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ddl.faults.rank.fault import Fault
from pytest_ddl.training import notice

if TYPE_CHECKING:
    from pytest_ddl.faults.rank.relay import Relay


_ESTABLISHED = "01"


class InjectedFaultError(RuntimeError):
    """Exception of the fault ``exception``. It stands for any error of the program or of a library."""


def strike(fault: Fault) -> None:
    """Let a fault strike this process.

    :raises InjectedFaultError: for the kind ``exception``.
    """
    STRIKES[fault.kind](fault)


def disturb(fault: Fault) -> int:
    """Let a fault strike the connections of its task. Return the number of connections that were open then.

    :raises RuntimeError: if they do not go through a relay of this process.
    """
    # Only here, because few runs need a relay.
    from pytest_ddl.faults.rank.relay import of_task

    return DISTURBANCES[fault.kind](of_task(fault.task), fault.duration)


def connections_of_host() -> int:
    """Return the number of open TCP connections between this host and others (``/proc/net/tcp``, see proc(5))."""
    closed = 0
    for table in ("tcp", "tcp6"):
        path = Path("/proc/net", table)
        for line in path.read_text(encoding="ascii").splitlines()[1:] if path.exists() else ():
            own, other, state = line.split()[1:4]
            closed += state == _ESTABLISHED and own.partition(":")[0] != other.partition(":")[0]
    return closed


def _signal(number: signal.Signals) -> Callable[[Fault], None]:
    return lambda _fault: os.kill(os.getpid(), number)


def _raise(fault: Fault) -> None:
    raise InjectedFaultError(f"injected fault: {fault}")


def _hold_interpreter_lock(fault: Fault) -> None:
    # Functions of a PyDLL are called without releasing the interpreter lock.
    ctypes.PyDLL(None).usleep(int(fault.duration * 1e6))


STRIKES: dict[str, Callable[[Fault], None]] = {
    "kill": _signal(signal.SIGKILL),
    # The controller sends SIGKILL after the grace, and SIGCONT after a stop: this process may not run then.
    "term": _signal(signal.SIGTERM),
    "term-group": lambda _fault: os.killpg(0, signal.SIGTERM),
    "notice": lambda fault: notice.current().give(fault.duration),
    "abort": lambda _fault: os.abort(),
    "exception": _raise,
    "stop": _signal(signal.SIGSTOP),
    "gil": _hold_interpreter_lock,
    "slow": lambda fault: time.sleep(fault.duration),
}
"""Kind -> function that carries it out in the rank. Kinds of writes strike in :mod:`pytest_ddl.faults.rank.write_gate`,
and kinds of files in :mod:`pytest_ddl.faults.rank.damage`."""
DISTURBANCES: dict[str, Callable[[Relay, float], int]] = {
    "net-delay": lambda relay, seconds: relay.delay(seconds),
    "net-reset": lambda relay, _seconds: relay.reset(),
    "net-partition": lambda relay, seconds: relay.cut(seconds),
}
"""Kind of a fault of the network -> function that carries it out, and returns the number of open connections."""
