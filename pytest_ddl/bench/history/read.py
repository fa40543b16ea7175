"""asv's folder of results, read into series over commits; what asv would leave out silently is said.

The files are read as asv documents them (https://asv.readthedocs.io/en/stable/dev.html, "Data formats"): asv 0.6.6
has no public Python interface for them.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_ddl.bench.history.commits import GitLog
from pytest_ddl.bench.history.model import Basis, Benchmark, Commit, History, Machine, Point, Problem, Series

FORMAT = 2
"""Of asv's result files and of ``benchmarks.json``, as asv 0.6 writes them."""
CONFIDENCE = 0.95
_NOT_RESULTS = ("machine.json", "benchmarks.json")


class NoResultsError(Exception):
    """There is nothing to make a history of; the message says where was looked and what to do."""


@dataclass
class _Cell:
    """A series while it is read."""

    points: list[Point] = field(default_factory=list)
    dropped: list[Point] = field(default_factory=list)
    failed: list[Commit] = field(default_factory=list)


def read_results(results: Path, log: GitLog | None = None, *, commit_url: str = "", project: str = "") -> History:
    """The history in asv's ``results_dir``.

    :param log: the commits of the branch that the history is of, which order the points; without it, the dates in
        the results do.
    :raises NoResultsError: where there are no results at all.
    """
    if not results.is_dir():
        raise NoResultsError(
            f"no folder of results at {results}: give asv's results_dir by --results, or run asv first"
        )
    problems: list[Problem] = []
    benchmarks = _benchmarks(results, problems)
    files = list(_files(results, problems))
    if not files:
        said = "".join(f"\n{item.message}" for item in problems)
        raise NoResultsError(f"no results in {results}; `asv run` writes <machine>/<commit>-<environment>.json{said}")
    commits = _commits([data for _, _, data in files], log)
    on_branch = {commit.hash: commit for commit in commits}
    machines: dict[str, Machine] = {}
    cells: dict[tuple[str, str, str, tuple[tuple[str, str], ...]], _Cell] = defaultdict(_Cell)
    outside: dict[str, int] = defaultdict(int)
    for path, machine, data in files:
        commit = on_branch.get(data["commit_hash"])
        if commit is None:
            outside[data["commit_hash"]] += 1
            continue
        machines.setdefault(machine.name, machine)
        try:
            _read_file(data, machine.name, commit, benchmarks, cells)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            problems.append(_broken(path, f"its content is not what asv writes ({type(error).__name__}: {error})"))
    if outside:
        problems.append(_outside(outside))
    series = tuple(
        Series(machine, env, benchmarks[name], values, _sorted(cell.points), _sorted(cell.dropped), tuple(cell.failed))
        for (machine, env, name, values), cell in cells.items()
        if name in benchmarks
    )
    problems += _removed(cells, benchmarks, results)
    problems += _cut(series)
    problems += _failed_last(series)
    problems += _split(series)
    return History(series, tuple(commits), machines, tuple(problems), commit_url, project)


def _sorted(points: Iterable[Point]) -> tuple[Point, ...]:
    return tuple(sorted(points, key=lambda point: point.commit))


def _load(path: Path) -> Any:
    """The JSON in a file.

    :raises ValueError: saying what is wrong with it.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"it cannot be read ({error})") from error
    if not isinstance(data, dict):
        raise ValueError(f"it holds a {type(data).__name__}, not an object")
    return data


def _broken(path: Path, why: str) -> Problem:
    cure = "delete it and run asv for that commit again" if path.name not in _NOT_RESULTS else "run asv again"
    return Problem("broken", f"{path.parent.name}/{path.name} is left out: {why}; {cure}", str(path.name), why)


def _benchmarks(results: Path, problems: list[Problem]) -> dict[str, Benchmark]:
    path = results / "benchmarks.json"
    try:
        data = _load(path)
        if data.get("version") != FORMAT:
            raise ValueError(f"its format is {data.get('version')!r}, and {FORMAT} is understood (`asv update`)")
    except ValueError as error:
        problems.append(_broken(path, str(error)))
        return {}
    return {
        name: Benchmark(
            name,
            "" if entry.get("unit") == "unit" else str(entry.get("unit", "")),
            entry.get("version"),
            tuple(str(one) for one in entry.get("param_names", ())),
            {key: value for key, value in entry.items() if key not in ("code", "params")},
        )
        for name, entry in data.items()
        if isinstance(entry, dict)
    }


def _files(results: Path, problems: list[Problem]) -> Iterable[tuple[Path, Machine, dict[str, Any]]]:
    for folder in sorted(path for path in results.iterdir() if path.is_dir()):
        paths = [path for path in sorted(folder.glob("*.json")) if path.name not in _NOT_RESULTS]
        if not paths:
            continue
        try:
            facts = _load(folder / "machine.json")
        except ValueError as error:
            # asv leaves out the whole folder then; the results themselves say which machine they are of.
            problems.append(_broken(folder / "machine.json", str(error)))
            facts = {"machine": folder.name}
        shown = {str(key): str(value) for key, value in facts.items() if key not in ("machine", "version") and value}
        machine = Machine(str(facts.get("machine", folder.name)), shown)
        for path in paths:
            try:
                data = _load(path)
                if data.get("version") != FORMAT:
                    raise ValueError(f"its format is {data.get('version')!r}, not {FORMAT}; `asv update` converts it")
                missing = [key for key in ("commit_hash", "date", "results", "result_columns") if key not in data]
                if missing:
                    raise ValueError(f"it has no {', '.join(missing)}")
            except ValueError as error:
                problems.append(_broken(path, str(error)))
                continue
            yield path, machine, data


def _commits(files: Sequence[Mapping[str, Any]], log: GitLog | None) -> list[Commit]:
    dates = {str(data["commit_hash"]): int(data["date"]) for data in files}
    if log is not None:
        known = [(name, dates[name], subject) for name, subject in log.commits if name in dates]
    else:
        known = [(name, date, "") for name, date in sorted(dates.items(), key=lambda item: (item[1], item[0]))]
    return [Commit(index, *item) for index, item in enumerate(known)]


def _read_file(
    data: Mapping[str, Any],
    machine: str,
    commit: Commit,
    benchmarks: Mapping[str, Benchmark],
    cells: dict[tuple[str, str, str, tuple[tuple[str, str], ...]], _Cell],
) -> None:
    for name, row in data["results"].items():
        found: dict[str, Any] = dict(zip(data["result_columns"], row, strict=False))
        entry = benchmarks.get(name)
        names = entry.parameter_names if entry else ()
        choices = list(itertools.product(*(found.get("params") or [])))
        values = found.get("result")
        if values is None:
            values = [None] * len(choices)
        for index, (choice, value) in enumerate(zip(choices, values, strict=True)):
            labels = [*names, *(f"parameter {one}" for one in range(len(names), len(choice)))]
            parameters = tuple(zip(labels, (plain(text) for text in choice), strict=False))
            cell = cells[machine, str(data.get("env_name", "")), name, parameters]
            if value is None:
                cell.failed.append(commit)
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                # NaN is asv's word for a combination of parameters that was skipped on purpose.
                continue
            version = found.get("version")
            old = entry is not None and version is not None and version != entry.version
            point = _point(commit, float(value), found, index, entry)
            (cell.dropped if old else cell.points).append(point)


def plain(text: str) -> str:
    """A parameter as people write it; asv stores ``repr(value)``."""
    match = re.fullmatch(r"'(.*)'|\"(.*)\"|<class '(.*)'>|<function (\S+) at .*>", text)
    return next((group for group in match.groups() if group is not None), text) if match else text


def _at(found: Mapping[str, Any], column: str, index: int) -> Any:
    values = found.get(column)
    return values[index] if isinstance(values, list) and index < len(values) else None


def _point(commit: Commit, value: float, found: Mapping[str, Any], index: int, benchmark: Benchmark | None) -> Point:
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
    return Point(commit, value, low, high, basis, max(1, len(samples)), found.get("version"))


def between_launches(value: float, samples: Sequence[float], launches: int) -> tuple[float, float]:
    """The interval around ``value`` that another set of launches would fall into, in the unit of the samples.

    Student's t over the medians of launches, 95 %: launches are what varies (Kalibera and Jones 2013,
    arXiv 2007.10899); samples of one launch share its memory layout and placement.

    :param samples: in the order of launches, equally many of each.
    """
    from scipy.stats import t

    size = len(samples) // launches
    medians = [statistics.median(samples[start : start + size]) for start in range(0, len(samples), size)]
    half = float(t.ppf((1 + CONFIDENCE) / 2, launches - 1)) * statistics.stdev(medians) / math.sqrt(launches)
    return value - half, value + half


def _span(points: Sequence[Point]) -> str:
    ordered = sorted({point.commit for point in points})
    return ordered[0].short if len(ordered) == 1 else f"{ordered[0].short}..{ordered[-1].short}"


def _cut(series: Sequence[Series]) -> list[Problem]:
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


def _removed(cells: Mapping[Any, _Cell], benchmarks: Mapping[str, Benchmark], results: Path) -> list[Problem]:
    """Benchmarks with results that ``benchmarks.json`` does not know any more: renamed, removed, or not discovered."""
    if not benchmarks:
        return []
    gone: dict[str, list[Point]] = defaultdict(list)
    for (_, _, name, _), cell in cells.items():
        if name not in benchmarks:
            gone[name] += cell.points
    return [
        Problem(
            "removed",
            f"{name} has results of {len({point.commit for point in points})} commits ({_span(points)}) and is not in "
            "benchmarks.json: renamed, removed, or its module fails to import. asv drops them without a word. Where it "
            'was renamed, set `benchmark_name = "…"` to the old name; where it was removed, accept it by its id',
            name,
            _span(points),
        )
        for name, points in sorted(gone.items())
        if points
    ]


def _failed_last(series: Sequence[Series]) -> list[Problem]:
    """Benchmarks that failed at the newest commit of their machine and environment."""
    newest: dict[tuple[str, str], Commit] = {}
    for one in series:
        seen = [*(point.commit for point in one.points), *one.failed]
        if seen:
            where = (one.machine, one.environment)
            newest[where] = max([*seen, *([newest[where]] if where in newest else [])])
    failed: dict[str, list[Series]] = defaultdict(list)
    for one in series:
        if newest.get((one.machine, one.environment)) in one.failed:
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


def _outside(outside: Mapping[str, int]) -> Problem:
    names = sorted(outside)
    shown = ", ".join(name[:8] for name in names[:5]) + (" …" if len(names) > 5 else "")
    message = (
        f"{len(names)} commits with results are not on the branch that the history is of, and are left out: {shown}"
    )
    return Problem("outside", message, "commits", shown)


def _split(series: Sequence[Series]) -> list[Problem]:
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
