"""Programs whose comparisons are golden: planted bugs, their twins, and the correct programs of the evaluation."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tests.evaluation.false_alarms import Case as Correct
from tests.evaluation.false_alarms import check_correct
from tests.evaluation.programs import (
    Program,
    by_name,
    fitted_programs,
    half_precision_programs,
    lazily_built_programs,
    readme_program,
    tutorial_programs,
    uneven_programs,
)
from tests.evaluation.random_programs import random_programs
from tests.planted.run import evaluate, selected


class Case(NamedTuple):
    """A program under a strategy."""

    name: str
    strategy: str
    check: Callable[[], object]
    """Runs the comparison."""


def all_cases(folder: Path, names: list[str]) -> list[Case]:
    """Return the cases whose name has one of the words in it, in an order that makes any beginning a fair sample.

    :param folder: place for the example of the first steps.
    """
    cases = [*_planted(), *_correct(folder)]
    random.Random(0).shuffle(cases)
    return [case for case in cases if not names or any(word in f"{case.name}@{case.strategy}" for word in names)]


def _planted() -> Iterator[Case]:
    for entry, strategy in selected([]):
        for which in ("sin", "twin"):
            # Bugs that make ranks wait for each other take minutes, and leave no more than a crash does.
            if entry.symptom != "hang" or which == "twin":
                yield Case(f"{which}_{entry.name}", strategy, partial(evaluate, entry, strategy, which))


def _correct(folder: Path) -> Iterator[Case]:
    programs: list[Program] = [
        *by_name().values(),
        readme_program(folder),
        *fitted_programs(),
        *half_precision_programs(),
        *lazily_built_programs(),
        *tutorial_programs(),
        *uneven_programs(),
        *random_programs(40),
    ]
    for program in programs:
        for strategy in program.strategies:
            if strategy != "one_device":
                yield Case(program.name, strategy, partial(check_correct, Correct(program, strategy, 0)))
