"""Plant mutants of Keras, and print how many of them the suite catches.

The first run measures which test executes which line. Results are in the folder .mutants. A run that is cut goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import pytest

from suites.defects import VARIABLE, planted
from suites.mutants import sampling
from suites.mutants.forking import Job, results
from suites.mutants.making import Mutant, find
from suites.mutants.reaching import FOLDER, SECONDS, Reached, jobs
from suites.mutants.session import Outcome, Session


@dataclass(frozen=True)
class Result:
    """Outcome of one mutant."""

    name: str
    folder: str
    function: str
    shown: str
    outcome: str
    by: str
    """Test that caught it."""
    reaching: int
    ran: int
    """Numbers of tests that execute its line, and of those that ran."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, plant, and print the table."""
    parser = argparse.ArgumentParser("python -m suites.mutants", description=__doc__)
    parser.add_argument("files", nargs="*", help="files with tests (default: suites/properties)")
    parser.add_argument("--seed", type=int, default=1, help="draw these mutants (default: %(default)s)")
    parser.add_argument("--number", type=int, default=120, help="how many mutants (default: %(default)s)")
    parser.add_argument("--mutant", help="plant only the mutant with this name")
    parser.add_argument("--tier", default="core", help="tier of the tests (default: %(default)s)")
    parser.add_argument("--cases", type=int, default=12, help="sets of parameters of a test (default: %(default)s)")
    parser.add_argument("--new", default="", help="expression for tests that run last, and are counted apart")
    parser.add_argument("--seconds", type=int, default=20, help="CPU seconds for a mutant (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=1, help="copies at a time (default: %(default)s)")
    parser.add_argument("--only-measure", action="store_true", help="find out what the tests reach, and plant nothing")
    chosen = parser.parse_args(arguments)
    options = [f"--ddl-tier={chosen.tier}", "--ddl-strategy=one_device", "--ddl-in-process", "-q"]
    options += ["-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    session = Session(partial(_work, chosen), chosen.cases)
    status = pytest.main([*options, *(chosen.files or ["suites/properties"])], plugins=[session])
    if status == 0 and not chosen.only_measure:
        sys.stdout.write(sampling.table(map(asdict, _load(_file(chosen)).values())))
    return int(status)


def _file(chosen: argparse.Namespace) -> Path:
    return FOLDER / f"seed-{chosen.seed}.json"


def _load(file: Path) -> dict[str, Result]:
    return {one["name"]: Result(**one) for one in json.loads(file.read_text())} if file.is_file() else {}


def _work(chosen: argparse.Namespace, session: Session) -> None:
    for file, done in results(jobs(session), chosen.processes, 10 * SECONDS):
        sys.stderr.write(f"measured {file}\n" if done else f"{file} could not be measured\n")
    if chosen.only_measure:
        return
    reached, found = Reached(), _load(_file(chosen))
    mutants = [find(chosen.mutant)] if chosen.mutant else sampling.sample(chosen.seed, chosen.number)
    open_ones = {one.name: one for one in mutants if one.name not in found}
    tests = {name: _tests(one, reached, session, chosen.new) for name, one in open_ones.items()}
    planting: list[Job] = [
        (name, partial(_planted, session, name, tests[name], chosen.seconds) if tests[name] else dict)
        for name in open_ones
    ]
    for name, ran in results(planting, chosen.processes, 3 * chosen.seconds + 60):
        mutant, failed = open_ones[name], ran is None or "failed" in ran.values()
        by = "" if not failed else "deadline" if ran is None else [*ran][-1]
        outcome = _outcome(by, tests[name], chosen.new)
        number = 0 if ran is None else len(ran)
        where = mutant.folder, mutant.function, mutant.shown()
        found[name] = Result(name, *where, outcome, by, len(tests[name]), number)
        _file(chosen).write_text(json.dumps([asdict(one) for one in found.values()], indent=1))
        sys.stderr.write(f"{outcome}: {name} {mutant.function}: {mutant.shown()[:150]}\n")


def _outcome(by: str, tests: Sequence[str], new: str) -> str:
    if by:
        return "by new tests" if new and re.search(new, by) else "caught"
    return "missed" if tests else "not reached"


def _tests(mutant: Mutant, reached: Reached, session: Session, new: str) -> list[str]:
    """Return the tests that reach a mutant: first those of the core tier, and last the new ones."""
    places = {test: place for place, test in enumerate(session.items)}
    tests = [test for test in reached.tests(mutant) if test in places]
    return sorted(tests, key=lambda test: bool(new and re.search(new, test)))


def _planted(session: Session, name: str, tests: Sequence[str], seconds: int) -> dict[str, str]:
    """Run tests with a mutant until one fails that passes without it, or the time is over."""
    os.environ[VARIABLE] = name
    spent = 0.0

    def ends(test: str, outcome: Outcome) -> bool:
        nonlocal spent
        spent += outcome.seconds
        return outcome.outcome == "failed" or spent > seconds

    with planted(name):
        found = session.run(tests, ends=ends)
    outcomes = {test: one.outcome for test, one in found.items()}
    last = [*outcomes][-1]
    if outcomes[last] == "failed" and session.run([last])[last].outcome == "failed":
        outcomes[last] = "failed without the mutant, too"
    return outcomes


if __name__ == "__main__":
    sys.exit(main())
