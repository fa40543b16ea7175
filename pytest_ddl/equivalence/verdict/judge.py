"""Make one verdict of all checks: run them, and separate declared and approximate findings."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pytest_ddl.equivalence.causes import is_possible
from pytest_ddl.equivalence.checks.metric import CHECK as METRIC_EQ
from pytest_ddl.equivalence.checks.parameter_server import schedules_itself
from pytest_ddl.equivalence.checks.registry import CHECKS, ROLES, Check, select
from pytest_ddl.equivalence.evidence.arithmetic import made_apart, not_deterministic
from pytest_ddl.equivalence.evidence.calls import without_repeats
from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.evidence.observe import is_asynchronous
from pytest_ddl.equivalence.evidence.slices import Slices
from pytest_ddl.equivalence.evidence.tolerance import Tolerance
from pytest_ddl.equivalence.evidence.without_a_step import without_call_sites
from pytest_ddl.equivalence.expectations import Expectations, parse_expectations
from pytest_ddl.equivalence.findings import CheckResult, Doubt, Finding, Outcome
from pytest_ddl.equivalence.known.advice import fix_for, fix_of_sums
from pytest_ddl.equivalence.known.catalogue import recognized
from pytest_ddl.equivalence.known.recognize import may_be_of_replicas
from pytest_ddl.equivalence.outcomes import not_applicable
from pytest_ddl.equivalence.roles import NO_ROLE, Role, Roles
from pytest_ddl.equivalence.verdict.accounts import ledger_of
from pytest_ddl.equivalence.verdict.doubts import (
    EQUAL_EXAMPLES,
    alike,
    before_an_end,
    behind,
    beside,
    later,
    of_other_optimizers,
    uncompared,
    undecided,
    unseen,
)
from pytest_ddl.equivalence.verdict.lines import with_lines
from pytest_ddl.equivalence.verdict.own_steps import Cut, step_by_step
from pytest_ddl.equivalence.verdict.precedence import root_causes
from pytest_ddl.equivalence.verdict.report import Report
from pytest_ddl.equivalence.verdict.vetoes import Evidence, without_contradictions
from pytest_ddl.hints import Hint
from pytest_ddl.messages import listed
from pytest_ddl.notes import Note, NoteKind
from pytest_ddl.records import TrainingRecord

_NO_STEPS = (
    "steps ran concurrently: the weights of this run depend on their order. Check PS compares whether all updates "
    "arrived, and the numbers of a run with one step at a time"
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
    again: TrainingRecord | None = None,
) -> Report:
    """Compare a distributed run with its single-device reference, and report what is wrong and why.

    :param perturbed: reference runs moved by one ulp; :func:`needs_noise` says when they help.
    :param slices: reference runs on a part of one global batch, with which causes are recomputed instead of guessed.
    :param decided: True if the program agrees with one device in float64, so that only gross differences are left.
    :param repeated: True if both runs repeat others that were judged. The limit of steps was chosen for the others.
    :param again: a second run of the unchanged reference, which shows the values that are not reproducible.
    """
    expected = parse_expectations(expect)
    if repeated:
        reference, distributed = without_call_sites(reference), without_call_sites(distributed)
    selected = select(checks, known)
    distributed = without_repeats(reference, distributed)
    apart = made_apart(reference, distributed)

    def judged(cut: Cut, having: Role) -> tuple[CheckResult, ...]:
        ours, theirs = cut(reference), cut(distributed)
        parts, repeat = slices and slices.each(cut), again and cut(again)
        bounds = Tolerance(ours, [cut(run) for run in perturbed], parts, decided, repeat, apart)
        chosen = [check for check in selected if check.role & having or having == ~NO_ROLE]
        comparison = Comparison(ours, theirs, bounds)
        return tuple(_run(check, comparison) for check in chosen)

    def is_excused(finding: Finding) -> bool:
        return bool(expected.excusing([finding])) or _is_tolerated(finding, strict)

    roles = Roles((check.name, check.role) for check in known)
    results = step_by_step(reference.taken_over, judged, roles, is_excused)
    report = conclude(results, reference, distributed, expected, strict=strict, roles=roles)
    report = replace(report, tolerance=Tolerance(reference, perturbed, slices, decided, again, apart))
    return report if report.findings else accounted(report)


def accounted(report: Report) -> Report:
    """Return the report with the ledger of its two runs, and a doubt for what is not accounted for."""
    reference, distributed, tolerance = report.reference, report.distributed, report.tolerance
    assert tolerance is not None
    ledger = ledger_of(Comparison(reference, distributed, tolerance), report.results, report.roles)
    return replace(report, ledger=ledger, doubts=(*report.doubts, *ledger.doubts(report.results)))


def conclude(
    results: Sequence[CheckResult],
    reference: TrainingRecord,
    distributed: TrainingRecord,
    expected: Expectations,
    *,
    strict: bool = False,
    roles: Roles = ROLES,
) -> Report:
    """Make a report of the results of checks. Sort out root causes and declared or approximate findings."""
    results = _advised(results, Evidence(results, reference, distributed, roles), expected)
    evidence = Evidence(results, reference, distributed, roles)
    found = [finding for result in results for finding in result.findings]
    keys = {id(found[at]): key for at, key in expected.excusing(found).items()}

    def is_excused(finding: Finding) -> bool:
        return id(finding) in keys or _is_tolerated(finding, strict)

    causes = root_causes(found, is_excused, roles)
    roots = _Roots.of(causes, keys, strict)
    equal_examples = list(alike(results, distributed, roles))
    used = {*keys.values(), *(EQUAL_EXAMPLES for _doubt in equal_examples)}
    doubts = list(_doubts(evidence, found, roots, keys, expected, strict))
    if EQUAL_EXAMPLES not in expected and not roots.findings:
        doubts += equal_examples
    return Report(
        strategy=distributed.strategy,
        results=tuple(results),
        findings=roots.findings,
        reference=reference,
        distributed=distributed,
        expected=tuple((finding, expected[keys[id(finding)]]) for finding in roots.declared),
        expectations=expected,
        approximations=roots.approximations,
        known=roots.known,
        unused_expectations={key: reason for key, reason in expected.items() if key not in used},
        doubts=tuple(doubts),
        notes=(*_notes(reference, distributed, causes, found), *_unjudged(results)),
        seconds=reference.seconds + distributed.seconds,
        strict=strict,
        roles=roles,
    )


@dataclass(frozen=True)
class _Roots:
    """The root causes of a comparison, by what excuses them."""

    declared: tuple[Finding, ...]
    approximations: tuple[Finding, ...]
    known: tuple[Finding, ...]
    """Known behaviors of a framework."""
    findings: list[Finding]
    """Those that nothing excuses."""

    @classmethod
    def of(cls, causes: Sequence[Finding], declared: Container[int], strict: bool) -> _Roots:
        """Sort root causes. ``declared`` has the ``id`` of each finding that ``expect=`` excuses."""
        left = [finding for finding in causes if id(finding) not in declared]
        tolerated = [finding for finding in left if _is_tolerated(finding, strict)]
        return cls(
            declared=tuple(finding for finding in causes if id(finding) in declared),
            approximations=tuple(finding for finding in tolerated if finding.approximation),
            known=tuple(finding for finding in tolerated if not finding.approximation),
            findings=[finding for finding in left if not _is_tolerated(finding, strict)],
        )

    @property
    def excused(self) -> tuple[Finding, ...]:
        return (*self.declared, *self.approximations, *self.known)


def _doubts(
    evidence: Evidence,
    found: Sequence[Finding],
    roots: _Roots,
    declared: Container[int],
    expected: Expectations,
    strict: bool,
) -> Iterator[Doubt]:
    """Yield why a comparison leaves something open: what was not compared, and what an excuse may hide.

    :param declared: the ``id`` of each finding that ``expect=`` excuses, also of those that are no root causes.
    """
    results, reference, distributed, roles = evidence.results, evidence.reference, evidence.distributed, evidence.roles
    by_user = [finding for finding in found if id(finding) in declared]
    tolerated = [finding for finding in found if _is_tolerated(finding, strict)]
    # A known behavior of a framework excuses only itself, like a declared cause.
    alone = {id(finding) for finding in (*by_user, *(one for one in tolerated if not one.approximation))}
    hiding = [finding for finding in found if id(finding) in alone and not finding.verified]
    unverified = [finding for finding in roots.excused if not finding.verified]
    of_weights = [one for one in roots.approximations if not one.verified and roles.have(one, Role.WEIGHTS)]
    of_updates = [one for one in tolerated if one.approximation and roles.have(one, Role.UPDATES)]

    yield from undecided(results, unverified, distributed, roles)
    yield from unseen(distributed, of_weights)
    yield from later(reference, distributed, [*unverified, *hiding], roles)
    yield from behind(found, hiding, of_updates, roles)
    yield from of_other_optimizers(reference, distributed, by_user, roles)
    if strict:
        yield from beside(by_user, expected)
    yield from before_an_end(roots.excused, distributed, roles)
    yield from uncompared(results)


def _advised(results: Sequence[CheckResult], evidence: Evidence, expected: Expectations) -> list[CheckResult]:
    """Return the results with the fixes and the lines of their findings, without causes that others contradict."""
    distributed = evidence.distributed
    advised = []
    for result in results:
        named = with_lines(without_contradictions(result.findings, expected, evidence), distributed)
        fixes = [fix_of_sums(one, results, distributed) or fix_for(one, distributed) for one in named]
        findings = tuple(replace(one, fix=fix) for one, fix in zip(named, fixes, strict=True))
        advised.append(replace(result, findings=findings))
    return advised


def concluded_from(
    report: Report,
    results: Sequence[CheckResult],
    reference: TrainingRecord | None = None,
    understood: Sequence[Finding] = (),
) -> Report:
    """Conclude again, from other results of the same runs.

    :param reference: another run on one device that the results compare with.
    :param understood: findings that repeated runs explained. They belong to no check.
    """
    ours, expected = reference or report.reference, Expectations(report.expectations)
    explained = [CheckResult("", Outcome.PASS, findings=tuple(understood))] if understood else []
    concluded = conclude(
        [*results, *explained], ours, report.distributed, expected, strict=report.strict, roles=report.roles
    )
    tolerance = report.tolerance if reference is None else None
    return replace(concluded, results=concluded.results[: len(results)], tolerance=tolerance)


def _run(check: Check, comparison: Comparison) -> CheckResult:
    distributed = comparison.distributed
    if check.role & Role.ORDERED and is_asynchronous(distributed):
        return not_applicable(check.name, "steps ran concurrently, so that none has a state of its own: see PS")
    if check.role & Role.DATA and any(rank.facts.get("epochs_as_steps") for rank in distributed.ranks):
        return not_applicable(
            check.name, "Model.fit under a parameter server strategy reports only epochs, not batches"
        )
    if check.role & Role.DATA and schedules_itself(distributed):
        return not_applicable(check.name, "the program gives every worker data of its own, and schedules its own steps")
    result: CheckResult = check.function(comparison)
    # A part of the program that was switched off in both runs explains no difference between them.
    possible = [f if is_possible(f.cause, distributed.neutralized) else _without_cause(f) for f in result.findings]
    # Only a repeated comparison verifies a finding. A check that says so itself would hide other defects behind it.
    return replace(
        result,
        findings=tuple(
            replace(
                finding,
                verified=False,
                known=recognized(finding, comparison),
            )
            for finding in possible
        ),
    )


def _without_cause(finding: Finding) -> Finding:
    return replace(finding, cause=None, fix=None, approximation=False)


def _is_tolerated(finding: Finding, strict: bool) -> bool:
    return (finding.approximation or finding.known is not None) and not strict


def needs_noise(report: Report) -> bool:
    """Return whether measuring rounding noise may change the verdict.

    It may if a numeric difference exceeds a bound that was not measured. Measuring a wide bound only makes it wider.
    A difference that is tolerated and verified was measured before. Copies must be equal whatever the bound is, but
    moving statistics that differ are compared within it with runs on each replica's examples.
    """
    findings = (*report.findings, *report.excused)
    return any(finding.a_priori or is_open(finding, report) for finding in findings if not finding.verified)


def may_jump(report: Report) -> bool:
    """Return whether a number was found that may count examples, so that it jumps and does not move.

    Only numbers of steps after which the weights agree are found, so other findings do not explain it.
    """
    return any(one.check == METRIC_EQ and not one.a_priori for one in report.findings)


def is_open(finding: Finding, report: Report) -> bool:
    """Return whether only runs on each replica's examples show if a finding is a known behavior of Keras."""
    return finding.known is None and may_be_of_replicas(finding, report.distributed)


def require(report: Report, names: Collection[str]) -> Report:
    """Make a report inconclusive if a check that the caller named had nothing to judge.

    If a run raised an error, the report stays as it is: it already holds that error as the reason.
    """
    if report.reference.errors or report.distributed.errors:
        return report
    idle = [
        Doubt(result.check, f"{Hint.CHECKS} names it, but it does not apply: {result.reason}")
        for result in report.results
        if result.check in names and result.outcome is Outcome.NOT_APPLICABLE
    ]
    return replace(report, doubts=(*report.doubts, *idle))


def _unjudged(results: Sequence[CheckResult]) -> Iterator[Note]:
    for result in results:
        if result.unjudged:
            yield Note(NoteKind.NOT_COMPARED, f"{result.check} did not compare {listed(result.unjudged)}")


def _notes(
    reference: TrainingRecord,
    distributed: TrainingRecord,
    roots: Sequence[Finding],
    found: Sequence[Finding],
) -> tuple[Note, ...]:
    repeated = (note for rank in reference.ranks for note in rank.notes if note.kind is NoteKind.RUN_AGAIN)
    notes = list(dict.fromkeys((*repeated, *(note for rank in distributed.ranks for note in rank.notes))))
    if is_asynchronous(distributed) and not distributed.errors:
        notes.append(Note(NoteKind.HOW, _NO_STEPS))
    why = not_deterministic(distributed) or not_deterministic(reference)
    if why:
        text = f"not deterministic on this GPU, so copies may differ by the rounding that a bound allows: {why}"
        notes.append(Note(NoteKind.HOW, text))
    hidden = len(found) - len(roots)
    if hidden and roots:
        text = f"{hidden} further difference(s) follow from the above and are not listed"
        notes.append(Note(NoteKind.CONSEQUENCES, text))
    return tuple(notes)
