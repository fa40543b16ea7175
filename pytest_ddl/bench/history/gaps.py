"""Find results that are missing from a history. asv leaves out most of them without a message."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from pytest_ddl.bench.history.model import Commit, HistoryPoint, HistoryProblem, Series

Measured = Mapping[tuple[str, str], set[Commit]]
"""Machine and environment -> commits for which asv has a file, whatever is in it."""
_SHOWN = 5


def _span(commits: Iterable[Commit]) -> str:
    ordered = sorted(set(commits))
    return ordered[0].short if len(ordered) == 1 else f"{ordered[0].short}..{ordered[-1].short}"


def _some(names: Iterable[str]) -> str:
    """Join the first few names, each once, in order."""
    known = list(dict.fromkeys(names))
    return ", ".join(known[:_SHOWN]) + (" …" if len(known) > _SHOWN else "")


def _named(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{len(names)} benchmarks, {_some(names)}"


def outside(commits: Sequence[str], *, shallow: bool) -> list[HistoryProblem]:
    """Report commits that have results but are not on the branch."""
    if not commits:
        return []
    shown = _some(name[:8] for name in sorted(commits))
    count = f"{len(commits)} commits with results are"
    if shallow:
        message = (
            f"{count} left out: {shown}. The repository is a shallow clone, which does not have them: "
            "`git fetch --unshallow`; with actions/checkout, fetch-depth: 0"
        )
        # The id does not depend on the commits: a later clone may lack others, and it is still the same gap.
        return [HistoryProblem("shallow", message, "commits")]
    message = f"{count} left out, because they are not on the branch of this history (--branch): {shown}"
    return [HistoryProblem("outside", message, "commits", shown)]


def removed(unknown: Mapping[str, Sequence[HistoryPoint]], series: Sequence[Series]) -> list[HistoryProblem]:
    """Report results of benchmarks and of parameter combinations that are no longer in ``benchmarks.json``.

    :param unknown: results of benchmarks that it does not have, by name.
    """
    renamed: dict[tuple[str, tuple[Commit, ...]], list[str]] = defaultdict(list)
    for name, points in sorted(unknown.items()):
        if points:
            commits = tuple(sorted({point.commit for point in points}))
            renamed[name.rpartition(".")[0], commits].append(name)
    problems = []
    for (suite, commits), names in renamed.items():
        message = (
            f"{_named(names)}: results of {len(commits)} commits ({_span(commits)}) are of benchmarks that "
            "are not in benchmarks.json: renamed, removed, or their module fails to import. asv drops these results "
            'without a message. If they were renamed, set `benchmark_name = "…"` to the old name. If they were '
            "removed, accept this gap by its id"
        )
        problems.append(HistoryProblem("removed", message, suite, ", ".join((_span(commits), *names))))
    former: dict[str, list[Series]] = defaultdict(list)
    for one in series:
        if one.points and not one.is_current:
            former[one.benchmark.name].append(one)
    alike: dict[tuple[tuple[str, ...], tuple[Commit, ...]], list[str]] = defaultdict(list)
    for name, several in sorted(former.items()):
        parameters = tuple(sorted({one.label.removeprefix(name) for one in several}))
        alike[parameters, tuple(sorted({point.commit for one in several for point in one.points}))].append(name)
    for (parameters, commits), names in alike.items():
        message = (
            f"{_named(names)}: there are results of {len(parameters)} combinations of parameters that no longer "
            f"exist: {_some(names[0] + text for text in parameters)} ({_span(commits)}). asv drops these results "
            "without a message. If they were removed on purpose, accept this gap by its id"
        )
        problems.append(HistoryProblem("removed", message, ", ".join(names), ", ".join(parameters)))
    return problems


def cut(series: Sequence[Series]) -> list[HistoryProblem]:
    """Report benchmarks whose older results asv leaves out because the benchmark's version changed."""
    by_name: dict[str, list[Series]] = defaultdict(list)
    for one in series:
        if one.dropped:
            by_name[one.benchmark.name].append(one)
    alike: dict[tuple[tuple[Commit, ...], str, str, int], list[str]] = defaultdict(list)
    for name, several in sorted(by_name.items()):
        dropped = [point for one in several for point in one.dropped]
        left = len({point.commit for one in several for point in one.points})
        versions = ", ".join(sorted({str(point.version)[:12] for point in dropped}))
        commits = tuple(sorted({point.commit for point in dropped}))
        alike[commits, versions, str(several[0].benchmark.version)[:12], left].append(name)
    problems = []
    for (commits, versions, now, left), names in sorted(alike.items(), key=lambda item: item[1]):
        message = (
            f"the history of {_named(names)} is cut: results of {len(commits)} commits ({_span(commits)}) are of "
            f"version {versions}, but the current version is {now}. asv drops these results without a message; "
            f"{left} commits are left. If the benchmark still measures the same, set the older version "
            '(`track_….version = "…"`) and run asv again. Otherwise, accept the cut by its id'
        )
        problems.append(HistoryProblem("cut", message, ", ".join(names), f"{versions} -> {now}"))
    return problems


def failed_last(series: Sequence[Series], measured: Measured) -> list[HistoryProblem]:
    """Report benchmarks that failed at the newest commit of their machine and environment."""
    failed: dict[tuple[str, str], list[Series]] = defaultdict(list)
    for one in series:
        if max(measured[one.machine, one.environment]) in one.failed:
            failed[one.machine, one.environment].append(one)
    problems = []
    for place, several in sorted(failed.items()):
        newest, names = max(measured[place]), sorted({one.benchmark.name for one in several})
        message = (
            f"{_named(names)} failed at the newest commit {newest.short} on {place[0]} ({len(several)} "
            f"{'combination' if len(several) == 1 else 'combinations'}, such as {several[0].label}), so it has no "
            "result there; `asv run --show-stderr` shows the reason"
        )
        problems.append(HistoryProblem("failed", message, " ".join(place), ", ".join((newest.hash, *names))))
    return problems


def gone(series: Sequence[Series], measured: Measured) -> list[HistoryProblem]:
    """Report series that had results, but have none at the newest commit of their machine and environment.

    A series that never had results is no gap. Neither is one on a machine that has not measured the commit yet. Series
    that failed or were removed, and those whose benchmark changed, are reported by other functions.
    """
    ended: dict[tuple[str, str, Commit, Commit, bool], list[Series]] = defaultdict(list)
    for one in series:
        commits = measured[one.machine, one.environment]
        newest = max(commits)
        known = {point.commit for point in (*one.points, *one.dropped)} | set(one.failed)
        if one.points and one.is_current and newest not in known:
            last = one.points[-1].commit
            since = min(commit for commit in commits if commit > last)
            ended[one.machine, one.environment, last, since, newest in one.skipped].append(one)
    problems = []
    for (machine, environment, last, since, skipped), several in sorted(ended.items()):
        names = sorted(one.label for one in several)
        state = (
            "they are n/a now (`asv run --show-stderr` shows the reason), for example because steps became eager, or "
            "because a device is no longer there"
            if skipped
            else "the newest results do not have them: they were not run (`asv run` without --bench runs all)"
        )
        message = (
            f"{len(several)} series on {machine} ({environment}) are gone since {since.short}; {last.short} was the "
            f"last commit with results of {_some(names)}: {state}. If this is intended, accept it by its id"
        )
        problems.append(HistoryProblem("gone", message, f"{machine} {environment}", ", ".join((last.hash, *names))))
    return problems


def behind(measured: Measured) -> list[HistoryProblem]:
    """Report machines that have not measured the newest commit yet."""
    by_machine: dict[str, set[Commit]] = defaultdict(set)
    for (machine, _), commits in measured.items():
        by_machine[machine] |= commits
    everything = set().union(*by_machine.values())
    problems = []
    for machine, commits in sorted(by_machine.items()):
        later = [commit for commit in everything if commit > max(commits)]
        if later:
            message = (
                f"{machine} has no results after {max(commits).short}, but another machine has results up to "
                f"{max(later).short}: later commits were not measured on {machine}"
            )
            problems.append(HistoryProblem("behind", message, machine, max(commits).hash))
    return problems


def split(series: Sequence[Series]) -> list[HistoryProblem]:
    """Report machines whose results continue under another environment's name, which splits a history in two."""
    seen: dict[str, dict[str, set[Commit]]] = defaultdict(lambda: defaultdict(set))
    for one in series:
        seen[one.machine][one.environment] |= {point.commit for point in one.points}
    problems = []
    for machine, environments in sorted(seen.items()):
        ordered = sorted((commits, name) for name, commits in environments.items() if commits)
        for (before, old), (after, new) in itertools.pairwise(sorted(ordered, key=lambda item: min(item[0]))):
            if max(before) < min(after):
                message = (
                    f"on {machine}, results continue from {min(after).short} under another environment: {old}, then "
                    f"{new}. They are separate series. Keep the interpreter of an existing environment at one path"
                )
                problems.append(HistoryProblem("split", message, machine, f"{old} -> {new}"))
    return problems
