"""Measure a training function under several variants, and keep the launches for benchmarks and gates."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ddl.bench.launching.pinning import cores_per_replica
from pytest_ddl.bench.records import BenchSpec, Launch

if TYPE_CHECKING:
    from pytest_ddl.strategies.registry import StrategyRegistry


@dataclass(frozen=True)
class Matrix:
    """Launches of one training function, in the order in which they were made."""

    launches: tuple[Launch, ...]
    skipped: dict[str, str]
    """Variant -> reason why it was not measured."""
    scaling: str = "none"
    """``weak``, ``strong`` or ``none``: the batch size that was kept fixed; see :class:`BenchSpec`."""
    failed: dict[str, str] = field(default_factory=dict)
    """Variant -> reason why its launch failed. Empty unless :func:`measure` was called with ``go_on``."""

    @property
    def variants(self) -> list[str]:
        return list(dict.fromkeys(item.strategy for item in self.launches))

    def of(self, variant: str) -> list[Launch]:
        """Return the launches of a variant.

        :raises KeyError: if there are none; it names the measured variants, or the reason.
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

    :param variants: strategies or variants, for example ``"mirrored[replicas=4]"``. A variant that cannot run on this
        machine is skipped with the reason. It is an error if none can run.
    :param spec: settings of the measurement; or give the fields of :class:`BenchSpec` by name.
    :param launches: launches of each variant; statistics treat each launch as one sample.
    :param go_on: if a launch of one variant fails, measure the others; ``Matrix.failed`` has the reason.
    :raises BenchError: if a launch fails without ``go_on``, or no variant can run.
    :raises ValueError: if an argument is invalid.
    """
    # Imported here because these modules load NumPy. Each of asv's many processes reads a matrix and does not need it.
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
    # A failed variant has fewer launches than requested, so they are all dropped.
    kept = tuple(item for item in found if item.strategy not in failed)
    return Matrix(kept, skipped, bench.scaling, failed)


def sized_variant(registry: StrategyRegistry, strategy: str, replicas: int) -> str | None:
    """Return the variant of a strategy with this number of replicas; ``None`` if there is none."""
    spec = registry.parse_variant(strategy)
    definition = registry[spec.name]
    sizes = [key for key in ("workers", "replicas") if key in definition.defaults]
    if "[" not in strategy and sizes:
        return str(registry.parse_variant(f"{strategy}[{sizes[0]}={replicas}]"))
    # A TPU's number of replicas is known only to the TPU (0 here), so its variant is accepted for any number.
    return str(spec) if definition.num_replicas(spec) in (replicas, 0) else None
