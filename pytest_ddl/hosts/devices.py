"""Describe the devices that every host of a run has, for the decision which strategies can run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pytest_ddl.cluster.obstacles import LaunchError
from pytest_ddl.strategies.base import Machine
from pytest_ddl.strategies.machine import look_around


def machine_of_hosts(launcher: Callable[[], Any]) -> tuple[Machine, str]:
    """Return what each host has, and why the hosts cannot be asked, or an empty text.

    A strategy must be able to run on any host. So the host with the fewest GPUs decides, and not this machine.

    :param launcher: function that returns the launcher. It may raise a ``LaunchError``.
    """
    machine = look_around(lambda: (0, 0, 0))
    try:
        found: dict[str, int] = launcher().gpus()
    except LaunchError as error:
        return replace(machine, gpu_reason=f"the hosts do not answer: {error}"), str(error)
    least = min(found, key=lambda name: found[name])
    reason = f"the host {least} has no GPU device (/dev/nvidia*), or hides them (CUDA_VISIBLE_DEVICES)"
    return replace(machine, gpus=found[least], gpu_reason=reason), ""
