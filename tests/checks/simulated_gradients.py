"""Data-parallel training in NumPy, gradient by gradient: what replicas compute, hand over and are moved by.

:func:`train` runs a least-squares model and records what a recorder would. Each way to go wrong is a function
that takes the place of a stage: ``computed`` (the loss), ``handed`` (what the program does with gradients before
the optimizer), ``reduced`` (how they come together on each replica).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_ddl.equivalence.evidence.slices import Slices
from pytest_ddl.equivalence.runs.slices import (
    examples_to_recompute,
    parts_to_recompute,
    slices_to_recompute,
    told_to_recompute,
)
from pytest_ddl.equivalence.verdict.judge import judge
from pytest_ddl.equivalence.verdict.report import Report
from pytest_ddl.records import (
    BatchRecord,
    GradientRecord,
    GradientStage,
    LayerRecord,
    OptimizerRecord,
    RankRecord,
    StepRecord,
    TrainingRecord,
    VariableKind,
    VariableRecord,
)

Array = NDArray[np.float64]
Gradient = dict[str, Array]
SHAPES = {"kernel": (5, 3), "bias": (3,), "table": (6, 2)}
NAMES = list(SHAPES)


@dataclass(frozen=True)
class Batch:
    """One replica's part of a global batch."""

    ids: tuple[int, ...]
    x: Array
    y: Array
    words: Array
    """Per example the row of the table that it uses."""
    valid: Array
    """Per example how many of its outputs count."""
    total: int
    """Examples in the global batch."""
    all_valid: float
    replicas: int


def example_gradients(weights: Gradient, batch: Batch) -> list[Gradient]:
    """The gradient of each example's loss, times its count of valid outputs."""
    found = []
    for x, y, word, valid in zip(batch.x, batch.y, batch.words, batch.valid, strict=True):
        word = int(word)
        delta = (x @ weights["kernel"] + weights["bias"] + weights["table"][word].sum() - y) * valid
        table = np.zeros(SHAPES["table"])
        table[word] = delta.sum()
        found.append({"kernel": np.outer(x, delta), "bias": delta, "table": table})
    return found


def added(gradients: Sequence[Gradient], factor: float = 1.0) -> Gradient:
    zero = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    return {name: zero[name] + factor * sum((g[name] for g in gradients), zero[name]) for name in NAMES}


def scaled(gradient: Gradient, factor: float) -> Gradient:
    return {name: factor * value for name, value in gradient.items()}


# -- what replicas compute ---------------------------------------------------------------------------


def global_mean(weights: Gradient, batch: Batch) -> Gradient:
    return added(example_gradients(weights, batch), 1.0 / batch.total)


def local_mean(weights: Gradient, batch: Batch) -> Gradient:
    return added(example_gradients(weights, batch), 1.0 / max(len(batch.ids), 1))


def mean_of_means(weights: Gradient, batch: Batch) -> Gradient:
    return scaled(local_mean(weights, batch), 1.0 / batch.replicas)


def masked(weights: Gradient, batch: Batch) -> Gradient:
    return added(example_gradients(weights, batch), 1.0 / batch.all_valid)


def masked_locally(weights: Gradient, batch: Batch) -> Gradient:
    return added(example_gradients(weights, batch), 1.0 / batch.valid.sum())


def coupled(weights: Gradient, batch: Batch) -> Gradient:
    """Examples repel each other: a loss of products over the batch."""
    each = example_gradients(weights, batch)
    centre = batch.y.mean(axis=0)
    return added(
        [scaled(g, float(np.sum((y - centre) ** 2))) for g, y in zip(each, batch.y, strict=True)], 1 / batch.total
    )


# -- how gradients come together ---------------------------------------------------------------------


def summed(parts: Sequence[Gradient]) -> list[Gradient]:
    return [added(parts)] * len(parts)


def averaged(parts: Sequence[Gradient]) -> list[Gradient]:
    return [added(parts, 1.0 / len(parts))] * len(parts)


def apart(parts: Sequence[Gradient]) -> list[Gradient]:
    return list(parts)


def of_the_first(parts: Sequence[Gradient]) -> list[Gradient]:
    return [parts[0]] * len(parts)


def clipped_by_norm(limit: float, gradient: Gradient) -> Gradient:
    return {name: value * (limit / max(float(np.linalg.norm(value)), limit)) for name, value in gradient.items()}


def clipped_globally(limit: float, gradient: Gradient) -> Gradient:
    size = float(np.sqrt(sum(np.sum(np.square(value)) for value in gradient.values())))
    return scaled(gradient, limit / max(size, limit))


def clipped_by_value(limit: float, gradient: Gradient) -> Gradient:
    return {name: np.clip(value, -limit, limit) for name, value in gradient.items()}


@dataclass(frozen=True)
class Way:
    """Description of how a program trains; the defaults are right."""

    computed: Callable[[Gradient, Batch], Gradient] = global_mean
    handed: Callable[[Sequence[Gradient], int], Sequence[Gradient]] = lambda parts, _step: parts
    """Gradients per replica -> what each hands to the optimizer."""
    reduced: Callable[[Sequence[Gradient]], Sequence[Gradient]] = summed
    """Gradients handed to the optimizer -> gradients that move each replica's weights."""
    rule: str = "SGD"
    """``SGD``, ``Adam`` or ``hand`` (no optimizer is watched, nothing is handed over)."""
    momentum: float = 0.0
    settings: Mapping[str, Any] = field(default_factory=dict)
    rate: Callable[[int], float] = lambda _step: 0.1
    used_rate: Callable[[int], float] | None = None
    """The learning rate that the graph uses, if the optimizer shows another one."""
    sizes: Sequence[int] = (12, 12, 12)
    layers: tuple[LayerRecord, ...] = ()
    sparse: bool = False
    skipped: tuple[str, ...] = ()
    """Weights that are computed and not handed over."""
    frozen: tuple[str, ...] = ()
    """Weights that are handed over and not moved."""
    updates: Callable[[int], bool] = lambda _step: True
    """Steps in which the optimizer is called."""
    extra: Callable[[Gradient, int], Gradient] | None = None
    """Further change of the weights after each step."""
    seed: int = 0
    record: bool = True


def batches(way: Way, replicas: int) -> list[list[Batch]]:
    rng = np.random.default_rng(way.seed)
    found, first = [], 0
    for size in way.sizes:
        x, y = rng.normal(size=(size, 5)) + np.linspace(0, 2, size)[:, None], rng.normal(size=(size, 3))
        words, valid = np.sort(rng.integers(0, 6, size)), 1.0 + np.arange(size) // 3
        share = -(-size // replicas)
        parts = [range(min(r * share, size), min((r + 1) * share, size)) for r in range(replicas)]
        found.append(
            [
                Batch(
                    tuple(first + i for i in part),
                    x[part],
                    y[part],
                    words[part],
                    valid[part],
                    size,
                    valid.sum(),
                    replicas,
                )
                for part in (list(p) for p in parts)
            ]
        )
        first += size
    return found


def _variables(way: Way, replicas: int) -> list[VariableRecord]:
    made = [(name, VariableKind.TRAINABLE, shape, None) for name, shape in SHAPES.items()]
    if way.rule != "hand":
        made.append(("iterations", VariableKind.ITERATIONS, (), None))
        made.append(("learning_rate", VariableKind.LEARNING_RATE, (), None))
        for index, (name, shape) in enumerate(SHAPES.items()):
            if way.rule == "Adam" or way.momentum:
                made.append((f"opt/{name}_momentum", VariableKind.SLOT, shape, index))
            if way.rule == "Adam":
                made.append((f"opt/{name}_velocity", VariableKind.SLOT, shape, index))
    return [
        VariableRecord(
            i, name, kind, shape, "int64" if name == "iterations" else "float64", slot, distributed=replicas > 1
        )
        for i, (name, kind, shape, slot) in enumerate(made)
    ]


@dataclass(frozen=True)
class Slice:
    """One replica's examples of one step, or some of them, on which one device trains without the others."""

    replica: int
    replicas: int
    step: int
    rows: tuple[int, ...] | None = None
    """Positions in the global batch."""
    reads: int = 1
    """Number of replicas that the program reads."""

    def of(self, parts: Sequence[Batch]) -> Batch:
        part = replace(parts[self.replica], replicas=self.reads)
        if self.rows is None:
            return part
        before = sum(len(other.ids) for other in parts[: self.replica])
        rows = [row - before for row in self.rows]
        arrays = {name: getattr(part, name)[rows] for name in ("x", "y", "words", "valid")}
        return replace(part, ids=tuple(part.ids[row] for row in rows), **arrays)


def train(way: Way, replicas: int, workers: int = 1, only: Slice | None = None) -> TrainingRecord:
    """Run the program on a number of replicas and record it."""
    rng = np.random.default_rng(99)
    start = {name: rng.normal(size=shape) for name, shape in SHAPES.items()}
    copies = [{name: value.copy() for name, value in start.items()} for _ in range(replicas)]
    slots = [{f"{n}_{m}": np.zeros(s) for n, s in SHAPES.items() for m in ("momentum", "velocity")} for _ in copies]
    variables, iterations = _variables(way, replicas), 0
    groups = [list(map(int, group)) for group in np.array_split(np.arange(replicas), workers)]

    def snapshot(step: int, group: Sequence[int]) -> dict[int, tuple[Any, ...]]:
        def read(name: str, r: int) -> Any:
            if name in SHAPES:
                return copies[r][name].copy()
            plain = {"iterations": np.asarray(iterations), "learning_rate": np.asarray(way.rate(step))}
            return plain[name] if name in plain else slots[r][name.removeprefix("opt/")].copy()

        return {v.index: tuple(read(v.name, r) for r in group) for v in variables}

    initial = [snapshot(0, group) for group in groups]
    steps: list[list[StepRecord]] = [[] for _ in groups]
    for step, parts in enumerate(batches(way, replicas), 1):
        if only is not None and step == only.step:
            parts = [only.of(batches(way, only.replicas)[step - 1])]
        computed = [way.computed(copies[r], part) for r, part in enumerate(parts)]
        handed = [dict(part) for part in way.handed(computed, step)]
        for part in handed:
            for name in way.skipped:
                part.pop(name)
        calls = way.updates(step)
        if calls:
            iterations += 1
            full = [{**{n: np.zeros(s) for n, s in SHAPES.items()}, **part} for part in handed]
            for r, gradient in enumerate(way.reduced(full)):
                for name in handed[r]:
                    if name not in way.frozen:
                        _move(way, copies[r], slots[r], name, gradient[name], step, iterations)
        if way.extra is not None:
            for r in range(replicas):
                copies[r].update(way.extra(copies[r], step))
        told = [(GradientStage.COMPUTED, computed)]
        told += [(GradientStage.APPLIED, handed)] if calls and way.rule != "hand" else []
        for group, done in zip(groups, steps, strict=True):
            records = tuple(
                GradientRecord(
                    r,
                    stage,
                    0,
                    {NAMES.index(name): value.copy() for name, value in gradients[r].items()},
                    frozenset({NAMES.index("table")}) if way.sparse else frozenset(),
                )
                for stage, gradients in told
                for r in group
            )
            done.append(
                StepRecord(
                    step,
                    None,
                    batches=tuple(BatchRecord(r, len(parts[r].ids), example_ids=parts[r].ids) for r in group),
                    snapshot=snapshot(step, group),
                    gradients=records if way.record else (),
                )
            )
    settings = {"learning_rate": way.rate(0), "momentum": way.momentum, "beta_1": 0.9, "beta_2": 0.999, **way.settings}
    ranks = tuple(
        RankRecord(
            rank,
            f"worker:{rank}",
            tuple(group),
            variables=tuple(variables),
            initial=initial[rank],
            steps=tuple(steps[rank]),
            layers=way.layers,
            optimizers=() if way.rule == "hand" else (OptimizerRecord(way.rule, settings),),
        )
        for rank, group in enumerate(groups)
    )
    name = f"mirrored[replicas={replicas}]" if replicas > 1 else "one_device"
    return TrainingRecord(name, replicas, ranks, max(way.sizes), "float64", way.seed)


def judged_with_slices(
    right: Way,
    wrong: Way,
    replicas: int,
    workers: int = 1,
    recorded: Callable[[TrainingRecord], TrainingRecord] = lambda record: record,
    **settings: Any,
) -> Report:
    """Judge a wrong program, and run one device on each replica's examples if the report asks for it.

    :param recorded: changes the records of both runs.
    """
    reference, distributed = recorded(train(right, 1)), recorded(train(wrong, replicas, workers))
    report = judge(reference, distributed, **settings)
    for step, rows in slices_to_recompute(report):
        slices = Slices(step, {replica: train(right, 1, only=Slice(replica, replicas, step)) for replica in rows})
        report = judge(reference, distributed, slices=slices, **settings)
        examples = {
            replica: {row: train(right, 1, only=Slice(replica, replicas, step, (row,))) for row in own}
            for replica, own in examples_to_recompute(report, step, rows).items()
        }
        if examples:
            report = judge(reference, distributed, slices=replace(slices, examples=examples), **settings)
        pieces = {
            replica: tuple(train(right, 1, only=Slice(replica, replicas, step, half)) for half in both)
            for replica, both in parts_to_recompute(report, step, rows).items()
        }
        if pieces:
            report = judge(reference, distributed, slices=replace(slices, parts=pieces), **settings)
        told = {
            replica: tuple(train(right, 1, only=Slice(replica, replicas, step, own, replicas)) for own in each)
            for replica, each in told_to_recompute(report, step, rows).items()
        }
        if told:
            read = 2 * replicas
            twice = {i: train(right, 1, only=Slice(i, replicas, step, rows[i], read)) for i in told}
            report = judge(reference, distributed, slices=replace(slices, told=told, told_twice=twice), **settings)
    return report


def _move(way: Way, weights: Gradient, slots: Gradient, name: str, gradient: Array, step: int, count: int) -> None:
    rate = (way.used_rate or way.rate)(step)
    if way.rule == "Adam":
        m, v = f"{name}_momentum", f"{name}_velocity"
        slots[m] = slots[m] + (gradient - slots[m]) * 0.1
        slots[v] = slots[v] + (np.square(gradient) - slots[v]) * 0.001
        step_size = rate * np.sqrt(1 - 0.999**count) / (1 - 0.9**count)
        weights[name] = weights[name] - step_size * slots[m] / (np.sqrt(slots[v]) + 1e-7)
        return
    m = f"{name}_momentum"
    # Keras rounds the momentum to float32, also for weights in float64.
    slots[m] = float(np.float32(way.momentum)) * slots[m] - rate * gradient
    weights[name] = weights[name] + slots[m]
