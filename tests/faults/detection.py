"""Measure how long TensorFlow itself needs to notice that a task was killed: ``python -m tests.faults.detection``.

No part of pytest-ddl takes part in the runs. A run that does not end by itself is stopped after a minute.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import time

LIMIT = 60.0
REPEATS = 3
WORKER = """
import os, sys
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
step = tf.function(lambda: strategy.reduce("SUM", strategy.run(lambda: tf.constant(1.0)), axis=None))
while True:
    step()
    print("step", flush=True)
"""
SERVER = """
import json, os, tensorflow as tf
config = json.loads(os.environ["TF_CONFIG"])
spec = {name: addresses for name, addresses in config["cluster"].items() if name != "chief"}
server = tf.distribute.Server(spec, job_name=config["task"]["type"], task_index=config["task"]["index"])
print("step", flush=True)
server.join()
"""
COORDINATOR = """
import json, os, tensorflow as tf
config = json.loads(os.environ["TF_CONFIG"])
spec = {name: addresses for name, addresses in config["cluster"].items() if name != "chief"}
resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec(spec), rpc_layer="grpc")
strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    count = tf.Variable(0)
add = tf.function(lambda: count.assign_add(1))
while True:
    coordinator.schedule(add)
    coordinator.join()
    print("step", flush=True)
"""


def free_addresses(number: int) -> list[str]:
    """Return addresses of ports that are free now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    found = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    return found


def started(
    program: str, cluster: dict[str, list[str]], kind: str, index: int, fail_fast: str
) -> subprocess.Popen[str]:
    """Start one task of a cluster."""
    config = json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})
    environ = {**os.environ, "TF_CONFIG": config, "CUDA_VISIBLE_DEVICES": "-1"}
    environ.pop("GRPC_FAIL_FAST", None)
    if fail_fast:
        environ["GRPC_FAIL_FAST"] = fail_fast
    command = [sys.executable, "-c", program]
    return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def steps(process: subprocess.Popen[str], number: int) -> None:
    """Wait until a process has printed a number of steps."""
    assert process.stdout is not None
    for _ in range(number):
        if not process.stdout.readline():
            raise RuntimeError(f"a process ended with status {process.wait()} before it was killed")


def seconds_to_notice(strategy: str, victim: str, fail_fast: str) -> float | None:
    """Kill a task and return the seconds until the rank that observes it ends; ``None`` if it does not."""
    if strategy == "multi_worker_mirrored":
        cluster = {"worker": free_addresses(2)}
        tasks = {f"worker:{index}": started(WORKER, cluster, "worker", index, fail_fast) for index in range(2)}
        observer = "worker:0" if victim != "worker:0" else "worker:1"
    else:
        cluster = {"worker": free_addresses(1), "ps": free_addresses(1)}
        tasks = {f"{kind}:0": started(SERVER, cluster, kind, 0, fail_fast) for kind in ("worker", "ps")}
        tasks["chief:0"] = started(COORDINATOR, cluster, "chief", 0, fail_fast)
        observer = "chief:0"
    try:
        steps(tasks[observer], 3)
        tasks[victim].kill()
        tasks[victim].wait()
        began = time.monotonic()
        try:
            tasks[observer].communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            return None
        return time.monotonic() - began
    finally:
        for process in tasks.values():
            process.kill()
            process.wait()


def main() -> None:
    """Print a table: the median of the repeats, and the largest."""
    print("| strategy | killed | TensorFlow's default | GRPC_FAIL_FAST=use_caller |\n| --- | --- | --- | --- |")
    cases = [("multi_worker_mirrored", "worker:1"), ("multi_worker_mirrored", "worker:0")]
    cases += [("parameter_server", "ps:0"), ("parameter_server", "worker:0")]
    for strategy, victim in cases:
        cells = []
        for fail_fast in ("", "use_caller"):
            found = [seconds_to_notice(strategy, victim, fail_fast) for _ in range(REPEATS)]
            ended = [one for one in found if one is not None]
            unending = len(found) - len(ended)
            text = f"{statistics.median(ended):.1f} s (largest {max(ended):.1f} s)" if ended else ""
            cells.append(", ".join(filter(None, [text, f"{unending} of {len(found)} never" if unending else ""])))
        print(f"| `{strategy}` | `{victim}` | {cells[0]} | {cells[1]} |", flush=True)


if __name__ == "__main__":
    main()
