"""Measure a training function under several variants, keep the launches, and print them as a table."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ddl.bench.launching.pinning import cores_per_replica
from pytest_ddl.bench.launching.records import BenchSpec, Launch
from pytest_ddl.bench.metrics.estimates import estimate
from pytest_ddl.bench.metrics.registry import METRICS, Column
from pytest_ddl.bench.outcome import UsageError
from pytest_ddl.json_records import JsonRecord

if TYPE_CHECKING:
    from pytest_ddl.strategies.registry import StrategyRegistry


WIDTH = 100
_FILES = "a file of pytest-ddl evaluate, or one of Matrix.save()"
NAME = 25
OVERLOAD = 2.0
"""Load average per core before a launch above which other programs must be running. Earlier launches count in it."""


@dataclass(frozen=True)
class Matrix(JsonRecord):
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
        launches = [item for item in self.launches if item.strategy == variant]
        if not launches:
            why = self.skipped.get(variant) or self.failed.get(variant)
            raise KeyError(
                f"{variant} was not measured: {why}" if why else f"no {variant}; measured: {', '.join(self.variants)}"
            )
        return launches

    def __str__(self) -> str:
        return summary(self)

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(self.as_json(), indent=1) + "\n", encoding="utf-8")


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file.

    :raises UsageError: if there is none.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {str(error).splitlines()[0]}") from None
    if not isinstance(data, dict):
        raise UsageError(f"{path} holds no object: give {_FILES}")
    return data


def matrix_of(path: Path, data: Mapping[str, Any]) -> Matrix:
    """Return the launches in the object of a file that ``Matrix.save`` or ``pytest-ddl evaluate`` wrote.

    :raises UsageError: if there are none.
    """
    try:
        return Matrix.from_json(data.get("matrix", data))
    except ValueError as error:
        raise UsageError(f"{path} has no launches ({error}): give {_FILES}") from None


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
    :param launches: launches of each variant; statistics treat each launch as one sample. Over several hosts, the ranks
        move to the next place in each launch.
    :param go_on: if a launch of one variant fails, measure the others; ``Matrix.failed`` has the reason.
    :raises BenchError: if a launch fails without ``go_on``, or no variant can run.
    :raises ValueError: if an argument is invalid.
    """
    # Imported here because these modules load NumPy. Each of asv's many processes reads a matrix and does not need it.
    from pytest_ddl.bench.launching.launch import launch
    from pytest_ddl.bench.launching.ranks import BenchError
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
        cores = min(cores_per_replica(harness, one) for one in runnable)
    found: list[Launch] = []
    failed: dict[str, str] = {}
    for number in range(launches):
        for one in runnable:
            if str(one) in failed:
                continue
            try:
                found.append(launch(harness, train, one, bench, cores_per_replica=cores, rotation=number))
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


def summary(matrix: Matrix) -> str:
    """Return a table of variants and metrics, at most 100 columns wide, with reasons for missing numbers below it.

    Metrics that do not fit beside each other are in further blocks of lines.
    """
    if not matrix.launches:
        return "\n".join(["nothing was measured", *_not_measured(matrix)])
    lines: list[str] = []
    notes: dict[str, int] = {}
    remarks: list[str] = []
    unsure = ""
    for metrics in _blocks(matrix):
        lines.append("  ".join([f"{'variant':{NAME}}", *(f"{column.title:>{column.width}}" for _, column in metrics)]))
        for variant in matrix.variants:
            first, *rest = _wrapped(variant)
            cells = []
            for name, column in metrics:
                found = estimate(name, matrix, variant)
                if variant == found.baseline:
                    text = column.of_baseline
                elif found.value is None:
                    text = f"[{notes.setdefault(found.note, len(notes) + 1)}]"
                else:
                    text = f"{column.text(found.value)} {found.spread(1) if column.interval else ''}".rstrip()
                    if len(found.samples) > 1 and found.low is None:
                        unsure = found.no_interval
                    if found.baseline is not None:
                        remarks.append(found.note)
                cells.append(f"{text:>{column.width}}")
            lines += ["  ".join([f"{first:{NAME}}", *cells]), *rest]
    below = [*(f"[{number}] {note}" for note, number in notes.items()), *filter(None, dict.fromkeys(remarks))]
    below += [unsure or _uncertainty(matrix), *_warnings(matrix), *_not_measured(matrix)]
    for text in (*below, _measuring(matrix), _machine(matrix)):
        # A command in the text must not be cut inside one of its words.
        lines += textwrap.wrap(text, WIDTH, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines)


def _blocks(matrix: Matrix) -> list[list[tuple[str, Column]]]:
    """Return the metrics of the table with their columns, in blocks that fit into its width."""
    rule = "strong" if matrix.scaling == "strong" else "weak"
    blocks: list[list[tuple[str, Column]]] = []
    left = 0
    for metric in METRICS.values():
        column = metric.column
        if column is None or column.scaling not in ("", rule):
            continue
        if left < column.width + 2:
            blocks.append([])
            left = WIDTH - NAME
        blocks[-1].append((metric.name, column))
        left -= column.width + 2
    return blocks


def _wrapped(variant: str) -> list[str]:
    """Split a variant into lines of the column's width, with its shape below its name."""
    if len(variant) <= NAME:
        return [variant]
    name, bracket, shape = variant.partition("[")
    parts = (bracket + shape).replace(",", ", ")
    return [name, *textwrap.wrap(parts, NAME, initial_indent="  ", subsequent_indent="   ")]


def _uncertainty(matrix: Matrix) -> str:
    counts = {len(matrix.of(variant)) for variant in matrix.variants}
    if counts == {1}:
        return "One launch of each variant: no interval. Give launches=3 or more for an interval."
    count = str(counts.pop()) if len(counts) == 1 else f"{min(counts)} to {max(counts)}"
    return f"±: half of the 95 % t interval over {count} launches of each variant."


def _warnings(matrix: Matrix) -> list[str]:
    """Return what makes the numbers less reliable."""
    eager = dict.fromkeys(item.strategy for item in matrix.launches if item.counters.eager)
    traced = {item.strategy: item.counters.retraces for item in matrix.launches if item.counters.retraces}
    return [
        *(
            f"{variant}: steps ran eagerly, operation by operation, or ran no function at all: its time is mostly that "
            "of Python (put the step into a tf.function)"
            for variant in eager
        ),
        *_remarks(matrix),
        *(
            f"{variant} traced {count} more function(s) within its steady steps: its step time includes tracing"
            for variant, count in traced.items()
        ),
        *_overload(matrix),
    ]


def _remarks(matrix: Matrix) -> list[str]:
    """Return each remark once, after the names of its variants.

    A remark of all variants names none. Remarks on the program's loops are often of this kind.
    """
    variants: dict[str, dict[str, None]] = {}
    for item in matrix.launches:
        for remark in (remark for rank in item.ranks for remark in rank.remarks):
            variants.setdefault(remark, {})[item.strategy] = None
    everywhere = len(matrix.variants)
    return [
        remark if len(having) == everywhere else f"{', '.join(having)}: {remark}" for remark, having in variants.items()
    ]


def _overload(matrix: Matrix) -> list[str]:
    shares = [
        (float(item.machine["load"]) / float(item.machine["cores"]), item.machine)
        for item in matrix.launches
        if item.machine.get("load") and item.machine.get("cores")
    ]
    share, facts = max(shares, key=lambda pair: pair[0], default=(0.0, {}))
    if share <= OVERLOAD:
        return []
    return [f"the machine was busy (load {facts['load']} on {facts['cores']} cores): times are not reliable"]


def _not_measured(matrix: Matrix) -> list[str]:
    return [
        f"{variant} {what}: {why.strip().splitlines()[0]}"
        for what, group in (("was skipped", matrix.skipped), ("failed", matrix.failed))
        for variant, why in group.items()
    ]


def _measuring(matrix: Matrix) -> str:
    wall = sum(item.wall_seconds for item in matrix.launches)
    share = sum(item.measured_seconds for item in matrix.launches) / wall if wall > 0 else 0.0
    rules = {"weak": "batch per replica fixed (weak scaling)", "strong": "global batch fixed (strong scaling)"}
    rule = rules.get(matrix.scaling, "no batch size given")
    if matrix.scaling in rules and any(item.batch_problem for item in matrix.launches):
        rule = f"declared: {rule}; counted: another batch size"
    return f"{wall:.1f} s, {share:.0%} of it in measured steps; {rule}."


def _machine(matrix: Matrix) -> str:
    last = matrix.launches[-1]
    facts = last.machine
    loads = [item.machine.get("load", "") for item in matrix.launches if item.machine.get("load")]
    parts = [
        f"{last.device} of {facts.get('host') or 'an unnamed machine'}",
        facts.get("gpu") if last.device == "gpu" else facts.get("cpu"),
        f"{facts['cores']} cores" if facts.get("cores") else "",
        "one core or more for each replica" if all(item.pinned for item in matrix.launches) else "not pinned",
        f"load {max(loads, key=float)}" if loads else "",
    ]
    return ", ".join(part for part in parts if part) + "."
