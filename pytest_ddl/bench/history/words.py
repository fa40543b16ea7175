"""Format the findings as text for a terminal and for GitHub Actions."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_ddl.bench.history.detect import Change
from pytest_ddl.bench.history.meaning import workload
from pytest_ddl.bench.history.report import Report, causes
from pytest_ddl.github import escaped
from pytest_ddl.web.units import percent, quantity

_AT_MOST = 12
"""Maximum number of changes that are listed for one cause."""


def told(report: Report) -> str:
    """Return the text for a terminal: regressions, candidates, gaps, and what was not done."""
    history = report.history
    machines = ", ".join(history.machines)
    lines = [f"{len(history.commits)} commits, {len(history.series)} series, from {machines}"]
    for title, found in (("REGRESSION", report.regressions), ("to be confirmed", report.candidates)):
        lines += _listed(title, found)
    if not report.regressions:
        lines.append("no confirmed regression" + (": candidates need a re-run first" if report.candidates else ""))
    for problem in history.problems:
        state = "accepted" if problem.id in report.accepted else ("INCOMPLETE" if problem.error else "note")
        lines.append(f"{state} [{problem.id}] {problem.message}")
    lines += [f"note: {note}" for note in report.notes]
    known = {change.id for change in report.changes} | {problem.id for problem in history.problems}
    unknown = report.accepted - known
    lines += [f"note: --accept {name} is no longer a change or gap of this history" for name in sorted(unknown)]
    return "\n".join(lines)


def where(change: Change) -> str:
    """Describe the commits between which a change lies."""
    if change.kind == "creep":
        return f"gradually from {change.before.short} to {change.after.short}"
    return f"after {change.before.short}, by {change.after.short}"


def line(change: Change) -> str:
    """Describe one change in one line."""
    unit = change.series.benchmark.unit
    levels = f"{quantity(change.old, unit)} -> {quantity(change.new, unit)}"
    return f"{change.series.label}: {percent(change.effect)}, {levels} [{change.id}]"


def cause(group: Sequence[Change]) -> list[str]:
    """Describe changes that one commit can have caused: their place, the reason to believe them, and each change."""
    first = group[0]
    message = f": {first.verdict.message}" if first.verdict.message else ""
    head = f"{workload(first.series)} on {first.series.machine}, {where(first)}{message}"
    left = [f"{len(group) - _AT_MOST} more; --json has all"] if len(group) > _AT_MOST else []
    return [head, *(line(change) for change in group[:_AT_MOST]), *left]


def _listed(title: str, found: Sequence[Change]) -> list[str]:
    lines = []
    for group in causes(found):
        head, *rest = cause(group)
        lines += [f"{title}: {head}", *(f"  {text}" for text in rest)]
    return lines


def github_annotations(report: Report) -> str:
    """Return workflow commands of GitHub Actions: errors for what alerts, warnings for gaps, notices for candidates.

    https://docs.github.com/actions/reference/workflow-commands-for-github-actions
    """
    lines = [
        f"::error title=Performance regression::{escaped('; '.join(cause(group)))}"
        for group in causes(report.regressions)
    ]
    lines += [f"::warning title=History incomplete::{escaped(problem.message)}" for problem in report.errors]
    lines += [
        f"::notice title=Performance candidate, not confirmed::{escaped('; '.join(cause(group)))}"
        for group in causes(report.candidates)
    ]
    return "\n".join(lines)


def step_summary(report: Report) -> str:
    """Return Markdown for the summary of a GitHub job."""
    counts = f"{len(report.history.commits)} commits, {len(report.history.series)} series."
    lines = ["## Performance history", "", counts]
    for title, found in (("Confirmed regressions", report.regressions), ("To be confirmed", report.candidates)):
        if found:
            lines += ["", f"### {title}", ""]
        for group in causes(found):
            head, *rest = cause(group)
            lines += [f"- {head}", *(f"  - `{text}`" for text in rest)]
    if report.errors:
        lines += ["", "### The history is incomplete", "", *(f"- {problem.message}" for problem in report.errors)]
    if not report.regressions:
        lines += ["", "No confirmed regression."]
    return "\n".join(lines) + "\n"
