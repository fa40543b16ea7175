"""Give the replicas of a launch their own cores, so that two replicas have twice the hardware of one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pytest_ddl.cluster.launcher import PLACE
from pytest_ddl.strategies.base import StrategyDefinition, topology_of
from pytest_ddl.strategies.spec import StrategySpec

if TYPE_CHECKING:
    from pytest_ddl.harness import Harness


def cores_per_replica(harness: Harness, spec: StrategySpec, replicas: int = 0) -> int:
    """Return the number of cores for each replica of a variant, if its replicas share the cores of their machines.

    :param replicas: number of all replicas, or of what takes their place, such as the workers of a parameter server
        (default: as TensorFlow counts them).
    :raises ValueError: if a machine has fewer cores than replicas, or shares a part of them with another host.
    :raises LaunchError: if the hosts of a launcher for several cannot work together.
    """
    topology = topology_of(harness.registry[spec.name], spec)
    of_rank = max(1, (replicas or harness.registry[spec.name].num_replicas(spec)) // len(topology.ranks))
    crowds: Mapping[str, tuple[int, int]]
    if harness.over_hosts:
        launcher: Any = harness.pool.launcher
        crowds = launcher.crowds(topology)
    else:
        crowds = {"this process": (len(topology.ranks), len(os.sched_getaffinity(0)))}
    for name, (ranks, cores) in crowds.items():
        if ranks * of_rank > cores:
            raise ValueError(
                f"pin=True needs a core for every replica, but {name} may use {cores} core(s) "
                f"for {ranks * of_rank} replicas of {spec}"
            )
    return min(cores // (ranks * of_rank) for ranks, cores in crowds.values())


def available_cores(harness: Harness) -> int:
    """Return the number of cores that this process may use, or those of all hosts.

    :raises LaunchError: if the hosts of a launcher for several cannot work together.
    """
    if not harness.over_hosts:
        return len(os.sched_getaffinity(0))
    launcher: Any = harness.pool.launcher
    return sum(len(cores) for _machine, cores in set(launcher.group.machines()))


def first_replica(rank: int, replicas: int) -> int:
    """Return the index of the first replica of a rank among those on its machine.

    :param replicas: replicas of each rank.
    """
    return int(os.environ.get(PLACE) or rank) * replicas


def pinned_environ(definition: StrategyDefinition, spec: StrategySpec, cores: int) -> dict[str, str]:
    """Return the environment for processes of a variant that will be :func:`pinned`.

    They get as many computing threads as cores. TensorFlow creates its thread pool when it starts, before anything is
    pinned. More threads than cores spin while they wait for each other (a convolution took four times as long).
    TensorFlow's runtime reads the variable (``NumIntraOpThreadsFromEnvironment``,
    tensorflow/core/common_runtime/process_util.cc).
    """
    replicas = definition.num_replicas(spec) // len(definition.topology(spec).ranks)
    return {"TF_NUM_INTRAOP_THREADS": str(max(1, replicas) * cores), PLACE: ""} if cores else {}


@contextmanager
def pinned(first: int, replicas: int, cores: int) -> Iterator[None]:
    """Keep every thread of this process, including TensorFlow's pools, on the cores of its replicas.

    If there are more replicas than cores, as on emulated hosts, replicas take the cores in turns and share them.

    :param first: index of the first replica that this process drives, among those on its machine.
    :param cores: number of cores for each replica; 0 changes nothing.
    """
    if cores == 0:
        yield
        return
    before = os.sched_getaffinity(0)
    ordered = sorted(before)
    _set({ordered[core % len(ordered)] for core in range(first * cores, (first + replicas) * cores)})
    try:
        yield
    finally:
        _set(before)


def _set(cores: set[int]) -> None:
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # the thread has just ended
            os.sched_setaffinity(int(thread), cores)
