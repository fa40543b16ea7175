"""Simulated trainings whose state is changed: the value on each replica after each step, and the declaration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from simulated_training import Program, pair

from pytest_ddl.equivalence.checks.state import check_state
from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.evidence.tolerance import Tolerance
from pytest_ddl.equivalence.findings import CheckResult
from pytest_ddl.records import Array, RankRecord, TrainingRecord

STATE = 3
"""Index of the simulator's ``ema/average``."""
Change = Callable[[int, int, Array], Array]


def with_state(record: TrainingRecord, change: Change, **fields: object) -> TrainingRecord:
    """The record with another value of the state on each replica after each step, and another declaration."""

    def of(rank: RankRecord) -> RankRecord:
        steps = tuple(
            replace(
                step,
                snapshot={
                    **step.snapshot,
                    STATE: tuple(
                        change(replica, step.index, value)
                        for replica, value in zip(rank.replicas, step.snapshot[STATE], strict=True)
                    ),
                },
            )
            for step in rank.steps
        )
        variables = tuple(replace(v, **fields) if v.index == STATE else v for v in rank.variables)
        return replace(rank, steps=steps, variables=variables)

    return replace(record, ranks=tuple(map(of, record.ranks)))


def checked(reference: TrainingRecord, distributed: TrainingRecord) -> CheckResult:
    return check_state(Comparison(reference, distributed, Tolerance(reference)))


TWO = Program(replicas=2)


def checked_pair(change: Change, program: Program = TWO, **fields: object) -> CheckResult:
    reference, distributed = pair(program)
    return checked(reference, with_state(distributed, change, **fields))
