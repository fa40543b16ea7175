"""LINT: the strategy spans the cluster that was asked for, and trained variables were made in its scope."""

from __future__ import annotations

from pytest_ddl.equivalence.causes.special import SPECIAL
from pytest_ddl.equivalence.evidence import gradients
from pytest_ddl.equivalence.evidence.arrays import difference
from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.evidence.observe import compared_with_reference, is_seed, of_kind, update
from pytest_ddl.equivalence.findings import CheckResult, Finding
from pytest_ddl.equivalence.outcomes import failed, inconclusive, not_applicable, passed
from pytest_ddl.messages import listed
from pytest_ddl.records import GradientStage, RankRecord, TrainingRecord, VariableKind, VariableRecord

CHECK = "LINT"

_MIRRORING = ("mirrored", "multi_worker_mirrored", "tpu")
"""Strategies under which every replica holds a component of each variable that is made in their scope."""

_OF_THE_OPTIMIZER = (VariableKind.SLOT, VariableKind.ITERATIONS)


def check_lint(comparison: Comparison) -> CheckResult:
    """Judge the facts about the set-up. The reference shows which variables are trained."""
    distributed = comparison.distributed
    known = [rank for rank in distributed.ranks if "replicas" in rank.facts]
    if not known:
        return not_applicable(CHECK, "the set-up was not observed")
    findings = [finding for rank in known for finding in _cluster(rank, distributed)]
    outside = _outside(comparison)
    if outside:
        findings.append(_outside_scope(outside, distributed))
    if findings:
        return failed(CHECK, findings)
    if distributed.errors and not distributed.variables:
        return inconclusive(CHECK, "the run failed before a variable was watched", follows=True)
    spanned = f"{known[0].facts.get('replicas')} replica(s) in sync"
    mirrored = [variable for variable in distributed.variables if variable.distributed]
    return passed(CHECK, spanned + (f", {len(mirrored)} mirrored variables" if mirrored else ""))


def _cluster(rank: RankRecord, distributed: TrainingRecord) -> list[Finding]:
    """Report a strategy of the program that does not span the cluster that was asked for."""
    facts, asked = rank.facts, distributed.num_replicas
    messages = []
    replicas = facts.get("replicas", asked)
    if replicas != asked:
        messages.append((f"the strategy has {replicas} replica(s) in sync, not {asked}", str(replicas)))
    for own in facts.get("own_strategies", ()):
        # A teacher model or an evaluation on one device beside the training is no mistake.
        beside = own["type"] == "OneDeviceStrategy" and facts.get("dispatched")
        if own["replicas"] < asked and not beside:
            what = (
                f"the program trains under a {own['type']} of its own, with {own['replicas']} replica(s), not {asked}"
            )
            messages.append((what, str(own["replicas"])))
    before, after = facts.get("tf_config", (None, None))
    if after is not None and after != before and after != len(distributed.ranks):
        what = (
            f"the program sets TF_CONFIG to {after} worker(s) after the strategy was made for {len(distributed.ranks)}"
        )
        messages.append((what, str(after)))
    return [
        Finding(
            check=CHECK,
            message=message,
            cause="cluster-misconfigured",
            step=0,
            worker=rank.rank,
            observed=observed,
            expected=str(asked),
            fix=SPECIAL["strategy-of-the-program"],
        )
        for message, observed in messages[:1]
    ]


def _outside(comparison: Comparison) -> list[VariableRecord]:
    """Find trained variables that have only one component for all replicas.

    Variables of the optimizer are listed only if they differ from one device, because each worker may rightly keep its
    own counter. Other state is listed only if every replica repeats its change.
    """
    reference, distributed = comparison.records
    if distributed.num_replicas < 2 or distributed.strategy.split("[")[0] not in _MIRRORING:
        return []
    plain = {variable.index for variable in distributed.variables if not variable.distributed}
    steps = reference.num_steps
    trained = [
        variable
        for variable in of_kind(reference, VariableKind.TRAINABLE)
        if variable.index in plain and comparison.tolerance.moved(variable.index, steps)
    ]
    trained = [variable for variable in trained if _is_of_a_replica(comparison, variable)]
    alone = all(len(rank.replicas) == 1 for rank in distributed.ranks)
    if alone and not distributed.errors and not comparison.differences().first:
        trained = []  # each worker keeps its own copy and updates it as the others do
    last = min(steps, distributed.num_steps)
    wrong = {place.variable.index for place in comparison.differences(_OF_THE_OPTIMIZER, 1, last).first}
    outside = trained + [v for v in of_kind(reference, *_OF_THE_OPTIMIZER) if v.index in plain & wrong]
    return outside + [v for v in _repeated_state(comparison) if v.index in plain]


def _is_of_a_replica(comparison: Comparison, variable: VariableRecord) -> bool:
    """Return whether a replica trains a variable, as far as that was observed.

    A counter that only the program's loop changes has no gradient and equals one device. It is still trainable for
    TensorFlow, because variables are trainable by default.
    """
    reference, distributed = comparison.records
    if not (gradients.observed(reference) and gradients.observed(distributed)):
        return True
    for record in comparison.records:
        for step in range(1, record.num_steps + 1):
            found = (call for stage in GradientStage for call in gradients.calls(record, step, stage))
            if any(call.values.get(variable.index) is not None for call in found):
                return True
    last = min(reference.num_steps, distributed.num_steps)
    return any(
        difference(actual, desired).error > comparison.tolerance.variable(variable.index, step).value
        for step in range(1, last + 1)
        for _rank, _replica, actual, desired in compared_with_reference(reference, distributed, variable, step)
    )


def _repeated_state(comparison: Comparison) -> list[VariableRecord]:
    """Find state to which every replica of a process added the change that one device makes."""
    reference, distributed = comparison.records
    if all(len(rank.replicas) == 1 for rank in distributed.ranks):
        return []
    repeated = []
    for variable in of_kind(reference, VariableKind.STATE):
        for step in range(1, min(reference.num_steps, distributed.num_steps) + 1):
            ours, theirs = (update(record, variable.index, step) for record in (reference, distributed))
            if is_seed(variable) or ours is None or theirs is None or ours.shape != theirs.shape:
                break
            slack = sum(comparison.tolerance.variable(variable.index, at).value for at in (step - 1, step))
            if difference(theirs, ours).error <= slack:
                continue
            number = len(distributed.ranks[0].replicas)
            if difference(theirs, number * ours).error <= number * slack:
                repeated.append(variable)
            break
    return repeated


def _outside_scope(outside: list[VariableRecord], distributed: TrainingRecord) -> Finding:
    names = [variable.name for variable in outside]
    return Finding(
        check=CHECK,
        message=f"{listed(names)}: one component for {distributed.num_replicas} replicas, "
        "so it was made outside strategy.scope()",
        cause="variable-outside-scope",
        step=0,
        variable=names[0],
        observed="not mirrored",
        expected="a component per replica",
        origin="no tolerance: a variable is either mirrored or not",
    )
