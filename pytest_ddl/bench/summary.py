"""Format a matrix as the text that a user sees after a measurement."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

from pytest_ddl.bench.matrix import Matrix
from pytest_ddl.bench.metrics.absent import NoNumberError
from pytest_ddl.bench.metrics.estimates import Estimate, baseline_of, estimate, scaling_names

WIDTH = 100
NAME = 25
OVERLOAD = 2.0
"""1-minute load per core before a launch, earlier launches included, above which other programs were running."""


def summary(matrix: Matrix) -> str:
    """Return a table of variants and metrics, at most 100 columns wide, with reasons for missing numbers below it."""
    if not matrix.launches:
        return "\n".join(["nothing was measured", *_not_measured(matrix)])
    efficiency, overhead = scaling_names(matrix)
    try:
        baseline = baseline_of(matrix)
    except NoNumberError:
        baseline = ""
    columns: tuple[tuple[str, str, int, Callable[[Estimate], str]], ...] = (
        ("step ms", "step_time", 13, lambda e: f"{_digits(1e3 * (e.value or 0))}{_spread(e)}"),
        ("examples/s", "throughput", 10, lambda e: _digits(e.value or 0)),
        ("efficiency", efficiency, 12, lambda e: f"{e.value or 0:.3f}{_spread(e)}"),
        ("overhead", overhead, 8, lambda e: f"{e.value or 0:.3f}"),
        ("comm.", "communication_share", 5, lambda e: f"{e.value or 0:.0%}"),
        ("MiB", "peak_memory", 6, lambda e: f"{e.value or 0:.0f}"),
        ("J/step", "energy_per_step", 7, lambda e: _digits(e.value or 0)),
    )
    lines = ["  ".join([f"{'variant':{NAME}}", *(f"{title:>{width}}" for title, _name, width, _show in columns)])]
    notes: dict[str, int] = {}
    remarks: list[str] = []
    unsure = ""
    for variant in matrix.variants:
        first, *rest = _wrapped(variant)
        cells = []
        for _title, name, width, show in columns:
            found = estimate(name, matrix, variant)
            if variant == baseline and found.baseline is not None:
                cells.append(f"{'-' if name == 'communication_share' else 'baseline' if width > 7 else '1':>{width}}")
            elif found.value is None:
                number = notes.setdefault(found.note, len(notes) + 1)
                cells.append(f"{f'[{number}]':>{width}}")
            else:
                cells.append(f"{show(found):>{width}}")
                if len(found.samples) > 1 and found.low is None:
                    unsure = found.note.partition(";")[0]
                if found.baseline is not None:
                    remarks += [part for part in found.note.split("; ") if "no interval" not in part]
        lines += ["  ".join([f"{first:{NAME}}", *cells]), *rest]
    told = [f"[{number}] {note}" for note, number in notes.items()]
    told += [remark for remark in dict.fromkeys(remarks) if remark]
    told += [
        unsure or _uncertainty(matrix),
        *_warnings(matrix),
        *_not_measured(matrix),
        _measuring(matrix),
        _machine(matrix),
    ]
    for text in told:
        lines += textwrap.wrap(text, WIDTH, subsequent_indent="    ")
    return "\n".join(lines)


def _wrapped(variant: str) -> list[str]:
    """Split a variant into lines of the column's width, with its shape below its name."""
    if len(variant) <= NAME:
        return [variant]
    name, bracket, shape = variant.partition("[")
    parts = (bracket + shape).replace(",", ", ")
    return [name, *textwrap.wrap(parts, NAME, initial_indent="  ", subsequent_indent="   ")]


def _digits(value: float) -> str:
    """Format four significant digits; a whole number from 1000 on; three digits and an exponent from 10 million on."""
    if value >= 1000:
        return f"{value:.0f}" if value < 1e7 else f"{value:.3g}"
    return f"{value:.4g}"


def _spread(found: Estimate) -> str:
    half = found.half_width
    if half is None:
        return ""
    return f" ±{half:.1%}" if half < 0.995 else " ±>99%"


def _uncertainty(matrix: Matrix) -> str:
    counts = {len(matrix.of(variant)) for variant in matrix.variants}
    if counts == {1}:
        return "One launch of each variant: no interval; launches=3 or more gives one."
    count = str(counts.pop()) if len(counts) == 1 else f"{min(counts)} to {max(counts)}"
    return f"±: half of the 95 % t interval over {count} launches of each variant."


def _warnings(matrix: Matrix) -> list[str]:
    """Return the remarks on what makes the numbers less reliable."""
    return [*_eager(matrix), *_remarks(matrix), *_tracing(matrix), *_overload(matrix)]


def _eager(matrix: Matrix) -> list[str]:
    eager = dict.fromkeys(item.strategy for item in matrix.launches if item.counters.eager)
    return [
        f"{variant}: steps ran eagerly, operation by operation, or ran no function at all: its time is mostly Python's "
        "(have a tf.function take the step)"
        for variant in eager
    ]


def _remarks(matrix: Matrix) -> list[str]:
    """Return each remark once, without variants if all of them share it. Remarks on the program's loops often do."""
    told: dict[str, dict[str, None]] = {}
    for item in matrix.launches:
        for remark in (remark for rank in item.ranks for remark in rank.remarks):
            told.setdefault(remark, {})[item.strategy] = None
    everywhere = len(matrix.variants)
    return [remark if len(found) == everywhere else f"{', '.join(found)}: {remark}" for remark, found in told.items()]


def _overload(matrix: Matrix) -> list[str]:
    shares = [
        (float(item.machine["load"]) / float(item.machine["cores"]), item.machine)
        for item in matrix.launches
        if item.machine.get("load") and item.machine.get("cores")
    ]
    share, facts = max(shares, key=lambda pair: pair[0], default=(0.0, {}))
    if share <= OVERLOAD:
        return []
    return [
        f"the machine was busy (load {facts['load']} on {facts['cores']} cores): times are those of a fight for cores"
    ]


def _tracing(matrix: Matrix) -> list[str]:
    traced = {item.strategy: item.counters.retraces for item in matrix.launches if item.counters.retraces}
    return [
        f"{variant} traced {count} more function(s) within its steady steps: its step time holds tracing"
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
        rule = f"declared: {rule}; counted: another batch"
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
