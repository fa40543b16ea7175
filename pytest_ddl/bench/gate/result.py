"""Results of the gate: one for each cell, and one for all cells, with its exit status, its text and its JSON."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pytest_ddl.bench import outcome
from pytest_ddl.bench.counters.changes import NOT_COUNTED, CounterChange
from pytest_ddl.bench.gate.lockstep import Paired
from pytest_ddl.bench.gate.verdict import Decision, Verdict, percent
from pytest_ddl.bench.gate.worktrees import Version
from pytest_ddl.bench.launching.machine import machine_facts
from pytest_ddl.bench.trackers import Sheet, run_named
from pytest_ddl.github import annotation
from pytest_ddl.json_records import to_plain
from pytest_ddl.messages import aligned

SCHEMA = 1
"""Version of the JSON. It is raised when a field changes its meaning or is removed."""
EXIT_STATUS: Mapping[Verdict, int] = {
    Verdict.PASS: outcome.OK,
    Verdict.IMPROVEMENT: outcome.OK,
    Verdict.REGRESSION: outcome.WRONG,
    Verdict.INCONCLUSIVE: outcome.INCOMPLETE,
    Verdict.ERROR: outcome.FAILED,
}
"""Exit status of the gate for each verdict; see :mod:`pytest_ddl.bench.outcome` for the others."""
_LEVELS: Mapping[Verdict, Literal["error", "warning"]] = {
    Verdict.REGRESSION: "error",
    Verdict.ERROR: "error",
    Verdict.INCONCLUSIVE: "warning",
}
_HEADER = ("cell", "verdict", "step time, HEAD / BASE", "throughput", "launches", "sd")
_WORST_FIRST = (Verdict.REGRESSION, Verdict.ERROR, Verdict.INCONCLUSIVE)


@dataclass(frozen=True)
class CellResult:
    """Result of one target under one variant of a strategy."""

    target: str
    strategy: str
    verdict: Verdict
    reason: str
    decision: Decision | None = None
    changes: tuple[CounterChange, ...] = ()
    """Changes of counters, regressions first."""
    launches: tuple[Paired, ...] = field(default=(), repr=False)
    """All launches. Those on an overloaded machine have ``load.problem`` and are in no decision."""
    seconds: float = 0.0
    counters_only: bool = False

    @property
    def name(self) -> str:
        return f"{self.target} {self.strategy}"

    @property
    def set_aside(self) -> int:
        """Number of launches for which the machine was too busy; 0 if time was not measured."""
        return 0 if self.counters_only else sum(bool(one.load.problem) for one in self.launches)

    @property
    def launch_notes(self) -> tuple[str, ...]:
        """Notes from the programs and their counters, each once, with the versions that reported it."""
        said: dict[str, set[str]] = {}
        for one in self.launches:
            for name, launch in (("BASE", one.base), ("HEAD", one.head)):
                for note in launch.counters.notes:
                    said.setdefault(note, set()).add(name)
        return tuple(f"{' and '.join(sorted(names))}: {note}" for note, names in said.items())

    @property
    def row(self) -> tuple[str, ...]:
        """Line of the printed table: name, verdict, ratio of step times with bounds, throughput, launches, spread."""
        decision = self.decision
        launches = str(len(self.launches)) + (f" ({self.set_aside} set aside)" if self.set_aside else "")
        if decision is None or math.isnan(decision.ratio):
            timed = [] if self.counters_only else [one.log_ratio for one in self.launches]
            time = f"{percent(statistics.fmean(timed))} (no bounds)" if timed else "not measured"
            return (self.name, self.verdict.value.upper(), time, "", launches, "")
        ratio, low, high = (percent(math.log(value)) for value in (decision.ratio, decision.lower, decision.upper))
        throughput = percent(-math.log(decision.ratio))
        return (
            self.name,
            self.verdict.value.upper(),
            f"{ratio} ({low} to {high})",
            throughput,
            launches,
            f"{decision.sd * 100:.2f} %",
        )

    @property
    def details(self) -> tuple[str, ...]:
        """Changes of counters and notes, one text for each."""
        said = next((change for change in self.changes if change.is_regression), None)  # the reason says it
        changes = (
            f"{'worse' if change.is_regression else 'changed'}: {change.counter} {change.base} -> {change.head}"
            + ("" if change is said else f". {change.message}")
            for change in self.changes
        )
        return (*changes, *(f"note: {note}" for note in self.launch_notes))

    def as_json(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "strategy": self.strategy,
            "verdict": self.verdict.value,
            "reason": self.reason,
            "decision": to_plain(self.decision),
            "changes": to_plain(self.changes),
            "set_aside": self.set_aside,
            "not_counted": list(NOT_COUNTED) if self.counters_only else [],
            "seconds": self.seconds,
            "launches": [one.as_json() for one in self.launches],
            "counters": {
                side: to_plain(getattr(self.launches[0], side).counters) if self.launches else None
                for side in ("base", "head")
            },
        }


@dataclass(frozen=True)
class GateResult:
    """Result of a whole gate.

    :raises ValueError: if there are no cells, because a gate in which nothing ran has no verdict.
    """

    base: Version
    head: Version
    cells: tuple[CellResult, ...]
    margin: float
    counters_only: bool = False
    notes: tuple[str, ...] = ()
    """Notes for the reader, for example on uncommitted changes or on which pytest-ddl measured."""

    def __post_init__(self) -> None:
        if not self.cells:
            raise ValueError("a gate without cells has measured nothing")

    @property
    def verdict(self) -> Verdict:
        """Worst verdict of the cells; ``improvement`` if a cell is better and none is worse."""
        verdicts = {cell.verdict for cell in self.cells}
        for verdict in _WORST_FIRST:
            if verdict in verdicts:
                return verdict
        return Verdict.IMPROVEMENT if Verdict.IMPROVEMENT in verdicts else Verdict.PASS

    @property
    def exit_status(self) -> int:
        return EXIT_STATUS[self.verdict]

    @property
    def passed(self) -> bool:
        """True if it was shown that nothing regressed. An inconclusive gate has not passed."""
        return self.exit_status == 0

    def as_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "verdict": self.verdict.value,
            "exit_status": self.exit_status,
            "base": to_plain(self.base),
            "head": to_plain(self.head),
            "margin": self.margin,
            "counters_only": self.counters_only,
            "notes": list(self.notes),
            "machine": machine_facts(),
            "cells": [cell.as_json() for cell in self.cells],
        }

    def as_sheet(self) -> Sheet:
        """Return the numbers for experiment trackers: ratios of step times with their bounds, and changed counters."""
        facts = {**self.versions, "margin": f"{self.margin:g}", "verdict": self.verdict.value}
        numbers: dict[str, float] = {"exit status": self.exit_status}
        for cell in self.cells:
            facts |= {f"{cell.name} verdict": cell.verdict.value, f"{cell.name} reason": cell.reason}
            numbers[f"{cell.name}/launches"] = len(cell.launches)
            if cell.decision is not None:
                for part in ("ratio", "lower", "upper"):
                    numbers[f"{cell.name}/step time, HEAD over BASE/{part}"] = getattr(cell.decision, part)
            for change in cell.changes:
                for side, count in (("BASE", change.base), ("HEAD", change.head)):
                    if isinstance(count, int | float):
                        numbers[f"{cell.name}/{change.counter}/{side}"] = count
        machine = {name: str(value) for name, value in machine_facts().items() if value}
        return Sheet(run_named("gate"), {**facts, **machine}, numbers)

    def save(self, path: Path) -> None:
        """Write the result as JSON."""
        path.write_text(json.dumps(self.as_json(), indent=1, allow_nan=False) + "\n", encoding="utf-8")

    @property
    def versions(self) -> dict[str, str]:
        """``BASE`` and ``HEAD`` -> what was measured: commit, file and releases."""
        launched = [cell.launches[0] for cell in self.cells if cell.launches]
        described = {"BASE": self.base.short, "HEAD": self.head.short}
        for name, found in launched[0].provenance.items() if launched else ():
            releases = ", ".join(f"{key} {found[key]}" for key in ("tensorflow", "keras", "python") if key in found)
            described[name] += (
                f"; {found['program']}; {releases}; pytest-ddl {found['pytest_ddl']} ({found['pytest_ddl_file']})"
            )
        return described

    def __str__(self) -> str:
        """Return the report for a terminal, with a line feed at its end."""
        lines = [f"{name}  {description}" for name, description in self.versions.items()]
        lines += [*(f"note: {note}" for note in self.notes), ""]
        lines += aligned([_HEADER, *(cell.row for cell in self.cells)])
        for cell in self.cells:
            lines += ["", f"{cell.name}: {cell.verdict.value.upper()}: {cell.reason}"]
            lines += [f"  {detail}" for detail in cell.details]
        ending = f"{len(self.cells)} cell{'s' if len(self.cells) != 1 else ''}, margin {self.margin * 100:g} %"
        if self.verdict is Verdict.INCONCLUSIVE:
            ending += "; it was not shown that HEAD is as fast as BASE"
        lines += ["", f"{self.verdict.value.upper()} ({ending}; exit status {self.exit_status})"]
        return "\n".join(lines) + "\n"

    def annotations(self) -> str:
        """Return workflow commands for GitHub Actions, one line for each cell that did not pass."""
        return "".join(
            annotation(_LEVELS[cell.verdict], f"{cell.verdict.value}: {cell.name}", cell.reason)
            for cell in self.cells
            if cell.verdict in _LEVELS
        )

    def step_summary(self) -> str:
        """Return the report as Markdown, for the summary of a GitHub job."""
        lines = [f"## Performance gate: {self.verdict.value}", ""]
        for row in (_HEADER, ("---",) * len(_HEADER), *(cell.row for cell in self.cells)):
            lines.append(f"| {' | '.join(map(_plain, row))} |")
        lines.append("")
        for cell in self.cells:
            lines.append(f"* **{_plain(cell.name)}**: {_plain(cell.reason)}")
            lines += [f"  * {_plain(detail)}" for detail in cell.details]
        lines += ["", *(f"* {name}: {_plain(description)}" for name, description in self.versions.items())]
        lines += [f"* note: {_plain(note)}" for note in self.notes]
        return "\n".join(lines) + "\n"


def _plain(text: str) -> str:
    """Return a text as one line that can be a cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|")
