"""Lead the connections of one task through a relay, so that faults can delay, reset or cut them.

A relay needs no rights, unlike ``tc netem`` or a route of the kernel. It listens at the address of the task, to which
its peers connect, and at one more address for each peer, to which the task connects. The relay of a server belongs to
the coordinator, which gives all servers the addresses that it uses.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from pytest_ddl.faults.rank import RELAYED, relaying

ANY_PORT = "127.0.0.1:0"


class Relay:
    """Process that relays the connections of one task. It ends with the process that has started it."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        """Held during a command, because steps that run concurrently may reach two points at once."""
        # With -I, it imports nothing that the training program has put into the path.
        self._process = subprocess.Popen(
            [sys.executable, "-I", str(Path(relaying.__file__))], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def listen(self, target: str, address: str = ANY_PORT) -> str:
        """Accept connections at an address, and lead each to the target. Return the address.

        :raises RuntimeError: if the address is in use. The output of the rank has the reason.
        """
        return str(self._command("listen", target, address))

    def delay(self, seconds: float) -> int:
        """Deliver from now on each message later by this time. Return the number of open connections."""
        return int(self._command("delay", seconds))

    def reset(self) -> int:
        """Reset all connections, so that both ends get an error. Return their number."""
        return int(self._command("reset"))

    def cut(self, seconds: float) -> int:
        """Deliver nothing for some time, on open and on new connections. Return the number of open ones."""
        return int(self._command("cut", seconds))

    def _command(self, *words: str | float) -> str | int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._turn:
            self._process.stdin.write(json.dumps(words).encode() + b"\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the relay ended in {words[0]!r}; the output of this rank has the reason")
        command = json.loads(answer)
        assert isinstance(command, str | int)
        return command


_relays: dict[str, Relay] = {}


def relayed(addresses: Sequence[str], tasks: Sequence[str], own: str, hidden: str) -> tuple[str, ...]:
    """Start the relays that :data:`~pytest_ddl.faults.rank.RELAYED` asks of this process.

    Return the addresses that this process must use.

    :param addresses: addresses of the cluster, at which the tasks can be reached.
    :param tasks: name of the task that listens at each address.
    :param own: name of the task of this process.
    :param hidden: free address for the server of this process, if it gets a relay.
    """
    wanted = os.environ.get(RELAYED, "").split(",")
    used = dict(zip(tasks, addresses, strict=True))
    if own in wanted:
        relay = _relays[own] = Relay()
        used = {task: relay.listen(address) for task, address in used.items() if task != own}
        if own in tasks:
            used[own] = hidden
            relay.listen(hidden, addresses[tasks.index(own)])
    # The servers of a coordinator run no program. The other ranks have relays of their own.
    for task in wanted if own not in tasks else ():
        if task in used:
            relay = _relays[task] = Relay()
            used[task] = relay.listen(used[task])
    return tuple(used[task] for task in tasks)


def of_task(task: str) -> Relay:
    """Return the relay of a task.

    :raises RuntimeError: if the task has none in this process.
    """
    if task not in _relays:
        raise RuntimeError(f"the connections of {task} do not go through a relay of this process")
    return _relays[task]
