"""Make one step of a whole run, for a program that does not record each of its steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from pytest_ddl.records import GradientRecord, GradientStage, RankRecord, StepRecord


def as_one_step(record: RankRecord) -> RankRecord:
    """Return the record of a rank with one step, which begins with the first values and ends with the last ones.

    Losses and named values are left out, because they belong to single steps.
    """
    if not record.steps:
        return record
    late = [record.facts["late"]] if "late" in record.facts else []
    steps = [*record.steps, *late]
    last = record.steps[-1]
    whole = StepRecord(
        index=1,
        loss=None,
        batches=tuple(batch for step in steps for batch in step.batches),
        snapshot={**last.snapshot, **(record.final or {})},
        gradients=tuple(_numbered(steps)),
        draws=record.steps[0].draws,
        eager=last.eager,
    )
    return replace(
        record,
        variables=tuple(replace(variable, since=min(variable.since, 1)) for variable in record.variables),
        steps=(whole,),
        final=None if record.final is None else {},
        cut_off=(),
        result_steps={name: min(steps, 1) for name, steps in record.result_steps.items()},
        asynchronous=False,
        facts={name: fact for name, fact in record.facts.items() if name != "late"},
    )


def _numbered(steps: Sequence[StepRecord]) -> Iterator[GradientRecord]:
    """Yield the gradients of all steps, with the number of their call in the whole run."""
    calls: Counter[tuple[int, GradientStage]] = Counter()
    for step in steps:
        for gradient in step.gradients:
            key = gradient.replica, gradient.stage
            yield replace(gradient, call=calls[key])
            calls[key] += 1
