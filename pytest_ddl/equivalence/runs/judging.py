"""Judge two runs, and run one device in other ways as long as that may change the verdict or name a cause.

Each of these ways answers one question that the report leaves open. If it is not open, nothing runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pytest_ddl.equivalence.checks.run import place_of
from pytest_ddl.equivalence.evidence.arithmetic import half_precision
from pytest_ddl.equivalence.evidence.slices import Slices
from pytest_ddl.equivalence.findings import Reason
from pytest_ddl.equivalence.runs.alignment import Aligned, Runner
from pytest_ddl.equivalence.runs.slices import (
    equal_parts,
    examples_to_recompute,
    is_rounding,
    orders_to_measure,
    pairings_to_recompute,
    parts_to_recompute,
    sharing_replicas,
    slices_to_recompute,
    smaller_batch,
    terms_to_measure,
    told_to_recompute,
    uneven_parts,
)
from pytest_ddl.equivalence.verdict.judge import may_jump, needs_noise
from pytest_ddl.equivalence.verdict.report import Report
from pytest_ddl.messages import summary
from pytest_ddl.records import TrainingRecord

NOISE_RUNS = 3
"""Number of perturbed references that measure rounding noise; see :mod:`pytest_ddl.equivalence.evidence.tolerance`."""
Rows = Mapping[int, tuple[int, ...]]
"""Replica -> positions in the global batch of its examples."""


@dataclass(frozen=True)
class Further:
    """Further runs on one device with which two runs are judged; the fields are those of :func:`judge`."""

    perturbed: tuple[TrainingRecord, ...] = ()
    slices: Slices | None = None
    again: TrainingRecord | None = None


Decide = Callable[[TrainingRecord, TrainingRecord, Further], "Report"]
"""Function that judges a reference and a distributed run, given further runs."""


class Judging:
    """Report about two runs, which is made anew with each set of further runs on one device."""

    def __init__(self, runs: Aligned, program: Runner, decide: Decide) -> None:
        self._runs = runs
        self._program = program
        self._decide = decide
        self._further = Further()
        self._slices = Slices(0)
        self._report = decide(runs.reference, runs.distributed, self._further)

    def concluded(self) -> Report:
        """Return the report after all that its verdict needs was run."""
        if replicas := sharing_replicas(self._report):
            self._judge_with(shared=self._run(shared_by=replicas))
        if needs_noise(self._report):
            self._measure_noise()
        elif not (uneven_parts(self._report) or equal_parts(self._report)):
            return self._report
        self._repeat()
        self._take_uneven_batches_apart()
        self._look_for_jumps()
        for step, rows in slices_to_recompute(self._report):
            self._recompute_causes(step, rows)
        for step, examples in terms_to_measure(self._report):
            self._measure_cancellation(step, examples)
        measuring = (*self._further.perturbed, *self._slices.terms, *self._slices.reordered)
        return self._report.noted(*_failures("a run that measures rounding noise", measuring))

    def _measure_noise(self) -> None:
        """Run with weights and data that are moved by one unit of roundoff."""
        self._judge(perturbed=self._moved(1))

    def _repeat(self) -> None:
        """Run the reference again if a value may be random, or depend on the time."""
        if any(item.reason is Reason.NOT_REPEATED for result in self._report.results for item in result.unjudged):
            self._judge(again=self._program.anew(self._runs.settings))

    def _take_uneven_batches_apart(self) -> None:
        """Run on what each replica got of uneven batches, and on batches in which all replicas count equally."""
        uneven = {replica: self._run(slices=slices) for replica, slices in uneven_parts(self._report).items()}
        rows = equal_parts(self._report)
        self._judge_with(uneven=uneven, equal=self._run(slices=rows) if rows else None)

    def _look_for_jumps(self) -> None:
        """Run with weights moved as far as rounding can move them: a number that counts examples may jump there."""
        tolerance = self._report.tolerance
        if self._further.perturbed and tolerance is not None and may_jump(self._report):
            self._judge_with(far=self._moved(math.ceil(tolerance.amplification)))

    def _recompute_causes(self, step: int, rows: Rows) -> None:
        """Run on parts of the batch of the first step whose difference has no recomputed cause."""
        self._begin(step)
        self._judge_with(replicas={replica: self._on(step, own) for replica, own in rows.items()})
        self._judge_with(parts=self._on_each(step, parts_to_recompute(self._report, step, rows)))
        replicas = self._runs.distributed.num_replicas
        told = told_to_recompute(self._report, step, rows)
        self._judge_with(
            told_twice={replica: self._on(step, rows[replica], told_replicas=2 * replicas) for replica in told},
            told=self._on_each(step, told, told_replicas=replicas),
        )
        size = smaller_batch(self._report, step, rows)
        self._judge_with(smaller=self._run(global_batch_size=size) if size else None)
        # Copies fill a batch of the usual size, in case the program cuts its batch to a multiple of a number.
        copies = sum(map(len, rows.values()))
        single = examples_to_recompute(self._report, step, rows)
        self._judge_with(
            examples={replica: {row: self._on(step, (row,) * copies) for row in own} for replica, own in single.items()}
        )
        self._judge_with(
            pairings={
                pairing: self._on(step, rows[pairing.replica], slice_moved=(pairing.tensor, pairing.rows))
                for pairing in pairings_to_recompute(self._report, step, rows)
            }
        )

    def _measure_cancellation(self, step: int, examples: Iterable[int]) -> None:
        """Run on copies of one example, and on batches in another order, which show how a cancelling sum rounds."""
        if self._slices.step != step:
            self._begin(step)
        copies = sum(batch.size for batch in self._runs.reference.batches(step))
        self._slices = replace(self._slices, terms=tuple(self._on(step, (row,) * copies) for row in examples))
        self._judge()
        runs = [self._run(slices=order) for order in orders_to_measure(self._report, step)]
        kept = [run for run in runs if is_rounding(self._report, step, run) or Slices(step, reordered=(run,)).unended]
        self._judge_with(reordered=tuple(kept))

    def _begin(self, step: int) -> None:
        """Leave out what belongs to single steps, and begin with another step."""
        known = self._slices
        self._slices = Slices(step, uneven=known.uneven, equal=known.equal, far=known.far, shared=known.shared)

    def _judge_with(self, **runs: Any) -> None:
        """Judge again with further fields of :class:`Slices`, if any of them has runs."""
        if any(runs.values()):
            self._slices = replace(self._slices, **runs)
            self._judge()

    def _judge(self, **runs: Any) -> None:
        """Judge again, with further fields of :class:`Further` if they are given."""
        self._further = replace(self._further, slices=self._slices, **runs)
        self._report = self._decide(self._runs.reference, self._runs.distributed, self._further)

    def _run(self, **changed: Any) -> TrainingRecord:
        return self._program.reference(replace(self._runs.settings, **changed))

    def _moved(self, ulps: int) -> tuple[TrainingRecord, ...]:
        """Run with weights and data that are moved by a number of units of roundoff, in several directions."""
        ulp_of = half_precision(self._runs.reference) or ""
        return tuple(self._run(perturbation=number, ulp_of=ulp_of, ulps=ulps) for number in range(1, NOISE_RUNS + 1))

    def _on(self, step: int, rows: tuple[int, ...], **changed: Any) -> TrainingRecord:
        """Run with only some examples of the batch of a step, by their positions in it."""
        return self._run(slices=((step, rows),), **changed)

    def _on_each(
        self, step: int, parts: Mapping[int, Sequence[tuple[int, ...]]], **changed: Any
    ) -> Mapping[int, tuple[TrainingRecord, ...]]:
        return {replica: tuple(self._on(step, rows, **changed) for rows in own) for replica, own in parts.items()}


def _failures(what: str, records: Sequence[TrainingRecord]) -> tuple[str, ...]:
    """Describe the exceptions of runs that help to judge, each once."""
    errors = [error for record in records for _rank, error in record.errors]
    failures = [(summary(error.type, error.message), place_of(error)) for error in errors]
    return tuple(dict.fromkeys(f"{what} failed: {why}" + (f" ({place})" if place else "") for why, place in failures))
