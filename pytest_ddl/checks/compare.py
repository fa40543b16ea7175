"""One verdict from all checks: runs them, keeps root causes, sets aside what is declared or approximate."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from pytest_ddl.checks.build import not_applicable
from pytest_ddl.checks.causes import CAUSES
from pytest_ddl.checks.consumed import without_repeats
from pytest_ddl.checks.diagnosis import DIVERGING
from pytest_ddl.checks.findings import CheckResult, Finding, Outcome, Report, Symptom
from pytest_ddl.checks.observe import sizes
from pytest_ddl.checks.parameter_server import ORDERED, is_asynchronous
from pytest_ddl.checks.registry import CHECKS, Check, select
from pytest_ddl.checks.tolerance import UNMEASURED, Tolerance
from pytest_ddl.records import TrainingRecord

_STOPS = ("RUN", "LIVENESS", "LINT")
_DATA = ("BATCH", "DATA-COVER")
_NUMERIC = ("REPLICA-EQ", "STEP-EQ", "UNEVEN-EQ", "LOSS-EQ", "OPT-STATE")

# Named where nothing more specific is known; explained by any specific cause at the same step or before.
_UNSPECIFIC = (
    None,
    "replicas-diverged",
    "workers-diverged",
    "optimizer-state-mismatch",
    "reported-loss-wrong",
    "metric-wrong",
)

_ORDER = (
    *("RUN", "LIVENESS", "COLL-LOG", "LINT", "LAYOUT"),
    *("BATCH", "DATA-COVER", "WRITE", "CKPT", "RESUME"),
    *("SEED", "ACCUM", "CLIP", "NONFINITE", "COLL-VALUE", "STEP-EQ", "UNEVEN-EQ", "REPLICA-EQ"),
    *("STATE-EQ", "OPT-STATE", "MOVES", "PS", "LOSS-EQ", "METRIC-EQ", "PERF"),
)


_CHANGES_THE_FORWARD_PASS = (
    "per-replica-normalization",
    "random-stream-differs-across-replicas",
    "random-stream-repeated-across-replicas",
    "batch-coupled-loss",
)
"""Causes by which the loss of the very step differs as well."""


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
) -> Report:
    """Compare a distributed run with its single-device reference and say what is wrong, and why.

    ``perturbed`` are reference runs moved by one ulp (:func:`needs_noise` says when they help);
    ``slices`` maps replicas to reference runs that in step ``slice_step`` were given the replica's
    examples alone: with them the means of replicas can be recomputed instead of guessed.
    """
    expected = parse_expectations(expect)
    selected = select(checks, known)
    distributed = without_repeats(reference, distributed)
    tolerance = Tolerance(reference, perturbed, slices, slice_step)
    results = tuple(_run(check, reference, distributed, tolerance) for check in selected)
    found = [finding for result in results for finding in result.findings]
    roots = root_causes(found)
    declared = tuple((f, expected[f.cause]) for f in roots if f.cause in expected)
    left = [f for f in roots if f.cause not in expected]
    approximations = tuple(f for f in left if f.approximation and not strict)
    findings = [f for f in left if f not in approximations]
    used = {f.cause for f in found}
    return Report(
        strategy=distributed.strategy,
        results=results,
        findings=findings,
        reference=reference,
        distributed=distributed,
        expected=declared,
        approximations=approximations,
        unused_expectations={cause: reason for cause, reason in expected.items() if cause not in used},
        inconclusive=(
            *_undecided(results, [*(f for f, _ in declared), *approximations]),
            *_unseen(distributed, [f for f in approximations if f.check in _NUMERIC and f.check != "LOSS-EQ"]),
        ),
        notes=_notes(reference, distributed, [*(f for f, _ in declared), *approximations], roots, found),
        seconds=reference.seconds + distributed.seconds,
        strict=strict,
    )


def _run(check: Check, reference: TrainingRecord, distributed: TrainingRecord, tolerance: Tolerance) -> CheckResult:
    if check.name in ORDERED and is_asynchronous(distributed):
        return not_applicable(check.name, "steps ran concurrently, so that none has a state of its own: see PS")
    if check.name in _DATA and any(rank.facts.get("epochs_as_steps") for rank in distributed.ranks):
        return not_applicable(check.name, "Model.fit under a parameter server strategy tells epochs alone, not batches")
    return check.function(reference, distributed, tolerance)


def needs_noise(report: Report) -> bool:
    """Say whether measuring rounding noise may change the verdict.

    It may where a numeric difference exceeds a bound that was not measured; a wide bound only
    grows wider by measuring.
    """
    return any(finding.origin == UNMEASURED for finding in (*report.findings, *report.approximations))


def root_causes(findings: Sequence[Finding]) -> list[Finding]:
    """One finding per root cause, the worst first: consequences of an earlier cause are dropped."""
    kept: list[Finding] = []
    for finding in sorted(findings, key=_rank):
        if not any(_explains(earlier, finding) for earlier in kept):
            kept.append(finding)
    return kept


def _rank(finding: Finding) -> tuple[int, int, int, int]:
    """What stopped the run, then the earliest step (there a specific cause, and data, first); slowness last."""
    tier = 2 if finding.symptom == Symptom.SLOW.value else 1 if finding.check not in _STOPS else 0
    if finding.check == "WRITE":
        # It breaks what is read later; where a rank failed over the file, it is why.
        tier = 0 if finding.symptom == Symptom.CRASH.value else 2
    position = _ORDER.index(finding.check) if finding.check in _ORDER else len(_ORDER)
    vague = 0 if finding.check in _DATA else (finding.cause in _UNSPECIFIC) + (finding.cause is None)
    return tier, finding.step if finding.step is not None else 0, vague, position


def _explains(earlier: Finding, later: Finding) -> bool:
    """Say whether a finding is the same defect as, or a consequence of, one that is kept."""
    shown = ("LOSS-EQ", "METRIC-EQ")
    if earlier.check in shown and later.check == "METRIC-EQ" and earlier.approximation > later.approximation:
        return False  # what is shown within an epoch and tolerated there does not excuse a result that is wrong
    if earlier.cause is not None and earlier.cause == later.cause:
        return True
    if earlier.check == "LINT":
        # Without the strategy, data, weights and numbers all differ.
        return later.check != "RUN"
    if earlier.check == "RUN":
        # A run that stopped early explains missing steps, not wrong numbers before.
        return later.cause in ("unequal-steps", "rank-did-not-run")
    if earlier.check == "WRITE" and earlier.symptom == Symptom.CRASH.value:
        return later.check in _STOPS
    if earlier.check in ("COLL-LOG", "COLL-VALUE"):
        # Wrong numbers out of a collective make all numbers wrong that follow.
        numbers = (*_NUMERIC, "STATE-EQ", "METRIC-EQ", "MOVES")
        return later.check in numbers and (later.step or 0) >= (earlier.step or 0)
    if earlier.check == "RESUME":
        # Training that went on from elsewhere is compared with one that did not.
        return (later.step or 0) > (earlier.step or 0)
    if earlier.check == later.check == "DATA-COVER":
        return False
    if later.check in _DATA:
        # Data that is wrong is wrong whatever the weights are; a wrong batch size contains its duplicates.
        return earlier.check == "BATCH" and later.check == "DATA-COVER"
    if later.check == "LOSS-EQ" and earlier.check == "DATA-COVER" and (later.step or 0) >= (earlier.step or 0):
        return True  # it is the loss of other examples
    if later.check == "LOSS-EQ" and earlier.check in ("STEP-EQ", "UNEVEN-EQ", "OPT-STATE"):
        # The loss of the step in which weights begin to differ is a defect of its own,
        # unless it is off by the same formula.
        same_step = earlier.step == later.step
        return (
            (earlier.cause in later.also or earlier.cause in _CHANGES_THE_FORWARD_PASS)
            if same_step
            else (later.step or 0) > (earlier.step or 0)
        )
    if earlier.check == "NONFINITE":
        # Who skipped and who did not decides all that the step left behind, and what came after it.
        return later.check not in _DATA and (later.step or 0) >= (earlier.step or 0)
    if later.check == "REPLICA-EQ":
        # What is wrong alike on all replicas (and perhaps declared) does not explain why they differ.
        return later.cause != "state-not-aggregated" and earlier.cause in (
            *DIVERGING,
            "initial-weights-differ",
        )
    weights_differ = earlier.check in _NUMERIC and earlier.check != "LOSS-EQ"
    if later.check == "METRIC-EQ":
        # It compares what was computed with equal weights, so that only wrong data explains it.
        same_state = earlier.check == "LOSS-EQ" and later.cause in earlier.also
        return weights_differ or same_state or earlier.check in (*_DATA, "SEED", "STATE-EQ")
    if later.check == "STATE-EQ":
        # State of a step follows from the weights before it; unless its own rule is known to be wrong.
        follows = weights_differ and (later.step or 0) >= (earlier.step or 0) and later.cause in _UNSPECIFIC
        return follows or earlier.check in _DATA
    if later.check in _NUMERIC and (weights_differ or earlier.check in _DATA):
        later_step, earlier_step = later.step or 0, earlier.step or 0
        if later_step > earlier_step:
            return True
        guessed = earlier.check in _DATA and not later.exact
        return guessed or later.cause in _UNSPECIFIC or earlier.check == "REPLICA-EQ"
    return False


def parse_expectations(expect: Mapping[str, str] | Collection[str]) -> dict[str, str]:
    """``expect=`` as cause id -> reason; a bare collection of ids has no reasons."""
    if isinstance(expect, str):
        raise ValueError(f"expect={expect!r} must map cause ids to reasons, for example {{{expect!r}: 'why'}}")
    expected = dict(expect) if isinstance(expect, Mapping) else dict.fromkeys(expect, "no reason given")
    for cause in expected:
        if cause not in CAUSES:
            raise ValueError(f"expect= names an unknown cause {cause!r}; valid: {', '.join(sorted(CAUSES))}")
    return expected


def _undecided(results: Sequence[CheckResult], excused: Sequence[Finding]) -> tuple[str, ...]:
    """Why a verdict is missing, less the checks that a tolerated difference leaves nothing to decide."""
    checks = {finding.check for finding in excused}
    silenced = {"UNEVEN-EQ", "LOSS-EQ"} if checks else set()
    if "RUN" in checks:
        silenced = {result.check for result in results}
    return tuple(
        f"{result.check}: {result.reason}"
        for result in results
        if result.outcome is Outcome.INCONCLUSIVE and result.check not in silenced
    )


def _unseen(distributed: TrainingRecord, approximations: Sequence[Finding]) -> Iterator[str]:
    """Empty replicas after an approximation: the one thing known to go wrong there cannot be judged."""
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
    numeric = [f.step for f in excused if f.check in _NUMERIC and f.check != "LOSS-EQ" and f.step is not None]
    if numeric and min(numeric) < min(reference.num_steps, distributed.num_steps):
        notes.append(f"weights are not compared after step {min(numeric)}, where the tolerated difference begins")
    hidden = len(found) - len(roots)
    if hidden and roots:
        notes.append(f"{hidden} further difference(s) follow from the above and are not listed")
    return tuple(notes)
