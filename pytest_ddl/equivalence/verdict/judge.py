"""Make one verdict of all checks: run them, and separate declared and approximate findings."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from pytest_ddl.equivalence.causes import CAUSES, is_possible
from pytest_ddl.equivalence.checks.parameter_server import ORDERED, is_asynchronous, schedules_itself
from pytest_ddl.equivalence.checks.registry import CHECKS, Check, select
from pytest_ddl.equivalence.evidence.calls import without_repeats
from pytest_ddl.equivalence.evidence.observe import sizes
from pytest_ddl.equivalence.evidence.tolerance import UNMEASURED, Tolerance
from pytest_ddl.equivalence.evidence.without_a_step import without_call_sites
from pytest_ddl.equivalence.findings import CheckResult, Finding, Outcome
from pytest_ddl.equivalence.outcomes import not_applicable
from pytest_ddl.equivalence.report import Report
from pytest_ddl.equivalence.verdict.behind import behind
from pytest_ddl.equivalence.verdict.later_steps import unlike_before
from pytest_ddl.equivalence.verdict.own_steps import Cut, step_by_step
from pytest_ddl.equivalence.verdict.root_causes import DATA, WEIGHTS, root_causes
from pytest_ddl.records import TrainingRecord

_NO_STEPS = (
    "steps ran concurrently: weights depend on their order and are not compared with one device, only whether all "
    "updates arrived (check PS)"
)
NOT_COMPARED = "weights are not compared after step"
"""Start of the note that names the step of a tolerated difference."""


# Records may hold infinite values. NumPy's warnings about them would be errors under pytest -W error.
@np.errstate(over="ignore", invalid="ignore", divide="ignore")
def judge(
    reference: TrainingRecord,
    distributed: TrainingRecord,
    perturbed: Sequence[TrainingRecord] = (),
    *,
    expect: Mapping[str, str] | Collection[str] = (),
    strict: bool = False,
    checks: Collection[str] | None = None,
    known: Sequence[Check] = CHECKS,
    slices: Mapping[int, TrainingRecord] | None = None,
    slice_step: int | None = None,
    decided: bool = False,
    repeated: bool = False,
) -> Report:
    """Compare a distributed run with its single-device reference, and report what is wrong and why.

    :param perturbed: reference runs moved by one ulp; :func:`needs_noise` says when they help.
    :param slices: replica -> a reference run that got only this replica's examples in step ``slice_step``. With these
        runs the means of replicas can be recomputed instead of guessed.
    :param decided: True if the program agrees with one device in float64, so that only gross differences are left.
    :param repeated: True if both runs repeat others that were judged. The limit of steps was chosen for the others.
    """
    expected = parse_expectations(expect)
    if repeated:
        reference, distributed = without_call_sites(reference), without_call_sites(distributed)
    selected = select(checks, known)
    distributed = without_repeats(reference, distributed)

    def judged(cut: Cut) -> tuple[CheckResult, ...]:
        ours, theirs = cut(reference), cut(distributed)
        parts = {replica: cut(run) for replica, run in (slices or {}).items()}
        bounds = Tolerance(ours, [cut(run) for run in perturbed], parts, slice_step, decided)
        return tuple(_run(check, ours, theirs, bounds) for check in selected)

    results = step_by_step(reference.taken_over, judged)
    report = conclude(results, reference, distributed, expected, strict=strict)
    excused = [*(finding for finding, _reason in report.expected), *report.approximations]
    tolerance = Tolerance(reference, perturbed, slices, slice_step, decided)
    later = unlike_before(reference, distributed, tolerance, [f for f in excused if not f.verified])
    return replace(report, inconclusive=(*report.inconclusive, *later))


def conclude(
    results: Sequence[CheckResult],
    reference: TrainingRecord,
    distributed: TrainingRecord,
    expected: Mapping[str, str],
    *,
    strict: bool = False,
) -> Report:
    """Make a report of the results of checks. Sort out root causes and declared or approximate findings."""
    found = [finding for result in results for finding in result.findings]

    def is_excused(finding: Finding) -> bool:
        return finding.cause in expected or (finding.approximation and not strict)

    roots = root_causes(found, is_excused)
    declared = tuple((f, expected[f.cause]) for f in roots if f.cause is not None and f.cause in expected)
    left = [f for f in roots if f.cause not in expected]
    approximations = tuple(f for f in left if f.approximation and not strict)
    findings = [f for f in left if f not in approximations]
    excused = [*(f for f, _ in declared), *approximations]
    unverified = [f for f in excused if not f.verified]
    used = {f.cause for f in found}
    return Report(
        strategy=distributed.strategy,
        results=tuple(results),
        findings=findings,
        reference=reference,
        distributed=distributed,
        expected=declared,
        expectations=expected,
        approximations=approximations,
        unused_expectations={cause: reason for cause, reason in expected.items() if cause not in used},
        inconclusive=(
            *_undecided(results, unverified, distributed),
            *_unseen(distributed, [f for f in unverified if f in approximations and f.check in WEIGHTS]),
            *behind(found, [f for f in found if f.cause in expected and not f.verified]),
            *_computed_later(results, [f for f in found if f.cause in expected and not f.verified]),
        ),
        notes=(*_notes(reference, distributed, unverified, roots, found), *_unjudged(results)),
        seconds=reference.seconds + distributed.seconds,
        strict=strict,
    )


def _run(check: Check, reference: TrainingRecord, distributed: TrainingRecord, tolerance: Tolerance) -> CheckResult:
    if check.name in ORDERED and is_asynchronous(distributed):
        return not_applicable(check.name, "steps ran concurrently, so that none has a state of its own: see PS")
    if check.name in DATA and any(rank.facts.get("epochs_as_steps") for rank in distributed.ranks):
        return not_applicable(check.name, "Model.fit under a parameter server strategy tells epochs alone, not batches")
    if check.name in DATA and schedules_itself(distributed):
        return not_applicable(check.name, "the program gives every worker data of its own, and schedules its own steps")
    result = check.function(reference, distributed, tolerance)
    # A part of the program that was switched off in both runs explains no difference between them.
    possible = [f if is_possible(f.cause, distributed.neutralised) else _without_cause(f) for f in result.findings]
    return replace(result, findings=tuple(possible))


def _without_cause(finding: Finding) -> Finding:
    return replace(finding, cause=None, fix=None, approximation=False)


def needs_noise(report: Report) -> bool:
    """Return whether measuring rounding noise may change the verdict.

    It may if a numeric difference exceeds a bound that was not measured. Measuring a wide bound only makes it wider.
    A difference that is tolerated and verified was measured before.
    """
    told = (*report.findings, *report.approximations, *(finding for finding, _reason in report.expected))
    return any((finding.origin or "").startswith(UNMEASURED) for finding in told if not finding.verified)


def parse_expectations(expect: Mapping[str, str] | Collection[str]) -> dict[str, str]:
    """Return ``expect=`` as cause id -> reason. A collection of ids has no reasons."""
    if isinstance(expect, str):
        raise ValueError(f"expect={expect!r} must map cause ids to reasons, for example {{{expect!r}: 'why'}}")
    expected = dict(expect) if isinstance(expect, Mapping) else dict.fromkeys(expect, "no reason given")
    for cause in expected:
        if cause not in CAUSES:
            raise ValueError(f"expect= names an unknown cause {cause!r}; valid: {', '.join(sorted(CAUSES))}")
    return expected


def require(report: Report, names: Collection[str]) -> Report:
    """Make a report inconclusive if a check that the caller named had nothing to judge.

    After an error the reason is that error, which the report holds already.
    """
    records = [record for record in (report.reference, report.distributed) if record is not None]
    if any(record.errors for record in records):
        return report
    idle = [
        f"{result.check}: checks= names it, and it does not apply: {result.reason}"
        for result in report.results
        if result.check in names and result.outcome is Outcome.NOT_APPLICABLE
    ]
    return replace(report, inconclusive=(*report.inconclusive, *idle))


def _undecided(
    results: Sequence[CheckResult], excused: Sequence[Finding], distributed: TrainingRecord
) -> tuple[str, ...]:
    """Return why a verdict is missing, without the doubts that follow from a tolerated finding.

    A check is excused only if weights differ or the run failed earlier. Its own doubts stay.
    """
    failed = {result.check for result in results if result.outcome is Outcome.FAIL}
    crashed = any(finding.check == "RUN" for finding in excused)

    def follows(result: CheckResult) -> bool:
        if crashed and (result.follows or distributed.num_steps == 0):
            return True
        return result.follows and bool(excused) and bool(failed & {"STEP-EQ", "UNEVEN-EQ"})

    return tuple(
        f"{result.check}: {result.reason}"
        for result in results
        if result.outcome is Outcome.INCONCLUSIVE and not follows(result)
    )


def _computed_later(results: Sequence[CheckResult], declared: Sequence[Finding]) -> Iterator[str]:
    """Report values that a declared difference of weights leaves open, because another defect may compute them."""
    if any(finding.check in WEIGHTS for finding in declared):
        for result in results:
            later = [text for text in result.unjudged if "the weights differ" in text]
            if later:
                yield f"{result.check}: not compared: {', '.join(later[:3])}"


def _unjudged(results: Sequence[CheckResult]) -> Iterator[str]:
    for result in results:
        if result.unjudged:
            more = f" and {len(result.unjudged) - 3} more" if len(result.unjudged) > 3 else ""
            yield f"{result.check} did not compare {', '.join(result.unjudged[:3])}{more}"


def _unseen(distributed: TrainingRecord, approximations: Sequence[Finding]) -> Iterator[str]:
    """Report empty replicas after an approximation, because their known defect cannot be judged there."""
    first = min((finding.step or 0 for finding in approximations), default=None)
    for step in range((first or 0) + 1, distributed.num_steps + 1):
        if first is not None and 0 in sizes(distributed, step).values():
            yield (
                f"UNEVEN-EQ: step {step} leaves a replica empty, and weights are not comparable after the "
                f"approximation in step {first}; check a batch smaller than the replicas on its own"
            )
            return


def _notes(
    reference: TrainingRecord,
    distributed: TrainingRecord,
    excused: Sequence[Finding],
    roots: Sequence[Finding],
    found: Sequence[Finding],
) -> tuple[str, ...]:
    notes = list(dict.fromkeys(note for rank in distributed.ranks for note in rank.notes))
    of_weights = [f for f in excused if f.check in WEIGHTS and f.cause != "state-not-aggregated"]
    numeric = [f.step for f in of_weights if f.step is not None]
    if numeric and min(numeric) < min(reference.num_steps, distributed.num_steps):
        notes.append(f"{NOT_COMPARED} {min(numeric)}, where the tolerated difference begins")
    if is_asynchronous(distributed) and not distributed.errors:
        notes.append(_NO_STEPS)
    hidden = len(found) - len(roots)
    if hidden and roots:
        notes.append(f"{hidden} further difference(s) follow from the above and are not listed")
    return tuple(notes)
