"""Report of a history: its findings, which of them alert, the exit status, and the text for people."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pytest_ddl.bench.counters.changes import explained_bytes
from pytest_ddl.bench.history.detect import Change, ChangeVerdict
from pytest_ddl.bench.history.meaning import FAMILIES, family, leaf, variant, whole_workload, workload
from pytest_ddl.bench.history.model import History, HistoryProblem, Series
from pytest_ddl.bench.launching.records import Counters
from pytest_ddl.bench.outcome import INCOMPLETE, OK, WRONG
from pytest_ddl.github import annotation
from pytest_ddl.web.units import percent, quantity

_AT_MOST = 12
"""Maximum number of changes that are listed for one cause."""
PRIMARY = ("step", "throughput", "counters")
STEPS = ("step", "throughput")
EXPLAINED = ChangeVerdict(
    "explained",
    "the step did not become slower: the single replica that it is compared with became faster",
)
LARGER_MODEL = ChangeVerdict("explained", "the model has more parameters, which explain the additional reduced bytes")


@dataclass(frozen=True)
class HistoryReport:
    """History with the changes that were found in it."""

    history: History
    changes: tuple[Change, ...]
    accepted: frozenset[str] = frozenset()
    """Ids of changes and problems that the user accepted."""
    notes: tuple[str, ...] = ()
    """Notes on what was not done, and why."""

    @property
    def regressions(self) -> list[Change]:
        """Changes that are confirmed, still there, and not accepted, largest first. Only these alert."""
        return _largest_first([one for one in self.changes if one.alerts and one.id not in self.accepted])

    @property
    def candidates(self) -> list[Change]:
        """Changes that no re-run has confirmed or refuted yet, largest first. They never alert."""
        return _largest_first([one for one in self.changes if one.is_candidate and one.id not in self.accepted])

    @property
    def errors(self) -> list[HistoryProblem]:
        return [one for one in self.history.problems if one.error and one.id not in self.accepted]

    @property
    def exit_status(self) -> int:
        if self.regressions:
            return WRONG
        return INCOMPLETE if self.errors else OK

    def as_json(self) -> dict[str, Any]:
        """Return all findings, for programs. Effects are relative: 0.05 is 5 % more."""
        return {
            "exit_status": self.exit_status,
            "commits": len(self.history.commits),
            "series": len(self.history.series),
            "machines": {name: dict(machine.facts) for name, machine in self.history.machines.items()},
            "regressions": [_as_json(one) for one in self.regressions],
            "candidates": [_as_json(one) for one in self.candidates],
            "other_changes": [
                {**_as_json(one), "accepted": one.id in self.accepted}
                for one in self.changes
                if one.id in self.accepted or not (one.alerts or one.is_candidate)
            ],
            "problems": [
                {"id": one.id, "kind": one.kind, "message": one.message, "accepted": one.id in self.accepted}
                for one in self.history.problems
            ],
            "notes": list(self.notes),
        }


def causes(changes: Sequence[Change]) -> list[list[Change]]:
    """Group changes that one commit can have caused: changes of one workload on one machine, with one verdict.

    Users read each group once, whatever metrics and variants it contains. Steps of training come first.
    """
    order = {one.name: index for index, one in enumerate(FAMILIES)}
    order.update({name: index - len(PRIMARY) for index, name in enumerate(PRIMARY)})

    def where(one: Change) -> tuple[str, ...]:
        state = (one.verdict.status, one.verdict.message, str(one.worse), str(one.standing))
        return (one.series.machine, one.series.environment, whole_workload(one.series), one.kind, *state)

    found: list[list[Change]] = []
    for one in sorted(changes, key=lambda one: (where(one), one.before.position, one.after.position)):
        group = found[-1] if found else None
        if (
            group
            and where(group[0]) == where(one)
            and one.before.position < min(other.after.position for other in group)
        ):
            group.append(one)
        else:
            found.append([one])

    def importance(one: Change) -> tuple[int, float, tuple[str, ...]]:
        return (order.get(family(one.series.benchmark).name, len(order)), -abs(one.effect), one.series.key)

    ranked = [sorted(group, key=importance) for group in found]
    return sorted(ranked, key=lambda group: importance(group[0]))


def _largest_first(changes: Sequence[Change]) -> list[Change]:
    return sorted(changes, key=lambda one: (-abs(one.effect), one.series.key))


def _as_json(one: Change) -> dict[str, Any]:
    return {
        "id": one.id,
        "kind": one.kind,
        "benchmark": one.series.benchmark.name,
        "parameters": dict(one.series.parameters),
        "machine": one.series.machine,
        "environment": one.series.environment,
        "unit": one.series.benchmark.unit,
        "worse": one.worse,
        "standing": one.standing,
        "effect": one.effect if math.isfinite(one.effect) else None,
        "spread": one.spread if math.isfinite(one.spread) else None,
        "old": one.old,
        "new": one.new,
        "last_before": one.before.hash,
        "likely_first": one.likely.hash,
        "first_after": one.after.hash,
        "verdict": one.verdict.status,
        "message": one.verdict.message,
        "confirmed_effect": one.verdict.effect,
    }


def _place(series: Series) -> tuple[str, ...]:
    """Return the key of series that are measured together: machine, environment, workload and variant."""
    measured = variant(series)
    return (series.machine, series.environment, whole_workload(series), repr(measured or series.parameters))


def _overlap(one: Change, other: Change) -> bool:
    """Return whether one commit can have caused both changes."""
    return one.before.position < other.after.position and other.before.position < one.after.position


def explain(changes: Sequence[Change], series: Sequence[Series]) -> list[Change]:
    """Return the changes in the same order, and mark those as explained that only follow from something else.

    Efficiency, overhead and the share of communication also get worse when one replica gets faster, which is no
    regression. They count if the step or the throughput of the same variant got worse in the same commits. They also
    count if neither is known for the variant. A larger model reduces more bytes, which is no regression either.
    """
    known = {_place(one) for one in series if family(one.benchmark).name in STEPS and one.points}
    slower: dict[tuple[str, ...], list[Change]] = defaultdict(list)
    for one in changes:
        if one.worse and one.kind == "step" and family(one.series.benchmark).name in STEPS:
            slower[_place(one.series)].append(one)
    parameters = {_place(one): one for one in series if leaf(one.benchmark) == "parameter_bytes"}
    marked = []
    for one in changes:
        where = _place(one.series)
        alone = family(one.series.benchmark).derived and where in known
        if alone and one.worse and not any(_overlap(one, other) for other in slower[where]):
            marked.append(one.judged(EXPLAINED))
        elif one.worse and leaf(one.series.benchmark) == "reduced_bytes" and _is_larger(one, parameters.get(where)):
            marked.append(one.judged(LARGER_MODEL))
        else:
            marked.append(one)
    return marked


def _is_larger(change: Change, parameters: Series | None) -> bool:
    """Return whether the model grew in the same commits by enough to explain the reduced bytes."""
    sizes = {point.commit.hash: int(point.value) for point in parameters.points} if parameters else {}
    if change.before.hash not in sizes or change.after.hash not in sizes:
        return False
    before, after = (
        Counters(parameter_bytes=sizes[commit.hash], reduced_bytes=int(reduced))
        for commit, reduced in ((change.before, change.old), (change.after, change.new))
    )
    return after.reduced_bytes <= explained_bytes(before, after)


def text_of(report: HistoryReport) -> str:
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


def github_annotations(report: HistoryReport) -> str:
    """Return workflow commands of GitHub Actions: errors for what alerts, warnings for gaps, notices for candidates.

    Each of them is one line, with its line feed.
    """
    lines = [annotation("error", "Performance regression", "; ".join(cause(one))) for one in causes(report.regressions)]
    lines += [annotation("warning", "History incomplete", problem.message) for problem in report.errors]
    lines += [
        annotation("notice", "Performance candidate, not confirmed", "; ".join(cause(one)))
        for one in causes(report.candidates)
    ]
    return "".join(lines)


def step_summary(report: HistoryReport) -> str:
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
