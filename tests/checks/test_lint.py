"""LINT, and exceptions that name a mistake: a right set-up passes, each wrong one is found and named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from simulated_training import Program, pair

from pytest_ddl.equivalence.findings import Outcome
from pytest_ddl.equivalence.verdict.judge import judge
from pytest_ddl.equivalence.verdict.report import Report
from pytest_ddl.records import ErrorRecord, GradientRecord, GradientStage, TrainingRecord, VariableKind

RIGHT = {"replicas": 2, "expected_replicas": 2, "own_strategies": []}


def with_facts(record: TrainingRecord, **facts: Any) -> TrainingRecord:
    return replace(record, ranks=tuple(replace(rank, facts={**RIGHT, **facts}) for rank in record.ranks))


def plain(record: TrainingRecord, *kinds: VariableKind) -> TrainingRecord:
    """The record with variables of some kinds that are not mirrored."""
    ranks = tuple(
        replace(rank, variables=tuple(replace(v, distributed=v.kind not in kinds) for v in rank.variables))
        for rank in record.ranks
    )
    return replace(record, ranks=ranks)


def outcome(report: Report) -> Outcome:
    return next(result.outcome for result in report.results if result.check == "LINT")


def test_a_right_set_up_passes() -> None:
    reference, distributed = pair(Program(replicas=2))
    assert outcome(judge(reference, distributed)) is Outcome.NOT_APPLICABLE
    report = judge(reference, with_facts(distributed))
    assert outcome(report) is Outcome.PASS
    assert report.passed, str(report)


@pytest.mark.parametrize(
    "facts",
    [
        {"replicas": 1},
        {"own_strategies": [{"type": "MirroredStrategy", "replicas": 1, "used": True}]},
        {"own_strategies": [{"type": "OneDeviceStrategy", "replicas": 1, "used": True}], "dispatched": False},
        {"tf_config": (None, 4)},
    ],
    ids=["replicas", "own strategy", "nothing but one device", "TF_CONFIG"],
)
def test_a_cluster_that_is_not_spanned_is_named(facts: dict[str, Any]) -> None:
    reference, distributed = pair(Program(replicas=2, workers=2), aggregate=False)
    report = judge(reference, with_facts(distributed, **facts))
    assert [(f.check, f.cause) for f in report.findings] == [("LINT", "cluster-misconfigured")], str(report)


ONE_DEVICE = {"type": "OneDeviceStrategy", "replicas": 1, "used": True}


@pytest.mark.parametrize(
    "facts",
    [
        {"tf_config": (2, 2)},
        {"tf_config": (2, None)},
        {"own_strategies": []},
        {"own_strategies": [ONE_DEVICE], "dispatched": True},
    ],
)
def test_facts_that_change_nothing_are_no_finding(facts: dict[str, Any]) -> None:
    reference, distributed = pair(Program(replicas=2, workers=2))
    assert judge(reference, with_facts(distributed, **facts)).passed


def test_trained_variables_outside_the_scope_are_named() -> None:
    reference, distributed = pair(Program(replicas=2))
    report = judge(reference, with_facts(plain(distributed, VariableKind.TRAINABLE)))
    assert [(f.check, f.cause) for f in report.findings] == [("LINT", "variable-outside-scope")]
    assert "dense/kernel" in report.findings[0].message


@pytest.mark.parametrize("kind", [VariableKind.FROZEN, VariableKind.STATE, VariableKind.ITERATIONS])
def test_variables_that_are_right_all_the_same_are_no_finding(kind: VariableKind) -> None:
    reference, distributed = pair(Program(replicas=2))
    assert judge(reference, with_facts(plain(distributed, kind))).passed


def test_a_counter_outside_the_scope_that_counts_replicas_is_named() -> None:
    reference, distributed = pair(Program(replicas=2), extra_iterations=1)
    report = judge(reference, with_facts(plain(distributed, VariableKind.ITERATIONS)))
    assert report.findings[0].cause == "variable-outside-scope"


def test_a_trainable_counter_of_the_loop_may_be_made_outside_the_scope() -> None:
    """No replica trains a variable that has no gradient and equals one device, although it is trainable by default."""
    counter = 1

    def without_its_gradient(record: TrainingRecord) -> TrainingRecord:
        ranks = []
        for rank in record.ranks:
            variables = tuple(replace(v, distributed=v.index != counter) for v in rank.variables)
            gradients = (GradientRecord(rank.replicas[0], GradientStage.APPLIED, 0, {0: np.zeros((4, 3))}),)
            steps = tuple(replace(step, gradients=gradients) for step in rank.steps)
            ranks.append(replace(rank, variables=variables, steps=steps))
        return replace(record, ranks=tuple(ranks))

    reference, distributed = map(without_its_gradient, pair(Program(replicas=2)))
    assert outcome(judge(reference, with_facts(distributed))) is Outcome.PASS
    reference, distributed = map(without_its_gradient, pair(Program(replicas=2), scale=2.0))
    assert judge(reference, with_facts(distributed)).findings[0].cause == "variable-outside-scope"


def test_state_outside_the_scope_that_every_replica_changes_is_named() -> None:
    reference, distributed = pair(Program(replicas=2))

    def doubled(snapshot: Any, initial: Any) -> Any:
        return {i: (2 * parts[0] - initial[i][0],) if i == 3 else parts for i, parts in snapshot.items()}

    ranks = tuple(
        replace(rank, steps=tuple(replace(s, snapshot=doubled(s.snapshot, rank.initial)) for s in rank.steps))
        for rank in distributed.ranks
    )
    wrong = with_facts(plain(replace(distributed, ranks=ranks), VariableKind.STATE))
    report = judge(reference, wrong)
    assert [(f.check, f.cause) for f in report.findings] == [("LINT", "variable-outside-scope")], str(report)
    assert judge(reference, with_facts(plain(distributed, VariableKind.STATE))).passed


def test_copies_that_workers_keep_alike_are_no_finding() -> None:
    reference, distributed = pair(Program(replicas=2, workers=2))
    assert judge(reference, with_facts(plain(distributed, VariableKind.TRAINABLE))).passed
    reference, distributed = pair(Program(replicas=2, workers=2), aggregate=False)
    report = judge(reference, with_facts(plain(distributed, VariableKind.TRAINABLE)))
    assert report.findings[0].cause == "variable-outside-scope"


@pytest.mark.parametrize(
    ("message", "cause", "words"),
    [
        (
            "Variable (<tf.Variable>) was not created in the distribution strategy scope of (<MirroredStrategy>).",
            "variable-outside-scope",
            "strategy.scope()",
        ),
        (
            "`colocate_vars_with` must only be passed a variable created in this tf.distribute.Strategy.scope(), not:",
            "variable-outside-scope",
            "strategy.scope()",
        ),
        ("Collective ops are already configured.", "cluster-misconfigured", "TF_CONFIG"),
        ("'NoneType' object has no attribute 'merge_call'", "worker-raised", "inside the function"),
        ("division by zero", "worker-raised", "traceback"),
    ],
)
@pytest.mark.parametrize("on_one_device", [False, True])
def test_exceptions_that_tell_a_mistake(message: str, cause: str, words: str, on_one_device: bool) -> None:
    error = ErrorRecord("ValueError", message, "Traceback", 0)
    reference, distributed = pair(Program(replicas=2), error=error)
    if on_one_device:
        reference = replace(reference, ranks=(replace(reference.ranks[0], error=error),))
    report = judge(reference, distributed)
    if on_one_device and cause == "worker-raised":
        assert report.verdict == "inconclusive"
        return
    assert report.findings[0].cause == cause
    assert words in str(report.findings[0].fix)
