"""Results of cells: from the lines of a run to one JSON file each, also if the run was cut."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from suites.matrix.cells import Cell

OUTCOMES = ("pass", "xfail", "fail", "skip")
"""Outcomes of a test, the better first, except for a skipped test, which says nothing."""
_RANK = {"skip": 0, "pass": 1, "xfail": 2, "fail": 3}
PASS, FAIL, ERROR, STRUCK = "pass", "fail", "error", "struck"
"""Outcomes of a cell. An error is a run that died, took too long or ran nothing. A struck cell cannot exist."""
_EXITS = {2: "it was interrupted", 3: "pytest had an internal error", 4: "pytest was used wrongly"}


_PLACE = re.compile(r"\((https?://\S+|suites/repros/\w+\.py)\)$")


def split(reason: str) -> tuple[str, str]:
    """Return the reason of a known failure without the link or the program at its end, and these."""
    place = _PLACE.search(reason)
    return (reason[: place.start()].rstrip(), place[1]) if place else (reason, "")


@dataclass(frozen=True)
class Outcome:
    """Outcome of one test under one variant of a strategy."""

    test: str
    """Id without the strategy."""
    outcome: str
    strategy: str = ""
    variant: str = ""
    items: tuple[tuple[str, str], ...] = ()
    """Items that it covers, each with its strategy; the strategy is empty for none."""
    reason: str = ""
    seconds: float = 0.0
    defect: str = ""
    """Known failure, if the test has an entry for these versions."""
    fixed: bool = False
    """True if a test with such an entry did not meet the defect, and fails for that."""

    @property
    def key(self) -> tuple[str, str]:
        return self.test, self.variant

    @property
    def function(self) -> str:
        """Id without parameters."""
        return self.test.partition("[")[0]

    def as_json(self) -> dict[str, Any]:
        return {
            "test": self.test,
            "strategy": self.strategy,
            "variant": self.variant,
            "items": [" ".join(filter(None, item)) for item in self.items],
            "outcome": self.outcome,
            "reason": self.reason,
            "seconds": self.seconds,
            "defect": self.defect,
            "fixed": self.fixed,
        }

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Outcome:
        names = ("test", "strategy", "variant", "outcome", "reason", "seconds", "defect", "fixed")
        items = tuple((text.partition(" ")[0], text.partition(" ")[2]) for text in given.get("items", ()))
        return cls(items=items, **{name: given[name] for name in names if name in given})


@dataclass(frozen=True)
class Result:
    """Result of one cell."""

    cell: Cell
    tier: str
    outcome: str
    reason: str = ""
    """Why the outcome is an error, or why the cell is struck."""
    versions: Mapping[str, str] = field(default_factory=dict)
    collected: int = 0
    tests: tuple[Outcome, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    """``set-up`` and ``run``."""

    @property
    def counts(self) -> dict[str, int]:
        """Number of tests by outcome, with those that did not run."""
        number = Counter(test.outcome for test in self.tests)
        return {name: number[name] for name in OUTCOMES} | {"not run": max(0, self.collected - len(self.tests))}

    def as_json(self) -> dict[str, Any]:
        return {
            "cell": self.cell.as_json(),
            "tier": self.tier,
            "outcome": self.outcome,
            "reason": self.reason,
            "versions": dict(self.versions),
            "collected": self.collected,
            "counts": self.counts,
            "seconds": dict(self.seconds),
            "tests": [test.as_json() for test in self.tests],
        }

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Result:
        names = ("tier", "outcome", "reason", "versions", "collected", "seconds")
        tests = tuple(map(Outcome.from_json, given["tests"]))
        return cls(Cell(**given["cell"]), tests=tests, **{name: given[name] for name in names})


def judged(
    cell: Cell,
    tier: str,
    lines: Sequence[Mapping[str, Any]],
    *,
    problem: str = "",
    versions: Mapping[str, str] | None = None,
    seconds: Mapping[str, float] | None = None,
    earlier: Iterable[Outcome] = (),
) -> Result:
    """Return the result of a run that wrote these lines.

    :param earlier: outcomes of an earlier run. Those of the tests that this run has left out are kept.
    :param problem: what is known to have ended the run before its end; empty if nothing is.
    """
    left_out = {tuple(key) for line in lines for key in line.get("left_out", ())}
    kept = [test for test in earlier if test.key in left_out]
    tests = (*kept, *merged(line for line in lines if "test" in line))
    collected = len(left_out) + max((line["collected"] for line in lines if "collected" in line), default=0)
    end: Mapping[str, Any] = next((line for line in lines if "exit" in line), {})
    status = end.get("exit")
    reason = problem or _problem(status, collected, tests) or _other(end.get("versions", {}), versions or {})
    failed = any(test.outcome == "fail" for test in tests)
    outcome = ERROR if reason else FAIL if failed or status else PASS
    return Result(cell, tier, outcome, reason, versions or {}, collected, tests, seconds or {})


def of_runs(cell: Cell, tier: str, runs: Iterable[Sequence[Mapping[str, Any]]]) -> Result:
    """Return the result of several runs, each of which has left out the tests that earlier ones had settled."""
    tests: tuple[Outcome, ...] = ()
    result = judged(cell, tier, [])
    for lines in runs:
        if tests and not any("test" in line for line in lines) and {"exit": 5}.items() <= (lines or [{}])[-1].items():
            continue  # earlier runs had settled all tests
        versions = next((line["versions"] for line in lines if "versions" in line), {})
        wanted = {"tensorflow": cell.tensorflow, **({"keras": cell.keras} if cell.subject == "keras" else {})}
        result = judged(cell, tier, lines, problem=_other(versions, wanted), versions=versions, earlier=tests)
        tests = result.tests
    return result


def _problem(status: int | None, collected: int, tests: Sequence[Outcome]) -> str:
    """Return why a run says nothing about its cell, or an empty text."""
    if status is None:
        return "the run did not come to its end"
    if status in _EXITS:
        return _EXITS[status]
    if not collected or not tests:
        return "no test ran"
    if len(tests) < collected:
        return f"{collected - len(tests)} of {collected} tests did not run"
    if not any(test.outcome != "skip" for test in tests):
        return "every test was skipped"
    return "" if status in (0, 1) else f"pytest ended with status {status}"


def _other(ran: Mapping[str, str], wanted: Mapping[str, str]) -> str:
    """Return which versions ran instead of those of the cell, or an empty text."""
    found = [f"{name} {number}" for name, number in ran.items() if wanted.get(name, number) != number]
    return f"the run ended with {', '.join(found)}" if found else ""


def merged(lines: Iterable[Mapping[str, Any]]) -> list[Outcome]:
    """Return one outcome for each test, of the worst of its phases, with the seconds of all."""
    found: dict[tuple[str, str], Outcome] = {}
    for line in lines:
        new = Outcome.from_json(line)
        old = found.get(new.key)
        if old is not None:
            worst = max(old, new, key=lambda one: _RANK[one.outcome])
            given = {**worst.as_json(), "seconds": round(old.seconds + new.seconds, 3)}
            new = Outcome.from_json({**given, "items": (new if new.items else old).as_json()["items"]})
        found[new.key] = new
    return list(found.values())


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a file that a run writes; the last one may be cut."""
    found = []
    for text in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        try:
            found.append(json.loads(text))
        except ValueError:
            break
    return found


def write(folder: Path, result: Result) -> Path:
    """Write the file of a cell."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result.cell.id}.json"
    path.write_text(json.dumps(result.as_json(), indent=1) + "\n", encoding="utf-8")
    return path


def read(folder: Path) -> list[Result]:
    """Return the results in a folder, sorted by versions.

    :raises ValueError: if a file is no result. The message names it.
    """
    found = []
    for path in sorted(folder.glob("*.json")):
        try:
            found.append(Result.from_json(json.loads(path.read_text(encoding="utf-8"))))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}: no result of a cell: {error!r}") from None
    return sorted(found, key=lambda result: result.cell.order)
