"""Cores of their own for the replicas of a launch, so that two replicas have twice the hardware of one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager


def cores_per_replica(most_replicas: int) -> int:
    """The cores that each replica gets where ``most_replicas`` share this machine.

    :raises ValueError: where there are fewer cores than replicas.
    """
    available = len(os.sched_getaffinity(0))
    if most_replicas > available:
        raise ValueError(
            f"pin=True needs a core for every replica, but this process may use {available} core(s) "
            f"and the largest variant has {most_replicas} replicas"
        )
    return available // most_replicas


@contextmanager
def pinned(first_replica: int, replicas: int, cores: int) -> Iterator[None]:
    """Keep every thread of this process on the cores of its replicas, those of TensorFlow's pools included.

    :param first_replica: the first of the replicas that this process drives.
    :param cores: for each replica; 0 leaves everything as it is.
    """
    if cores == 0:
        yield
        return
    before = os.sched_getaffinity(0)
    ordered = sorted(before)
    chosen = ordered[first_replica * cores : (first_replica + replicas) * cores]
    _set(chosen)
    try:
        yield
    finally:
        _set(before)


def _set(cores: list[int] | set[int]) -> None:
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # a thread that has just ended
            os.sched_setaffinity(int(thread), cores)
