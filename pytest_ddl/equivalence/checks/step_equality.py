"""STEP-EQ: every weight after every step equals the single-device one."""

from __future__ import annotations

from dataclasses import replace

from pytest_ddl.equivalence.causes.special import SPECIAL
from pytest_ddl.equivalence.diagnosis.afterwards import changed_afterwards, not_ended
from pytest_ddl.equivalence.diagnosis.candidates.case import Case
from pytest_ddl.equivalence.diagnosis.diagnose import diagnose
from pytest_ddl.equivalence.evidence.comparison import Comparison, Differences, Place
from pytest_ddl.equivalence.evidence.hidden_scale import Certainty, HiddenScale, hidden_scale
from pytest_ddl.equivalence.evidence.observe import WEIGHTS, of_kind, unwatched
from pytest_ddl.equivalence.evidence.one_sided import lone_variables
from pytest_ddl.equivalence.findings import CheckResult, Finding
from pytest_ddl.equivalence.outcomes import failed, finding_at, inconclusive, no_steps, passed, wide
from pytest_ddl.hints import Hint
from pytest_ddl.records import TrainingRecord, VariableKind, VariableRecord

CHECK = "STEP-EQ"
_TOO_LARGE, _TOO_SMALL = "gradient-scaled-by-replica-count", "gradient-scaled-by-inverse-replica-count"


def check_step_equality(comparison: Comparison) -> CheckResult:
    """Compare trainable and frozen variables, from the initial weights to the last shared step."""
    reference, distributed = comparison.records
    structure = _structure(reference, distributed)
    trained = of_kind(distributed, *WEIGHTS) or unwatched(reference, distributed) is None
    if reference.errors and not of_kind(reference, *WEIGHTS) and trained:
        reason = "the run on one device failed before it watched a weight: see RUN"
        return inconclusive(CHECK, reason, follows=True)
    if not of_kind(reference, *WEIGHTS) and not structure:
        reason = unwatched(reference, distributed) or f"no weight was watched: {Hint.WATCH}"
        return inconclusive(CHECK, reason, in_program=True)
    differing = comparison.differences()
    if differing.step == 0:
        return failed(CHECK, [*structure, initial_weights(differing.first)])
    counts = [*structure, *_step_counts(reference, distributed)]
    if differing.first:
        return failed(CHECK, [*counts, explain(CHECK, comparison, differing.first)])
    if counts:
        return failed(CHECK, counts)
    return _without_difference(comparison, differing)


def _without_difference(comparison: Comparison, found: Differences) -> CheckResult:
    reference, distributed = comparison.records
    steps = comparison.steps
    if steps == 0:
        return no_steps(CHECK, distributed, reference)
    if found.not_finite is not None:
        reason = f"the single-device run itself is not finite after step {found.not_finite}"
        return inconclusive(CHECK, reason, in_program=True)
    if found.compared == 0:
        return inconclusive(CHECK, "no weight was recorded on both sides")
    if found.undecided is not None:
        return inconclusive(CHECK, wide(found.undecided))
    unread = lone_variables(reference, distributed, WEIGHTS)
    if unread is not None:
        return inconclusive(CHECK, unread)
    afterwards = changed_afterwards(CHECK, comparison, WEIGHTS) or not_ended(CHECK, comparison)
    if afterwards is not None:
        return afterwards
    left_out = unwatched(reference, distributed)
    if left_out is not None:
        return inconclusive(CHECK, left_out, in_program=True)
    if not any(comparison.tolerance.moved(v.index, steps) for v in of_kind(reference, VariableKind.TRAINABLE)):
        return inconclusive(CHECK, "no trainable variable moved on one device, so equal weights prove nothing")
    hidden = hidden_scale(comparison)
    if hidden is not None:
        return _hidden(comparison, hidden)
    return passed(CHECK, f"{found.compared} components over {steps} steps")


def _hidden(comparison: Comparison, hidden: HiddenScale) -> CheckResult:
    """Report a gradient that differs although the weights agree."""
    replicas, name = comparison.distributed.num_replicas, hidden.variable.name
    causes = {float(replicas): _TOO_LARGE, 1.0 / replicas: _TOO_SMALL}
    cause = next((cause for factor, cause in causes.items() if hidden.is_factor(factor)), None)
    times = "not a multiple" if hidden.factor is None else f"{hidden.factor:.4g} x that"
    what = f"the gradient of {name} in step {hidden.step} is {times} of one device"
    if hidden.certainty is Certainty.AMBIGUOUS or cause is None:
        reason = f"{what}, and the update hides its scale, so equal weights do not prove that it is right"
        return inconclusive(CHECK, reason, in_program=True)
    finding = Finding(
        check=CHECK,
        message=f"{what}, although the weights are equal: the update hides the scale",
        cause=cause,
        step=hidden.step,
        variable=name,
        error=hidden.error,
        tolerance=hidden.bound,
        evidence="the gradients that the replicas pass to the optimizer were added up as the optimizer does it",
    )
    return failed(CHECK, [finding])


def initial_weights(first: tuple[Place, ...]) -> Finding:
    """Build the finding for weights that differ before training."""
    worst = first[0]
    names = list(dict.fromkeys(place.variable.name for place in first))
    message = f"{len(names)} variable(s) differ from one device before the first step: {', '.join(names[:3])}"
    return finding_at(CHECK, worst, message, "initial-weights-differ")


def explain(check: str, comparison: Comparison, first: tuple[Place, ...]) -> Finding:
    """Build the finding for weights that differ after a step, with the cause that reproduces the difference."""
    worst = first[0]
    diagnosis = diagnose(Case.at(comparison, worst.step))
    names = list(dict.fromkeys(place.variable.name for place in first))
    what = "is not finite or differs" if worst.difference.error == float("inf") else "differs"
    message = f"{worst.variable.name} {what} from one device after step {worst.step}"
    if len(names) > 1:
        message += f" (with {len(names) - 1} other variable(s))"
    return replace(finding_at(check, worst, message, diagnosis.cause, diagnosis), others=tuple(names[1:]))


def _structure(reference: TrainingRecord, distributed: TrainingRecord) -> list[Finding]:
    """Find variables that have no counterpart, or one of another shape."""
    if not distributed.ranks or (distributed.errors and not distributed.variables):
        return []
    ours = of_kind(reference, *WEIGHTS)
    for rank in distributed.ranks:
        theirs = [variable for variable in rank.variables if variable.kind in WEIGHTS]
        where = f"under the strategy ({rank.task})" if len(distributed.ranks) > 1 else "under the strategy"
        if len(ours) != len(theirs) and not (distributed.errors or reference.errors):
            message = f"{len(theirs)} weights are watched {where}, {len(ours)} on one device"
            observed, expected = _names(theirs), _names(ours)
            return [Finding(CHECK, message, worker=rank.rank, observed=observed, expected=expected, step=0)]
        for left, right in zip(ours, theirs, strict=False):
            if left.shape != right.shape or left.kind is not right.kind:
                message = f"{right.name} is not the same variable as on one device"
                observed, expected = (f"{v.name} {v.kind.value} {v.shape}" for v in (right, left))
                return [Finding(CHECK, message, variable=right.name, observed=observed, expected=expected, step=0)]
            # After an error, one run may not have reached the call that watches the rest.
            if left.index != right.index and not (distributed.errors or reference.errors):
                message = f"{right.name} is watched in another order than on one device"
                observed, expected = (f"{v.name} at place {v.index + 1}" for v in (right, left))
                fix = SPECIAL["watched-otherwise"]
                return [
                    Finding(CHECK, message, variable=right.name, observed=observed, expected=expected, step=0, fix=fix)
                ]
    return []


def _names(variables: list[VariableRecord]) -> str:
    names = [variable.name for variable in variables]
    return ", ".join(names[:6]) + (" ..." if len(names) > 6 else "")


def _step_counts(reference: TrainingRecord, distributed: TrainingRecord) -> list[Finding]:
    """Find ranks that trained for different numbers of steps. After an error that is only a consequence."""
    if reference.errors or distributed.errors:
        return []
    counts = {rank.task: rank.num_steps for rank in distributed.ranks}
    if set(counts.values()) == {reference.num_steps} or not counts:
        return []
    of_ranks = ", ".join(f"{task} {count}" for task, count in counts.items())
    message = f"the number of steps differs: {of_ranks}; on one device {reference.num_steps}"
    return [
        Finding(
            CHECK,
            message,
            cause="unequal-steps",
            step=min([*counts.values(), reference.num_steps]) + 1,
            fix=None if len(set(counts.values())) > 1 else SPECIAL["fewer-steps"],
            observed=of_ranks,
            expected=str(reference.num_steps),
        )
    ]
