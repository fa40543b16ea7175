"""Command ``pytest-ddl history``: read asv's results, find regressions, confirm them, and write the page."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from pytest_ddl.bench.git import GitError, commit_url, read_log
from pytest_ddl.bench.history.confirm import FILE, Confirm, Confirmations, at_most, confirm_all
from pytest_ddl.bench.history.detect import MARGIN, NOT_RE_RUN, Change, DetectorMissingError, changes
from pytest_ddl.bench.history.model import History, HistoryProblem
from pytest_ddl.bench.history.page import write_page
from pytest_ddl.bench.history.read import read_results
from pytest_ddl.bench.history.report import HistoryReport, explain, github_annotations, step_summary, text_of
from pytest_ddl.bench.metrics.registry import MissingPackageError
from pytest_ddl.bench.outcome import FAILED, USAGE, UsageError
from pytest_ddl.commands.frame import check_file, conducted, share, tell, whole
from pytest_ddl.github import append_summary, is_github

CONFIGURATIONS = ("asv.conf.json", "asv_bench/asv.conf.json", "benchmarks/asv.conf.json")
EPILOG = """\
exit status:
  0    no confirmed regression stands; candidates that were not confirmed are only listed
  1    a confirmed regression stands, and was not accepted
  2    a wrong command line, or nothing to read
  3    the history is incomplete: results were dropped, could not be read, failed, or are gone; or the search for
       changes could not run
  4    the command itself failed, for example because the disk is full
  130  interrupted
"""


@dataclass(frozen=True)
class HistoryPlaces:
    """Settings that are needed from asv's configuration. Paths are absolute."""

    configuration: Path | None
    results: Path
    html: Path
    repository: Path | None
    branch: str
    project: str
    commit_url: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--config", type=Path, metavar="FILE", help="asv's configuration (default: asv.conf.json)")
    add("--results", type=Path, metavar="DIR", help="asv's results_dir (default: as configured)")
    add("--html", type=Path, metavar="DIR", help="asv's html_dir, for scaling/index.html")
    add("--repository", type=Path, metavar="PATH", help="the measured repository: commits, links")
    add("--branch", metavar="NAME", help="branch of the history (default: as configured, or HEAD)")
    add("--publish", action="store_true", help="run asv publish first")
    add("--no-detect", dest="detect", action="store_false", help="do not search for changes, only write the page")
    confirm = "re-run both commits of each candidate side by side with the gate; each takes minutes"
    add("--confirm", action=argparse.BooleanOptionalAction, default=False, help=confirm)
    target = "the training function of a workload, for --confirm; repeatable"
    add("--target", action="append", default=[], metavar="[WORKLOAD=]MODULE:FUNCTION", help=target)
    argument = "an argument of gate(), such as batch_per_replica=64; repeatable"
    add("--confirm-option", action="append", default=[], metavar="NAME=VALUE", help=argument)
    add("--max-reruns", type=whole, default=10, metavar="N", help="maximum number of re-runs (default: %(default)s)")
    add("--machine", metavar="NAME", help="asv's name of this machine, for --confirm")
    margin = "smallest change to report (default: %(default)s)"
    add("--margin", type=share, default=MARGIN, metavar="SHARE", help=margin)
    accepted = "id of a change or gap that is intended; repeatable"
    add("--accept", action="append", default=[], metavar="ID", help=accepted)
    add("--json", type=Path, metavar="FILE", help="write the findings to this file as JSON")


def main(options: argparse.Namespace, confirm: Confirm | None = None) -> int:
    """Run the command and return its exit status.

    :param confirm: function that re-runs a candidate; it is used instead of the gate.
    """
    return conducted(
        "history",
        lambda: _run(options, confirm),
        [
            ((UsageError, GitError, MissingPackageError), USAGE, ""),
            ((OSError,), FAILED, "could not continue: "),
        ],
    )


def _run(options: argparse.Namespace, confirm: Confirm | None) -> int:
    places = places_of(options)
    if options.publish:
        _publish(places)
    log = read_log(places.repository, places.branch) if places.repository else None
    history = read_results(places.results, log, commit_url=places.commit_url, project=places.project)
    check_outputs(places.html)
    check_file("--json", options.json)
    if confirm is not None:
        confirm = at_most(options.max_reruns, confirm)
    elif options.confirm:
        confirm = _gate(options, places)
    report = _judge(history, places, options, confirm)
    page = write_page(report, places.html)
    print(text_of(report))  # noqa: T201
    print(f"page: {page}")  # noqa: T201
    if options.json:
        options.json.write_text(json.dumps(report.as_json(), indent=1) + "\n", encoding="utf-8")
    if is_github():
        sys.stdout.write(github_annotations(report))
    append_summary(step_summary(report))
    return report.exit_status


def _publish(places: HistoryPlaces) -> None:
    if places.configuration is None:
        raise UsageError("--publish needs asv's configuration: give --config asv.conf.json")
    command = [sys.executable, "-m", "asv", "publish", "--config", str(places.configuration.resolve())]
    command += ["--html-dir", str(places.html)]
    done = subprocess.run(command, cwd=places.configuration.parent.resolve(), check=False)
    if done.returncode:
        raise UsageError(f"`asv publish` ended with status {done.returncode}; what it said is above")


def _judge(
    history: History, places: HistoryPlaces, options: argparse.Namespace, confirm: Confirm | None
) -> HistoryReport:
    found: list[Change] = []
    notes: list[str] = []
    if options.detect:
        found, gaps = _changes(history, options.margin)
        history = replace(history, problems=(*history.problems, *gaps))
    else:
        notes = ["The history was not searched for changes: --no-detect"]
    found = explain(found, history.series)
    positions = {commit.hash: commit.position for commit in history.commits}
    known = Confirmations.load(places.results / FILE)
    if known.unread:
        notes.append(f"{known.unread} lines of {known.path} are no verdicts of re-runs, and were ignored")
    judged = confirm_all(found, confirm, known, positions, options.margin)
    if any(one.verdict == NOT_RE_RUN for one in judged):
        notes.append("Candidates were not re-run: give --confirm on the machine that the results are from")
    return HistoryReport(history, tuple(judged), frozenset(options.accept), tuple(notes))


def _changes(history: History, margin: float) -> tuple[list[Change], list[HistoryProblem]]:
    """Return the changes in all series, and a problem if some cannot be searched. Counters need no package."""
    detected: list[Change] = []
    missing: list[str] = []
    for series in history.series:
        try:
            detected += changes(series, margin)
        except DetectorMissingError as error:
            missing.append(str(error))
    if not missing:
        return detected, []
    message = f"{len(missing)} of {len(history.series)} series were not searched for changes: {missing[0]}"
    return detected, [HistoryProblem("unsearched", message, "series")]


def _gate(options: argparse.Namespace, places: HistoryPlaces) -> Confirm:
    from pytest_ddl.bench.history.rerun import gate_confirmation

    if places.repository is None:
        raise UsageError("--confirm needs to check out commits: give the repository by --repository")

    try:
        return gate_confirmation(
            places.repository,
            options.target,
            options.confirm_option,
            options.machine,
            reruns=options.max_reruns,
            tell=tell,
        )
    except ValueError as error:
        raise UsageError(str(error)) from error


def places_of(options: argparse.Namespace) -> HistoryPlaces:
    """Return the settings from the options, else from asv's configuration.

    :raises UsageError: if there is no configuration that can be used.
    """
    path = options.config or next((Path(name) for name in CONFIGURATIONS if Path(name).is_file()), None)
    if options.config and not options.config.is_file():
        raise UsageError(f"--config={options.config} is not a file")
    data = _configuration(path) if path else {}
    if path is None and options.results is None:
        raise UsageError(f"no {', '.join(CONFIGURATIONS)} here: give --config FILE, or --results DIR and --html DIR")
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
    return HistoryPlaces(path, results, html, repository, branch, str(data.get("project", "")), link)


def check_outputs(html: Path) -> None:
    """Check that the page can be written before minutes are spent on re-runs.

    :raises UsageError: if it cannot.
    """
    try:
        html.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--html={html} cannot be the folder of the page: {error}") from error


def _configuration(path: Path) -> dict[str, Any]:
    try:
        data = _parser()(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read as asv's configuration: {error}") from error
    if not isinstance(data, dict):
        raise UsageError(f"{path} holds a {type(data).__name__}, not asv's configuration")
    return data


def _parser() -> Callable[[str], Any]:
    try:
        json5 = import_module("json5")  # a dependency of asv; without it, comments cannot be read
    except ImportError:
        return json.loads
    parser: Callable[[str], Any] = json5.loads
    return parser
