"""Decide what an evaluation runs: its cells, batch sizes, seeds and limits."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_ddl.bench.evaluating.records import REFERENCE, EvaluatedCell
from pytest_ddl.bench.launching.pinning import cores_per_replica
from pytest_ddl.bench.launching.records import SEED, BenchSpec
from pytest_ddl.bench.matrix import sized_variant
from pytest_ddl.bench.outcome import UsageError
from pytest_ddl.harness import Harness
from pytest_ddl.json_records import JsonRecord
from pytest_ddl.strategies.base import capabilities_of
from pytest_ddl.strategies.registry import StrategyRegistry, UnknownStrategyError, split_variants
from pytest_ddl.strategies.spec import StrategySpec

RATE = "learning_rate"
"""Parameter of a training function that the sweep over batch sizes tunes."""
SWEEP = (1, 2, 4, 8)
"""Batch sizes of the sweep if none are given, as multiples of the batch of one replica."""


@dataclass(frozen=True)
class EvaluationPlan(JsonRecord):
    """Settings of an evaluation that do not depend on what it finds."""

    batch: int
    """Examples of a step: on each replica, or over all replicas; see ``batch_rule``."""
    batch_rule: str
    """``replica``: the batch per replica is fixed; ``global``: the global batch is fixed."""
    seeds: int
    launches: int
    steps: int | None
    """Steps of a training on the smallest batch; ``None`` for all of its data. A larger batch takes fewer."""
    check_steps: int | None
    """Steps of the comparison with one device; ``None`` for all of its data."""
    target: float | None
    metric: str
    """Name of the reported number that is compared; empty for a choice from the names."""
    batch_sizes: tuple[int, ...]
    """Global batch sizes of the sweep of steps to the target; empty for no sweep."""
    device: str
    timeout: float
    """Seconds for one comparison, one launch or one training."""
    seconds: float
    """Seconds of measured steps in one launch, at least."""

    @property
    def first_seed(self) -> int:
        return SEED

    def steps_for(self, batch: int) -> int | None:
        """Return the steps of a training, so that all batch sizes see the same number of examples."""
        return None if self.steps is None else max(1, round(self.steps * self.batch / batch))

    def bench(self, cell: EvaluatedCell) -> BenchSpec:
        """Return the settings of a launch of a cell."""
        return BenchSpec(
            batch_per_replica=self.batch if self.batch_rule == "replica" else None,
            global_batch_size=self.batch if self.batch_rule == "global" else None,
            seconds=self.seconds,
            timeout=self.timeout,
            pin=cell.pinned,
            device=self.device,
            energy=True,
            overlap=cell.kind == "asynchronous",
        )


def cells_of(
    harness: Harness, strategies: str, replicas: Sequence[int], plan: EvaluationPlan
) -> tuple[EvaluatedCell, ...]:
    """Return all cells, the reference first. A cell that cannot run here has its reason.

    :param strategies: names, variants and ``all``, separated by commas. A variant with a shape is one cell.
    :raises UsageError: for an unknown strategy or variant.
    """
    registry = harness.registry
    try:
        texts = _selected(registry, strategies)
        found = [_cell(harness, REFERENCE, 1, plan)]
        for text in texts:
            sizes: Sequence[int] = replicas if "[" not in text else [_size(registry, text)]
            found += [_cell(harness, text, size, plan) for size in sizes if not text.startswith(REFERENCE)]
    except UnknownStrategyError as error:
        raise UsageError(f"--strategy={strategies}: {str(error).splitlines()[0]}") from None
    # A strategy that has one size, or cannot run in any, is one row.
    rows: dict[str, EvaluatedCell] = {}
    for cell in found:
        rows.setdefault(cell.variant, cell)
    return tuple(rows.values())


def _selected(registry: StrategyRegistry, text: str) -> list[str]:
    """Return the parts of a selection: names without a shape, and complete variants."""
    selected = []
    for part in split_variants(text):
        selected += [str(spec) if "[" in part else spec.name for spec in registry.parse_selection(part)]
    return list(dict.fromkeys(selected))


def _size(registry: StrategyRegistry, variant: str) -> int:
    """Return how many replicas, workers or devices of a mesh a variant has."""
    spec = registry.parse_variant(variant)
    definition = registry[spec.name]
    if capabilities_of(definition).coordinator and "workers" in spec.shape:
        return spec.number("workers")
    if capabilities_of(definition).global_view:
        return definition.topology(spec).devices_per_process
    return max(1, definition.num_replicas(spec))


def _cell(harness: Harness, strategy: str, replicas: int, plan: EvaluationPlan) -> EvaluatedCell:
    from pytest_ddl.items.selection import DdlMark

    registry = harness.registry
    name = registry.parse_variant(strategy).name
    capabilities = capabilities_of(registry[name])
    kind = (
        "asynchronous"
        if capabilities.coordinator
        else "global"
        if capabilities.global_view
        else "copies"
        if capabilities.reduces_by_copies
        else ""
    )
    variant = _variant(registry, strategy, replicas)
    if variant is None:
        return EvaluatedCell(
            name, replicas, f"{name}[{replicas}]", 0, f"{name} has no variant with {replicas} replica(s)", kind
        )
    spec = registry.parse_variant(variant)
    in_sync = max(1, registry[name].num_replicas(spec))
    batch = plan.batch * in_sync if plan.batch_rule == "replica" else plan.batch
    reason = harness.unavailable(spec, DdlMark(device=plan.device)) or ""
    if not reason and batch % in_sync:
        reason = f"{in_sync} replicas cannot split a global batch of {batch} evenly: give a multiple to --batch"
    on_cpu = harness.device_for(spec, DdlMark(device=plan.device)) == "cpu"
    pinned = on_cpu and not reason and _cores(harness, spec, replicas) > 0
    return EvaluatedCell(name, replicas, variant, batch, reason, kind, pinned)


def _variant(registry: StrategyRegistry, strategy: str, replicas: int) -> str | None:
    """Return the variant with this number of replicas, workers, or devices of a mesh."""
    spec = registry.parse_variant(strategy)
    if "[" in strategy:
        return str(spec)
    if "mesh" in spec.shape:
        # The axis "model" exists, so that rules of the program's layout map can name it.
        return str(registry.parse_variant(f"{spec.name}[mesh=batch:{replicas};model:1]"))
    return sized_variant(registry, spec.name, replicas)


def _cores(harness: Harness, spec: StrategySpec, replicas: int) -> int:
    """Return the cores that each replica can have for itself; 0 if there are too few."""
    try:
        return cores_per_replica(harness, spec, replicas)
    except ValueError:
        return 0


def cores_for(harness: Harness, cell: EvaluatedCell, cells: Sequence[EvaluatedCell]) -> int:
    """Return the cores of each replica of a launch; 0 to pin nothing.

    Every replica, worker or device of the pinned cells has as many. TensorFlow counts one replica for
    ``parameter_server`` and ``model_parallel``, which therefore gets the cores of all its workers or devices.
    """
    if not cell.pinned:
        return 0
    parse = harness.registry.parse_variant
    each = min(_cores(harness, parse(one.variant), one.replicas) for one in cells if one.pinned)
    in_sync = max(1, harness.registry[cell.strategy].num_replicas(parse(cell.variant)))
    return each * max(1, cell.replicas // in_sync)


def learning_rate_of(train: Callable[..., Any]) -> float | None:
    """Return the default learning rate of ``train(run, learning_rate=0.1)``; ``None`` if it has no such parameter."""
    try:
        parameter = inspect.signature(train).parameters.get(RATE)
    except (TypeError, ValueError):
        return None
    default = None if parameter is None else parameter.default
    return float(default) if isinstance(default, int | float) and default > 0 else None
