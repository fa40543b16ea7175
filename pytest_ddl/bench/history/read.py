"""Read asv's folder of results into series over commits, and report what asv would leave out silently."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pytest_ddl.bench.git import GitLog
from pytest_ddl.bench.history import gaps
from pytest_ddl.bench.history.files import ResultFile, broken, read_benchmarks, result_files
from pytest_ddl.bench.history.meaning import mark_clashes
from pytest_ddl.bench.history.model import (
    AsvMachine,
    Basis,
    Benchmark,
    Commit,
    History,
    HistoryPoint,
    HistoryProblem,
    Series,
    plain,
)
from pytest_ddl.bench.metrics.registry import statistics_package

CONFIDENCE = 0.95
_Key = tuple[str, str, str, tuple[tuple[str, str], ...]]
"""Machine, environment, benchmark, and parameters."""


class NoResultsError(Exception):
    """Raised if there are no results for a history. The message names the place that was searched, and the fix."""


@dataclass
class _Cell:
    """Data of one series, collected while results are read."""

    points: list[HistoryPoint] = field(default_factory=list)
    dropped: list[HistoryPoint] = field(default_factory=list)
    failed: list[Commit] = field(default_factory=list)
    skipped: list[Commit] = field(default_factory=list)


def read_results(results: Path, log: GitLog | None = None, *, commit_url: str = "", project: str = "") -> History:
    """Read the history in asv's ``results_dir``.

    :param log: commits of the history's branch. They order the points; without them, the dates in the results do.
    :raises NoResultsError: if there are no results at all, or none that can form a series.
    :raises MissingPackageError: if results have several launches, and scipy is not installed.
    """
    if not results.is_dir():
        raise NoResultsError(
            f"no folder of results at {results}: give asv's results_dir by --results, or run asv first"
        )
    problems: list[HistoryProblem] = []
    benchmarks = read_benchmarks(results, problems)
    files = list(result_files(results, problems))
    if not files:
        raise _nothing(f"no results in {results}; `asv run` writes <machine>/<commit>-<environment>.json", problems)
    commits = _commits(files, log)
    on_branch = {commit.hash: commit for commit in commits}
    left_out = {file.commit for file in files} - set(on_branch)
    problems += gaps.outside(sorted(left_out), shallow=log is not None and log.shallow)
    machines: dict[str, AsvMachine] = {}
    measured: dict[tuple[str, str], set[Commit]] = defaultdict(set)
    cells: dict[_Key, _Cell] = defaultdict(_Cell)
    for file in files:
        commit = on_branch.get(file.commit)
        if commit is None:
            continue
        machines.setdefault(file.machine.name, file.machine)
        try:
            rows = list(_rows(file, commit, benchmarks))
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
            problems.append(broken(file.path, f"its content is not what asv writes ({type(error).__name__}: {error})"))
            continue
        measured[file.machine.name, file.environment].add(commit)
        for key, kind, item in rows:
            getattr(cells[key], kind).append(item)
    series = mark_clashes(
        Series(
            machine, env, benchmarks[name], values, _sorted(cell.points), _sorted(cell.dropped),
            tuple(cell.failed), tuple(cell.skipped),
        )
        for (machine, env, name, values), cell in cells.items()
        if name in benchmarks
    )  # fmt: skip
    if benchmarks:
        problems += gaps.removed(_of_unknown(cells, benchmarks), series)
    if not series:
        raise _nothing(f"no series can be made of the {len(files)} files in {results}", problems)
    problems += gaps.cut(series)
    problems += gaps.failed_last(series, measured)
    problems += gaps.gone(series, measured)
    problems += gaps.split(series)
    problems += gaps.behind(measured)
    return History(series, tuple(commits), machines, tuple(problems), commit_url, project)


def _nothing(what: str, problems: Iterable[HistoryProblem]) -> NoResultsError:
    return NoResultsError("\n".join((what, *(item.message for item in problems))))


def _of_unknown(cells: Mapping[_Key, _Cell], benchmarks: Mapping[str, Benchmark]) -> dict[str, list[HistoryPoint]]:
    found: dict[str, list[HistoryPoint]] = defaultdict(list)
    for (_, _, name, _), cell in cells.items():
        if name not in benchmarks:
            found[name] += cell.points
    return found


def _sorted(points: Iterable[HistoryPoint]) -> tuple[HistoryPoint, ...]:
    return tuple(sorted(points, key=lambda point: point.commit))


def _commits(files: Sequence[ResultFile], log: GitLog | None) -> list[Commit]:
    dates = {file.commit: file.date for file in files}
    if log is not None:
        known = [(name, dates[name], subject) for name, subject in log.commits if name in dates]
    else:
        known = [(name, date, "") for name, date in sorted(dates.items(), key=lambda item: (item[1], item[0]))]
    return [Commit(index, *item) for index, item in enumerate(known)]


def _rows(
    file: ResultFile, commit: Commit, benchmarks: Mapping[str, Benchmark]
) -> Iterator[tuple[_Key, Literal["points", "dropped", "failed", "skipped"], HistoryPoint | Commit]]:
    """Yield the content of a file for each cell."""
    for name, row in file.rows.items():
        found: dict[str, Any] = dict(zip(file.columns, row, strict=False))
        entry = benchmarks.get(name)
        names = entry.parameter_names if entry else ()
        choices = list(itertools.product(*(found.get("params") or [])))
        values = found.get("result")
        if values is None:
            values = [None] * len(choices)
        for index, (choice, value) in enumerate(zip(choices, values, strict=True)):
            labels = [*names, *(f"parameter {one}" for one in range(len(names), len(choice)))]
            parameters = tuple(zip(labels, (plain(text) for text in choice), strict=False))
            key = (file.machine.name, file.environment, name, parameters)
            if value is None:
                yield key, "failed", commit
            elif isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                # asv writes NaN for a combination of parameters that was skipped on purpose.
                yield key, "skipped", commit
            else:
                version = found.get("version")
                old = entry is not None and version is not None and version != entry.version
                yield key, "dropped" if old else "points", _point(commit, float(value), found, index, entry)


def _at(found: Mapping[str, Any], column: str, index: int) -> Any:
    values = found.get(column)
    return values[index] if isinstance(values, list) and index < len(values) else None


def _point(
    commit: Commit, value: float, found: Mapping[str, Any], index: int, benchmark: Benchmark | None
) -> HistoryPoint:
    samples = [float(one) for one in _at(found, "samples", index) or ()]
    launches = benchmark.attributes.get("launches") if benchmark else None
    low, high = _at(found, "stats_ci_99_a", index), _at(found, "stats_ci_99_b", index)
    basis: Basis = "samples"
    if isinstance(launches, int) and launches > 1 and samples and len(samples) % launches == 0:
        low, high = between_launches(value, samples, launches)
        basis = "launches"
    if not all(isinstance(end, int | float) and math.isfinite(end) for end in (low, high)):
        low = high = None
        basis = "none"
    return HistoryPoint(commit, value, low, high, basis, max(1, len(samples)), found.get("version"))


def between_launches(value: float, samples: Sequence[float], launches: int) -> tuple[float, float]:
    """Return the 95 % interval around ``value``, by Student's t over the medians of launches, in the samples' unit.

    The launches are compared because they are what varies (Kalibera and Jones 2013, arXiv 2007.10899). Samples of one
    launch share its memory layout and placement.

    :param samples: samples in the order of launches, with the same number for each launch.
    :raises MissingPackageError: if scipy is not installed.
    """
    t = statistics_package("scipy.stats").t
    size = len(samples) // launches
    medians = [statistics.median(samples[start : start + size]) for start in range(0, len(samples), size)]
    half = float(t.ppf((1 + CONFIDENCE) / 2, launches - 1)) * statistics.stdev(medians) / math.sqrt(launches)
    return value - half, value + half
