"""``pytest-ddl history``: read asv's results, find regressions, have them confirmed, write the page.

Exit status: 0, no confirmed regression stands (candidates that were not confirmed are listed, and alert nobody);
1, a confirmed regression stands; 2, nothing could be read, or a wrong command line; 3, the history is incomplete:
results were dropped, could not be read, or failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from pytest_ddl.bench.history.commits import GitError, commit_url, read_log
from pytest_ddl.bench.history.confirm import FILE, Confirm, Confirmations, at_most, confirm_all
from pytest_ddl.bench.history.derived import explain
from pytest_ddl.bench.history.detect import MARGIN, Change, DetectorMissingError, changes
from pytest_ddl.bench.history.model import History
from pytest_ddl.bench.history.page import write_page
from pytest_ddl.bench.history.read import NoResultsError, read_results
from pytest_ddl.bench.history.report import USAGE, Report
from pytest_ddl.bench.history.words import github_annotations, step_summary, told

CONFIGURATIONS = ("asv.conf.json", "asv_bench/asv.conf.json", "benchmarks/asv.conf.json")


class ConfigurationError(Exception):
    """asv's configuration cannot be used; the message says which file, why, and what to do."""


@dataclass(frozen=True)
class Places:
    """What of asv's configuration is needed here; paths are absolute."""

    configuration: Path | None
    results: Path
    html: Path
    repository: Path | None
    branch: str
    project: str
    commit_url: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, metavar="FILE", help="asv.conf.json; default: the one of this folder")
    parser.add_argument("--results", type=Path, metavar="DIR", help="asv's results_dir; default: as configured")
    parser.add_argument("--html", type=Path, metavar="DIR", help="asv's html_dir, for scaling/index.html")
    parser.add_argument("--repository", type=Path, metavar="PATH", help="the measured repository: order, links")
    parser.add_argument("--branch", metavar="NAME", help="branch of the history; default: as configured, or HEAD")
    parser.add_argument("--publish", action="store_true", help="run asv publish first")
    parser.add_argument("--no-detect", dest="detect", action="store_false", help="only write the page")
    parser.add_argument(
        "--confirm",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="re-run both commits of each candidate side by side with the gate: minutes each",
    )
    parser.add_argument(
        "--target",
        action="append",
        default=[],
        metavar="[WORKLOAD=]MODULE:FUNCTION",
        help="the training function of a workload, for --confirm; repeatable",
    )
    parser.add_argument(
        "--confirm-option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an argument of gate(), such as batch_per_replica=64; repeatable",
    )
    parser.add_argument(
        "--max-reruns", type=int, default=10, metavar="N", help="the others wait for the next time (%(default)s)"
    )
    parser.add_argument("--machine", metavar="NAME", help="asv's name of this machine, for --confirm")
    parser.add_argument("--margin", type=float, default=MARGIN, metavar="SHARE", help="smallest change (%(default)s)")
    parser.add_argument(
        "--accept", action="append", default=[], metavar="ID", help="a change or gap that is all right; repeatable"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found as JSON")


def main(options: argparse.Namespace, confirm: Confirm | None = None) -> int:
    """Run the command; gives its exit status.

    :param confirm: re-runs a candidate, instead of the gate.
    """
    try:
        if not 0 < options.margin < 1:
            raise ConfigurationError(f"--margin={options.margin} must be a share between 0 and 1: 0.025 is 2.5 %")
        places = _places(options)
        if options.publish:
            _publish(places)
        history = _read(places)
        confirm = confirm or (_gate(options, places) if options.confirm else None)
        if confirm is not None:
            confirm = at_most(options.max_reruns, confirm)
    except (ConfigurationError, NoResultsError, GitError) as error:
        print(f"pytest-ddl history: {error}", file=sys.stderr)  # noqa: T201
        return USAGE
    report = _judge(history, places, options, confirm)
    page = write_page(report, places.html)
    print(told(report))  # noqa: T201
    print(f"page: {page}")  # noqa: T201
    if options.json:
        options.json.write_text(json.dumps(report.as_json(), indent=1) + "\n", encoding="utf-8")
    if os.environ.get("GITHUB_ACTIONS") == "true":
        print(github_annotations(report))  # noqa: T201
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary:
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write(step_summary(report))
    return report.exit_status


def _places(options: argparse.Namespace) -> Places:
    path = options.config or next((Path(name) for name in CONFIGURATIONS if Path(name).is_file()), None)
    if options.config and not options.config.is_file():
        raise ConfigurationError(f"--config={options.config} is not a file")
    data = _configuration(path) if path else {}
    if path is None and options.results is None:
        raise ConfigurationError(
            f"no {', '.join(CONFIGURATIONS)} here: give --config FILE, or --results DIR and --html DIR"
        )
    base = path.parent.resolve() if path else Path.cwd()

    def configured(given: Path | None, key: str, default: str) -> Path:
        return given.resolve() if given else (base / str(data.get(key, default))).resolve()

    results = configured(options.results, "results_dir", "results")
    html = configured(options.html, "html_dir", "html")
    repository = options.repository.resolve() if options.repository else None
    repo = str(data.get("repo", ""))
    if repository is None and repo and (base / repo).is_dir():
        repository = (base / repo).resolve()
    branches = data.get("branches") or ["HEAD"]
    link = str(data.get("show_commit_url", "")).strip("#") or (commit_url(repository) if repository else "")
    branch = options.branch or str(branches[0] or "HEAD")
    return Places(path, results, html, repository, branch, str(data.get("project", "")), link)


def _configuration(path: Path) -> dict[str, Any]:
    text = path.read_text(encoding="utf-8")
    try:
        data = _parser()(text)
    except ValueError as error:
        raise ConfigurationError(f"{path} cannot be read as asv's configuration: {error}") from error
    if not isinstance(data, dict):
        raise ConfigurationError(f"{path} holds a {type(data).__name__}, not asv's configuration")
    return data


def _parser() -> Callable[[str], Any]:
    try:
        json5 = import_module("json5")  # asv brings it; without asv, comments cannot be read
    except ImportError:
        return json.loads
    parser: Callable[[str], Any] = json5.loads
    return parser


def _publish(places: Places) -> None:
    if places.configuration is None:
        raise ConfigurationError("--publish needs asv's configuration: give --config asv.conf.json")
    command = [sys.executable, "-m", "asv", "publish", "--config", str(places.configuration.resolve())]
    command += ["--html-dir", str(places.html)]
    done = subprocess.run(command, cwd=places.configuration.parent.resolve(), check=False)
    if done.returncode:
        raise ConfigurationError(f"`asv publish` ended with status {done.returncode}; what it said is above")


def _read(places: Places) -> History:
    log = read_log(places.repository, places.branch) if places.repository else None
    return read_results(places.results, log, commit_url=places.commit_url, project=places.project)


def _judge(history: History, places: Places, options: argparse.Namespace, confirm: Confirm | None) -> Report:
    found: list[Change] = []
    notes: list[str] = []
    if options.detect:
        try:
            for series in history.series:
                found += changes(series, options.margin)
        except DetectorMissingError as error:
            found, notes = [], [f"No changes were looked for: {error}"]
    else:
        notes = ["No changes were looked for: --no-detect"]
    found = explain(found, history.series)
    positions = {commit.hash: commit.position for commit in history.commits}
    known = Confirmations.load(places.results / FILE)

    def tell(text: str) -> None:
        print(text, flush=True)  # noqa: T201

    judged = confirm_all(found, confirm, known, positions, tell, options.margin)
    if any(one.verdict.message == "nothing was re-run" for one in judged):
        notes.append("Candidates were not re-run: --confirm does so, on the machine that the results are from")
    return Report(history, tuple(judged), frozenset(options.accept), tuple(notes))


def _gate(options: argparse.Namespace, places: Places) -> Confirm:
    from pytest_ddl.bench.history.rerun import gate_confirmation

    if places.repository is None:
        raise ConfigurationError("--confirm checks commits out: give the repository by --repository")
    try:
        return gate_confirmation(places.repository, options.target, options.confirm_option, options.machine)
    except ValueError as error:
        raise ConfigurationError(str(error)) from error
