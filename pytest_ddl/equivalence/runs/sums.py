"""Compare state that concurrent closures add to with the sum of what they add.

Two runs on one device are given the batches of the closures: one in their order, and one in the reverse order and with
learning rate 0. State that ends at the same value in both depends neither on the order nor on the weights. So it is a
sum, and concurrent closures must arrive at the same value.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from pytest_ddl.equivalence.causes import fix_of
from pytest_ddl.equivalence.causes.special import SPECIAL
from pytest_ddl.equivalence.checks.parameter_server import CHECK, counted_updates, final_value
from pytest_ddl.equivalence.evidence.arithmetic import unit_roundoff
from pytest_ddl.equivalence.evidence.arrays import Float, all_finite, coefficient, difference, is_numeric, magnitude
from pytest_ddl.equivalence.evidence.observe import is_asynchronous, is_seed, of_kind
from pytest_ddl.equivalence.evidence.replica_calls import are_equal, calls_of
from pytest_ddl.equivalence.findings import CheckResult, Doubt, Finding
from pytest_ddl.equivalence.outcomes import failed
from pytest_ddl.equivalence.runs.alignment import Runner
from pytest_ddl.equivalence.verdict.judge import concluded_from
from pytest_ddl.equivalence.verdict.report import Report
from pytest_ddl.records import TrainingRecord, VariableKind, VariableRecord
from pytest_ddl.run_facts import Call
from pytest_ddl.training.settings import Feed, RunSettings


def with_sums(report: Report, settings: RunSettings, program: Runner) -> Report:
    """Add a finding about each sum that lost or repeated what a closure added, or a doubt if that is not known."""
    plain, reference = report.distributed, report.reference
    if report.findings or not is_asynchronous(plain) or report.result(CHECK) is None:
        return report
    if plain.errors or reference.errors or not plain.num_steps or not reference.num_steps:
        return report
    open_state = list(_state(reference, plain))
    if not open_state:
        return report
    calls = calls_of(plain)
    if calls is None or not all(calls):
        return _undecided(report, open_state, "give the batch to strategy.run as an argument")
    runs = [
        program.reference(replace(settings, keep_calls=True, whole=True, **how))
        for how in ({"feed": Feed(calls)}, {"feed": Feed(calls[::-1]), "still": True})
    ]
    forward, still = runs
    if forward.errors or still.errors or not _consumed(forward, calls) or not _consumed(still, calls[::-1]):
        return _undecided(report, open_state, "one device could not be given the batches of the closures")
    one_batch = all(are_equal(calls[:1], (call,)) for call in calls)
    findings = (
        [] if one_batch else [found for variable in open_state for found in _judged(variable, runs, plain, calls)]
    )
    if not findings:
        return report
    results: list[CheckResult] = []
    for result in report.results:
        wrong = failed(CHECK, [*findings, *result.findings])
        results.append(wrong if result.check == CHECK else result)
    return concluded_from(report, results)


def _state(reference: TrainingRecord, plain: TrainingRecord) -> Iterator[VariableRecord]:
    """Yield the state that moves on one device and that PS has not counted."""
    counted = counted_updates(reference, plain)
    for variable in of_kind(reference, VariableKind.STATE):
        first, last = (reference.value(variable.index, step) for step in (0, reference.num_steps))
        if variable.name in counted or is_seed(variable) or first is None or last is None or not is_numeric(last):
            continue
        if first.shape == last.shape and not np.array_equal(first, last):
            yield variable


def _undecided(report: Report, variables: list[VariableRecord], how: str) -> Report:
    names = ", ".join(variable.name for variable in variables[:3])
    doubt = Doubt(CHECK, f"concurrent closures change {names}, and it is not known whether changes were lost: {how}")
    return replace(report, doubts=(*report.doubts, doubt))


def _consumed(record: TrainingRecord, calls: tuple[Call, ...]) -> bool:
    given = calls_of(record)
    return given is not None and are_equal(given, calls)


def _judged(
    variable: VariableRecord, runs: list[TrainingRecord], plain: TrainingRecord, calls: tuple[Call, ...]
) -> Iterator[Finding]:
    first, *sums = (_number(run, variable, step) for run, step in ((runs[0], 0), (runs[0], 1), (runs[1], 1)))
    actual = final_value(plain.ranks[0], variable.index)
    values = [value for value in (first, *sums, actual) if value is not None and all_finite(value)]
    if len(values) < 4 or len({value.shape for value in values}) != 1:
        return
    start, forward, backward, ended = values
    # Partial sums may be larger than the last one, so that two orders of them round differently.
    rounding = 4 * len(calls) * unit_roundoff(variable.dtype) * max(map(magnitude, values))
    rounding += len(calls) * difference(forward, backward).error
    is_sum = difference(forward, backward).error <= len(calls) * unit_roundoff("float32") * max(map(magnitude, values))
    error = difference(ended, forward).error
    if not is_sum or error <= rounding:
        return
    share = coefficient(ended - start, forward - start) or 0.0
    cause = "duplicate-update" if share > 1 else "lost-update"
    yield Finding(
        CHECK,
        f"{variable.name} changed by {share:.3g} x what the {len(calls)} calls of replica functions add to it",
        cause=cause,
        step=plain.num_steps,
        variable=variable.name,
        error=error,
        tolerance=rounding,
        fix=fix_of(cause) if share > 1 else SPECIAL["lost-by-closures"],
        observed=difference(ended, forward).actual,
        expected=difference(ended, forward).desired,
        origin="rounding of as many additions",
        evidence="one device was given the same batches twice, in another order and with other weights, and arrived at "
        "the same value",
    )


def _number(record: TrainingRecord, variable: VariableRecord, step: int) -> Float | None:
    value = record.value(variable.index, step)
    return None if value is None or not is_numeric(value) else np.asarray(value, np.float64)
