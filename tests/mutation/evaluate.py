"""Count the mutations of correct programs that are caught, and those with the right cause, and list the survivors."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pytest_ddl import check_training
from pytest_ddl.equivalence.verdict.report import Report
from pytest_ddl.records import Array, TrainingRecord
from tests.evaluation.lines import Row, run_missing
from tests.evaluation.programs import Program, by_name
from tests.mutation.mutant import Mutation, train_mutated
from tests.mutation.mutations import MUTATIONS


class Case(NamedTuple):
    """A mutation in a program under a strategy."""

    mutation: Mutation
    program: Program
    strategy: str


CAUGHT, TOLERATED, SURVIVED = "caught", "tolerated", "survived"
EQUIVALENT, CRASHED, INCONCLUSIVE = "equivalent", "crashed", "inconclusive"
COUNTED = (CAUGHT, TOLERATED, SURVIVED, INCONCLUSIVE)
"""Outcomes of mutants that are different programs, and run: what a rate is of."""


def all_cases(programs: Iterable[Program] | None = None, mutations: Sequence[Mutation] = MUTATIONS) -> list[Case]:
    """Every mutation in every program that it is a mistake in, in an order that makes any beginning a fair sample."""
    chosen = list(by_name().values() if programs is None else programs)
    found = [
        Case(mutation, program, strategy)
        for strategy in ("mirrored", "multi_worker_mirrored")
        for program in chosen
        for mutation in mutations
        if strategy in mutation.strategies
        and strategy in program.strategies
        and mutation.programs in program.name
        and any(f" {loop} " in program.name for loop in mutation.loops)
    ]
    random.Random(0).shuffle(found)
    return found


def check_mutant(case: Case) -> Row:
    """Run one mutant; the outcome and what the report says first."""
    train = partial(train_mutated, name=case.mutation.name, program=case.program.train)
    report = check_training(train, case.strategy, **case.program.arguments)
    first = report.findings[0] if report.findings else None
    named = [finding.cause for finding in (report.findings or report.approximations)]
    return {
        "outcome": _outcome(case, report),
        "cause": named[0] if named else None,
        "diagnosed": bool(named) and named[0] in case.mutation.causes,
        "check": first.check if first else None,
        "symptom": first.symptom if first else None,
        "step": first.step if first else None,
        "why": "; ".join(report.inconclusive)[:300],
    }


def _outcome(case: Case, report: Report) -> str:
    if report.verdict == "fail":
        crashed = report.findings[0].symptom in ("crash", "hang")
        return CRASHED if crashed else CAUGHT
    if is_equivalent(case, report):
        return EQUIVALENT
    if report.verdict == "inconclusive":
        return INCONCLUSIVE
    return TOLERATED if report.approximations or report.known else SURVIVED


def is_equivalent(case: Case, report: Report) -> bool:
    """Return whether the mutant did, bit by bit, what the program does without the mutation."""
    plain = _plain(case.program.name, case.strategy)
    pairs = ((plain.reference, report.reference), (plain.distributed, report.distributed))
    return all(before is not None and after is not None and _same(before, after) for before, after in pairs)


@cache
def _plain(program: str, strategy: str) -> Report:
    found = by_name()[program]
    return check_training(found.train, strategy, **found.arguments)


def _same(left: TrainingRecord, right: TrainingRecord) -> bool:
    if [rank.num_steps for rank in left.ranks] != [rank.num_steps for rank in right.ranks]:
        return False
    for before, after in zip(left.ranks, right.ranks, strict=True):
        states = [(before.initial, after.initial)]
        for one, other in zip(before.steps, after.steps, strict=True):
            if (one.loss, one.values, one.batches) != (other.loss, other.values, other.batches):
                return False
            states.append((one.snapshot, other.snapshot))
        if not all(_same_state(one, other) for one, other in states):
            return False
    return True


def _same_state(left: Mapping[int, tuple[Array, ...]], right: Mapping[int, tuple[Array, ...]]) -> bool:
    return set(left) == set(right) and all(
        len(parts) == len(right[index])
        and all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in zip(parts, right[index], strict=True))
        for index, parts in left.items()
    )


def evaluate(
    path: Path, minutes: float | None = None, cases: Sequence[Case] | None = None, share: tuple[int, int] = (0, 1)
) -> Sequence[Row]:
    """Check all mutants that ``path`` has no result for."""
    return run_missing(path, all_cases() if cases is None else cases, key_of, check_mutant, minutes, share)


def key_of(case: Case) -> Row:
    return {"mutation": case.mutation.name, "program": case.program.name, "strategy": case.strategy}


def rates(rows: Sequence[Row]) -> dict[str, Any]:
    """Counts of outcomes, and the rates of those that count."""
    counts = {outcome: sum(row["outcome"] == outcome for row in rows) for outcome in (*COUNTED, EQUIVALENT, CRASHED)}
    total = sum(counts[outcome] for outcome in COUNTED)
    caught = [row for row in rows if row["outcome"] in (CAUGHT, TOLERATED)]
    diagnosed = sum(row["diagnosed"] for row in caught)
    return {
        "mutants": len(rows),
        "counted": total,
        **counts,
        "diagnosed": diagnosed,
        "caught rate": round(len(caught) / total, 4) if total else None,
        "cause rate": round(diagnosed / total, 4) if total else None,
    }
