"""Find the root causes among findings, and their order. Consequences of an earlier cause are not reported again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pytest_ddl.equivalence.diagnosis.diagnose import DIVERGING
from pytest_ddl.equivalence.findings import Finding, Symptom

_STOPS = ("RUN", "LIVENESS", "LINT")
DATA = ("BATCH", "DATA-COVER")
NUMERIC = ("REPLICA-EQ", "STEP-EQ", "UNEVEN-EQ", "LOSS-EQ", "OPT-STATE")
"""Checks that compare numbers with one device, step by step."""
WEIGHTS = tuple(check for check in NUMERIC if check != "LOSS-EQ")

# Causes that are named if nothing more specific is known. A specific cause at the same step or before explains them.
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
"""Causes that make the loss differ in the same step."""


def root_causes(
    findings: Sequence[Finding], is_excused: Callable[[Finding], bool] = lambda _finding: False
) -> list[Finding]:
    """Return one finding per root cause, the worst first: consequences of an earlier cause are dropped.

    A finding that is excused drops another only if that must follow. Otherwise a declared difference would hide
    a second defect.
    """
    kept: list[Finding] = []
    verified: list[Finding] = []
    for finding in sorted(findings, key=_rank):
        explained = any(
            _explains(earlier, finding)
            and (not is_excused(earlier) or is_excused(finding) or _must_follow(earlier, finding))
            for earlier in (*kept, *verified)
        )
        if not explained:
            kept.append(finding)
        elif finding.verified:
            # It is not listed again, but it explains what else differs in its own step.
            verified.append(finding)
    return kept


def _must_follow(earlier: Finding, later: Finding) -> bool:
    """Return whether a finding is the consequence of an excused one that explains it, whatever else is wrong."""
    if earlier.symptom in (Symptom.CRASH.value, Symptom.HANG.value):
        return True
    if earlier.verified:
        # What came after began with equal values.
        return later.check in (*NUMERIC, "STATE-EQ", "MOVES") and (later.step or 0) <= (earlier.step or 0)
    if later.check == "DATA-COVER":
        return earlier.check == "BATCH"
    if earlier.check not in ("STEP-EQ", "UNEVEN-EQ", *DATA, "RESUME", "NONFINITE"):
        # A declared difference of a counter, a slot, state or a loss does not change the weights.
        of_weights = earlier.check == "REPLICA-EQ" and earlier.cause != "state-not-aggregated"
        return of_weights and later.check in NUMERIC and (later.step or 0) > (earlier.step or 0)
    return later.check in (*NUMERIC, "STATE-EQ", "METRIC-EQ", "MOVES")


def _rank(finding: Finding) -> tuple[int, int, int, int]:
    """Return a sort key: what stopped the run, then the step (a specific cause, and data, first), then slowness."""
    tier = 2 if finding.symptom == Symptom.SLOW.value else 1 if finding.check not in _STOPS else 0
    if finding.check == "WRITE":
        # Shared files damage what is read later. If a rank failed on the file, that is the reason.
        tier = 0 if finding.symptom == Symptom.CRASH.value else 2
    position = _ORDER.index(finding.check) if finding.check in _ORDER else len(_ORDER)
    vague = 0 if finding.check in DATA else (finding.cause in _UNSPECIFIC) + (finding.cause is None)
    return tier, finding.step if finding.step is not None else 0, vague, position


def _explains(earlier: Finding, later: Finding) -> bool:
    """Return whether a finding is the same defect as, or a consequence of, one that is kept."""
    shown = ("LOSS-EQ", "METRIC-EQ")
    if earlier.check in shown and later.check == "METRIC-EQ" and earlier.approximation > later.approximation:
        return False  # a tolerated value that fit shows within an epoch does not excuse a wrong result
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
        # If a collective gives wrong numbers, all later numbers are wrong.
        numbers = (*NUMERIC, "STATE-EQ", "METRIC-EQ", "MOVES")
        return later.check in numbers and (later.step or 0) >= (earlier.step or 0)
    if earlier.check == "RESUME":
        # Training that continued from another point is compared with training that did not.
        return (later.step or 0) > (earlier.step or 0)
    if earlier.check == later.check == "DATA-COVER":
        return False
    if later.check in DATA:
        # Wrong data does not depend on the weights. A wrong batch size explains its duplicates.
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
        # The replicas that skipped or updated determine all later values of the run.
        return later.check not in DATA and (later.step or 0) >= (earlier.step or 0)
    if later.check == "REPLICA-EQ":
        # An error that is the same on all replicas (and perhaps declared) does not explain why they differ.
        return later.cause != "state-not-aggregated" and earlier.cause in (
            *DIVERGING,
            "initial-weights-differ",
        )
    weights_differ = earlier.check in NUMERIC and earlier.check != "LOSS-EQ"
    if later.check == "METRIC-EQ":
        # It compares what was computed with equal weights, so that only wrong data explains it.
        same_state = earlier.check == "LOSS-EQ" and later.cause in earlier.also
        return weights_differ or same_state or earlier.check in (*DATA, "SEED", "STATE-EQ")
    if later.check == "STATE-EQ":
        # State after a step follows from the weights before it, unless its own rule is known to be wrong.
        follows = weights_differ and (later.step or 0) >= (earlier.step or 0) and later.cause in _UNSPECIFIC
        return follows or earlier.check in DATA
    if later.check in NUMERIC and (weights_differ or earlier.check in DATA):
        later_step, earlier_step = later.step or 0, earlier.step or 0
        if later_step > earlier_step:
            return True
        guessed = earlier.check in DATA and not later.exact
        return guessed or later.cause in _UNSPECIFIC or earlier.check == "REPLICA-EQ"
    return False
