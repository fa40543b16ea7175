"""Make one verdict of all checks: run them, and separate declared and approximate findings."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from pytest_ddl.equivalence.causes import CAUSES, is_possible
from pytest_ddl.equivalence.checks.parameter_server import schedules_itself
from pytest_ddl.equivalence.checks.registry import CHECKS, ROLES, Check, select
from pytest_ddl.equivalence.checks.uneven import CHECK as UNEVEN
from pytest_ddl.equivalence.evidence.calls import without_repeats
from pytest_ddl.equivalence.evidence.observe import is_asynchronous, sizes
from pytest_ddl.equivalence.evidence.slices import Slices
from pytest_ddl.equivalence.evidence.tolerance import UNMEASURED, Tolerance
from pytest_ddl.equivalence.evidence.without_a_step import without_call_sites
from pytest_ddl.equivalence.findings import CheckResult, Doubt, Finding, Outcome, Reason
from pytest_ddl.equivalence.known.advice import fix_in_keras, fix_of_sums
from pytest_ddl.equivalence.known.catalogue import recognized
from pytest_ddl.equivalence.outcomes import not_applicable
from pytest_ddl.equivalence.report import Report
from pytest_ddl.equivalence.roles import Role, Roles
from pytest_ddl.equivalence.verdict.behind import behind
from pytest_ddl.equivalence.verdict.later_steps import unlike_before
from pytest_ddl.equivalence.verdict.lines import with_lines
from pytest_ddl.equivalence.verdict.own_steps import Cut, step_by_step
from pytest_ddl.equivalence.verdict.root_causes import root_causes
from pytest_ddl.equivalence.verdict.vetoes import Evidence, without_contradictions
from pytest_ddl.messages import did_you_mean
from pytest_ddl.notes import Note, NoteKind
from pytest_ddl.records import TrainingRecord

_NO_STEPS = (
    "steps ran concurrently: weights depend on their order and are not compared with one device, only whether all "
    "updates arrived (check PS)"
)


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
    slices: Slices | None = None,
    decided: bool = False,
    repeated: bool = False,
) -> Report:
    """Compare a distributed run with its single-device reference, and report what is wrong and why.

    :param perturbed: reference runs moved by one ulp; :func:`needs_noise` says when they help.
    :param slices: reference runs on a part of one global batch, with which causes are recomputed instead of guessed.
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
        bounds = Tolerance(ours, [cut(run) for run in perturbed], slices and slices.each(cut), decided)
        return tuple(_run(check, ours, theirs, bounds) for check in selected)

    roles = Roles((check.name, check.role) for check in known)
    results = step_by_step(reference.taken_over, judged, roles)
    report = conclude(results, reference, distributed, expected, strict=strict, roles=roles)
    tolerance = Tolerance(reference, perturbed, slices, decided)
    hidden = [finding for finding in report.excused if not finding.verified]
    later = unlike_before(reference, distributed, tolerance, hidden, roles)
    return replace(report, doubts=(*report.doubts, *later), tolerance=tolerance)


def conclude(
    results: Sequence[CheckResult],
    reference: TrainingRecord,
    distributed: TrainingRecord,
    expected: Mapping[str, str],
    *,
    strict: bool = False,
    roles: Roles = ROLES,
) -> Report:
    """Make a report of the results of checks. Sort out root causes and declared or approximate findings."""
    evidence = Evidence(results, reference, distributed, roles)
    named = (with_lines(without_contradictions(r.findings, expected, evidence), distributed) for r in results)
    results = [
        replace(
            result,
            findings=tuple(
                replace(finding, fix=fix_of_sums(finding, results, distributed) or finding.fix) for finding in findings
            ),
        )
        for result, findings in zip(results, named, strict=True)
    ]
    found = [finding for result in results for finding in result.findings]

    def is_excused(finding: Finding) -> bool:
        return finding.cause in expected or ((finding.approximation or finding.known is not None) and not strict)

    roots = root_causes(found, is_excused, roles)
    declared = tuple((f, expected[f.cause]) for f in roots if f.cause is not None and f.cause in expected)
    left = [f for f in roots if f.cause not in expected]
    approximations = tuple(f for f in left if f.approximation and not strict)
    of_frameworks = tuple(f for f in left if f.known is not None and f not in approximations and not strict)
    findings = [f for f in left if f not in approximations and f not in of_frameworks]
    excused = [*(f for f, _ in declared), *approximations, *of_frameworks]
    unverified = [f for f in excused if not f.verified]
    # A known behavior of a framework excuses only itself, like a declared cause.
    by_framework = [f for f in found if f.known is not None and not f.approximation and not strict]
    hiding = [f for f in found if (f.cause in expected or f in by_framework) and not f.verified]
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
        known=of_frameworks,
        unused_expectations={cause: reason for cause, reason in expected.items() if cause not in used},
        doubts=(
            *_undecided(results, unverified, distributed, roles),
            *_unseen(distributed, [f for f in unverified if f in approximations and roles.have(f, Role.WEIGHTS)]),
            *behind(found, hiding, roles),
            *_computed_later(results, hiding, roles),
        ),
        notes=(*_notes(reference, distributed, unverified, roots, found, roles), *_unjudged(results)),
        seconds=reference.seconds + distributed.seconds,
        strict=strict,
        roles=roles,
    )


def concluded_from(report: Report, results: Sequence[CheckResult], reference: TrainingRecord | None = None) -> Report:
    """Conclude again, from other results of the same runs.

    :param reference: another run on one device that the results compare with.
    """
    ours, theirs = reference or report.reference, report.distributed
    assert ours is not None
    assert theirs is not None
    concluded = conclude(results, ours, theirs, report.expectations, strict=report.strict, roles=report.roles)
    return replace(concluded, tolerance=report.tolerance if reference is None else None)


def _run(check: Check, reference: TrainingRecord, distributed: TrainingRecord, tolerance: Tolerance) -> CheckResult:
    if check.role & Role.ORDERED and is_asynchronous(distributed):
        return not_applicable(check.name, "steps ran concurrently, so that none has a state of its own: see PS")
    if check.role & Role.DATA and any(rank.facts.get("epochs_as_steps") for rank in distributed.ranks):
        return not_applicable(
            check.name, "Model.fit under a parameter server strategy reports only epochs, not batches"
        )
    if check.role & Role.DATA and schedules_itself(distributed):
        return not_applicable(check.name, "the program gives every worker data of its own, and schedules its own steps")
    result = check.function(reference, distributed, tolerance)
    # A part of the program that was switched off in both runs explains no difference between them.
    possible = [f if is_possible(f.cause, distributed.neutralized) else _without_cause(f) for f in result.findings]
    # Only a repeated comparison verifies a finding. A check that says so itself would hide other defects behind it.
    return replace(
        result,
        findings=tuple(
            replace(
                finding,
                verified=False,
                known=recognized(finding, reference, distributed, tolerance),
                fix=fix_in_keras(finding, distributed) or finding.fix,
            )
            for finding in possible
        ),
    )


def _without_cause(finding: Finding) -> Finding:
    return replace(finding, cause=None, fix=None, approximation=False)


def needs_noise(report: Report) -> bool:
    """Return whether measuring rounding noise may change the verdict.

    It may if a numeric difference exceeds a bound that was not measured. Measuring a wide bound only makes it wider.
    A difference that is tolerated and verified was measured before.
    """
    findings = (*report.findings, *report.excused)
    return any((finding.origin or "").startswith(UNMEASURED) for finding in findings if not finding.verified)


def parse_expectations(expect: Mapping[str, str] | Collection[str]) -> dict[str, str]:
    """Return ``expect=`` as cause id -> reason. A collection of ids has no reasons."""
    if isinstance(expect, str):
        raise ValueError(f"expect={expect!r} must map cause ids to reasons, for example {{{expect!r}: 'why'}}")
    expected = dict(expect) if isinstance(expect, Mapping) else dict.fromkeys(expect, "no reason given")
    for cause in expected:
        if cause not in CAUSES:
            hint = did_you_mean(cause, CAUSES, 0.7) or f"; valid: {', '.join(sorted(CAUSES))}"
            raise ValueError(f"expect= names an unknown cause {cause!r}{hint}")
    return expected


def require(report: Report, names: Collection[str]) -> Report:
    """Make a report inconclusive if a check that the caller named had nothing to judge.

    If a run raised an error, the report stays as it is: it already holds that error as the reason.
    """
    records = [record for record in (report.reference, report.distributed) if record is not None]
    if any(record.errors for record in records):
        return report
    idle = [
        Doubt(result.check, f"checks= names it, but it does not apply: {result.reason}")
        for result in report.results
        if result.check in names and result.outcome is Outcome.NOT_APPLICABLE
    ]
    return replace(report, doubts=(*report.doubts, *idle))


def _undecided(
    results: Sequence[CheckResult], excused: Sequence[Finding], distributed: TrainingRecord, roles: Roles
) -> tuple[Doubt, ...]:
    """Return why a verdict is missing, without the doubts that follow from a tolerated finding.

    A check is excused only if weights differ or the run failed earlier. Doubts of other kinds stay.
    """
    weights_differ = any(result.outcome is Outcome.FAIL and roles.have(result, Role.UPDATES) for result in results)
    crashed = any(roles.have(finding, Role.RUN) for finding in excused)

    def follows(result: CheckResult) -> bool:
        if crashed and (result.follows or distributed.num_steps == 0):
            return True
        return result.follows and bool(excused) and weights_differ

    return tuple(
        Doubt(result.check, result.reason)
        for result in results
        if result.outcome is Outcome.INCONCLUSIVE and not follows(result)
    )


def _computed_later(results: Sequence[CheckResult], declared: Sequence[Finding], roles: Roles) -> Iterator[Doubt]:
    """Report values that were not compared because weights differ as declared: another defect may be in them."""
    if any(roles.have(finding, Role.WEIGHTS) for finding in declared):
        for result in results:
            later = [item for item in result.unjudged if item.reason is Reason.WEIGHTS_DIFFER]
            if later:
                yield Doubt(result.check, f"not compared: {', '.join(map(str, later[:3]))}")


def _unjudged(results: Sequence[CheckResult]) -> Iterator[Note]:
    for result in results:
        if result.unjudged:
            more = f" and {len(result.unjudged) - 3} more" if len(result.unjudged) > 3 else ""
            names = ", ".join(map(str, result.unjudged[:3]))
            yield Note(NoteKind.NOT_COMPARED, f"{result.check} did not compare {names}{more}")


def _unseen(distributed: TrainingRecord, approximations: Sequence[Finding]) -> Iterator[Doubt]:
    """Report empty replicas after an approximation, because their known defect cannot be judged there."""
    first = min((finding.step or 0 for finding in approximations), default=None)
    for step in range((first or 0) + 1, distributed.num_steps + 1):
        if first is not None and 0 in sizes(distributed, step).values():
            yield Doubt(
                UNEVEN,
                f"step {step} leaves a replica empty, and weights are not comparable after the approximation in step "
                f"{first}; test a batch with fewer examples than replicas separately",
            )
            return


def _notes(
    reference: TrainingRecord,
    distributed: TrainingRecord,
    excused: Sequence[Finding],
    roots: Sequence[Finding],
    found: Sequence[Finding],
    roles: Roles,
) -> tuple[Note, ...]:
    repeated = (note for rank in reference.ranks for note in rank.notes if note.kind is NoteKind.RUN_AGAIN)
    notes = list(dict.fromkeys((*repeated, *(note for rank in distributed.ranks for note in rank.notes))))
    of_weights = [f for f in excused if roles.have(f, Role.WEIGHTS) and f.cause != "state-not-aggregated"]
    numeric = [f.step for f in of_weights if f.step is not None]
    if numeric and min(numeric) < min(reference.num_steps, distributed.num_steps):
        text = f"weights are not compared after step {min(numeric)}, in which the tolerated difference begins"
        notes.append(Note(NoteKind.NOT_COMPARED, text))
    if is_asynchronous(distributed) and not distributed.errors:
        notes.append(Note(NoteKind.HOW, _NO_STEPS))
    hidden = len(found) - len(roots)
    if hidden and roots:
        text = f"{hidden} further difference(s) follow from the above and are not listed"
        notes.append(Note(NoteKind.CONSEQUENCES, text))
    return tuple(notes)
