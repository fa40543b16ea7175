"""Make two runs comparable whose global batches hold the same data in another order.

A program may shard before it shuffles, or draw at random. It then trains on other global batches on one device than
under the strategy, and is right in both cases. So the reference is run again on the batches that the strategy consumed,
and weights are compared with that run.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import Protocol

from pytest_ddl.equivalence.checks.data_cover import CHECK as DATA_COVER
from pytest_ddl.equivalence.checks.resume import data_shift
from pytest_ddl.equivalence.evidence.calls import data_calls
from pytest_ddl.equivalence.evidence.coverage import (
    Order,
    contents_are_known,
    contents_by_step,
    coverage,
    repeats_are_no_chance,
    unread_parts,
)
from pytest_ddl.equivalence.evidence.observe import is_asynchronous, shared_steps, sizes
from pytest_ddl.equivalence.evidence.replica_calls import are_equal, calls_of, strange_examples
from pytest_ddl.equivalence.findings import Doubt, Finding
from pytest_ddl.equivalence.roles import Role
from pytest_ddl.equivalence.verdict.report import Report
from pytest_ddl.messages import summary
from pytest_ddl.notes import Note, NoteKind
from pytest_ddl.records import TrainingRecord
from pytest_ddl.training.settings import Feed, RunSettings

FURTHER_STEPS = 200
"""Number of steps beyond the limit of a check that are run to see whether a pass over the data is complete."""
_REFUSED = re.compile(r"(ReplayError|UnknownExampleError): (.*)")
"""Error of the replay, inside the message of the ``tf.data`` operation that raised it."""


class Runner(Protocol):
    """Program that can be run again with other settings."""

    def reference(self, settings: RunSettings) -> TrainingRecord:
        """Run on one device, or return the record of such a run with equal settings."""
        ...

    def distributed(self, settings: RunSettings) -> TrainingRecord:
        """Run under the strategy."""
        ...

    def anew(self, settings: RunSettings) -> TrainingRecord:
        """Run on one device, even if there is a record of such a run."""
        ...


@dataclass(frozen=True)
class Aligned:
    """Two runs to judge, with notes about what was done to make them comparable."""

    reference: TrainingRecord
    distributed: TrainingRecord
    settings: RunSettings
    notes: tuple[Note, ...] = ()
    undecided: str | None = None
    """Reason why weights cannot be compared, or ``None`` if they can."""
    in_program: bool = False
    """True if that reason lies in the program."""
    unknown: str | None = None
    """Reason why a difference says nothing, or ``None`` if it does. Equal numbers show that the examples are equal."""

    def explained(self, report: Report) -> Report:
        """Add the notes to the report of these two runs, and remove what cannot be compared."""
        if self.undecided is not None:
            report = _without_numbers(report, self.undecided, self.in_program)
        if self.unknown is not None and any(report.roles.have(f, Role.NUMBERS) for f in report.findings):
            report = _without_numbers(report, self.unknown, self.in_program)
        return replace(report, notes=(*self.notes, *report.notes)) if self.notes else report


def align(reference: TrainingRecord, distributed: TrainingRecord, settings: RunSettings, program: Runner) -> Aligned:
    """Return two runs on the same global batches if that is possible and no example is lost or repeated."""
    if settings.one_by_one:
        return _given_alike(Aligned(reference, distributed, settings), program)
    reference, distributed = data_calls(reference, distributed)
    runs = Aligned(reference, distributed, settings)
    if not _are_comparable(reference, distributed) or _same_contents(reference, distributed):
        return runs
    covered = coverage(reference, distributed)
    if covered is None or covered.order is Order.REPEATED or data_shift(reference, distributed) is not None:
        return runs
    if unread_parts(reference, distributed) is not None:
        return runs
    wrong = covered.order is Order.WRONG
    known = contents_are_known(reference, distributed)
    if settings.steps is not None and reference.num_steps >= settings.steps:
        longer = replace(settings, steps=settings.steps + FURTHER_STEPS)
        ours, theirs = data_calls(program.reference(longer), program.distributed(longer))
        if not ours.errors and not theirs.errors:
            whole = coverage(ours, theirs)
            wrong = whole is not None and whole.order in (Order.WRONG, Order.REPEATED)
            known = contents_are_known(ours, theirs)
            if wrong and known:
                note = f"run for {ours.num_steps} steps, to see whether each pass covers the data"
                return Aligned(ours, theirs, longer, (Note(NoteKind.HOW, note),))
            if whole is not None and whole.order is Order.WRONG and not known:
                again, _theirs = data_calls(program.anew(longer), theirs)
                if not again.errors and repeats_are_no_chance((ours, again), theirs, whole.by):
                    note = f"run for {ours.num_steps} steps, in which workers consume the same examples"
                    return Aligned(ours, theirs, longer, (Note(NoteKind.HOW, note),))
    if not known and not _same_contents(reference, program.anew(settings)):
        why = "the program consumes other examples each time that it runs on one device: set a seed for its data"
        return replace(runs, undecided=why, in_program=True)
    if not known and _follow_batch_size(runs, program):
        why = "the examples depend on the size of the batches in which they are drawn: create them before batching"
        return replace(runs, undecided=why, in_program=True)
    return runs if wrong else _replayed(runs, program, covered.drawn)


def _given_alike(runs: Aligned, program: Runner) -> Aligned:
    """Return the runs with a reference whose replica functions are given what those of a coordinator were given."""
    if runs.reference.errors or runs.distributed.errors:
        return runs
    ours, theirs = calls_of(runs.reference), calls_of(runs.distributed)
    if ours is None or theirs is None or not all(theirs):
        why = "the examples were not observed: give the batch to strategy.run as an argument"
        return replace(runs, unknown=why, in_program=True)
    if are_equal(ours, theirs):
        return runs
    if len(ours) != len(theirs):
        why = f"replica functions were called {len(theirs)} times, and on one device {len(ours)} times"
        return replace(runs, undecided=why, in_program=True)
    facts = runs.distributed.ranks[0].facts
    strange = strange_examples(ours, theirs, facts.get("workers", 1) if facts.get("data_of_workers") else 1)
    if strange is not None:
        return replace(runs, undecided=strange, in_program=True)
    settings = replace(runs.settings, feed=Feed(theirs))
    fed = program.reference(settings)
    given = calls_of(fed)
    if fed.errors or given is None or not are_equal(given, theirs):
        error = f": {summary(fed.errors[0][1].type, fed.errors[0][1].message)}" if fed.errors else ""
        return replace(runs, undecided=f"one device could not be given the batches of the closures{error}")
    note = Note(NoteKind.HOW, "one device was given the batches that the closures consumed, in their order")
    return replace(runs, reference=fed, settings=settings, notes=(note,))


def _replayed(runs: Aligned, program: Runner, drawn: bool) -> Aligned:
    batches = contents_by_step(runs.distributed)
    if batches is None:
        return replace(runs, undecided="global batches are composed differently, and their contents were not observed")
    settings = replace(runs.settings, replay=batches)
    replayed = program.reference(settings)
    if replayed.errors:
        error = replayed.errors[0][1]
        refused = _REFUSED.search(error.message)
        reason = refused[2] if refused else summary(error.type, error.message)
        if refused and refused[1] == "UnknownExampleError" and not drawn:
            return runs
        why = f"global batches are composed differently, and cannot be replayed on one device: {reason}"
        return replace(runs, undecided=why)
    if not _same_contents(*data_calls(replayed, runs.distributed)):
        why = "global batches are composed differently, and replaying them on one device gave other batches"
        return replace(runs, undecided=why)
    note = (
        "global batches are composed differently than on one device, and no example is lost or repeated: one device "
        "was run again on the global batches that the strategy consumed"
    )
    return replace(runs, reference=replayed, settings=settings, notes=(Note(NoteKind.HOW, note),))


def _follow_batch_size(runs: Aligned, program: Runner) -> bool:
    """Return whether one device consumes the strategy's examples if its batches have the size of a replica's."""
    given, replicas = runs.settings, runs.distributed.num_replicas
    if replicas < 2 or given.global_batch_size is None or given.global_batch_size % replicas:
        return False
    steps = None if given.steps is None else given.steps * replicas
    smaller = program.reference(replace(given, global_batch_size=given.global_batch_size // replicas, steps=steps))
    return not smaller.errors and contents_are_known(smaller, runs.distributed)


def _are_comparable(reference: TrainingRecord, distributed: TrainingRecord) -> bool:
    """Return whether both runs ended without an error, in as many steps of the same size, one after another."""
    if reference.errors or distributed.errors or reference.num_steps != distributed.num_steps:
        return False
    if is_asynchronous(distributed):
        return False
    steps = range(1, shared_steps(reference, distributed) + 1)
    return all(sum(sizes(reference, at).values()) == sum(sizes(distributed, at).values()) for at in steps)


def _same_contents(reference: TrainingRecord, distributed: TrainingRecord) -> bool:
    ours, theirs = contents_by_step(reference), contents_by_step(distributed)
    if ours is None or theirs is None:
        return True
    return all(Counter(left) == Counter(right) for left, right in zip(ours, theirs, strict=False))


def _without_numbers(report: Report, why: str, in_program: bool) -> Report:
    """Remove from a report all comparisons of numbers that were computed from different examples."""

    def concerns(finding: Finding) -> bool:
        roles = report.roles
        return roles.have(finding, Role.NUMBERS) or (roles.have(finding, Role.EXAMPLES) and finding.cause is None)

    return report.without(concerns, Doubt(DATA_COVER, why, in_program), in_program=in_program)
