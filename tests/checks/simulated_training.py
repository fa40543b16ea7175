"""Data-parallel training of a linear model in NumPy, with a knob for every sin that the checks must find."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pytest_ddl.records import (
    BatchRecord,
    ErrorRecord,
    LayerRecord,
    OptimizerRecord,
    RankRecord,
    StepRecord,
    TrainingRecord,
    VariableKind,
    VariableRecord,
)

Array = NDArray[np.floating]
FEATURES, OUTPUTS = 4, 3


@dataclass(frozen=True)
class Program:
    """A training program and what is wrong with it; the defaults are right."""

    replicas: int = 1
    workers: int = 1
    batches: Sequence[int] = (12, 12, 12)
    seed: int = 0
    dtype: str = "float64"
    optimizer: str = "SGD"
    learning_rate: float = 0.1
    momentum: float = 0.0
    l2: float = 0.0
    clipnorm: float | None = None
    target_scale: float = 1.0
    # sins
    scale: float = 1.0
    data_scale: float = 1.0
    aggregate: bool = True
    mean_of_means: bool = False
    empty_counts: bool = False
    clip_first: bool = False
    clip_never: bool = False
    l2_factor: float = 1.0
    duplicate: bool = False
    drop: bool = False
    reorder_batches: bool = False
    extra_iterations: int = 0
    initial_shift: float = 0.0
    worker_shift_at: int | None = None
    loss: str = "mean"
    learning_rate_factor: float = 1.0
    slot_factor: float = 1.0
    still: bool = False
    frozen_moves: bool = False
    state_local: bool = False
    nan_at: int | None = None
    truncate: int | None = None
    observe: bool = True
    perturbation: int = 0
    shuffle_sums: bool = False
    layers: tuple[LayerRecord, ...] = ()
    error: ErrorRecord | None = None


def variables(program: Program) -> tuple[VariableRecord, ...]:
    kind = VariableKind
    made = [
        ("dense/kernel", kind.TRAINABLE, (FEATURES, OUTPUTS), program.dtype, None),
        ("dense/bias", kind.TRAINABLE, (OUTPUTS,), program.dtype, None),
        ("embedding/frozen", kind.FROZEN, (2, 2), program.dtype, None),
        ("ema/average", kind.STATE, (OUTPUTS,), program.dtype, None),
        ("optimizer/iterations", kind.ITERATIONS, (), "int64", None),
        ("optimizer/learning_rate", kind.LEARNING_RATE, (), program.dtype, None),
    ]
    if program.momentum or program.optimizer == "Adam":
        for index, shape in ((0, (FEATURES, OUTPUTS)), (1, (OUTPUTS,))):
            for moment in ("m", "v") if program.optimizer == "Adam" else ("momentum",):
                made.append((f"optimizer/{moment}_{index}", kind.SLOT, shape, program.dtype, index))
    return tuple(
        VariableRecord(i, name, of, shape, dtype, slot_of=slot, distributed=program.replicas > 1)
        for i, (name, of, shape, dtype, slot) in enumerate(made)
    )


def _initial(program: Program) -> dict[str, Array]:
    rng = np.random.default_rng(program.seed)
    weights = {
        "kernel": rng.normal(size=(FEATURES, OUTPUTS)),
        "bias": rng.normal(size=OUTPUTS) * 0.1,
        "frozen": rng.normal(size=(2, 2)),
    }
    return {name: _ulp(program, value.astype(program.dtype)) for name, value in weights.items()}


def _ulp(program: Program, value: Array) -> Array:
    if not program.perturbation:
        return value
    rng = np.random.default_rng(1000 + program.perturbation)
    return np.nextafter(value, np.where(rng.random(value.shape) < 0.5, -np.inf, np.inf).astype(value.dtype))


def _data(program: Program) -> list[tuple[NDArray[np.int64], Array, Array]]:
    rng = np.random.default_rng(100 + program.seed)
    batches, first = [], 0
    for size in program.batches:
        x = rng.normal(size=(size, FEATURES)) + np.linspace(0, 1, size)[:, None]
        y = rng.normal(size=(size, OUTPUTS)) * program.target_scale
        ids = np.arange(first, first + size)
        batches.append((ids, _ulp(program, x.astype(program.dtype)), y.astype(program.dtype)))
        first += size
    if program.reorder_batches:
        batches[0], batches[1] = batches[1], batches[0]
    return batches


def _gradient(weights: dict[str, Array], x: Array, y: Array, order: NDArray[np.int64]) -> tuple[Array, Array, float]:
    """Mean over the examples given, summed one by one in a given order."""
    dtype = x.dtype.type
    kernel, bias, loss = np.zeros_like(weights["kernel"]), np.zeros_like(weights["bias"]), dtype(0)
    for i in order:
        delta = x[i] @ weights["kernel"] + weights["bias"] - y[i]
        kernel += dtype(2 / OUTPUTS) * np.outer(x[i], delta).astype(dtype)
        bias += dtype(2 / OUTPUTS) * delta
        loss += np.mean(np.square(delta), dtype=dtype)
    return kernel, bias, float(loss)


def _clipped(parts: list[Array], limit: float | None) -> list[Array]:
    if limit is None:
        return parts
    return [part * min(1.0, limit / max(float(np.linalg.norm(part)), 1e-30)) for part in parts]


def _parts(program: Program, size: int) -> list[range]:
    per_replica = -(-size // program.replicas)
    return [range(min(r * per_replica, size), min((r + 1) * per_replica, size)) for r in range(program.replicas)]


def simulate(program: Program) -> TrainingRecord:
    """Run the program and record what a recorder would."""
    count = program.replicas
    copies = [{k: v.copy() for k, v in _initial(program).items()} for _ in range(count)]
    for copy in copies:
        copy["kernel"] += program.initial_shift
    slots = [{name: np.zeros_like(copies[0][name.split("/")[0]]) for name in _slot_names()} for _ in range(count)]
    state = [np.zeros(OUTPUTS, program.dtype) for _ in range(count)]
    names = variables(program)
    iterations, rng = 0, np.random.default_rng(7 + program.seed)

    def snapshot(replicas: Sequence[int]) -> dict[int, tuple[Array, ...]]:
        rate = np.asarray(program.learning_rate * program.learning_rate_factor, program.dtype)
        found = {}
        for variable in names:
            plain = {
                "dense/kernel": lambda r: copies[r]["kernel"],
                "dense/bias": lambda r: copies[r]["bias"],
                "embedding/frozen": lambda r: copies[r]["frozen"],
                "ema/average": lambda r: state[r],
                "optimizer/iterations": lambda _r: np.asarray(iterations, np.int64),
                "optimizer/learning_rate": lambda _r: rate,
            }
            slot = variable.name.removeprefix("optimizer/")
            key = ("kernel" if slot.endswith("0") else "bias") + "/" + slot.split("_")[0]
            read = plain.get(variable.name, lambda r, key=key: slots[r][key] * program.slot_factor)
            found[variable.index] = tuple(read(r).copy() for r in replicas)
        return found

    groups = [list(map(int, group)) for group in np.array_split(np.arange(count), program.workers)]
    initial = [snapshot(group) for group in groups]
    steps: list[list[StepRecord]] = [[] for _ in groups]
    for number, (ids, x, y) in enumerate(_data(program)[: program.truncate], 1):
        size = len(ids)
        parts = [list(part) for part in _parts(program, size)]
        if program.duplicate and count > 1:
            parts[1] = parts[0]
        if program.drop:
            parts[-1] = parts[-1][:-1]
        pieces, losses = [], []
        for r, part in enumerate(parts):
            order = rng.permutation(part) if program.shuffle_sums else np.asarray(part, np.int64)
            kernel, bias, loss = _gradient(copies[r], x, y, order)
            own = program.mean_of_means or program.clip_first or not program.aggregate
            divisor = max(len(part), 1) if own else size
            if program.empty_counts:
                divisor = max(len(part), 1)
            piece = [kernel / kernel.dtype.type(divisor), bias / bias.dtype.type(divisor)]
            pieces.append(_clipped(piece, program.clipnorm) if program.clip_first else piece)
            losses.append(loss / max(len(part), 1))
        share = 1.0 / count if program.mean_of_means or program.empty_counts or program.clip_first else 1.0
        summed = [sum(p[i] for p in pieces) * x.dtype.type(share) for i in range(2)]
        iterations += 1 + program.extra_iterations
        for r in range(count):
            gradient = [g.copy() for g in (summed if program.aggregate else pieces[r])]
            gradient = [g * x.dtype.type(program.scale) for g in gradient]
            if program.clipnorm and not program.clip_first and not program.clip_never:
                gradient = _clipped(gradient, program.clipnorm)
            gradient = [g * x.dtype.type(program.data_scale) for g in gradient]
            gradient[0] = gradient[0] + x.dtype.type(2 * program.l2 * program.l2_factor) * copies[r]["kernel"]
            for name, value in zip(("kernel", "bias"), gradient, strict=True):
                if program.still and name == "bias":
                    continue
                copies[r][name] = copies[r][name] + _update(
                    program, slots[r], name, value.astype(program.dtype), number
                )
            if program.frozen_moves:
                copies[r]["frozen"] = copies[r]["frozen"] + 0.01
            if program.worker_shift_at == number and r >= count // 2:
                copies[r]["kernel"] = copies[r]["kernel"] + 0.5
            if program.nan_at == number:
                copies[r]["kernel"] = copies[r]["kernel"] * np.nan
            rows = y[parts[r]] if program.state_local else y
            state[r] = state[r] * 0.9 + (rows.mean(axis=0) if len(rows) else 0.0)
        total = sum(len(part) for part in parts)
        exact = sum(loss * len(part) for loss, part in zip(losses, parts, strict=True)) / total
        reported = {"mean": exact, "sum": exact * count, "first": losses[0], "means": float(np.mean(losses))}
        for group, done in zip(groups, steps, strict=True):
            batches = tuple(
                BatchRecord(r, len(parts[r]), example_ids=tuple(int(i) for i in ids[parts[r]]), loss=losses[r])
                for r in group
            )
            done.append(
                StepRecord(
                    number,
                    reported[program.loss],
                    batches=batches if program.observe else (),
                    snapshot=snapshot(group),
                )
            )
    settings = {
        "learning_rate": program.learning_rate,
        "momentum": program.momentum,
        "clipnorm": program.clipnorm,
    }
    ranks = tuple(
        RankRecord(
            rank,
            f"worker:{rank}" if program.workers > 1 else "local",
            tuple(group),
            variables=names,
            initial=initial[rank],
            steps=tuple(steps[rank]),
            layers=program.layers,
            optimizers=(OptimizerRecord(program.optimizer, settings),),
            error=program.error if rank == 0 else None,
        )
        for rank, group in enumerate(groups)
    )
    name = (
        f"mirrored[replicas={count}]" if program.workers == 1 else f"multi_worker_mirrored[workers={program.workers}]"
    )
    return TrainingRecord(
        name if count > 1 else "one_device",
        count,
        ranks,
        max(program.batches),
        "float64" if program.dtype == "float64" else "native",
        program.seed,
        perturbation=program.perturbation,
    )


def _slot_names() -> list[str]:
    return [f"{weight}/{moment}" for weight in ("kernel", "bias") for moment in ("momentum", "m", "v")]


def _update(program: Program, slots: dict[str, Array], name: str, gradient: Array, step: int) -> Array:
    rate = gradient.dtype.type(program.learning_rate)
    if program.optimizer == "Adam":
        slots[f"{name}/m"] = 0.9 * slots[f"{name}/m"] + 0.1 * gradient
        slots[f"{name}/v"] = 0.999 * slots[f"{name}/v"] + 0.001 * np.square(gradient)
        m, v = slots[f"{name}/m"] / (1 - 0.9**step), slots[f"{name}/v"] / (1 - 0.999**step)
        return -rate * m / (np.sqrt(v) + 1e-7)
    # Keras rounds the momentum to float32, also for weights in float64.
    slots[f"{name}/momentum"] = float(np.float32(program.momentum)) * slots[f"{name}/momentum"] - rate * gradient
    return slots[f"{name}/momentum"]


def pair(program: Program, **sins: object) -> tuple[TrainingRecord, TrainingRecord]:
    """The reference of a program on one device, and the program itself with its sins."""
    return simulate(replace(program, replicas=1, workers=1)), simulate(replace(program, **sins))  # type: ignore[arg-type]
