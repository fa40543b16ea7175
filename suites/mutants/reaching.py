"""Find out once which test executes which line of Keras, with coverage.py."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import coverage

from suites.mutants.forking import Job
from suites.mutants.making import Mutant, root
from suites.mutants.session import Outcome, Session

FOLDER = Path(__file__).parents[2] / ".mutants"
"""Folder with the executed lines and the outcomes of each file with tests. Git ignores it."""
SECONDS = 15
"""CPU seconds after which no further test of a file is measured."""


def jobs(session: Session, folder: Path = FOLDER) -> list[Job]:
    """Return what measures the files that have not been measured since they were written."""
    folder.mkdir(exist_ok=True)
    found: list[Job] = []
    for file, tests in session.of_files().items():
        measured, path = folder / f"{file}.json", session.items[tests[0]].path
        if not measured.is_file() or measured.stat().st_mtime < path.stat().st_mtime:
            found.append((file, _measuring(session, tests, folder, file)))
    return found


def _measuring(session: Session, tests: Sequence[str], folder: Path, file: str) -> Callable[[], object]:
    def measure() -> int:
        data = folder / f"{file}.lines"
        data.unlink(missing_ok=True)
        tool = coverage.Coverage(data_file=str(data), include=[f"{root()}/*"], config_file=False, messages=False)
        tool.start()
        outcomes: dict[str, Outcome] = {}

        def save(test: str, outcome: Outcome) -> bool:
            outcomes[test] = outcome
            return sum(one.seconds for one in outcomes.values()) > SECONDS

        session.run(tests, begins=tool.switch_context, ends=save)
        tool.stop()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # tests of tf.distribute execute no line of Keras
            tool.save()
        told = {test: [one.outcome, round(one.seconds, 2)] for test, one in outcomes.items()}
        (folder / f"{file}.json").write_text(json.dumps(told, indent=1))
        return len(told)

    return measure


class Reached:
    """What has been measured."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._lines = [coverage.CoverageData(str(file)) for file in sorted(folder.glob("*.lines"))]
        for one in self._lines:
            one.read()
        measured = [json.loads(file.read_text()) for file in sorted(folder.glob("test_*.json"))]
        self.outcomes = {test: Outcome(*found) for one in measured for test, found in one.items()}
        self.of_file = cache(self._of_file)

    def _of_file(self, file: str) -> dict[int, set[str]]:
        found: dict[int, set[str]] = {}
        for data in self._lines:
            for line, tests in data.contexts_by_lineno(str(root() / file)).items():
                found.setdefault(line, set()).update(test for test in tests if test)
        return found

    def tests(self, mutant: Mutant) -> list[str]:
        """Return the tests that execute the line of a mutant and can fail, each file's quickest one first."""
        of_lines = self.of_file(mutant.file)
        lines = [*range(mutant.line, mutant.line + mutant.text.count("\n") + 1)]
        if mutant.kind == "default":  # its value is used wherever the function is called
            lines = [line for line in of_lines if mutant.first <= line <= mutant.last]
        tests = {test for line in lines for test in of_lines.get(line, ())}
        able = [test for test in tests if self.outcomes.get(test, Outcome("", 0)).outcome in ("passed", "xfailed")]
        seen: Counter[str] = Counter()
        places = {}
        for test in sorted(able, key=lambda test: (self.outcomes[test].seconds, test)):
            file = test.partition("::")[0]
            places[test] = (seen[file], self.outcomes[test].seconds, test)
            seen[file] += 1
        return sorted(places, key=lambda test: places[test])
