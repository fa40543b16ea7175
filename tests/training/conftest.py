"""Runs training programs under real strategies: one process per rank, kept for the whole session.

A stand-in for the cluster, small on purpose: it builds strategies by hand and ships functions by
reference, so that these tests need nothing of the package but ``pytest_ddl.training``.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_ddl.records import RankRecord
from pytest_ddl.strategies.base import RankContext
from pytest_ddl.strategies.spec import StrategySpec
from pytest_ddl.training.settings import RunSettings

DEADLINE = 100.0

# Workers import the programs by name; under importmode=importlib no test folder is on the path by itself.
sys.path.insert(0, str(Path(__file__).parent))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def build(name: str, facts: dict[str, Any]) -> Any:
    """Make the strategy in a fresh process."""
    import tensorflow as tf

    if name in ("mirrored", "central_storage"):
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    if name == "mirrored":
        return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    if name == "central_storage":
        return tf.distribute.experimental.CentralStorageStrategy(["/cpu:0", "/cpu:1"], "/cpu:0")
    if name == "multi_worker_mirrored":
        os.environ["TF_CONFIG"] = json.dumps(facts)
        return tf.distribute.MultiWorkerMirroredStrategy()
    if name == "parameter_server":
        addresses = {
            "worker": [f"localhost:{free_port()}" for _ in range(2)],
            "ps": [f"localhost:{free_port()}"],
        }
        cluster = tf.train.ClusterSpec(addresses)
        # With fewer threads than workers the servers of one process wait for each other for ever.
        config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=len(addresses["worker"]) + 2)
        servers = [
            tf.distribute.Server(cluster, job_name=job, task_index=index, protocol="grpc", config=config)
            for job, tasks in addresses.items()
            for index in range(len(tasks))
        ]
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, rpc_layer="grpc")
        strategy = tf.distribute.ParameterServerStrategy(resolver)
        strategy._servers_of_this_test = servers
        return strategy
    return tf.distribute.OneDeviceStrategy("CPU:0")


def serve(connection: Any, name: str, rank: int, ranks: int, facts: dict[str, Any], path: list[str]) -> None:
    """The loop of one rank: execute what is asked for and send the record back."""
    os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="")
    sys.path[:] = path
    from pytest_ddl.training.execute import execute

    strategy = build(name, facts)
    context = RankContext(
        spec=StrategySpec(name),
        strategy=strategy,
        task=f"worker:{rank}",
        rank=rank,
        num_ranks=ranks,
        num_replicas=strategy.num_replicas_in_sync,
    )
    while (job := connection.recv()) is not None:
        train, settings = job
        connection.send(execute(train, settings, context))
    os._exit(0)  # in-process servers cannot be stopped


class Cluster:
    """The ranks of one strategy."""

    def __init__(self, name: str) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tensorflow", "keras"])
        ranks = 2 if name == "multi_worker_mirrored" else 1
        addresses = [f"localhost:{free_port()}" for _ in range(ranks)]
        self._connections, self._processes = [], []
        for rank in range(ranks):
            facts = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}}
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(theirs, name, rank, ranks, facts, sys.path), daemon=True)
            process.start()
            theirs.close()
            self._connections.append(ours)
            self._processes.append(process)

    def execute(self, train: Callable[..., Any], settings: RunSettings) -> list[RankRecord]:
        for connection in self._connections:
            connection.send((train, settings))
        records = []
        for connection in self._connections:
            assert connection.poll(DEADLINE), f"no answer within {DEADLINE} s"
            records.append(connection.recv())
        return records

    def stop(self) -> None:
        for process in self._processes:
            process.kill()


class Clusters:
    """Clusters by strategy, made when first asked for."""

    def __init__(self) -> None:
        self._made: dict[str, Cluster] = {}

    def execute(self, name: str, train: Callable[..., Any], settings: RunSettings) -> list[RankRecord]:
        if name not in self._made:
            self._made[name] = Cluster(name)
        try:
            return self._made[name].execute(train, settings)
        except BaseException:
            self._made.pop(name).stop()
            raise

    def stop(self) -> None:
        for cluster in self._made.values():
            cluster.stop()


@pytest.fixture(scope="session")
def clusters() -> Iterator[Clusters]:
    made = Clusters()
    yield made
    made.stop()


Runner = Callable[..., list[RankRecord]]


@pytest.fixture
def records(clusters: Clusters, tmp_path: Path) -> Runner:
    """Records of a program's ranks, whatever happened in it: ``records(strategy, train, **settings)``."""

    def run(name: str, train: Callable[..., Any], **given: Any) -> list[RankRecord]:
        settings = RunSettings(tmp_path=str(tmp_path), is_reference=name == "one_device", seed=7)
        return clusters.execute(name, train, replace(settings, **given))

    return run


@pytest.fixture
def ranks(records: Runner) -> Runner:
    """The same for a program that must not fail."""

    def run(name: str, train: Callable[..., Any], **given: Any) -> list[RankRecord]:
        found = records(name, train, **given)
        for record in found:
            assert record.error is None, record.error.traceback
        return found

    return run
