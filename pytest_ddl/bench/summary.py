"""Format a matrix as the text that a user sees after a measurement."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from pytest_ddl.bench.metrics.estimates import Estimate, estimate
from pytest_ddl.bench.metrics.registry import METRICS, Column

if TYPE_CHECKING:
    from pytest_ddl.bench.matrix import Matrix

WIDTH = 100
NAME = 25
OVERLOAD = 2.0
"""1-minute load per core before a launch, earlier launches included, above which other programs were running."""


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
                    text = f"{column.text(found.value)}{_spread(found) if column.interval else ''}"
                    if len(found.samples) > 1 and found.low is None:
                        unsure = found.note.partition(";")[0]
                    if found.baseline is not None:
                        remarks += [part for part in found.note.split("; ") if "no interval" not in part]
                cells.append(f"{text:>{column.width}}")
            lines += ["  ".join([f"{first:{NAME}}", *cells]), *rest]
    below = [f"[{number}] {note}" for note, number in notes.items()]
    below += [remark for remark in dict.fromkeys(remarks) if remark]
    below += [
        unsure or _uncertainty(matrix),
        *_warnings(matrix),
        *_not_measured(matrix),
        _measuring(matrix),
        _machine(matrix),
    ]
    for text in below:
        lines += textwrap.wrap(text, WIDTH, subsequent_indent="    ")
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


def _spread(found: Estimate) -> str:
    half = found.half_width
    if half is None:
        return ""
    return f" ±{half:.1%}" if half < 0.995 else " ±>99%"


def _uncertainty(matrix: Matrix) -> str:
    counts = {len(matrix.of(variant)) for variant in matrix.variants}
    if counts == {1}:
        return "One launch of each variant: no interval. Give launches=3 or more for an interval."
    count = str(counts.pop()) if len(counts) == 1 else f"{min(counts)} to {max(counts)}"
    return f"±: half of the 95 % t interval over {count} launches of each variant."


def _warnings(matrix: Matrix) -> list[str]:
    """Return the remarks on what makes the numbers less reliable."""
    return [*_eager(matrix), *_remarks(matrix), *_tracing(matrix), *_overload(matrix)]


def _eager(matrix: Matrix) -> list[str]:
    eager = dict.fromkeys(item.strategy for item in matrix.launches if item.counters.eager)
    return [
        f"{variant}: steps ran eagerly, operation by operation, or ran no function at all: its time is mostly that of "
        "Python (put the step into a tf.function)"
        for variant in eager
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
        remark if len(found) == everywhere else f"{', '.join(found)}: {remark}" for remark, found in variants.items()
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


def _tracing(matrix: Matrix) -> list[str]:
    traced = {item.strategy: item.counters.retraces for item in matrix.launches if item.counters.retraces}
    return [
        f"{variant} traced {count} more function(s) within its steady steps: its step time includes tracing"
        for variant, count in traced.items()
    ]


def _not_measured(matrix: Matrix) -> list[str]:
    return [
        f"{variant} {what}: {why.strip().splitlines()[0]}"
        for what, group in (("was skipped", matrix.skipped), ("failed", matrix.failed))
        for variant, why in group.items()
    ]


def _measuring(matrix: Matrix) -> str:
    wall = sum(item.wall_seconds for item in matrix.launches)
    share = sum(item.measured_seconds for item in matrix.launches) / wall if wall > 0 else 0.0
    rule = {
        "weak": "batch per replica fixed (weak scaling)",
        "strong": "global batch fixed (strong scaling)",
    }.get(matrix.scaling)
    if rule is not None and any(item.batch_problem for item in matrix.launches):
        rule = f"declared: {rule}; counted: another batch size"
    rule = rule or "no batch size given"
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
