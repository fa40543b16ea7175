"""What keeps results out of a history, most of which asv leaves out without a word."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from pytest_ddl.bench.history.model import Commit, Point, Problem, Series

Measured = Mapping[tuple[str, str], set[Commit]]
"""Machine and environment -> the commits that asv has a file of, whatever is in it."""
_SHOWN = 5


def _span(points: Iterable[Point]) -> str:
    ordered = sorted({point.commit for point in points})
    return ordered[0].short if len(ordered) == 1 else f"{ordered[0].short}..{ordered[-1].short}"


def _some(names: Iterable[str]) -> str:
    """The first few, each once, in order."""
    known = list(dict.fromkeys(names))
    return ", ".join(known[:_SHOWN]) + (" …" if len(known) > _SHOWN else "")


def outside(commits: Sequence[str], *, shallow: bool) -> list[Problem]:
    """Commits with results that the branch does not have."""
    if not commits:
        return []
    shown = _some(name[:8] for name in sorted(commits))
    count = f"{len(commits)} commits with results are"
    if shallow:
        message = (
            f"{count} left out: {shown}. The repository is a shallow clone, which does not have them: "
            "`git fetch --unshallow`; with actions/checkout, fetch-depth: 0"
        )
        # Another night may cut off other commits: it stays the same gap.
        return [Problem("shallow", message, "commits")]
    message = f"{count} not on the branch that the history is of (--branch), and are left out: {shown}"
    return [Problem("outside", message, "commits", shown)]


def removed(unknown: Mapping[str, Sequence[Point]], series: Sequence[Series]) -> list[Problem]:
    """What ``benchmarks.json`` does not know any more: benchmarks, and combinations of parameters.

    :param unknown: the results of benchmarks that it does not have, by name.
    """
    found = [
        Problem(
            "removed",
            f"{name} has results of {len({point.commit for point in points})} commits ({_span(points)}) and is not in "
            "benchmarks.json: renamed, removed, or its module fails to import. asv drops them without a word. Where it "
            'was renamed, set `benchmark_name = "…"` to the old name; where it was removed, accept it by its id',
            name,
            _span(points),
        )
        for name, points in sorted(unknown.items())
        if points
    ]
    by_name: dict[str, list[Series]] = defaultdict(list)
    for one in series:
        if one.points and not one.is_current:
            by_name[one.benchmark.name].append(one)
    for name, several in sorted(by_name.items()):
        labels = sorted({one.label for one in several})
        message = (
            f"{name} has results of {len(labels)} combinations of parameters that it does not have any more: "
            f"{_some(labels)} ({_span(point for one in several for point in one.points)}). asv drops them without a "
            "word. Where they were removed on purpose, accept it by its id"
        )
        found.append(Problem("removed", message, name, ", ".join(labels)))
    return found


def cut(series: Sequence[Series]) -> list[Problem]:
    """Benchmarks whose older results asv leaves out because the benchmark's version changed."""
    by_name: dict[str, list[Series]] = defaultdict(list)
    for one in series:
        if one.dropped:
            by_name[one.benchmark.name].append(one)
    found = []
    for name, several in sorted(by_name.items()):
        dropped = [point for one in several for point in one.dropped]
        left = len({point.commit for one in several for point in one.points})
        versions = sorted({str(point.version) for point in dropped})
        message = (
            f"the history of {name} is cut: results of {len({point.commit for point in dropped})} commits "
            f"({_span(dropped)}) are of version {', '.join(text[:12] for text in versions)}, the benchmark is now "
            f"{str(several[0].benchmark.version)[:12]}, and {left} commits are left. asv drops them without a word. "
            f'Where what is measured is the same, pin it (`track_….version = "…"`, the older one) and run asv again; '
            "where it is not, accept the cut by its id"
        )
        found.append(Problem("cut", message, name, f"{versions} -> {several[0].benchmark.version}"))
    return found


def failed_last(series: Sequence[Series], measured: Measured) -> list[Problem]:
    """Benchmarks that failed at the newest commit of their machine and environment."""
    newest = {place: max(commits) for place, commits in measured.items()}
    failed: dict[str, list[Series]] = defaultdict(list)
    for one in series:
        if newest[one.machine, one.environment] in one.failed:
            failed[one.benchmark.name].append(one)
    return [
        Problem(
            "failed",
            f"{name} failed at the newest commit {newest[several[0].machine, several[0].environment].short} on "
            f"{several[0].machine} ({len(several)} combinations, such as {several[0].label}): nothing can "
            "be said about it there; `asv run --show-stderr` shows why",
            name,
            newest[several[0].machine, several[0].environment].hash,
        )
        for name, several in sorted(failed.items())
    ]


def gone(series: Sequence[Series], measured: Measured) -> list[Problem]:
    """Series that had results, and have none at the newest commit of their machine and environment.

    A series that never had any is no gap, nor is one that a machine has not come to yet; one that failed, or was
    removed, or whose benchmark changed is told as such.
    """
    ended: dict[tuple[str, str, Commit, Commit, bool], list[Series]] = defaultdict(list)
    for one in series:
        commits = measured[one.machine, one.environment]
        newest = max(commits)
        told = {point.commit for point in (*one.points, *one.dropped)} | set(one.failed)
        if one.points and one.is_current and newest not in told:
            last = one.points[-1].commit
            since = min(commit for commit in commits if commit > last)
            ended[one.machine, one.environment, last, since, newest in one.skipped].append(one)
    found = []
    for (machine, environment, last, since, skipped), several in sorted(ended.items()):
        names = sorted(one.label for one in several)
        state = (
            "they are n/a now (`asv run --show-stderr` shows the reason): nothing is counted of steps that became "
            "eager, and what needs a device that is not there any more cannot be measured"
            if skipped
            else "the newest results do not have them: they were not run (`asv run` without --bench runs all)"
        )
        message = (
            f"{len(several)} series on {machine} ({environment}) are gone since {since.short}; {last.short} was the "
            f"last commit with results of {_some(names)}: {state}. Where that is meant, accept it by its id"
        )
        found.append(Problem("gone", message, f"{machine} {environment}", ", ".join((last.hash, *names))))
    return found


def behind(measured: Measured) -> list[Problem]:
    """Machines that have not come to the newest commit yet."""
    by_machine: dict[str, set[Commit]] = defaultdict(set)
    for (machine, _), commits in measured.items():
        by_machine[machine] |= commits
    everything = set().union(*by_machine.values())
    found = []
    for machine, commits in sorted(by_machine.items()):
        later = [commit for commit in everything if commit > max(commits)]
        if later:
            message = (
                f"{machine} has no results after {max(commits).short}, and another machine has, up to "
                f"{max(later).short}: nothing is known about those commits there"
            )
            found.append(Problem("behind", message, machine, max(commits).hash))
    return found


def split(series: Sequence[Series]) -> list[Problem]:
    """Machines whose results go on under another environment's name, which makes two histories of one."""
    seen: dict[str, dict[str, set[Commit]]] = defaultdict(lambda: defaultdict(set))
    for one in series:
        seen[one.machine][one.environment] |= {point.commit for point in one.points}
    found = []
    for machine, environments in sorted(seen.items()):
        ordered = sorted((commits, name) for name, commits in environments.items() if commits)
        for (before, old), (after, new) in itertools.pairwise(sorted(ordered, key=lambda item: min(item[0]))):
            if max(before) < min(after):
                message = (
                    f"on {machine}, from {min(after).short} results go on under another environment: {old}, then "
                    f"{new}. "
                    "They are separate series. Of an existing environment, keep the interpreter at one path"
                )
                found.append(Problem("split", message, machine, f"{old} -> {new}"))
    return found
