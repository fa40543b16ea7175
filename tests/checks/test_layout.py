"""LAYOUT: layouts as declared pass, and each way of not being so is named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from simulated_training import Program, pair

from pytest_ddl.equivalence.findings import Outcome
from pytest_ddl.equivalence.verdict.judge import judge
from pytest_ddl.equivalence.verdict.report import Report
from pytest_ddl.hints import FrontEnd
from pytest_ddl.records import LayoutRecord, TrainingRecord
from pytest_ddl.strategies.spec import Capabilities

MESH = {"batch": 2, "model": 2}
SHARDED = Capabilities(global_view=True)
RIGHT = LayoutRecord((), (), (), MESH)
KERNEL = LayoutRecord(("model", "unsharded"), ("model", "unsharded"), (2, 3), MESH)


def laid_out(kernel: LayoutRecord | None = KERNEL, facts: dict[str, Any] | None = None) -> Report:
    reference, distributed = pair(Program(replicas=1))
    (rank,) = distributed.ranks
    variables = tuple(
        replace(
            v,
            layout=kernel
            if v.name == "dense/kernel"
            else LayoutRecord(None, ("unsharded",) * len(v.shape), v.shape, MESH),
        )
        for v in rank.variables
    )
    rank = replace(rank, variables=variables, facts=facts or {})
    return judge(
        reference,
        replace(distributed, strategy="model_parallel[mesh=batch:2;model:2]", capabilities=SHARDED, ranks=(rank,)),
    )


def outcome(report: Report) -> Outcome:
    return next(result.outcome for result in report.results if result.check == "LAYOUT")


def test_layouts_as_declared_pass() -> None:
    report = laid_out()
    assert outcome(report) is Outcome.PASS
    assert report.passed, str(report)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"actual": ("unsharded", "unsharded"), "shard_shape": (4, 3)}, "not laid out as run.layout_map says"),
        ({"shard_shape": (4, 3)}, "does not have the shape"),
        ({"replicas_equal": False}, "hold different values"),
    ],
)
def test_another_layout_is_named(change: dict[str, Any], words: str) -> None:
    report = laid_out(replace(KERNEL, **change)).rendered(FrontEnd.TEST)
    assert [finding.cause for finding in report.findings] == ["layout-wrong"]
    assert words in report.findings[0].message


def test_a_rule_that_matches_nothing_is_named() -> None:
    report = laid_out(facts={"layout_rules": ["dence"], "unmatched_layout_rules": ["dence"]})
    assert report.findings[0].cause == "layout-wrong"
    assert "'dence'" in report.findings[0].message


def test_other_strategies_have_no_layouts() -> None:
    records: tuple[TrainingRecord, TrainingRecord] = pair(Program(replicas=2))
    assert outcome(judge(*records)) is Outcome.NOT_APPLICABLE


def test_variables_without_a_layout_do_not_pass() -> None:
    reference, distributed = pair(Program())
    assert (
        outcome(judge(reference, replace(distributed, strategy="model_parallel", capabilities=SHARDED)))
        is Outcome.INCONCLUSIVE
    )


def test_one_variable_without_a_layout_is_a_doubt() -> None:
    assert outcome(laid_out(None)) is Outcome.INCONCLUSIVE
