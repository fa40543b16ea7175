"""Account for every number that both runs recorded: which were compared, and why the others were not.

The account compares the numbers itself, by the same bounds as the checks. So a number that no check looks at still has
an entry, and a difference that no finding explains is a reason to doubt.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pytest_ddl.equivalence.diagnosis.afterwards import as_read, endings
from pytest_ddl.equivalence.diagnosis.reported import Reported, results, values
from pytest_ddl.equivalence.diagnosis.state_updates import is_read_on_demand
from pytest_ddl.equivalence.evidence.arrays import difference, is_numeric
from pytest_ddl.equivalence.evidence.bounds import Decision
from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.evidence.fit_loss import RUNNING_MEAN
from pytest_ddl.equivalence.evidence.metric_state import counted_by_replica, jumps
from pytest_ddl.equivalence.evidence.observe import is_asynchronous
from pytest_ddl.equivalence.evidence.one_sided import is_of_one_place
from pytest_ddl.equivalence.evidence.results import returned
from pytest_ddl.equivalence.findings import CheckResult, Finding, Reason
from pytest_ddl.equivalence.ledger import Entry, Ledger, Quantity
from pytest_ddl.equivalence.roles import Role, Roles
from pytest_ddl.equivalence.verdict.inputs import inputs
from pytest_ddl.records import Array, VariableKind, VariableRecord

_OF_VARIABLES = {
    VariableKind.TRAINABLE: Quantity.WEIGHTS,
    VariableKind.FROZEN: Quantity.FROZEN,
    VariableKind.STATE: Quantity.STATE,
    VariableKind.SLOT: Quantity.SLOTS,
    VariableKind.ITERATIONS: Quantity.COUNTERS,
    VariableKind.LEARNING_RATE: Quantity.RATES,
    VariableKind.METRIC: Quantity.METRICS,
}


_INDEPENDENT = (Quantity.FROZEN, Quantity.COUNTERS, Quantity.RATES)
"""Quantities that weights which differ do not change."""


_OF_STEPS = (Quantity.LOSSES, Quantity.METRICS, Quantity.VALUES)
"""Quantities of which a finding names the steps that it explains."""


@dataclass(frozen=True)
class _Books:
    """Comparison with everything that was found in it."""

    comparison: Comparison
    found: tuple[Finding, ...]
    roles: Roles

    def entry(self, quantity: Quantity, name: str, step: int, decisions: Collection[Decision]) -> Entry:
        """Return the entry of a quantity with the decisions on its values. The worst one counts."""
        if Decision.BEYOND in decisions:
            return Entry(quantity, name, step, self.excuse(quantity, name, step))
        return Entry(quantity, name, step, Reason.TOO_WIDE if Decision.UNDECIDED in decisions else None)

    def decision(self, ours: VariableRecord, step: int, actual: Array, desired: Array, scale: float) -> Decision:
        """Judge the value of a variable as its check does.

        :param scale: factor on the bound, for a value that was combined from the components of several replicas.
        """
        tolerance = self.comparison.tolerance
        bound = tolerance.variable(ours.index, step)
        decision = replace(bound, value=scale * bound.value).judge(difference(actual, desired).error)
        if decision is Decision.BEYOND and ours.kind is VariableKind.METRIC:
            as_far = jumps(tolerance, ours.index, step, difference(actual, desired).error)
            decision = Decision.UNDECIDED if as_far else decision
        undecided = decision is Decision.UNDECIDED
        return Decision.WITHIN if undecided and not tolerance.is_gross(ours.index, step, actual, desired) else decision

    def excused(self, entry: Entry) -> Entry:
        """Return the entry with the reason FINDING if a finding of its check, or of data, explains its difference."""
        if entry.reason is not Reason.NOT_EXPLAINED:
            return entry
        earlier = [finding for finding in self.found if (finding.step or 0) <= entry.step]
        explained = any(f.check == entry.quantity.check or self.roles.have(f, Role.DATA) for f in earlier)
        return replace(entry, reason=Reason.FINDING) if explained else entry

    def reported(self, quantity: Quantity, value: Reported) -> Entry:
        """Return the entry of a named value or of a result."""
        judged = value.judged(self.comparison.reference.taken_over)
        if judged is Decision.BEYOND:
            return Entry(quantity, value.name, value.step, self.excuse(quantity, value.name, value.step))
        return Entry(quantity, value.name, value.step, judged if isinstance(judged, Reason) else None)

    def excuse(self, quantity: Quantity, name: str, step: int, *, at_end: bool = False) -> Reason:
        """Return why a difference needs no finding of its own."""
        for finding in self.found:
            at = finding.step or 0
            is_same = finding.check == quantity.check and name in (finding.variable, *finding.others)
            if quantity in _OF_STEPS and finding.known is None:
                is_same = is_same and step in (at, *finding.also_in)
            # A known behavior of metrics was recomputed for the state of all of them.
            is_same = is_same or (at_end and quantity is Quantity.METRICS and finding.known is not None)
            spreads = Role.DATA if quantity in _INDEPENDENT else Role.WEIGHTS | Role.DATA
            if at <= step and (is_same or self.roles.have(finding, spreads)):
                return Reason.FINDING
        return Reason.NOT_EXPLAINED


def ledger_of(comparison: Comparison, judged: Sequence[CheckResult], roles: Roles) -> Ledger:
    """Return the entries of the numbers that the runs recorded in the steps that both have, and at their ends."""
    reference, distributed = comparison.records
    if reference.errors or distributed.errors or is_asynchronous(distributed) or not reference.ranks:
        return Ledger()  # no step has values of its own; the checks of exceptions and of concurrent steps decide
    found = tuple(finding for result in judged for finding in result.findings)
    books = _Books(comparison, found, roles)
    steps = [step for step in range(1, comparison.steps + 1) if step not in reference.taken_over]
    entries = (*_variables(books, steps), *_finals(books), *_losses(books, steps), *_values(books, steps))
    files = dict.fromkeys(write.path for rank in distributed.ranks for write in rank.writes)
    return Ledger((*entries, *_results(books), *map(books.excused, inputs(comparison))), tuple(files))


def _variables(books: _Books, steps: Sequence[int]) -> Iterator[Entry]:
    reference, distributed = books.comparison.records
    counterparts = {variable.index: variable for variable in reference.variables}
    alike = {step: counted_by_replica(books.comparison, step) for step in steps}
    for theirs in distributed.variables:
        quantity = _OF_VARIABLES[theirs.kind]
        ours = counterparts.get(theirs.index)
        for step in steps:
            read = as_read(distributed, theirs, step)
            desired = None if ours is None else reference.value(ours.index, step)
            if not read:
                continue
            if ours is None or desired is None or ours.kind is not theirs.kind:
                yield Entry(quantity, theirs.name, step, Reason.ONE_SIDED)
                continue
            if ours.index in alike[step]:
                yield Entry(quantity, theirs.name, step)
                continue
            scale = 2.0 if is_numeric(desired) and is_read_on_demand(theirs) else 1.0
            decisions = [books.decision(ours, step, value, desired, scale) for _rank, value in read]
            yield books.entry(quantity, theirs.name, step, decisions)


def _finals(books: _Books) -> Iterator[Entry]:
    """Yield the values that the programs have changed after their last step."""
    for ending in endings(books.comparison, tuple(VariableKind)):
        quantity, name = _OF_VARIABLES[ending.variable.kind], ending.variable.name
        is_beyond = ending.decision is Decision.BEYOND
        reason = books.excuse(quantity, name, books.comparison.steps, at_end=True) if is_beyond else None
        if ending.jumps:
            reason = Reason.JUMPS
        elif ending.late and ending.decision is Decision.UNDECIDED:
            reason = Reason.TOO_WIDE
        yield Entry(quantity, name, books.comparison.steps, reason, at_end=True)
    for rank in books.comparison.distributed.ranks:
        for index, parts in (rank.final or {}).items():
            if len(parts) != len(rank.steps[-1].snapshot.get(index, parts) if rank.steps else parts):
                variable = books.comparison.distributed.variables[index]
                quantity, last = _OF_VARIABLES[variable.kind], books.comparison.steps
                yield Entry(quantity, variable.name, last, Reason.ONE_SIDED, at_end=True)


def _losses(books: _Books, steps: Sequence[int]) -> Iterator[Entry]:
    reference, distributed = books.comparison.records
    for step in steps:
        desired = reference.ranks[0].steps[step - 1].loss
        reported = [loss for rank in distributed.ranks if (loss := rank.steps[step - 1].loss) is not None]
        if not reported and desired is None:
            continue
        if not reported or desired is None:
            yield Entry(Quantity.LOSSES, "loss", step, Reason.ONE_SIDED)
            continue
        bound = books.comparison.tolerance.loss(step)
        errors = [difference(np.asarray(loss), np.asarray(desired)).error for loss in reported]
        yield books.entry(Quantity.LOSSES, "loss", step, list(map(bound.judge, errors)))


def _values(books: _Books, steps: Sequence[int]) -> Iterator[Entry]:
    reference, distributed = books.comparison.records
    for step in steps:
        yield from (books.reported(Quantity.VALUES, value) for _rank, value in values(books.comparison, step))
        ours = set(reference.ranks[0].steps[step - 1].values)
        theirs = {name for rank in distributed.ranks for name in rank.steps[step - 1].values}
        for name in sorted((ours ^ theirs) - {RUNNING_MEAN}):
            is_local = name in theirs and is_of_one_place(name)
            yield Entry(Quantity.VALUES, name, step, Reason.OF_A_PLACE if is_local else Reason.ONE_SIDED)


def _results(books: _Books) -> Iterator[Entry]:
    reference, distributed = books.comparison.records
    resumed = max((step for rank in distributed.ranks for step in rank.resumed), default=-1)
    for _rank, actual, value in results(books.comparison):
        if actual.kind == "fit" and resumed >= 0 and value.actual.shape != value.desired.shape:
            yield Entry(Quantity.RESULTS, actual.name, actual.step, Reason.OF_AN_ATTEMPT)
        else:
            yield books.reported(Quantity.RESULTS, value)
    ours, *theirs = (returned(rank) for rank in (reference.ranks[0], *distributed.ranks))
    for key, one in {**ours, **{key: one for rank in theirs for key, one in rank.items()}}.items():
        if one.step > resumed and not (key in ours and any(key in rank for rank in theirs)):
            yield Entry(Quantity.RESULTS, one.name, one.step, Reason.ONE_SIDED)
