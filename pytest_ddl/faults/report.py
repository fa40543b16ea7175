"""Report the verdicts of all trials: one table of phases and ranks, the trials that broke a limit, a page and JSON."""

from __future__ import annotations

import json
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from pytest_ddl.equivalence.findings import Finding
from pytest_ddl.equivalence.verdict.report import Report
from pytest_ddl.faults.verdict import FIXES, RecoveryVerdict, Trial
from pytest_ddl.hints import Hint
from pytest_ddl.messages import aligned
from pytest_ddl.records import TrainingRecord
from pytest_ddl.web.look import document
from pytest_ddl.web.units import DASH

_SHOWN = 10
"""Number of broken trials that the text describes. The JSON has all."""


@dataclass(frozen=True)
class Limits:
    """Limits that every trial must keep. Without any limit, a program must still recover."""

    exact: bool = False
    """True if a resumed run must end with the same bits as an uninterrupted one."""
    max_lost_steps: int | None = None
    """Maximum number of steps that may have to be made again."""
    detected_within: float | None = None
    """Maximum seconds from the fault to the end of all ranks."""
    always_loadable: bool = False
    """True if a resumed run must continue at the last save that was complete, or later."""

    def broken_by(self, trial: Trial) -> str:
        """Return which limit a trial has broken, or an empty text."""
        if not trial.recovered:
            return trial.message
        if trial.verdict is RecoveryVerdict.REFUSED:
            needed = self.always_loadable or self.max_lost_steps is not None
            return f"{self._continues}, and the program did not continue at an older save" if needed else ""
        if self.exact and trial.verdict is not RecoveryVerdict.EXACT:
            return f"{Hint.EXACT}, and the run is only {trial.verdict.value}"
        unknown = trial.attempts > 1 and trial.resumed_at is None
        if unknown and (self.max_lost_steps is not None or self.always_loadable):
            return f"{self._continues}, and it is not known where the run continued: its values are those of no step"
        if self.max_lost_steps is not None and (trial.work_lost or 0) > self.max_lost_steps:
            made = "1 step was" if trial.work_lost == 1 else f"{trial.work_lost} steps were"
            return f"{Hint.MAX_LOST_STEPS(self.max_lost_steps)}, and {made} made again"
        if self.detected_within is not None and (trial.detected or 0.0) > self.detected_within:
            return f"{Hint.DETECTED_WITHIN(format(self.detected_within, 'g'))}, and it took {trial.detected:.2f} s"
        if self.always_loadable and trial.attempts > 1 and (trial.resumed_at or 0) < trial.complete_save:
            at = f"step {trial.resumed_at}" if trial.resumed_at else "the start"
            return (
                f"{Hint.ALWAYS_LOADABLE}, and the run continued at {at}: the save of step {trial.complete_save} is lost"
            )
        return ""

    @property
    def _continues(self) -> str:
        """Limit on the step from which a program must continue."""
        return Hint.ALWAYS_LOADABLE() if self.always_loadable else Hint.MAX_LOST_STEPS(self.max_lost_steps)


@dataclass(frozen=True)
class FaultReport:
    """Verdicts of the faults that were injected into one training function under one strategy."""

    strategy: str
    tasks: tuple[str, ...]
    trials: tuple[Trial, ...]
    limits: Limits
    comparison: Report
    """Report of the comparison without faults."""
    points: int
    """Number of points that the run without faults has on all ranks."""
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    not_injected: str = ""
    """Why no fault could be injected; empty if at least one was."""

    def broken_by(self, trial: Trial) -> str:
        """Return which limit a trial has broken, in the words of the front end, or an empty text."""
        return self.comparison.front_end.render(self.limits.broken_by(trial))

    @property
    def broken(self) -> tuple[tuple[Trial, str], ...]:
        """The trials that broke a limit, each with the reason, the worst first."""
        order = list(RecoveryVerdict)
        reasons = [(trial, why) for trial in self.trials if (why := self.broken_by(trial))]
        return tuple(sorted(reasons, key=lambda pair: -order.index(pair[0].verdict)))

    @property
    def headline(self) -> str:
        """The result in one line."""
        number = len(self.trials)
        if self.broken:
            return f"the training under {self.strategy} did not recover from {len(self.broken)} of {number} faults"
        if self.not_injected:
            return f"{RecoveryVerdict.NOT_INJECTED.value} under {self.strategy}: {self.not_injected}"
        if not number:
            return f"no fault was injected under {self.strategy}: the run has no point that was asked for"
        return f"the training under {self.strategy} recovered from {number} of {number} faults"

    @property
    def first_line(self) -> str:
        """The worst broken limit with its faults, for the summary of a test."""
        if not self.broken:
            return self.headline
        trial, why = self.broken[0]
        return f"{why if trial.recovered else trial.summary}, {'; then '.join(map(str, trial.schedule))}"

    @property
    def recovered(self) -> bool:
        """True if there were trials, and each kept the limits."""
        return bool(self.trials) and not self.broken

    @property
    def passed(self) -> bool:
        """True if the program has recovered, and the comparison without faults has passed."""
        return self.verdict == "pass"

    def __bool__(self) -> bool:
        """Return ``passed``, so that ``assert check_training(..., faults=...)`` works."""
        return self.passed

    @property
    def verdict(self) -> str:
        """``"fail"`` if the program did not recover, otherwise the verdict of the comparison without faults.

        A fault that did not strike, or that leaves something undecided, is no pass.
        """
        return self.comparison.verdict if self.recovered else "fail"

    @property
    def findings(self) -> list[Finding]:
        """The findings of the trials that broke a limit, the worst first."""
        return [trial.finding for trial, _why in self.broken if trial.finding is not None]

    @property
    def reference(self) -> TrainingRecord:
        """Record of the run on one device."""
        return self.comparison.reference

    @property
    def distributed(self) -> TrainingRecord:
        """Record of the compared run under the strategy, without a fault."""
        return self.comparison.distributed

    def to_json(self) -> str:
        """Return the report as JSON: an object with ``strategy``, ``tasks``, ``passed`` and a list ``trials``."""
        return json.dumps(
            {
                "strategy": self.strategy,
                "tasks": self.tasks,
                "points": self.points,
                "passed": self.passed,
                "verdict": self.verdict,
                "not_injected": self.not_injected,
                "seconds": round(self.seconds, 3),
                "notes": self.notes,
                "trials": [self._trial(trial) for trial in self.trials],
            },
            indent=1,
        )

    def _trial(self, trial: Trial) -> dict[str, Any]:
        return {
            "faults": [str(fault) for fault in trial.schedule],
            "verdict": trial.verdict.value,
            "message": trial.message,
            "broken": self.broken_by(trial),
            "steps": trial.steps,
            "examples_twice": trial.twice,
            "examples_never": trial.never,
            "work_lost": trial.work_lost,
            "resumed_at": trial.resumed_at,
            "seconds_to_detect": trial.detected,
            "seconds_to_resume": trial.resumed,
            "attempts": trial.attempts,
            "written_outside_of_saves": trial.written,
            "struck_while_written": trial.in_writing or None,
            "cause": trial.finding.cause if trial.finding else None,
            "notes": trial.notes,
        }

    def __str__(self) -> str:
        return self.comparison.front_end.render("\n".join(self._lines()))

    def _lines(self) -> Iterable[str]:
        yield self.headline
        if self.not_injected:
            return
        yield ""
        yield from self.table()
        costs = list(self._costs())
        yield from ["", *costs] if costs else []
        broken = self.broken
        for trial, why in broken[:_SHOWN]:
            yield ""
            yield f"✗ {'; then '.join(map(str, trial.schedule))}"
            yield f"    {why}"
            if trial.recovered:
                yield f"    {trial.message}"
            if trial.in_writing:
                yield f"    the fault struck while {trial.in_writing} was written"
            elif trial.written and trial.verdict is not RecoveryVerdict.NOT_INJECTED:
                shown = ", ".join(trial.written[:3]) + (" …" if len(trial.written) > 3 else "")
                yield f"    written outside of save calls before: {shown}. What they say must fit the save."
            fix = FIXES.get(trial.verdict, trial.finding.fix if trial.finding is not None else None)
            if fix:
                yield f"    fix: {fix}"
            yield from (f"    note: {note}" for note in trial.notes)
        if len(broken) > _SHOWN:
            yield ""
            yield f"and {len(broken) - _SHOWN} more; see the JSON of the report"

    def table(self) -> Iterable[str]:
        """Yield the table of phases and ranks. A cell counts the verdicts at the points of its phase."""
        cells: dict[str, dict[str, Counter[str]]] = {}
        for trial in self.trials:
            fault = trial.schedule[-1]
            number = f" {fault.point.number}" if fault.point.number else ""
            row = f"{fault.point.phase}{number}" + (f" of attempt {fault.attempt}" if fault.attempt > 1 else "")
            column = cells.setdefault(row, {}).setdefault(fault.task, Counter())
            column[_short(trial)] += 1
        rows = [["phase", *self.tasks]]
        rows += [[row, *(_cell(columns.get(task)) for task in self.tasks)] for row, columns in cells.items()]
        yield from aligned(rows)

    def _costs(self) -> Iterable[str]:
        lost = [trial.work_lost for trial in self.trials if trial.work_lost is not None]
        if lost:
            yield f"steps made again: at most {max(lost)}, {sum(lost) / len(lost):.1f} on average"
        detected = [trial.detected for trial in self.trials if trial.detected is not None]
        if detected:
            yield f"seconds from the fault to the end of all ranks: {_spread(detected)}"
        resumed = [trial.resumed for trial in self.trials if trial.resumed is not None]
        if resumed:
            yield f"seconds from there to the next step: {_spread(resumed)}"


def _spread(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds):.2f} (median), {max(seconds):.2f} (largest)"


def _short(trial: Trial) -> str:
    if trial.verdict in (RecoveryVerdict.LOST, RecoveryVerdict.REPLAYED):
        return f"{trial.verdict.value} {trial.steps}"
    if trial.verdict is RecoveryVerdict.EXAMPLES:
        return f"{trial.twice} twice, {trial.never} never"
    return str(trial.verdict.value)


def _cell(verdicts: Counter[str] | None) -> str:
    return " · ".join(f"{number} {name}" for name, number in verdicts.most_common()) if verdicts else "-"


class RecoveryError(AssertionError):
    """A training program did not recover from a fault as it must. ``report`` has the verdict of each trial."""

    def __init__(self, report: FaultReport) -> None:
        super().__init__(str(report))
        self.report = report


# pytest prints the module of an exception in front of every failure: show the public name.
RecoveryError.__module__ = "pytest_ddl"


_RULES = "td, th { text-align: left; white-space: normal; } td:nth-child(4), td:nth-child(5) { text-align: right; }"
"""Rules of this page: most cells of its table are text."""


def write(report: FaultReport, folder: Path) -> Path:
    """Write ``STRATEGY.html`` and ``STRATEGY.json`` to a folder, and return the path of the page."""
    folder.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^\w=.-]+", "-", report.strategy).strip("-")
    (folder / f"{name}.json").write_text(report.to_json(), encoding="utf-8")
    page = folder / f"{name}.html"
    page.write_text(render(report), encoding="utf-8")
    return page


def render(report: FaultReport) -> str:
    """Return the page: the summary, the table of phases and ranks, and a table of all trials."""
    title = f"Faults under {report.strategy}"
    table = escape("\n".join(report.table()))
    rows = "\n".join(_row(trial, report.broken_by(trial)) for trial in report.trials)
    head = "".join(
        f"<th>{name}</th>" for name in ("fault", "verdict", "what it cost", "s to detect", "s to resume", "cause")
    )
    body = (
        f"<header><h1>{escape(title)}</h1></header>\n"
        f'<main><p>{escape(report.headline)}</p><pre class="scroll">{table}</pre>\n'
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>\n{rows}\n</tbody></table></div></main>'
    )
    return document(title, body, _RULES)


def _row(trial: Trial, broken: str) -> str:
    where = f"; the fault struck while {trial.in_writing} was written" if broken and trial.in_writing else ""
    cells = (
        "; then ".join(map(str, trial.schedule)),
        f"✗ {trial.verdict.value}" if broken else trial.verdict.value,
        f"{broken or trial.message}{where}",
        _seconds(trial.detected),
        _seconds(trial.resumed),
        (trial.finding.cause if trial.finding else None) or DASH,
    )
    return "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"


def _seconds(value: float | None) -> str:
    return DASH if value is None else f"{value:.2f}"
