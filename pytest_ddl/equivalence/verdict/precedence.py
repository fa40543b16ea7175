"""Root causes among findings, by tables of what an earlier finding explains, and of what must follow from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pytest_ddl.equivalence.checks.registry import ROLES
from pytest_ddl.equivalence.diagnosis.diagnose import DIVERGING
from pytest_ddl.equivalence.findings import Finding, Grounds, Symptom
from pytest_ddl.equivalence.roles import NO_ROLE, Role, Roles

UNSPECIFIC = (
    None,
    "replicas-diverged",
    "workers-diverged",
    "optimizer-state-mismatch",
    "reported-loss-wrong",
    "metric-wrong",
)
"""Causes that are named if nothing more specific is known. A specific one at the same step or before explains them."""
_CHANGES_THE_FORWARD_PASS = (
    "per-replica-normalization",
    "random-stream-differs-across-replicas",
    "random-stream-repeated-across-replicas",
    "batch-coupled-loss",
    "gathered-positions-wrong",
    "reduced-value-wrong",
    "replica-computes-otherwise",
    "attribute-shared-by-replicas",
    "examples-dropped",
    "examples-duplicated",
)
"""Causes that make the loss differ in the step in which weights begin to differ."""
_OF_THE_LOSS = (
    "gradient-scaled-by-replica-count",
    "gradient-scaled-by-inverse-replica-count",
    "regularization-scaled-by-replica-count",
    "masked-loss-normalised-per-replica",
)
"""Causes that may lie in one term of the loss. The reported loss then differs by this term, and fits no formula."""
_ANY = ~NO_ROLE
Condition = Callable[[Finding, Finding], bool]


@dataclass(frozen=True)
class Precedence:
    """Row of a table of precedence, for an earlier and a later finding of checks with the given roles."""

    earlier: Role
    later: Role
    explains: Condition
    """True if the earlier finding explains the later one, provided that the row applies."""
    if_: Condition = lambda _earlier, _later: True
    """Condition under which the row applies. Otherwise the next rows decide."""


def decided(rules: Sequence[Precedence], earlier: Finding, later: Finding, roles: Roles) -> bool:
    """Return what the first row that applies decides. Without such a row, nothing is explained."""
    for rule in rules:
        fits = (rule.earlier == _ANY or roles.have(earlier, rule.earlier)) and (
            rule.later == _ANY or roles.have(later, rule.later)
        )
        if fits and rule.if_(earlier, later):
            return rule.explains(earlier, later)
    return False


def _always(_earlier: Finding, _later: Finding) -> bool:
    return True


def _never(_earlier: Finding, _later: Finding) -> bool:
    return False


def _from_its_step_on(earlier: Finding, later: Finding) -> bool:
    return (later.step or 0) >= (earlier.step or 0)


def _after_its_step(earlier: Finding, later: Finding) -> bool:
    return (later.step or 0) > (earlier.step or 0)


def _up_to_its_step(earlier: Finding, later: Finding) -> bool:
    return (later.step or 0) <= (earlier.step or 0)


def _crashes(earlier: Finding, _later: Finding) -> bool:
    return earlier.symptom == Symptom.CRASH.value


def _stops(earlier: Finding, _later: Finding) -> bool:
    return earlier.symptom in (Symptom.CRASH.value, Symptom.HANG.value)


def _ends_steps(_earlier: Finding, later: Finding) -> bool:
    return later.cause in ("unequal-steps", "rank-did-not-run")


def _is_tolerated_more(earlier: Finding, later: Finding) -> bool:
    return earlier.approximation > later.approximation


def _has_the_same_cause(earlier: Finding, later: Finding) -> bool:
    related = earlier.owner == later.owner or not (earlier.owner and later.owner)
    return earlier.cause is not None and earlier.cause == later.cause and related


def _changes_the_loss(earlier: Finding, later: Finding) -> bool:
    if earlier.step == later.step and earlier.cause is None:
        # Whatever changed the gradients changed the losses of the replicas, of which the reported one is the sum.
        return later.grounds is Grounds.PATTERN
    if earlier.step == later.step:
        of_a_term = earlier.cause in _OF_THE_LOSS and later.grounds is Grounds.PATTERN
        return (
            of_a_term
            or bool({earlier.cause, *earlier.besides} & {*later.also})
            or earlier.cause in _CHANGES_THE_FORWARD_PASS
        )
    return _after_its_step(earlier, later)


def _makes_replicas_differ(earlier: Finding, later: Finding) -> bool:
    return later.cause != "state-not-aggregated" and earlier.cause in (*DIVERGING, "initial-weights-differ")


def _is_the_same_formula(earlier: Finding, later: Finding) -> bool:
    return later.cause in earlier.also


def _changes_state(earlier: Finding, later: Finding) -> bool:
    return _from_its_step_on(earlier, later) and later.cause in UNSPECIFIC


def _changes_later_or_vague(earlier: Finding, later: Finding) -> bool:
    return _after_its_step(earlier, later) or later.cause in UNSPECIFIC


def _changes_later_or_guessed(earlier: Finding, later: Finding) -> bool:
    return _changes_later_or_vague(earlier, later) or not later.exact


def _is_of_weights(earlier: Finding, _later: Finding) -> bool:
    return earlier.cause != "state-not-aggregated"


def _is_a_tolerated_step_beside_a_state(earlier: Finding, later: Finding) -> bool:
    return earlier.cause == "state-not-aggregated" and later.approximation


def _is_verified(earlier: Finding, _later: Finding) -> bool:
    return earlier.verified


_BY_STEP = Role.WEIGHTS | Role.LOSS

EXPLAINED: tuple[Precedence, ...] = (
    # A tolerated value that fit shows within an epoch does not excuse a wrong result.
    Precedence(Role.LOSS | Role.METRICS, Role.METRICS, _never, if_=_is_tolerated_more),
    Precedence(_ANY, _ANY, _always, if_=_has_the_same_cause),
    # Without the strategy, data, weights and numbers all differ.
    Precedence(Role.SETUP, Role.RUN, _never),
    Precedence(Role.SETUP, _ANY, _always),
    # A run that stopped early explains missing steps, not wrong numbers before.
    Precedence(Role.RUN, _ANY, _ends_steps),
    Precedence(Role.FILES, Role.STOPPING, _always, if_=_crashes),
    Precedence(Role.FILES, _ANY, _never, if_=_crashes),
    # If a collective gives wrong numbers, all later numbers are wrong.
    Precedence(Role.COLLECTIVES, Role.FOLLOWING, _from_its_step_on),
    Precedence(Role.COLLECTIVES, _ANY, _never),
    # Training that continued from another point is compared with training that did not.
    Precedence(Role.RESUMPTION, _ANY, _after_its_step),
    # Wrong data does not depend on the weights. A wrong batch size explains its duplicates.
    Precedence(Role.BATCHES, Role.EXAMPLES, _always),
    Precedence(_ANY, Role.DATA, _never),
    # The loss belongs to other examples.
    Precedence(Role.EXAMPLES, Role.LOSS, _always, if_=_from_its_step_on),
    # The loss of the step in which weights begin to differ is a defect of its own,
    # unless it is off by the same formula.
    Precedence(Role.UPDATES | Role.SLOTS, Role.LOSS, _changes_the_loss),
    # The replicas that skipped or updated determine all later values of the run.
    Precedence(Role.NONFINITE, _ANY, _from_its_step_on),
    # An error that is the same on all replicas (and perhaps declared) does not explain why they differ.
    Precedence(_ANY, Role.REPLICAS, _makes_replicas_differ),
    # Metrics are compared if they were computed with equal weights, so that only wrong data explains them.
    Precedence(Role.WEIGHTS | Role.DATA | Role.DRAWS | Role.STATE, Role.METRICS, _always),
    Precedence(Role.LOSS, Role.METRICS, _is_the_same_formula),
    # State after a step follows from the weights before it, unless its own rule is known to be wrong.
    Precedence(Role.DATA, Role.STATE, _always),
    Precedence(Role.WEIGHTS, Role.STATE, _changes_state),
    # Copies of a state that differ do not let unequal parts of a batch count equally.
    Precedence(Role.REPLICAS, Role.WEIGHTS, _never, if_=_is_a_tolerated_step_beside_a_state),
    Precedence(Role.REPLICAS, _BY_STEP, _always),
    Precedence(Role.WEIGHTS, _BY_STEP, _changes_later_or_vague),
    Precedence(Role.DATA, _BY_STEP, _changes_later_or_guessed),
)
"""Rows that decide whether an earlier finding explains a later one. The first row that applies decides."""

MUST_FOLLOW: tuple[Precedence, ...] = (
    Precedence(_ANY, _ANY, _always, if_=_stops),
    # The steps after a verified finding began with equal values.
    Precedence(_ANY, _BY_STEP | Role.STATE | Role.MOTION, _up_to_its_step, if_=_is_verified),
    Precedence(_ANY, _ANY, _never, if_=_is_verified),
    Precedence(Role.BATCHES, Role.EXAMPLES, _always),
    Precedence(_ANY, Role.EXAMPLES, _never),
    Precedence(Role.UPDATES | Role.DATA | Role.RESUMPTION | Role.NONFINITE, Role.FOLLOWING, _always),
    # A declared difference of a counter, a slot, state or a loss does not change the weights.
    Precedence(Role.REPLICAS, _BY_STEP, _after_its_step, if_=_is_of_weights),
)
"""Rows that decide whether a finding must follow from an excused one. The first row that applies decides."""


_BEFORE_A_STOP = Role.DATA | Role.GRADIENTS | Role.UPDATES | Role.REPLICAS
"""Checks whose findings about earlier steps come before an exception or a hang."""

_OF_THE_FORWARD_PASS = ("batch-coupled-loss", "replica-computes-otherwise")
"""Causes that say only that a replica computes something else, for example because it reads a wrong state."""


def root_causes(
    findings: Sequence[Finding],
    is_excused: Callable[[Finding], bool] = lambda _finding: False,
    roles: Roles = ROLES,
) -> list[Finding]:
    """Return one finding per root cause, the worst first: consequences of an earlier cause are dropped.

    An excused finding drops a finding that is not excused only if the second must follow from the first. Otherwise a
    declared difference would hide a second defect.
    """
    kept: list[Finding] = []
    verified: list[Finding] = []
    stops = [finding.step or 0 for finding in findings if roles.have(finding, Role.STOPPING)]
    fewer = [finding.step or 0 for finding in findings if finding.cause == "unequal-steps"]

    wrong_state = {f.step for f in findings if roles.have(f, Role.STATE) and f.exact and f.cause not in UNSPECIFIC}
    regrouped = [f.step or 0 for f in findings if f.cause is None and roles.have(f, Role.EXAMPLES)]

    def key(finding: Finding) -> tuple[int, float, int, int]:
        tier, step, vague, position = _rank(finding, roles, min(stops, default=0))
        if fewer and roles.have(finding, Role.LOSS | Role.METRICS) and step > 1:
            # Epochs of another length reset at another step what fit shows. In the first step none has ended.
            return tier, max(step, min(fewer) + 0.5), vague, position
        if finding.cause == "unequal-steps" and roles.have(finding, Role.BATCHES):
            # Shards of unequal lengths make other global batches before the shorter one ends.
            return tier, min([step, *regrouped]), vague, position
        if finding.step in wrong_state and finding.cause in _OF_THE_FORWARD_PASS and not finding.exact:
            # The forward pass may have read the state. Its own rule is known, and this cause is a guess.
            return tier, step, max(vague, 1), position
        return tier, step, vague, position

    for finding in sorted(findings, key=key):
        explained = any(
            decided(EXPLAINED, earlier, finding, roles)
            and (not is_excused(earlier) or is_excused(finding) or decided(MUST_FOLLOW, earlier, finding, roles))
            for earlier in (*kept, *verified)
        )
        if not explained:
            kept.append(finding)
        elif finding.verified:
            # It is not listed again, but it explains what else differs in its own step.
            verified.append(finding)
    return kept


def _rank(finding: Finding, roles: Roles, stopped: int) -> tuple[int, int, int, int]:
    """Return a sort key: first what stopped the run, then by step (specific causes and data first), then slowness.

    Wrong data and wrong weights of a step before the one in which the run stopped come first: they may be the reason.
    """
    tier = 2 if finding.symptom == Symptom.SLOW.value else 0 if roles.have(finding, Role.STOPPING) else 1
    if tier == 1 and roles.have(finding, _BEFORE_A_STOP) and (finding.step or 0) < stopped:
        tier = 0
    if roles.have(finding, Role.FILES):
        # Shared files damage what is read later. If a rank failed on the file, that is the reason.
        tier = 0 if finding.symptom == Symptom.CRASH.value else 2
    vague = 0 if roles.have(finding, Role.DATA) else (finding.cause in UNSPECIFIC) + (finding.cause is None)
    if vague == 1 and roles.have(finding, Role.LOSS | Role.METRICS):
        vague = 3  # a reported value says less than a weight whose cause is not known
    return tier, finding.step if finding.step is not None else 0, vague, roles.position(finding)
