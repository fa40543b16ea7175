"""The ledger: every value that a run recorded has an entry, and one that nothing explains is a doubt."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

import numpy as np
import pytest
from simulated_training import Program, pair

from pytest_ddl.equivalence.checks.registry import CHECKS
from pytest_ddl.equivalence.findings import Outcome, Reason
from pytest_ddl.equivalence.ledger import Entry, Quantity
from pytest_ddl.equivalence.outcomes import passed
from pytest_ddl.equivalence.verdict.judge import judge
from pytest_ddl.equivalence.verdict.report import Report
from pytest_ddl.records import (
    BatchRecord,
    CollectiveRecord,
    DrawRecord,
    GradientRecord,
    GradientStage,
    RankRecord,
    StepRecord,
    TrainingRecord,
    VariableKind,
    VariableRecord,
    WriteRecord,
)

PROGRAM = Program(replicas=2, workers=2, momentum=0.9)
Change = Callable[[TrainingRecord], TrainingRecord]


def on_ranks(change: Callable[[RankRecord], RankRecord]) -> Change:
    """Return a change of each rank of a run."""
    return lambda record: replace(record, ranks=tuple(map(change, record.ranks)))


def in_step(change: Callable[[StepRecord], StepRecord], index: int = 2) -> Change:
    """Return a change of one step on every rank."""
    return on_ranks(
        lambda rank: replace(rank, steps=tuple(change(step) if step.index == index else step for step in rank.steps))
    )


def _whole(rank: RankRecord) -> RankRecord:
    """Add what the simulated program does not record.

    That is a metric, named values, results, random numbers, gradients, collectives, and changes after the loop.
    """
    share = 1.0 if rank.task == "local" else 0.5
    metric = VariableRecord(len(rank.variables), "error/total", VariableKind.METRIC, (), "float64")
    steps = tuple(
        replace(
            step,
            values={"norm": 2.0 * step.index},
            snapshot={**step.snapshot, metric.index: (np.asarray(1.0 * step.index),)},
            draws=tuple(_draw(replica, step.index) for replica in rank.replicas),
            gradients=tuple(
                GradientRecord(replica, GradientStage.COMPUTED, 0, {0: np.full((4, 3), share * step.index)})
                for replica in rank.replicas
            ),
        )
        for step in rank.steps
    )
    whole = replace(
        rank,
        variables=(*rank.variables, metric),
        initial={**rank.initial, metric.index: (np.zeros(()),)},
        steps=steps,
        results={"evaluate": [0.5, 0.25]},
        result_steps={"evaluate": len(steps)},
        draws_observed=True,
        collectives=(CollectiveRecord("all_reduce", "SUM", (3,), "float64", "train.py:7"),),
    )
    last = steps[-1].snapshot
    return replace(whole, final={index: tuple(3 * value for value in last[index]) for index in _of_rank(whole)})


def _draw(replica: int, step: int) -> DrawRecord:
    return DrawRecord(replica, 0, "StatelessRandomUniformV2", "noise", 100 * replica + step, 12)


def _of_rank(rank: RankRecord) -> list[int]:
    """Return the index of the first variable of each kind."""
    first = {variable.kind: variable.index for variable in reversed(rank.variables)}
    return sorted(first.values())


def runs() -> tuple[TrainingRecord, TrainingRecord]:
    reference, distributed = map(on_ranks(_whole), pair(PROGRAM))
    return reference, distributed


def _moved_snapshot(quantity: Quantity) -> Change:
    def moved(step: StepRecord) -> StepRecord:
        name = next(entry.name for entry in judge(*runs()).ledger.entries if entry.quantity is quantity)
        index = next(variable.index for variable in runs()[1].variables if variable.name == name)
        return replace(
            step, snapshot={**step.snapshot, index: tuple(np.asarray(value) + 1 for value in step.snapshot[index])}
        )

    return in_step(moved)


def _moved_finals(quantities: Collection[Quantity]) -> Change:
    titles = [quantity.title for quantity in quantities]

    def moved(rank: RankRecord) -> RankRecord:
        final = {
            index: tuple(5 * value for value in parts) if _OF_KINDS[rank.variables[index].kind] in titles else parts
            for index, parts in (rank.final or {}).items()
        }
        return replace(rank, final=final)

    return on_ranks(moved)


_OF_KINDS = {
    VariableKind.TRAINABLE: "weights",
    VariableKind.FROZEN: "frozen weights",
    VariableKind.STATE: "state",
    VariableKind.SLOT: "slots",
    VariableKind.ITERATIONS: "counters",
    VariableKind.LEARNING_RATE: "learning rates",
    VariableKind.METRIC: "metrics",
}


def _longer(batch: BatchRecord) -> BatchRecord:
    return replace(batch, size=batch.size + 1)


CHANGES: dict[Quantity, Change] = {
    **{
        quantity: _moved_snapshot(quantity)
        for quantity in (
            Quantity.WEIGHTS,
            Quantity.FROZEN,
            Quantity.STATE,
            Quantity.SLOTS,
            Quantity.COUNTERS,
            Quantity.RATES,
            Quantity.METRICS,
        )
    },
    Quantity.LOSSES: in_step(lambda step: replace(step, loss=(step.loss or 0.0) + 1.0)),
    Quantity.VALUES: in_step(lambda step: replace(step, values={"norm": 7.0})),
    Quantity.BATCHES: in_step(lambda step: replace(step, batches=tuple(map(_longer, step.batches)))),
    Quantity.EXAMPLES: in_step(
        lambda step: replace(
            step, batches=tuple(replace(batch, example_ids=(7,) * batch.size) for batch in step.batches)
        )
    ),
    Quantity.DRAWS: in_step(lambda step: replace(step, draws=())),
    Quantity.GRADIENTS: in_step(
        lambda step: replace(step, gradients=tuple(replace(one, values={0: np.eye(4, 3)}) for one in step.gradients))
    ),
    Quantity.COLLECTIVES: on_ranks(lambda rank: replace(rank, collectives=rank.collectives * (1 + rank.rank))),
    Quantity.RESULTS: on_ranks(lambda rank: replace(rank, results={"evaluate": [0.5, 0.75]})),
}
"""A change of each kind of quantity under the strategy. A new kind fails here until it has one."""


_TOGETHER = {Quantity.BATCHES: ("DATA-COVER",), Quantity.EXAMPLES: ("SEED",)}
"""Further checks that look at a quantity."""


def judged_blindly(quantity: Quantity, reference: TrainingRecord, distributed: TrainingRecord) -> Report:
    """Judge with a check that passes without looking, as a future mistake in it would make it."""
    blind = [
        replace(check, function=lambda _comparison, name=check.name: passed(name, "nothing was looked at"))
        if check.name in (quantity.check, "UNEVEN-EQ", "MOVES", *_TOGETHER.get(quantity, ()))
        else check
        for check in CHECKS
    ]
    return judge(reference, distributed, known=blind)


def doubtful(report: Report, quantity: Quantity) -> list[Entry]:
    """Return the entries of a quantity that differ and that nothing explains."""
    found = [entry for entry in report.ledger.entries if entry.reason is Reason.NOT_EXPLAINED]
    return [entry for entry in found if entry.quantity is quantity]


def test_a_correct_run_is_accounted_for() -> None:
    reference, distributed = runs()
    report = judge(reference, distributed)
    assert report.passed, str(report)
    assert report.ledger.compared == len(report.ledger.entries)
    assert {entry.quantity for entry in report.ledger.entries} == set(Quantity)
    assert {entry.name for entry in report.ledger.entries if entry.at_end} == {
        distributed.variables[index].name for index in _of_rank(distributed.ranks[0])
    }
    names = {(variable.name, step) for variable in distributed.variables for step in (1, 2, 3)}
    assert names <= {(entry.name, entry.step) for entry in report.ledger.entries}
    assert f"compared: {report.ledger.compared} of {len(report.ledger.entries)} recorded values" in str(report)


@pytest.mark.parametrize("quantity", Quantity)
def test_a_value_that_its_check_does_not_look_at_is_a_doubt(quantity: Quantity) -> None:
    reference, distributed = runs()
    assert judged_blindly(quantity, reference, distributed).passed
    report = judged_blindly(quantity, reference, CHANGES[quantity](distributed))
    assert report.result(quantity.check).outcome is Outcome.PASS  # type: ignore[union-attr]
    assert doubtful(report, quantity)
    assert report.verdict == "inconclusive", str(report)
    assert quantity.check in [doubt.check for doubt in report.doubts]


@pytest.mark.parametrize("check", ["STEP-EQ", "STATE-EQ", "OPT-STATE", "METRIC-EQ"])
def test_a_final_value_that_its_check_does_not_look_at_is_a_doubt(check: str) -> None:
    reference, distributed = runs()
    quantities = [quantity for quantity in Quantity if quantity.check == check]
    report = judged_blindly(quantities[0], reference, _moved_finals(quantities)(distributed))
    found = [entry for quantity in quantities for entry in doubtful(report, quantity)]
    assert found
    assert all(entry.at_end for entry in found)
    assert all("when the program ends" in str(entry) for entry in found)


@pytest.mark.parametrize(("steps", "verdict"), [((1, 2, 3), "pass"), ((2,), "inconclusive")], ids=["always", "once"])
def test_a_replica_may_draw_for_each_of_its_examples(steps: Collection[int], verdict: str) -> None:
    def more(number: int) -> Change:
        def drawn(step: StepRecord) -> StepRecord:
            places = range(number) if step.index in steps else range(1)
            draws = [replace(draw, position=at, digest=draw.digest + at) for draw in step.draws for at in places]
            return replace(step, draws=tuple(draws))

        return on_ranks(lambda rank: replace(rank, steps=tuple(map(drawn, rank.steps))))

    reference, distributed = runs()
    assert judge(more(12)(reference), more(6)(distributed)).verdict == verdict


@pytest.mark.parametrize(
    ("later", "verdict"), [(False, "pass"), (True, "inconclusive")], ids=["first step", "all steps"]
)
def test_one_replica_may_draw_the_initial_values_for_all(later: bool, verdict: str) -> None:
    def drawn(step: StepRecord) -> StepRecord:
        first = [draw for draw in step.draws if draw.replica == 0]
        if step.index == 1:
            return replace(step, draws=tuple(first))
        return step if later else replace(step, draws=())

    change = on_ranks(lambda rank: replace(rank, steps=tuple(map(drawn, rank.steps))))
    reference, distributed = runs()
    assert judge(change(reference), change(distributed)).verdict == verdict


def test_files_are_named_because_their_contents_are_not_compared() -> None:
    reference, distributed = runs()
    writes = tuple(WriteRecord(f"model-{number}.keras", "Model.save", 3) for number in range(5))
    first, *others = distributed.ranks
    report = judge(reference, replace(distributed, ranks=(replace(first, writes=writes), *others)))
    assert report.passed, str(report)
    told = "not the contents of files that the program writes: model-0.keras, model-1.keras, model-2.keras and 2 more"
    assert told in " ".join(str(report).split())


@pytest.mark.parametrize("side", [0, 1], ids=["one device", "strategy"])
@pytest.mark.parametrize(
    ("quantity", "without"),
    [
        (Quantity.LOSSES, in_step(lambda step: replace(step, loss=None))),
        (Quantity.VALUES, in_step(lambda step: replace(step, values={}))),
        (Quantity.RESULTS, on_ranks(lambda rank: replace(rank, results={}))),
    ],
    ids=["losses", "values", "results"],
)
def test_a_value_that_only_one_run_recorded_is_a_doubt(side: int, quantity: Quantity, without: Change) -> None:
    records = list(runs())
    records[side] = without(records[side])
    report = judged_blindly(quantity, *records)
    assert {entry.reason for entry in report.ledger.entries if entry.quantity is quantity} >= {Reason.ONE_SIDED}
    assert report.verdict == "inconclusive"
