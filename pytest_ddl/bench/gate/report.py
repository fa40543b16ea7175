"""Format the gate's result as text for a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator

from pytest_ddl.bench.gate.result import CellResult, GateResult
from pytest_ddl.bench.gate.verdict import Decision, Verdict, percent

HEADER = ("cell", "verdict", "step time, HEAD / BASE", "throughput", "launches", "sd")


def row(cell: CellResult) -> tuple[str, ...]:
    """Return a cell's line of the table, with the columns of :data:`HEADER`."""
    decision = cell.decision
    launches = str(len(cell.launches)) + (f" ({cell.set_aside} set aside)" if cell.set_aside else "")
    if decision is None or math.isnan(decision.ratio):
        return (cell.name, cell.verdict.value.upper(), "not measured", "", launches, "")
    return (
        cell.name,
        cell.verdict.value.upper(),
        interval(decision),
        percent(-math.log(decision.ratio)),
        launches,
        f"{decision.sd * 100:.2f} %",
    )


def interval(decision: Decision) -> str:
    """Format the estimate with its bounds."""
    low, high = percent(math.log(decision.lower)), percent(math.log(decision.upper))
    return f"{percent(math.log(decision.ratio))} ({low} to {high})"


def versions(result: GateResult) -> Iterator[tuple[str, str]]:
    """Yield ``BASE`` and ``HEAD``, each with a description of what was measured: commit, file and releases."""
    launched = [cell.launches[0] for cell in result.cells if cell.launches]
    for name, version in (("BASE", result.base), ("HEAD", result.head)):
        told = version.short
        if launched:
            found = launched[0].provenance[name]
            releases = ", ".join(f"{key} {found[key]}" for key in ("tensorflow", "keras", "python") if key in found)
            told += f"; {found['program']}; {releases}; pytest-ddl {found['pytest_ddl']} ({found['pytest_ddl_file']})"
        yield name, told


def text(result: GateResult) -> str:
    """Return the whole report, with a line feed at its end."""
    lines = [f"{name}  {told}" for name, told in versions(result)]
    lines += [f"note: {note}" for note in result.notes]
    lines.append("")
    table = [HEADER, *(row(cell) for cell in result.cells)]
    widths = [max(len(line[column]) for line in table) for column in range(len(HEADER))]
    for line in table:
        lines.append("  ".join(value.ljust(width) for value, width in zip(line, widths, strict=True)).rstrip())
    for cell in result.cells:
        lines += ["", f"{cell.name}: {cell.verdict.value.upper()}: {cell.reason}"]
        lines += [
            f"  {'worse' if change.is_regression else 'changed'}: {change.counter} {change.base} -> {change.head}. "
            f"{change.message}"
            for change in cell.changes
        ]
        lines += [f"  note: {note}" for note in cell.launch_notes]
    lines += ["", f"{result.verdict.value.upper()} {_ending(result)}"]
    return "\n".join(lines) + "\n"


def _ending(result: GateResult) -> str:
    count = len(result.cells)
    what = f"{count} cell{'s' if count != 1 else ''}, margin {result.margin * 100:g} %"
    if result.verdict is Verdict.INCONCLUSIVE:
        what += "; it was not shown that HEAD is as fast as BASE"
    return f"({what}; exit status {result.exit_status})"
