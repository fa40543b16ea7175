"""Find which items the tests of the suite cover, under which strategies and how.

Only a test that passes, or that fails in its known way, covers its items. A skipped test covers nothing.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest

from pytest_ddl.items.selection import SPEC_FIXTURE
from pytest_ddl.strategies.registry import StrategyRegistry
from pytest_ddl.strategies.spec import StrategySpec
from suites.items import Item, claims_of, items

LETTERS: Mapping[str, str] = {
    "one_device": "O",
    "mirrored": "M",
    "multi_worker_mirrored": "W",
    "parameter_server": "P",
    "central_storage": "C",
    "model_parallel": "D",
    "tpu": "T",
}
"""Strategy -> letter in the table."""
HOW = "how"
"""Parameter of tests that run eagerly and in a ``tf.function``; its values are these two."""
MODES = ("eager", "function")


@dataclass(frozen=True)
class Covered:
    """One test of an item under one strategy."""

    item: str
    strategy: str
    """Empty for a test that uses none."""
    apart: bool
    """True if the result distinguishes replicas: different values on each, or parity with one device."""
    processes: bool
    """True if the replicas or servers run in several processes."""
    three: bool
    """True if there are at least three replicas."""
    mode: str
    """``eager``, ``function``, or empty for a test that does not choose."""

    def __str__(self) -> str:
        flags = [name for name in _FLAGS if getattr(self, name)]
        return " ".join([self.item, self.strategy or NO_STRATEGY, *flags, *filter(None, [self.mode])])

    @classmethod
    def parse(cls, text: str) -> Covered:
        """Return the object that ``str`` gave."""
        item, strategy, *words = text.split()
        flags = {name: name in words for name in _FLAGS}
        mode = next((word for word in words if word in MODES), "")
        return cls(item, "" if strategy == NO_STRATEGY else strategy, **flags, mode=mode)


_FLAGS = tuple(field.name for field in fields(Covered) if field.type == "bool")
NO_STRATEGY = "no_strategy"


def covered_by(test: pytest.Item, registry: StrategyRegistry) -> Iterator[Covered]:
    """Yield what one collected test covers, as its markers and its parameters say.

    :raises pytest.UsageError: if the test names no item, or one that does not exist.
    """
    parameters = getattr(getattr(test, "callspec", None), "params", {})
    spec: StrategySpec | None = parameters.get(SPEC_FIXTURE)
    mode = parameters.get(HOW, "")
    for claim in claims_of(test):
        apart = claim.shows != "behavior"
        specs = [registry.parse_variant(name) for name in claim.under] or ([] if spec is None else [spec])
        if not specs:
            yield Covered(claim.item, "", apart, False, False, mode)
        for one in specs:
            definition = registry[one.name]
            topology = definition.topology(one)
            processes = len(topology.ranks) + len(topology.servers) > 1
            yield Covered(claim.item, one.name, apart, processes, definition.num_replicas(one) >= 3, mode)


PROPERTY = "ddl_item"
"""Name of the user property of a test, and of its JUnit report, for each item that it covers."""


def attach(test: pytest.Item, registry: StrategyRegistry) -> None:
    """Attach what a test covers to its reports, which xdist sends to the controller.

    :raises pytest.UsageError: if the test names no item, or one that does not exist.
    """
    test.user_properties += [(PROPERTY, str(one)) for one in covered_by(test, registry)]


class Reporter:
    """Plugin that prints the table at the end of a run."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._found: set[Covered] = set()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if self._config.option.collectonly:
            for test in session.items:
                self._add(test.user_properties)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and (report.passed or hasattr(report, "wasxfail")):
            self._add(report.user_properties)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._config.getoption("--ddl-coverage"):
            terminalreporter.section("items covered")
            for line in table(self._found):
                terminalreporter.write_line(line)
            terminalreporter.section("parameters covered")
            terminalreporter.write_line(_of_parameters())

    def _add(self, properties: Iterable[tuple[str, Any]]) -> None:
        self._found.update(Covered.parse(str(value)) for name, value in properties if name == PROPERTY)


def _of_parameters() -> str:
    """Return the table of parameters. Another process reads the signatures: this one does not import TensorFlow."""
    command = [sys.executable, "-m", "suites.parameters.table"]
    root = Path(__file__).parents[1]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, timeout=300)
    return done.stdout if done.returncode == 0 else done.stderr


def table(found: Iterable[Covered]) -> list[str]:
    """Return the lines of a table: items, the strategies that they are tested under and how, and upstream's tests."""
    by_item: dict[str, list[Covered]] = {}
    for one in found:
        by_item.setdefault(one.item, []).append(one)
    width = max(map(len, items()))
    key = ", ".join(f"{letter} {name}" for name, letter in LETTERS.items())
    lines = [
        f"{key}, - no strategy",
        f"{'item':{width}}  {'tested':9}{'apart':9}{'several':9}{'>= 3':9}{'eager +':9}upstream shows,",
        f"{'':{width}}  {'':9}{'':9}{'process.':9}{'replicas':9}{'function':9}2 replicas / processes",
    ]
    for name, item in items().items():
        columns = _columns(by_item.get(name, []))
        told = f"struck: {item.struck}" if item.struck else _upstream(item)
        lines.append(f"{name:{width}}  {''.join(f'{column:9}' for column in columns)}{told}")
    return [*lines, "", *summary(by_item)]


def _columns(found: Sequence[Covered]) -> tuple[str, ...]:
    """Return the letters of the strategies: with any test, apart, in several processes, three replicas, both modes."""

    def letters(chosen: Iterable[Covered]) -> str:
        names = {one.strategy for one in chosen}
        return "".join(letter for name, letter in LETTERS.items() if name in names) + ("-" if "" in names else "")

    both = {one.strategy for one in found if one.mode == MODES[0]} & {o.strategy for o in found if o.mode == MODES[1]}
    return (
        letters(found) or "none",
        letters(one for one in found if one.apart),
        letters(one for one in found if one.processes),
        letters(one for one in found if one.three),
        letters(one for one in found if one.strategy in both),
    )


def _upstream(item: Item) -> str:
    own = item.upstream
    return f"{own.shows}, {own.two_replicas} / {own.processes}" if own.tests else "no test"


def summary(by_item: Mapping[str, Sequence[Covered]]) -> list[str]:
    """Return lines with the numbers of items, ours beside upstream's."""
    wanted = [item for item in items().values() if not item.struck]
    number = len(wanted)

    def count(having: Iterable[bool]) -> str:
        return f"{sum(having)} of {number}"

    ours = [by_item.get(item.id, ()) for item in wanted]
    rows = (
        ("with a test", count(map(bool, ours)), count(bool(i.upstream.tests) for i in wanted)),
        (
            "by values that differ, or parity",
            count(any(one.apart for one in tests) for tests in ours),
            count(item.upstream.shows in ("values", "parity") for item in wanted),
        ),
        (
            "in several processes",
            count(any(one.processes for one in tests) for tests in ours),
            count(bool(item.upstream.processes) for item in wanted),
        ),
        ("with three replicas or more", count(any(one.three for one in tests) for tests in ours), ""),
    )
    struck = len(items()) - number
    head = f"items: {number}" + (f", and {struck} struck" if struck else "")
    return [
        f"{head:38}{'this suite':16}upstream",
        *(f"  {what:36}{mine:16}{theirs}" for what, mine, theirs in rows),
    ]
