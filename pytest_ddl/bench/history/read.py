"""Read asv's folder of results into series over commits, and report what asv would leave out silently."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pytest_ddl.bench.git import GitLog
from pytest_ddl.bench.history import gaps
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
from pytest_ddl.bench.outcome import UsageError

FORMAT = 2
"""Version of asv's result files and of ``benchmarks.json``, as asv 0.6 writes them."""
_NOT_RESULTS = ("machine.json", "benchmarks.json")
_NEEDED = {"commit_hash": str, "date": int, "results": dict, "result_columns": list}


@dataclass(frozen=True)
class ResultFile:
    """Content of one file: results of one commit on one machine in one environment."""

    path: Path
    machine: AsvMachine
    environment: str
    commit: str
    date: int
    """Milliseconds since 1970."""
    columns: list[Any]
    rows: Mapping[str, Any]
    """Benchmark -> list in the order of ``columns``; not checked."""


def broken(path: Path, why: str) -> HistoryProblem:
    cure = "delete it and run asv for that commit again" if path.name not in _NOT_RESULTS else "run asv again"
    return HistoryProblem("broken", f"{path.parent.name}/{path.name} is left out: {why}; {cure}", str(path.name), why)


def read_benchmarks(results: Path, problems: list[HistoryProblem]) -> dict[str, Benchmark]:
    """Return the current benchmarks by name; none if the file cannot be read."""
    path = results / "benchmarks.json"
    try:
        data = _load(path)
        if data.get("version") != FORMAT:
            raise ValueError(f"its format is {data.get('version')!r}, and {FORMAT} is understood (`asv update`)")
    except ValueError as error:
        problems.append(broken(path, str(error)))
        return {}
    benchmarks = {}
    for name, entry in data.items():
        if not isinstance(entry, dict):
            continue
        names, params = entry.get("param_names", []), entry.get("params", [])
        if not (isinstance(names, list) and isinstance(params, list) and all(isinstance(one, list) for one in params)):
            why = f"param_names and params of {name} are not lists"
            problems.append(HistoryProblem("broken", f"benchmarks.json: {why}; run asv again", path.name, why))
            names, params = [], None
        benchmarks[name] = Benchmark(
            name,
            "" if entry.get("unit") == "unit" else str(entry.get("unit", "")),
            entry.get("version"),
            tuple(str(one) for one in names),
            {key: value for key, value in entry.items() if key not in ("code", "params")},
            None if params is None else tuple(frozenset(plain(str(one)) for one in values) for values in params),
        )
    return benchmarks


def result_files(results: Path, problems: list[HistoryProblem]) -> Iterator[ResultFile]:
    """Yield all result files that can be read, machine by machine."""
    folders = [path for path in sorted(results.iterdir()) if path.is_dir()]
    paths = {
        folder: [path for path in sorted(folder.glob("*.json")) if path.name not in _NOT_RESULTS] for folder in folders
    }
    for folder, machine in _machines([folder for folder in folders if paths[folder]], problems).items():
        for path in paths[folder]:
            try:
                yield _result_file(path, machine)
            except ValueError as error:
                problems.append(broken(path, str(error)))


def _machines(folders: list[Path], problems: list[HistoryProblem]) -> dict[Path, AsvMachine]:
    """Return a different machine for each folder, because results of two machines must not become one series."""
    facts: dict[Path, dict[str, Any]] = {}
    for folder in folders:
        try:
            facts[folder] = _load(folder / "machine.json")
        except ValueError as error:
            # asv leaves out the whole folder in this case. Here, the name of the folder stands for the machine.
            problems.append(broken(folder / "machine.json", str(error)))
            facts[folder] = {}
    said = {folder: str(facts[folder].get("machine", folder.name)) for folder in folders}
    machines = {}
    for folder, name in said.items():
        others = [other for other in folders if other != folder and name in (said[other], other.name)]
        if others and name != folder.name:
            why = f"it says that the machine is {name}, as {others[0].name}/ does; it is called {folder.name} here"
            cure = f'give it a name of its own ("machine": "{folder.name}"), or put the results into one folder'
            message = f"{folder.name}/machine.json: {why}, so that two machines are not mixed into one series; {cure}"
            problems.append(HistoryProblem("broken", message, f"{folder.name}/machine.json", why))
            name = folder.name
        shown = {
            str(key): str(value) for key, value in facts[folder].items() if key not in ("machine", "version") and value
        }
        machines[folder] = AsvMachine(name, shown)
    return machines


def _load(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file.

    :raises ValueError: if there is none; the message says what is wrong.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"it cannot be read ({error})") from error
    if not isinstance(data, dict):
        raise ValueError(f"it holds a {type(data).__name__}, not an object")
    return data


def _result_file(path: Path, machine: AsvMachine) -> ResultFile:
    """Parse a result file.

    :raises ValueError: if the file cannot be used; the message says what is wrong.
    """
    data = _load(path)
    if data.get("version") != FORMAT:
        raise ValueError(f"its format is {data.get('version')!r}, not {FORMAT}; `asv update` converts it")
    missing = [key for key in _NEEDED if key not in data]
    if missing:
        raise ValueError(f"it has no {', '.join(missing)}")
    for key, kind in _NEEDED.items():
        if not isinstance(data[key], kind):
            raise ValueError(f"its {key} is a {type(data[key]).__name__}, not what asv writes ({kind.__name__})")
    try:
        Commit(0, data["commit_hash"], data["date"]).day  # noqa: B018
    except (OverflowError, ValueError, OSError) as error:
        raise ValueError(f"its date {data['date']} is no time in milliseconds since 1970 ({error})") from error
    environment = str(data.get("env_name", ""))
    return ResultFile(
        path, machine, environment, data["commit_hash"], data["date"], data["result_columns"], data["results"]
    )


CONFIDENCE = 0.95
_Key = tuple[str, str, str, tuple[tuple[str, str], ...]]
"""Machine, environment, benchmark, and parameters."""


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
    :raises UsageError: if there are no results at all, or none that can form a series.
    :raises MissingPackageError: if results have several launches, and scipy is not installed.
    """
    if not results.is_dir():
        raise UsageError(f"no folder of results at {results}: give asv's results_dir by --results, or run asv first")
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


def _nothing(what: str, problems: Iterable[HistoryProblem]) -> UsageError:
    return UsageError("\n".join((what, *(item.message for item in problems))))


def _of_unknown(cells: Mapping[_Key, _Cell], benchmarks: Mapping[str, Benchmark]) -> dict[str, list[HistoryPoint]]:
    points: dict[str, list[HistoryPoint]] = defaultdict(list)
    for (_, _, name, _), cell in cells.items():
        if name not in benchmarks:
            points[name] += cell.points
    return points


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
