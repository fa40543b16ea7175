"""Run a program on a node of a Ray cluster, with the stdin, stdout and exit status of this process.

:class:`pytest_ddl.hosts.transports.ray_nodes.Ray` starts this file by its path, so that Ray sends the actor to the
nodes as code, and they need no pytest-ddl for it. There are two forms, each with one argument as JSON:

``hold``
    Reserve one bundle on each of several nodes. Print the nodes as JSON, and hold them until the end of stdin.
``run``
    Run a program in a bundle. An actor there holds the program's pipes. If this process ends, however it ends, Ray ends
    the actor, and the program gets the end of its stdin.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import uuid
from collections.abc import Sequence
from typing import Any

NAMESPACE = "pytest-ddl"
"""Namespace of Ray in which the reservation has its name."""
GRACE = 4.0
"""Maximum seconds that a program gets to end by itself once its actor has gone. Then its process group is killed."""
_PROBE_WAIT = 5.0
"""Maximum seconds until a connection to a cluster is established."""
_START = "start a cluster with `ray start --head`, or name one with address=HOST:PORT"
FAILED = 125
"""Status of this process if the program could not be run, as that of ``docker run``."""
_GUARD = """
import os, signal, subprocess, sys, threading, time
life, status, nice, grace = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
if os.fork():
    os._exit(0)
os.setsid()
try:
    os.setpriority(os.PRIO_PROCESS, 0, nice)
except OSError:
    pass
try:
    program = subprocess.Popen(sys.argv[5:], start_new_session=True)
except OSError as error:
    os.write(2, f"{sys.argv[5]}: {error.strerror}\\n".encode())
    os.write(status, b"127")
    os._exit(0)
nothing = os.open(os.devnull, os.O_RDWR)
for stream in range(3):
    os.dup2(nothing, stream)
def end():
    os.read(life, 1)
    time.sleep(grace)
    os.killpg(program.pid, signal.SIGKILL)
threading.Thread(target=end, daemon=True).start()
code = program.wait()
try:
    os.write(status, str(code).encode())
except OSError:
    pass
os._exit(0)
"""
"""Source of the process between the actor and the program. Ray kills the children of an actor together with it, so this
one leaves it. It lets the program end by itself after the actor, and then kills its process group. It also gives the
program the priority of the node, because Ray lowers that of actors."""


class UnusableError(Exception):
    """The cluster cannot be used. The message is one line with the fix."""


class Holder:
    """Actor that holds a program. It has one thread for :meth:`read`, and one for :meth:`write` and :meth:`close`.

    Ray sends this class to the node, so its methods use only what they import.
    """

    def __init__(self, program: Sequence[str], guard: str, grace: float) -> None:
        import os
        import queue
        import subprocess
        import sys
        import threading

        self._news: queue.Queue[tuple[str, bytes]] = queue.Queue(maxsize=16)
        # Only this process has the write end, so the guard notices at the read end that the process has ended.
        life, self._life = os.pipe()
        self._status, status = os.pipe()
        raylet = os.getppid()
        nice = os.getpriority(os.PRIO_PROCESS, raylet)
        guard_command = [sys.executable, "-I", "-S", "-c", guard, str(life), str(status), str(nice), str(grace)]
        pipe = subprocess.PIPE
        self._started = subprocess.Popen(
            [*guard_command, *program],
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            pass_fds=[life, status],
            env=self._environ(raylet),
        )
        os.close(life)
        os.close(status)
        self._started.wait()
        self._pumps = [
            threading.Thread(target=self._pump, args=[name, getattr(self._started, name).fileno()], daemon=True)
            for name in ("stdout", "stderr")
        ]
        for pump in self._pumps:
            pump.start()
        threading.Thread(target=self._wait, daemon=True).start()

    @staticmethod
    def _environ(raylet: int) -> dict[str, str]:
        """Return the environment of the node: that of its raylet, without what Ray sets for actors.

        Ray limits threads and GPUs of an actor with variables, such as OMP_NUM_THREADS and CUDA_VISIBLE_DEVICES. The
        ranks must run there as they do without Ray.
        """
        import os

        try:
            with open(f"/proc/{raylet}/environ", encoding="utf-8", errors="surrogateescape") as file:
                node = dict(entry.split("=", 1) for entry in file.read().split("\0") if "=" in entry)
        except OSError:
            node = {}
        if not any(name.startswith("RAY_") for name in node):
            # The parent is not the raylet, for example in an image of the actor's own.
            removed = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "PYTHONBREAKPOINT", "SPT_NOENV")
            return {name: value for name, value in os.environ.items() if name not in removed}
        # Ray loads its own allocator into the raylet only.
        node.pop("LD_PRELOAD", None)
        if "LD_PRELOAD" in os.environ:
            node["LD_PRELOAD"] = os.environ["LD_PRELOAD"]
        return node

    def _pump(self, name: str, stream: int) -> None:
        import os

        while data := os.read(stream, 1 << 16):
            self._news.put((name, data))

    def _wait(self) -> None:
        import os

        status = os.read(self._status, 64) or b"-9"
        for pump in self._pumps:
            # A process that the program has left behind may keep its output open.
            pump.join(1.0)
        self._news.put(("status", status))

    def read(self) -> list[tuple[str, bytes]]:
        """Wait for output of the program. Return pieces of it, each with the name of its stream or ``status``."""
        import queue

        pieces = [self._news.get()]
        try:
            while len(pieces) < 16:
                pieces.append(self._news.get_nowait())
        except queue.Empty:
            pass
        return pieces

    def write(self, data: bytes) -> bool:
        """Write to the program's stdin. Return False if it does not read any more."""
        assert self._started.stdin is not None
        try:
            self._started.stdin.write(data)
            self._started.stdin.flush()
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Close the program's stdin."""
        import contextlib

        assert self._started.stdin is not None
        with contextlib.suppress(OSError):
            self._started.stdin.close()


def _connect(address: str) -> Any:
    """Return the module ray, connected to a cluster.

    :raises UnusableError: if there is none, or it refuses this process.
    """
    import ray

    where = f"--ddl-launcher=ray: address={address!r}"
    _probe(where, os.environ.get("RAY_ADDRESS", address) if address == "auto" else address)
    try:
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level="CRITICAL")
    except ConnectionError as error:
        raise UnusableError(f"{where}: no Ray cluster answers ({_line(error)}); {_START}") from None
    except Exception as error:
        if "auth" not in type(error).__name__.lower() + str(error).lower():
            raise UnusableError(f"{where}: Ray cannot connect to the cluster: {_line(error)}") from None
        fix = "set RAY_AUTH_MODE, and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH, as on its nodes"
        raise UnusableError(f"{where}: the cluster refuses this process ({_line(error)}); {fix}") from None
    return ray


def _probe(where: str, address: str) -> None:
    """Connect once to an address of the form HOST:PORT. Ray itself tries for a minute, without a reason at its end."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not (host and port.isdecimal()):
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _PROBE_WAIT).close()
    except OSError as error:
        raise UnusableError(f"{where}: nothing answers there ({error.strerror or error}); {_START}") from None


def _line(error: BaseException) -> str:
    """Return the beginning of the message of an exception, as one line."""
    text = " ".join(str(error).split())
    return f"{text[:300]}…" if len(text) > 300 else text or type(error).__name__


def _hold(address: str, hosts: int, cpus: int, timeout: float) -> dict[str, Any]:
    """Reserve nodes.

    :param hosts: number of nodes, or 0 for all that have so many CPUs.
    :param cpus: number of CPUs of each node to reserve.
    :param timeout: maximum seconds until the nodes are free.
    """
    ray = _connect(address)
    from ray.util.placement_group import placement_group, placement_group_table

    nodes = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}
    with_cpus = [node for node in nodes.values() if node["Resources"].get("CPU", 0) >= cpus]
    number = hosts or len(with_cpus)
    name = f"pytest-ddl-{uuid.uuid4().hex}"
    group = placement_group([{"CPU": cpus}] * number, strategy="STRICT_SPREAD", name=name) if number else None
    if group is None or not group.wait(timeout):
        free = ray.available_resources().get("CPU", 0)
        has = ", ".join(f"{node['NodeManagerAddress']} with CPU={node['Resources']['CPU']:g}" for node in with_cpus)
        raise UnusableError(
            f"--ddl-launcher=ray: hosts={hosts or 'all'} with cpus={cpus} on each cannot be had within "
            f"timeout={timeout:g} s; nodes with so many CPUs: {len(with_cpus)}{f' ({has})' if has else ''}, free CPUs "
            f"of the cluster: {free:g}; ask for less with hosts= or cpus=, wait longer with timeout=, or add nodes "
            "with `ray start --address=…`"
        )
    placed = placement_group_table(group)["bundles_to_node_id"]
    # In the same order in each session, so that a rank has the same node.
    order = sorted(placed, key=lambda bundle: (nodes[placed[bundle]]["NodeManagerHostname"], placed[bundle]))
    return {
        "address": ray.get_runtime_context().gcs_address if "://" not in address else address,
        "group": name,
        "hosts": [
            {
                "bundle": bundle,
                "node": placed[bundle],
                "name": nodes[placed[bundle]]["NodeManagerHostname"],
                "address": nodes[placed[bundle]]["NodeManagerAddress"],
                "cpus": int(nodes[placed[bundle]]["Resources"]["CPU"]),
            }
            for bundle in order
        ],
    }


def hold(out: int, address: str, hosts: int, cpus: int, timeout: float) -> int:
    """Reserve nodes until the end of stdin, and print them or an error."""
    try:
        answer = _hold(address, hosts, cpus, timeout)
    except UnusableError as error:
        answer = {"error": str(error)}
    _write(out, json.dumps(answer).encode() + b"\n")
    if "error" in answer:
        return FAILED
    while os.read(0, 1 << 16):
        pass
    return 0


def run(out: int, address: str, group: str, bundle: int, program: Sequence[str]) -> int:
    """Run a program in a bundle of a reservation. Return its status."""
    ray = _connect(address)
    from ray.util import get_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    bundled = PlacementGroupSchedulingStrategy(get_placement_group(group), placement_group_bundle_index=bundle)
    # Two threads, so that a program that does not read keeps nobody from reading what it writes.
    actor_class = ray.remote(Holder).options(num_cpus=1, max_concurrency=2, scheduling_strategy=bundled)
    actor = actor_class.remote(list(program), _GUARD, GRACE)

    def feed() -> None:
        with contextlib.suppress(ray.exceptions.RayError):
            while data := os.read(0, 1 << 20):
                if not ray.get(actor.write.remote(data)):
                    break
            ray.get(actor.close.remote())

    threading.Thread(target=feed, daemon=True).start()
    while True:
        try:
            pieces = ray.get(actor.read.remote())
        except ray.exceptions.RayError as error:
            raise UnusableError(f"--ddl-launcher=ray: the actor of the program is lost: {_line(error)}") from None
        for name, data in pieces:
            if name == "status":
                code = int(data)
                return code if code >= 0 else 128 - code
            _write(out if name == "stdout" else 2, data)


def _write(stream: int, data: bytes) -> None:
    while data:
        data = data[os.write(stream, data) :]


def main() -> None:
    form, given = sys.argv[1:]
    # Whatever Ray prints goes to stderr: stdout belongs to the program.
    out = os.dup(1)
    os.dup2(2, 1)
    # Otherwise the other transports could be imported by names that belong to other packages.
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != here]
    try:
        status = (hold if form == "hold" else run)(out, **json.loads(given))
    except UnusableError as error:
        _write(2, f"{error}\n".encode())
        status = FAILED
    except (BrokenPipeError, KeyboardInterrupt):
        status = FAILED
    # Ray ends the job when its driver has gone. An orderly end takes longer, and nothing is left to do.
    os._exit(status)


if __name__ == "__main__":
    main()
