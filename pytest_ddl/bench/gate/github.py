"""Report the gate's result in GitHub Actions: a step summary, and annotations on the pull request."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from pytest_ddl.bench.gate.report import HEADER, row, versions
from pytest_ddl.bench.gate.result import GateResult
from pytest_ddl.bench.gate.verdict import Verdict

_LEVELS = {Verdict.REGRESSION: "error", Verdict.ERROR: "error", Verdict.INCONCLUSIVE: "warning"}


def is_github(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether this is a job of GitHub Actions."""
    return environ.get("GITHUB_ACTIONS") == "true"


def commands(result: GateResult) -> str:
    """Return workflow commands, one line for each cell that did not pass.

    Source: GitHub Docs, "Workflow commands for GitHub Actions", setting an error or warning message.
    """
    lines = []
    for cell in result.cells:
        level = _LEVELS.get(cell.verdict)
        if level is not None:
            title = _property(f"{cell.verdict.value}: {cell.name}")
            lines.append(f"::{level} title={title}::{_data(cell.reason)}\n")
    return "".join(lines)


def summary(result: GateResult) -> str:
    """Return the result as Markdown."""
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
    lines += ["", *(f"* {name}: {_cell(told)}" for name, told in versions(result))]
    lines += [f"* note: {_cell(note)}" for note in result.notes]
    return "\n".join(lines) + "\n"


def write_summary(result: GateResult, environ: Mapping[str, str] = os.environ) -> bool:
    """Append the result to the summary of this step, and return whether the step has one."""
    path = environ.get("GITHUB_STEP_SUMMARY")
    if not path:
        return False
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(summary(result))
    return True


def _table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    lines = [header, tuple("---" for _ in header), *rows]
    return [f"| {' | '.join(_cell(value) for value in line)} |" for line in lines]


def _cell(value: str) -> str:
    return " ".join(value.split()).replace("|", "\\|")


def _data(value: str) -> str:
    return value.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(value: str) -> str:
    return _data(value).replace(":", "%3A").replace(",", "%2C")
