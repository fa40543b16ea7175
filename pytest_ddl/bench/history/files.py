"""Load asv's result files, and check the parts that a history relies on. Each problem names its file.

The files are read in the format that asv documents (https://asv.readthedocs.io/en/stable/dev.html, "Data formats"),
because asv 0.6.6 has no public Python interface for them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_ddl.bench.history.model import AsvMachine, Benchmark, Commit, HistoryProblem, plain

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
    found = {}
    for name, entry in data.items():
        if not isinstance(entry, dict):
            continue
        names, params = entry.get("param_names", []), entry.get("params", [])
        if not (isinstance(names, list) and isinstance(params, list) and all(isinstance(one, list) for one in params)):
            why = f"param_names and params of {name} are not lists"
            problems.append(HistoryProblem("broken", f"benchmarks.json: {why}; run asv again", path.name, why))
            names, params = [], None
        found[name] = Benchmark(
            name,
            "" if entry.get("unit") == "unit" else str(entry.get("unit", "")),
            entry.get("version"),
            tuple(str(one) for one in names),
            {key: value for key, value in entry.items() if key not in ("code", "params")},
            None if params is None else tuple(frozenset(plain(str(one)) for one in values) for values in params),
        )
    return found


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
    found = {}
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
        found[folder] = AsvMachine(name, shown)
    return found


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
