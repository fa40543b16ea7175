"""Measure what a forecast of a training function needs: three batches on one replica, and two replicas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytest_ddl.bench.matrix import Matrix, measure

SMALLER = (2, 4)
"""Divisors of the batch for further launches on one replica. They separate the fixed cost of a step."""


def measured_program(
    train: Callable[[Any], Any],
    strategy: str,
    batch: int,
    *,
    launches: int,
    device: str,
    timeout: float,
    tell: Callable[[str], None],
) -> list[Matrix]:
    """Measure a training function on one replica with three batch sizes, and under a strategy with two replicas.

    :param strategy: synchronous strategy, or a variant of it with more replicas.
    :param batch: examples of one replica.
    :param device: ``auto``, ``cpu`` or ``gpu``. On CPUs, each replica gets its own cores.
    :param tell: function that gets a line before each part.
    :raises BenchError: if a launch fails, or the variant cannot run here.
    :raises ValueError: if there are fewer cores than replicas.
    """
    common: dict[str, Any] = {"launches": launches, "device": device, "timeout": timeout, "pin": device != "gpu"}
    tell(f"measuring one device and {strategy}, {batch} examples on each replica …")
    found = [measure(train, ["one_device", strategy], batch_per_replica=batch, **common)]
    if strategy in found[0].skipped:
        raise ValueError(f"{strategy} cannot run here: {found[0].skipped[strategy]}")
    for divisor in SMALLER:
        if batch % divisor == 0:
            tell(f"measuring one device, {batch // divisor} examples …")
            found.append(measure(train, ["one_device"], batch_per_replica=batch // divisor, **common))
    return found
