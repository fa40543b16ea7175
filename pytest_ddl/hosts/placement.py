"""Say what all hosts of a run have, and choose the host of each process of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from pytest_ddl.cluster.obstacles import LaunchError
from pytest_ddl.strategies.base import Machine
from pytest_ddl.strategies.machine import look_around
from pytest_ddl.strategies.spec import Task, Topology


def place(topology: Topology, slots: Sequence[int]) -> list[int]:
    """Return the number of the host of each process: first of the ranks, then of the servers.

    The tasks of one type are spread over all hosts in blocks, in proportion to the slots, so that neighbours are on one
    host: four workers on two equal hosts are placed 0, 0, 1, 1. Two workers on two hosts are always on different ones,
    because a run on several hosts is there to use the network between them.

    If a variant gives a number of hosts, those with most slots are used, and each gets the same number of tasks of one
    type, or one more: four workers on two of three hosts are placed 0, 0, 1, 1, whatever the slots are.

    :param slots: positive weight of each host.
    """
    chosen = sorted(sorted(range(len(slots)), key=lambda host: -slots[host])[: topology.hosts or len(slots)])
    weights = [1] * len(chosen) if topology.hosts else slots
    placed: list[int] = []
    for group in (topology.ranks, topology.servers):
        kinds = list(dict.fromkeys(task.type for task in group))
        places = {kind: iter(_spread(_count(group, kind), weights)) for kind in kinds}
        placed += [chosen[next(places[task.type])] for task in group]
    return placed


def _count(tasks: Sequence[Task], kind: str) -> int:
    return sum(task.type == kind for task in tasks)


def _spread(number: int, slots: Sequence[int]) -> list[int]:
    """Return the host of each of a number of tasks, in blocks."""
    # Each host gets at least one task while there are enough. The rest goes to the hosts with most free slots.
    shares = [0] * len(slots)
    for index in range(number):
        if index < len(slots):
            shares[index] = 1
        else:
            shares[max(range(len(slots)), key=lambda host: (slots[host] - shares[host]) / slots[host])] += 1
    return [host for host, share in enumerate(shares) for _ in range(share)]


def machine_of_hosts(launcher: Callable[[], Any]) -> tuple[Machine, str]:
    """Return what each host has, and why the hosts cannot be asked, or an empty text.

    A strategy must be able to run on any host. So the host with the fewest GPUs decides, and not this machine.

    :param launcher: function that returns the launcher. It may raise a ``LaunchError``.
    """
    machine = look_around(lambda: (0, 0, 0))
    try:
        gpus: dict[str, int] = launcher().gpus()
    except LaunchError as error:
        return replace(machine, gpu_reason=f"the hosts do not answer: {error}"), str(error)
    least = min(gpus, key=lambda name: gpus[name])
    reason = f"the host {least} has no GPU device (/dev/nvidia*), or hides them (CUDA_VISIBLE_DEVICES)"
    return replace(machine, gpus=gpus[least], gpu_reason=reason), ""
