"""A training function under several variants, launch by launch: what benchmarks and gates read."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_ddl.bench.launching.pinning import cores_per_replica
from pytest_ddl.bench.records import Launch
from pytest_ddl.bench.spec import BenchSpec


@dataclass(frozen=True)
class Matrix:
    """Launches of one training function, in the order in which they were made."""

    launches: tuple[Launch, ...]
    skipped: dict[str, str]
    """Variant -> why it was not measured."""
    scaling: str = "none"
    """``weak``, ``strong`` or ``none``: which batch size was kept; see :class:`BenchSpec`."""
    failed: dict[str, str] = field(default_factory=dict)
    """Variant -> why its launch failed, where :func:`measure` was told to go on."""

    @property
    def variants(self) -> list[str]:
        return list(dict.fromkeys(item.strategy for item in self.launches))

    def of(self, variant: str) -> list[Launch]:
        """The launches of a variant.

        :raises KeyError: naming the variants that there are, or why this one was not measured.
        """
        found = [item for item in self.launches if item.strategy == variant]
        if not found:
            why = self.skipped.get(variant) or self.failed.get(variant)
            raise KeyError(
                f"{variant} was not measured: {why}" if why else f"no {variant}; measured: {', '.join(self.variants)}"
            )
        return found

    def __str__(self) -> str:
        from pytest_ddl.bench.summary import summary

        return summary(self)

    def as_json(self) -> dict[str, Any]:
        launches = [item.as_json() for item in self.launches]
        return {"scaling": self.scaling, "skipped": self.skipped, "failed": self.failed, "launches": launches}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Matrix:
        launches = tuple(Launch.from_json(item) for item in data["launches"])
        return cls(launches, data["skipped"], data["scaling"], data.get("failed", {}))

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(self.as_json(), indent=1) + "\n", encoding="utf-8")


def measure(
    train: Callable[[Any], Any],
    variants: Sequence[str] = ("one_device", "mirrored", "multi_worker_mirrored"),
    spec: BenchSpec | None = None,
    *,
    launches: int = 1,
    go_on: bool = False,
    **given: Any,
) -> Matrix:
    """Measure ``train(run)`` under each variant; the variants take turns launch by launch.

    :param variants: strategies or variants, for example ``"mirrored[replicas=4]"``. A variant that cannot
        run on this machine is skipped with the reason; it is an error if none can.
    :param spec: how to measure; or give the fields of :class:`BenchSpec` by name.
    :param launches: launches of each variant, the unit of statistics.
    :param go_on: measure the other variants where a launch of one fails; ``Matrix.failed`` says why it did.
    :raises BenchError: when a launch fails, or no variant can run.
    :raises ValueError: for an argument that cannot be used.
    """
    # Here, as it brings NumPy: what reads a matrix, in each of asv's many processes, does without.
    from pytest_ddl.bench.launching.answers import BenchError
    from pytest_ddl.bench.launching.launch import launch
    from pytest_ddl.harness import process_harness
    from pytest_ddl.items.selection import DdlMark

    if spec is not None and given:
        raise ValueError(f"give spec=, or {', '.join(given)}=, not both")
    bench = spec or BenchSpec(**given)
    if not callable(train):
        raise ValueError(f"train={train!r} must be a function that takes the run, as in def train(run): …")
    if launches < 1:
        raise ValueError(f"launches={launches!r} must be at least 1")
    harness = process_harness()
    specs = [harness.registry.parse_variant(text) for text in variants]
    skipped = {str(one): reason for one in specs if (reason := harness.unavailable(one, DdlMark(device=bench.device)))}
    runnable = [one for one in specs if str(one) not in skipped]
    if not runnable:
        raise BenchError(f"none of the variants can run here: {'; '.join(f'{k}: {v}' for k, v in skipped.items())}")
    cores = 0
    if bench.pin:
        cores = cores_per_replica(max(harness.registry[one.name].num_replicas(one) for one in runnable))
    found: list[Launch] = []
    failed: dict[str, str] = {}
    for _ in range(launches):
        for one in runnable:
            if str(one) in failed:
                continue
            try:
                found.append(launch(harness, train, one, bench, cores_per_replica=cores))
            except BenchError as error:
                if not go_on:
                    raise
                failed[str(one)] = str(error)
    # Half of a variant's launches is not what was asked for.
    kept = tuple(item for item in found if item.strategy not in failed)
    return Matrix(kept, skipped, bench.scaling, failed)
