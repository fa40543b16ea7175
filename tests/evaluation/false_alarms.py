"""Count correct programs that are reported as wrong: programs x strategies x seeds."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pytest_ddl import check_training
from tests.evaluation.lines import Row, run_missing
from tests.evaluation.programs import (
    Program,
    by_name,
    fitted_programs,
    half_precision_programs,
    lazily_built_programs,
    readme_program,
    tutorial_programs,
    twin_programs,
    uneven_programs,
)
from tests.evaluation.random_programs import random_programs

SEEDS = 20
SEEDS_OF_USERS = 5
SEEDS_OF_TWINS = 2
"""Few: twins are many, and each is a program of its own. Programs with uneven batches take several comparisons."""
RANDOM_PROGRAMS = 40
PATIENCE = 600.0
"""Seconds for a comparison: what is measured is its verdict, not the machine."""


class Case(NamedTuple):
    """A correct program under a strategy, with a seed."""

    program: Program
    strategy: str
    seed: int


def all_cases(folder: Path, seeds: int = SEEDS) -> list[Case]:
    """Every correct program under every strategy that it is correct under, in an order without a pattern."""
    # Random programs were not chosen by anybody, so each gets only one seed.
    found = [
        Case(program, strategy, 0) for program in random_programs(RANDOM_PROGRAMS) for strategy in program.strategies
    ]
    of_users = [
        *lazily_built_programs(),
        *fitted_programs(),
        *half_precision_programs(),
        *tutorial_programs(),
    ]
    written = [(program, seeds) for program in (*by_name().values(), readme_program(folder))]
    written += [(program, SEEDS_OF_USERS) for program in of_users]
    written += [(program, SEEDS_OF_TWINS) for program in (*twin_programs(), *uneven_programs())]
    for program, number in written:
        found += [Case(program, strategy, seed) for strategy in program.strategies for seed in range(number)]
    random.Random(0).shuffle(found)
    return found


def check_correct(case: Case) -> Row:
    """Run one correct program; the verdict and what it is based on."""
    given = {"timeout": PATIENCE, **case.program.arguments}
    report = check_training(case.program.train, case.strategy, seed=case.seed, **given)
    return {
        "verdict": report.verdict,
        "causes": [finding.cause for finding in report.findings],
        "checks": [finding.check for finding in report.findings],
        "approximations": [finding.cause for finding in report.approximations],
        "why": "; ".join(report.inconclusive)[:300],
        "message": report.findings[0].message[:300] if report.findings else "",
        "precision": report.distributed.precision if report.distributed else None,
    }


def evaluate(path: Path, folder: Path, minutes: float | None = None, share: tuple[int, int] = (0, 1)) -> Sequence[Row]:
    """Check what ``path`` has no result for."""
    return run_missing(path, all_cases(folder), key_of, check_correct, minutes, share)


def key_of(case: Case) -> Row:
    return {"program": case.program.name, "strategy": case.strategy, "seed": case.seed}


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Counts of verdicts, by strategy too, and the reasons of those that are not ``pass``."""
    return {
        "runs": len(rows),
        "programs": len({row["program"] for row in rows}),
        "verdicts": dict(Counter(row["verdict"] for row in rows)),
        "by strategy": {
            strategy: dict(Counter(row["verdict"] for row in rows if row["strategy"] == strategy))
            for strategy in sorted({row["strategy"] for row in rows})
        },
        "named approximations": sum(bool(row["approximations"]) for row in rows),
        "false alarms": [_told(row) for row in rows if row["verdict"] == "fail" and not _is_unsupported(row)],
        "refused by the framework": [_told(row) for row in rows if _is_unsupported(row)],
        "inconclusive": dict(Counter(row["why"].split(":")[0] for row in rows if row["verdict"] == "inconclusive")),
    }


def _is_unsupported(row: Row) -> bool:
    """Return whether TensorFlow itself refused the program, and the report said so: no alarm about the program."""
    return bool(row["causes"]) and set(row["causes"]) == {"unsupported-by-framework"}


def _told(row: Row) -> str:
    return f"{row['program']} under {row['strategy']}, seed {row['seed']}: {', '.join(map(str, row['causes']))}"
