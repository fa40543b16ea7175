"""Give the replicas of a launch their own cores, so that two replicas have twice the hardware of one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager

from pytest_ddl.strategies.base import StrategyDefinition
from pytest_ddl.strategies.spec import StrategySpec


def cores_per_replica(most_replicas: int) -> int:
    """Return the number of cores for each replica if ``most_replicas`` share this machine.

    :raises ValueError: if there are fewer cores than replicas.
    """
    available = len(os.sched_getaffinity(0))
    if most_replicas > available:
        raise ValueError(
            f"pin=True needs a core for every replica, but this process may use {available} core(s) "
            f"and the largest variant has {most_replicas} replicas"
        )
    return available // most_replicas


def thread_environ(definition: StrategyDefinition, spec: StrategySpec, cores: int) -> dict[str, str]:
    """Return the environment that gives processes of a variant as many computing threads as they will have cores.

    TensorFlow creates its thread pool when it starts, before anything is pinned. More threads than cores spin while
    they wait for each other (a convolution took four times as long). TensorFlow's runtime reads the variable
    (``NumIntraOpThreadsFromEnvironment``, tensorflow/core/common_runtime/process_util.cc).
    """
    replicas = definition.num_replicas(spec) // len(definition.topology(spec).ranks)
    return {"TF_NUM_INTRAOP_THREADS": str(max(1, replicas) * cores)} if cores else {}


@contextmanager
def pinned(first_replica: int, replicas: int, cores: int) -> Iterator[None]:
    """Keep every thread of this process, including TensorFlow's pools, on the cores of its replicas.

    If there are more replicas than cores, as on emulated hosts, replicas take the cores in turns and share them.

    :param first_replica: index of the first replica that this process drives.
    :param cores: number of cores for each replica; 0 changes nothing.
    """
    if cores == 0:
        yield
        return
    before = os.sched_getaffinity(0)
    ordered = sorted(before)
    _set({ordered[core % len(ordered)] for core in range(first_replica * cores, (first_replica + replicas) * cores)})
    try:
        yield
    finally:
        _set(before)


def _set(cores: set[int]) -> None:
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # the thread has just ended
            os.sched_setaffinity(int(thread), cores)
