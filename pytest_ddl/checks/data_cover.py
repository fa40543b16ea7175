"""DATA-COVER: the replicas together consume the examples that one device consumes, each once."""

from __future__ import annotations

from collections import Counter

from pytest_ddl.checks.build import failed, no_steps, not_applicable, not_observed, passed
from pytest_ddl.checks.causes import fix_of
from pytest_ddl.checks.findings import CheckResult, Finding
from pytest_ddl.checks.observe import shared_steps
from pytest_ddl.checks.tolerance import Tolerance
from pytest_ddl.records import TrainingRecord

CHECK = "DATA-COVER"

Examples = Counter[int | str]


def check_data_cover(
    reference: TrainingRecord,
    distributed: TrainingRecord,
    tolerance: Tolerance,
) -> CheckResult:
    """Compare the multiset of example ids (or content hashes) per step, then over the whole run."""
    steps = shared_steps(reference, distributed)
    if steps == 0:
        return no_steps(CHECK, distributed)
    for by_id in (True, False):
        pairs = [(_examples(reference, at, by_id), _examples(distributed, at, by_id)) for at in range(1, steps + 1)]
        observed = [(ours, theirs) for ours, theirs in pairs if ours is not None and theirs is not None]
        if len(observed) == steps:
            return _judge(observed, "ids" if by_id else "contents")
    return not_applicable(CHECK, not_observed(distributed, "examples were"))


def _examples(record: TrainingRecord, step: int, by_id: bool) -> Examples | None:
    """The examples of a global batch, or ``None`` where a replica's were not observed."""
    batches = record.batches(step)
    if not batches:
        return None
    found: Examples = Counter()
    for batch in batches:
        names = batch.example_ids if by_id else batch.fingerprints
        if names is None and batch.size:
            return None
        found.update(names or ())
    return found


def _judge(observed: list[tuple[Examples, Examples]], what: str) -> CheckResult:
    steps = [step for step, (ours, theirs) in enumerate(observed, 1) if ours != theirs]
    if not steps:
        examples = sum(sum(ours.values()) for ours, _theirs in observed)
        return passed(CHECK, f"{what} of {examples} examples in {len(observed)} steps")
    ours, theirs = Counter[int | str](), Counter[int | str]()
    for left, right in observed:
        ours.update(left)
        theirs.update(right)
    extra, missing = theirs - ours, ours - theirs
    findings = []
    if extra:
        findings.append(_finding("examples-duplicated", steps[0], extra, theirs, ours, "counted more often than"))
    if missing:
        findings.append(_finding("examples-dropped", steps[0], missing, theirs, ours, "missing compared with"))
    if not findings:
        left, right = observed[steps[0] - 1]
        findings.append(
            Finding(
                check=CHECK,
                message=f"global batches are composed differently in {len(steps)} step(s)",
                step=steps[0],
                observed=_some(right - left),
                expected=_some(left - right),
                evidence="weights can be compared only where global batches hold the same examples",
            )
        )
    return failed(CHECK, findings)


def _finding(cause: str, step: int, which: Examples, theirs: Examples, ours: Examples, what: str) -> Finding:
    return Finding(
        check=CHECK,
        message=f"{sum(which.values())} example(s) {what} on one device, from step {step} on",
        cause=cause,
        step=step,
        error=float(sum(which.values())),
        fix=fix_of(cause),
        observed=f"{sum(theirs.values())} examples, {len(theirs)} distinct",
        expected=f"{sum(ours.values())} examples, {len(ours)} distinct",
        evidence=_some(which),
    )


def _some(which: Examples) -> str:
    names = [str(name) for name in sorted(which.elements(), key=str)]
    return f"examples {', '.join(names[:6])}" + (f" and {len(names) - 6} more" if len(names) > 6 else "")
