"""Compare a training function under a strategy with the same function on one device.

The reference runs once and is shared by all strategies (by all xdist workers too). With ``precision="auto"``, float64
is tried first. Rounding noise is measured only if it could change the verdict.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_ddl.cluster import ship
from pytest_ddl.equivalence.evidence.arithmetic import half_precision
from pytest_ddl.equivalence.probes.follow import states_of
from pytest_ddl.equivalence.probes.registry import PROBES
from pytest_ddl.equivalence.probes.repeating import timed
from pytest_ddl.equivalence.runs.alignment import Aligned, align
from pytest_ddl.equivalence.runs.closures import with_closures
from pytest_ddl.equivalence.runs.judging import Further, Judging
from pytest_ddl.equivalence.runs.program import Program, ReferenceStore
from pytest_ddl.equivalence.runs.question import Question
from pytest_ddl.equivalence.runs.smaller_scales import judged_without_overflow
from pytest_ddl.equivalence.runs.sums import with_sums
from pytest_ddl.equivalence.verdict.judge import judge, require
from pytest_ddl.equivalence.verdict.overflows import parting
from pytest_ddl.equivalence.verdict.own_precision import (
    has_cause_below_rounding,
    is_of_single_precision,
    judged_in_own_precision,
    named_in_own_precision,
    replaced_policies,
)
from pytest_ddl.hints import Hint
from pytest_ddl.messages import summary
from pytest_ddl.notes import Note, NoteKind
from pytest_ddl.records import TrainingRecord
from pytest_ddl.training.settings import RunSettings

if TYPE_CHECKING:
    from pytest_ddl.equivalence.verdict.report import Report
    from pytest_ddl.harness import Harness


class Comparer:
    """Comparison of training functions with their references, on the clusters of a harness."""

    def __init__(self, harness: Harness) -> None:
        self._harness = harness
        self._references = ReferenceStore(harness)

    @property
    def harness(self) -> Harness:
        """Harness whose clusters run the comparisons."""
        return self._harness

    def asked(self, question: Question) -> PlainComparison:
        """Return the comparison that answers a question. Its time begins now.

        :raises ArgumentError: for an argument that cannot be used, naming it.
        """
        # A wrong argument is a mistake of the caller. Report it before anything runs.
        question = question.checked(self._harness.registry)
        seconds = question.timeout if question.timeout is not None else self._harness.timeout(question.mark)
        deadline = time.monotonic() + seconds
        # A script was not written as a test: its runs may be long, and a busy machine has many of them to wait for.
        renewed = seconds if getattr(question.train, "renews_deadline", False) else None
        program = Program(self._harness, self._references, question, deadline, ship.pack(question.train), renewed)
        settings = RunSettings(global_batch_size=question.global_batch_size, steps=question.steps, seed=question.seed)
        return PlainComparison(program, settings, question)

    def compare(self, question: Question) -> Report:
        """Run the training function on one device and under the strategy, and judge the difference.

        :raises ArgumentError: for an argument that cannot be used, naming it.
        """
        plain = self.asked(question)
        report = plain.in_precision(question.precision)
        done = report.reference.num_steps
        if question.steps is not None and 0 < done < question.steps:
            report = report.noted(
                f"{Hint.LIMIT(question.steps)} was not reached: the program's loops ended after {done}"
            )
        names = question.checks or ()
        plain = plain.settled(report)
        for probe in PROBES:
            if probe.applies(report, names):
                settings = replace(plain.base, neutralize=report.neutralized, places=report.places)
                report = probe.run(report, settings, plain.once_more)
        report = report if question.checks is None else require(report, question.checks)
        return report.rendered(self._harness.settings.front_end)


@dataclass(frozen=True)
class PlainComparison:
    """Comparison of one distributed run with one device, with whatever else is needed to judge the difference."""

    program: Program
    base: RunSettings
    question: Question
    repeated: bool = False
    """True if it repeats another comparison of the same question with other settings."""
    decided: bool = False
    """True if a comparison in float64 found no difference."""

    def settled(self, report: Report) -> PlainComparison:
        """Return the comparison to repeat: it does not try float64 again on a program that keeps its own precision."""
        one = report.reference
        if self.question.precision != "auto" or one.precision != "native" or replaced_policies(one):
            return self
        return replace(self, question=replace(self.question, precision="native"))

    def once_more(self, settings: RunSettings, checks: Collection[str] | None, runs: int = 1) -> Report:
        """Compare again with other settings and checks. ``runs`` comparisons share the remaining time equally."""
        now = time.monotonic()
        part = replace(self.program, deadline=now + (self.program.deadline - now) / runs)
        again = PlainComparison(part, settings, replace(self.question, checks=checks), repeated=True)
        return again.in_precision(self.question.precision)

    def decide(self, reference: TrainingRecord, distributed: TrainingRecord, further: Further) -> Report:
        """Judge two runs as the question asks; see :func:`judge`."""
        return judge(
            reference,
            distributed,
            expect=self.question.declared,
            strict=self.question.strict,
            checks=self.question.checks,
            known=self.question.known,
            decided=self.decided,
            repeated=self.repeated,
            **vars(further),
        )

    def of_record(self, distributed: TrainingRecord) -> Report:
        """Compare a record that was made of several runs, in the precision of the record."""
        settings = replace(self.base, precision=distributed.precision)
        reference, settings = self._without_strategy(self.program.reference(settings), settings)
        runs = align(reference, distributed, settings, self.program)
        report = runs.explained(self.judged(runs))
        return report.rendered(self.program.harness.settings.front_end)

    def in_precision(self, precision: str) -> Report:
        """Compare in the given precision, or for ``auto`` in the one that suits the program."""
        reference, distributed, settings = self._plain_runs(precision)
        reference, settings = self._without_strategy(reference, settings)
        runs = align(reference, distributed, settings, self.program)
        reference, distributed, settings = runs.reference, runs.distributed, runs.settings
        if settings.follow is not None and not reference.errors:
            settings = replace(settings, states=states_of(reference, distributed, settings.follow))
            reference = self.program.reference(settings)
        report = self._without_overflow(replace(runs, reference=reference, settings=settings))
        report = with_closures(with_sums(report, settings, self.program), settings, self.program)
        if precision == "auto" and settings.precision == "float64":
            narrower = "float32" if replaced_policies(reference) else "native"
            if is_of_single_precision(report):
                return self.in_precision(narrower)
            if has_cause_below_rounding(report):
                named = named_in_own_precision(report, timed(report, self.in_precision(narrower)))
                if named is not report:
                    return named
        if reference.refused is not None and not reference.errors:
            why = summary(reference.refused.type, reference.refused.message)
            text = f"one device was run without a strategy, because the program raises under OneDeviceStrategy: {why}"
            report = replace(report, notes=(Note(NoteKind.HOW, text), *report.notes))
        report = runs.explained(report)
        failed = reference.errors or _raised(distributed)
        if settings.precision == "float32" and failed and not _is_late(reference):
            return self.in_precision("native")
        if precision in ("auto", "float32") and replaced_policies(reference):
            own = replace(self, decided=report.passed)
            return judged_in_own_precision(report, lambda: timed(report, own.in_precision("native")))
        return report

    def _plain_runs(self, precision: str) -> tuple[TrainingRecord, TrainingRecord, RunSettings]:
        """Run on one device and under the strategy. ``auto`` tries float64 first."""
        if precision == "auto":
            settings = replace(self.base, precision="float64")
            reference = self.program.reference(settings)
            if _is_float64(reference):
                distributed = self.program.distributed(settings)
                if not _raised(distributed):
                    return reference, distributed, settings
            elif _is_late(reference):
                return reference, self.program.distributed(settings), settings  # no time is left for another precision
            # Variables of float32 stay, but casts to half precision can be replaced.
            precision = "float32" if replaced_policies(reference) else "native"
        settings = replace(self.base, precision=precision)
        return self.program.reference(settings), self.program.distributed(settings), settings

    def _without_strategy(self, reference: TrainingRecord, settings: RunSettings) -> tuple[TrainingRecord, RunSettings]:
        """Run a reference that raised once more without a strategy, before the program is blamed.

        A program that raises under every strategy may still train in a script that uses none. The new run is then the
        reference.
        """
        if not _raised(reference):
            return reference, settings
        plain = replace(settings, without_strategy=True)
        return replace(self.program.reference(plain), refused=reference.errors[0][1]), plain

    def _without_overflow(self, runs: Aligned) -> Report:
        """Judge two runs. If a gradient overflowed on one side only, also run both with a smaller loss scale."""
        parted = parting(runs.reference, runs.distributed)
        if parted is None:
            return self.judged(runs)
        plain = self.decide(runs.reference, runs.distributed, Further())
        return judged_without_overflow(runs, parted, self.program, lambda again: timed(plain, self.judged(again)))

    def judged(self, runs: Aligned) -> Report:
        """Judge two runs. Rounding noise is measured, and causes are recomputed, only if the verdict needs it."""
        return Judging(runs, self.program, self.decide).concluded()


def _is_float64(record: TrainingRecord) -> bool:
    """Return whether a run computed in float64: no error, float64 weights, and nothing in half precision."""
    trainable = [variable for variable in record.variables if variable.kind == "trainable"]
    wide = bool(trainable) and all(variable.dtype == "float64" for variable in trainable)
    return not record.errors and wide and half_precision(record) is None


def _is_late(record: TrainingRecord) -> bool:
    """Return whether the program did not end by the deadline. Its stacks are those of the run that used up the time."""
    return any(error.type == "deadline" for _rank, error in record.errors)


def _raised(record: TrainingRecord) -> bool:
    """Return whether the program raised an exception, perhaps because of the precision or the strategy."""
    return any(error.type not in ("died", "deadline", "stopped", "stuck") for _rank, error in record.errors)
