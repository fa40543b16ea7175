"""Format the gate's result: as text for a terminal, and as Markdown and annotations for GitHub."""

from __future__ import annotations

import math
from collections.abc import Iterator

from pytest_ddl.bench.gate.result import CellResult, GateResult
from pytest_ddl.bench.gate.verdict import Decision, Verdict, percent
from pytest_ddl.github import escaped, escaped_property

_LEVELS = {Verdict.REGRESSION: "error", Verdict.ERROR: "error", Verdict.INCONCLUSIVE: "warning"}
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
        text = version.short
        if launched:
            found = launched[0].provenance[name]
            releases = ", ".join(f"{key} {found[key]}" for key in ("tensorflow", "keras", "python") if key in found)
            text += f"; {found['program']}; {releases}; pytest-ddl {found['pytest_ddl']} ({found['pytest_ddl_file']})"
        yield name, text


def text(result: GateResult) -> str:
    """Return the whole report, with a line feed at its end."""
    lines = [f"{name}  {description}" for name, description in versions(result)]
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


def github_annotations(result: GateResult) -> str:
    """Return workflow commands for GitHub Actions, one line for each cell that did not pass."""
    lines = []
    for cell in result.cells:
        level = _LEVELS.get(cell.verdict)
        if level is not None:
            title = escaped_property(f"{cell.verdict.value}: {cell.name}")
            lines.append(f"::{level} title={title}::{escaped(cell.reason)}\n")
    return "".join(lines)


def step_summary(result: GateResult) -> str:
    """Return the whole report as Markdown, for the summary of a GitHub job."""
    lines = [f"## Performance gate: {result.verdict.value}", ""]
    lines += _table(HEADER, [row(cell) for cell in result.cells])
    lines.append("")
    for cell in result.cells:
        lines.append(f"* **{_cell(cell.name)}**: {_cell(cell.reason)}")
        lines += [
            f"  * {'worse' if change.is_regression else 'changed'}: `{change.counter}` {change.base} → {change.head}. "
            f"{_cell(change.message)}"
            for change in cell.changes
        ]
        lines += [f"  * note: {_cell(note)}" for note in cell.launch_notes]
    lines += ["", *(f"* {name}: {_cell(description)}" for name, description in versions(result))]
    lines += [f"* note: {_cell(note)}" for note in result.notes]
    return "\n".join(lines) + "\n"


def _table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    lines = [header, tuple("---" for _ in header), *rows]
    return [f"| {' | '.join(_cell(value) for value in line)} |" for line in lines]


def _cell(value: str) -> str:
    return " ".join(value.split()).replace("|", "\\|")
