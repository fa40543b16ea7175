"""Transport ``ray``: nodes of a Ray cluster.

A placement group reserves a bundle on each node, and an actor in it holds the program. :mod:`ray_bridge
<pytest_ddl.hosts.transports.ray_bridge>` does this in processes of its own: Ray starts threads, and a process has only
one connection to a cluster.

Who reaches a Ray cluster can run code on all its nodes, and this transport adds no door to that. Ray protects a cluster
by a token (``RAY_AUTH_MODE=token``, from Ray 2.52 on), which it does not encrypt, so the network between the nodes must
be private or use Ray's TLS. The processes here take the token from the environment or the file that Ray reads.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import selectors
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_ddl.hosts.transport import Host, TransportArgumentError, TransportArguments, TransportError
from pytest_ddl.installing import install_line

_BRIDGE = str(Path(__file__).with_name("ray_bridge.py"))
_CONNECT_WAIT = 30.0
"""Maximum seconds until Ray has connected to a cluster, or has said that it cannot."""
_LOOK = 0.5
"""Seconds between looks at what Ray prints while it connects."""
_TOKEN = "set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH, as on its nodes"
_CLOSE_WAIT = 5.0
"""Maximum seconds until the process that holds the nodes has ended."""


class Ray:
    """Nodes of a Ray cluster, of which this machine is one."""

    name = "ray"
    summary = "nodes of a Ray cluster, each with an actor that holds the program"
    defaults: Mapping[str, str] = {"address": "auto", "hosts": "", "cpus": "1", "timeout": "30"}

    def __init__(self, arguments: TransportArguments) -> None:
        given = arguments.settings(self.defaults)
        for setting, what in (("hosts", "number of nodes"), ("cpus", "number of CPUs of each node")):
            if (given[setting] or setting != "hosts") and not (given[setting].isdecimal() and int(given[setting])):
                raise TransportArgumentError(f"{setting}={given[setting]!r} is not a positive {what}")
        try:
            timeout = float(given["timeout"])
        except ValueError:
            timeout = 0.0
        if not 0 < timeout < float("inf"):
            raise TransportArgumentError(f"timeout={given['timeout']!r} is not a positive number of seconds")
        if importlib.util.find_spec("ray") is None:
            raise TransportError(f"--ddl-launcher=ray needs the package ray; run `{install_line('ray')}`")
        self._timeout = timeout
        self._wanted: dict[str, Any] = {
            "address": given["address"],
            "hosts": int(given["hosts"] or 0),
            "cpus": int(given["cpus"]),
            "timeout": timeout,
        }
        self._log = arguments.folder / "ray.log"
        self._holder: subprocess.Popen[bytes] | None = None
        self._found: dict[str, Any] = {}
        self._hosts: list[Host] = []

    def hosts(self) -> Sequence[Host]:
        if not self._hosts:
            self._found = self._hold()
            names = Counter(node["name"] for node in self._found["hosts"])
            self._hosts = [
                # Several nodes may be on one machine, and then have its name.
                Host(
                    node["name"] if names[node["name"]] == 1 else f"{node['name']}-{node['node'][:8]}",
                    node["address"],
                    node["cpus"],
                )
                for node in self._found["hosts"]
            ]
        return self._hosts

    def _hold(self) -> dict[str, Any]:
        """Start the process that holds the nodes. Return what it prints: their addresses, and the places of actors."""
        pipe = subprocess.PIPE
        with open(self._log, "ab") as log:
            # Outside the terminal's foreground group, so that Ctrl-C reaches only pytest.
            self._holder = subprocess.Popen(
                _bridge("hold", self._wanted), stdin=pipe, stdout=pipe, stderr=log, start_new_session=True
            )
        assert self._holder.stdout is not None
        line = b""
        deadline = time.monotonic() + self._timeout + _CONNECT_WAIT
        with selectors.DefaultSelector() as selector:
            selector.register(self._holder.stdout, selectors.EVENT_READ)
            while time.monotonic() < deadline and not self._is_refused():
                if selector.select(_LOOK):
                    line = self._holder.stdout.readline()
                    break
        if line:
            nodes: dict[str, Any] = json.loads(line)
            if "error" in nodes:
                raise TransportError(nodes["error"])
            return nodes
        # It would go on trying.
        self._holder.kill()
        where = f"--ddl-launcher=ray: address={self._wanted['address']!r}"
        if self._is_refused():
            raise TransportError(f"{where}: the cluster refuses the token of this process; {_TOKEN}")
        said = " ".join(self._said().split())[-300:]
        raise TransportError(f"{where} gives no answer{f' ({said})' if said else ''}; see whether `ray status` does")

    def _is_refused(self) -> bool:
        """Return whether Ray has printed that the token is wrong. It goes on trying for a long time."""
        return "InvalidAuthToken" in self._said()

    def _said(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def command(self, host: Host, program: Sequence[str]) -> Sequence[str]:
        bundle = self._found["hosts"][self._hosts.index(host)]["bundle"]
        where = {"address": self._found["address"], "group": self._found["group"], "bundle": bundle}
        return _bridge("run", {**where, "program": list(program)})

    def close(self) -> None:
        holder, self._holder = self._holder, None
        if holder is None:
            return
        assert holder.stdin is not None
        assert holder.stdout is not None
        with contextlib.suppress(OSError):
            holder.stdin.close()
        try:
            holder.wait(_CLOSE_WAIT)
        except subprocess.TimeoutExpired:
            holder.kill()
            holder.wait()
        holder.stdout.close()


def _bridge(form: str, given: Mapping[str, Any]) -> list[str]:
    return [sys.executable, _BRIDGE, form, json.dumps(given)]
