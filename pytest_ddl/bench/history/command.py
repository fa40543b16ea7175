"""Command ``pytest-ddl history``: read asv's results, find regressions, confirm them, and write the page."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from pytest_ddl.bench.exits import FAILED, INTERRUPTED, USAGE, failed, interruptible
from pytest_ddl.bench.git import GitError, read_log
from pytest_ddl.bench.history.confirm import FILE, Confirm, Confirmations, at_most, confirm_all
from pytest_ddl.bench.history.detect import MARGIN, Change, DetectorMissingError, changes
from pytest_ddl.bench.history.model import History, Problem
from pytest_ddl.bench.history.page import write_page
from pytest_ddl.bench.history.places import ConfigurationError, Places, check_outputs, places_of
from pytest_ddl.bench.history.read import NoResultsError, read_results
from pytest_ddl.bench.history.report import Report, explain
from pytest_ddl.bench.history.words import github_annotations, step_summary, told
from pytest_ddl.bench.metrics.absent import MissingPackageError
from pytest_ddl.github import append_summary, is_github

STATUSES = """\
exit status:
  0    no confirmed regression stands; candidates that were not confirmed are only listed
  1    a confirmed regression stands, and was not accepted
  2    a wrong command line, or nothing to read
  3    the history is incomplete: results were dropped, could not be read, failed, or are gone; or the search for
       changes could not run
  4    the command itself failed, for example because the disk is full
  130  interrupted
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = STATUSES
    parser.add_argument("--config", type=Path, metavar="FILE", help="asv's configuration (default: asv.conf.json)")
    parser.add_argument("--results", type=Path, metavar="DIR", help="asv's results_dir (default: as configured)")
    parser.add_argument("--html", type=Path, metavar="DIR", help="asv's html_dir, for scaling/index.html")
    parser.add_argument("--repository", type=Path, metavar="PATH", help="the measured repository: commits, links")
    parser.add_argument("--branch", metavar="NAME", help="branch of the history (default: as configured, or HEAD)")
    parser.add_argument("--publish", action="store_true", help="run asv publish first")
    parser.add_argument(
        "--no-detect", dest="detect", action="store_false", help="do not search for changes, only write the page"
    )
    parser.add_argument(
        "--confirm",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="re-run both commits of each candidate side by side with the gate; each takes minutes",
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
        "--max-reruns", type=int, default=10, metavar="N", help="maximum number of re-runs (default: %(default)s)"
    )
    parser.add_argument("--machine", metavar="NAME", help="asv's name of this machine, for --confirm")
    parser.add_argument(
        "--margin",
        type=float,
        default=MARGIN,
        metavar="SHARE",
        help="smallest change to report (default: %(default)s)",
    )
    parser.add_argument(
        "--accept", action="append", default=[], metavar="ID", help="id of a change or gap that is intended; repeatable"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the findings to this file as JSON")


def main(options: argparse.Namespace, confirm: Confirm | None = None) -> int:
    """Run the command and return its exit status.

    :param confirm: function that re-runs a candidate; it is used instead of the gate.
    """
    try:
        # An interrupted re-run must still remove its processes and worktrees.
        with interruptible():
            return _run(options, confirm)
    except (ConfigurationError, NoResultsError, GitError, MissingPackageError) as error:
        return failed("history", str(error), USAGE)
    except KeyboardInterrupt:
        return failed("history", "interrupted", INTERRUPTED)
    except OSError as error:
        return failed("history", f"could not continue: {error}", FAILED)
    except Exception as error:
        return failed("history", f"failed: {type(error).__name__}: {error}", FAILED, error)


def _run(options: argparse.Namespace, confirm: Confirm | None) -> int:
    if not 0 < options.margin < 1:
        raise ConfigurationError(f"--margin={options.margin} must be a share between 0 and 1: 0.025 is 2.5 %")
    places = places_of(options)
    if options.publish:
        _publish(places)
    log = read_log(places.repository, places.branch) if places.repository else None
    history = read_results(places.results, log, commit_url=places.commit_url, project=places.project)
    check_outputs(places.html, options.json)
    if confirm is not None:
        confirm = at_most(options.max_reruns, confirm)
    elif options.confirm:
        confirm = _gate(options, places)
    report = _judge(history, places, options, confirm)
    page = write_page(report, places.html)
    print(told(report))  # noqa: T201
    print(f"page: {page}")  # noqa: T201
    if options.json:
        options.json.write_text(json.dumps(report.as_json(), indent=1) + "\n", encoding="utf-8")
    if is_github():
        print(github_annotations(report))  # noqa: T201
    append_summary(step_summary(report))
    return report.exit_status


def _publish(places: Places) -> None:
    if places.configuration is None:
        raise ConfigurationError("--publish needs asv's configuration: give --config asv.conf.json")
    command = [sys.executable, "-m", "asv", "publish", "--config", str(places.configuration.resolve())]
    command += ["--html-dir", str(places.html)]
    done = subprocess.run(command, cwd=places.configuration.parent.resolve(), check=False)
    if done.returncode:
        raise ConfigurationError(f"`asv publish` ended with status {done.returncode}; what it said is above")


def _judge(history: History, places: Places, options: argparse.Namespace, confirm: Confirm | None) -> Report:
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
    if any(one.verdict.message == "nothing was re-run" for one in judged):
        notes.append("Candidates were not re-run: give --confirm on the machine that the results are from")
    return Report(history, tuple(judged), frozenset(options.accept), tuple(notes))


def _changes(history: History, margin: float) -> tuple[list[Change], list[Problem]]:
    """Return the changes in all series, and a problem if some cannot be searched. Counters need no package."""
    found: list[Change] = []
    missing: list[str] = []
    for series in history.series:
        try:
            found += changes(series, margin)
        except DetectorMissingError as error:
            missing.append(str(error))
    if not missing:
        return found, []
    message = f"{len(missing)} of {len(history.series)} series were not searched for changes: {missing[0]}"
    return found, [Problem("unsearched", message, "series")]


def _gate(options: argparse.Namespace, places: Places) -> Confirm:
    from pytest_ddl.bench.history.rerun import gate_confirmation

    if places.repository is None:
        raise ConfigurationError("--confirm needs to check out commits: give the repository by --repository")

    def tell(text: str) -> None:
        print(text, flush=True)  # noqa: T201

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
        raise ConfigurationError(str(error)) from error
