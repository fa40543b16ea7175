"""PERF: what is counted in every step, and what a correct program may do."""

from __future__ import annotations

import pytest

from pytest_ddl.equivalence.checks.performance import check_performance
from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.evidence.tolerance import Tolerance
from pytest_ddl.equivalence.findings import Outcome
from pytest_ddl.records import (
    CollectiveRecord,
    GraphRecord,
    RankRecord,
    StepRecord,
    TrainingRecord,
    VariableKind,
    VariableRecord,
)

SHAPES = [(8, 4), (4,), (4, 1), (1,)]


def graph(step=1, function="train_step", signature=("6x8 float32",), asked=(), issued=1):
    collectives = (CollectiveRecord("all_reduce", "SUM", (41,), "float32", function),) * issued
    return GraphRecord(function, step, 300, signature, collectives, tuple(asked))


def call(shapes, group, where="train.py:7"):
    return [CollectiveRecord("all_reduce", "SUM", shape, "float32", where, group=group) for shape in shapes]


def one_by_one(shapes, where="train.py:7"):
    return [item for group, shape in enumerate(shapes) for item in call([shape], group, where)]


def judged(*graphs, eager=(None, None, None), replicas=2):
    variables = tuple(
        VariableRecord(index, f"v{index}", VariableKind.TRAINABLE, shape, "float32")
        for index, shape in enumerate(SHAPES)
    )
    steps = tuple(StepRecord(index, None, eager=item) for index, item in enumerate(eager, 1))
    rank = RankRecord(0, "local", (0, 1), variables=variables, steps=steps, graphs=tuple(graphs))
    record = TrainingRecord("mirrored", replicas, (rank,), 12, "float64", 0)
    return check_performance(Comparison(record, record, Tolerance(record, ())))


def cause(result):
    assert result.outcome is Outcome.FAIL
    (finding,) = result.findings
    assert finding.symptom == "slow"
    return finding.cause


@pytest.mark.parametrize(
    "graphs",
    [
        [graph()],
        # The first batch builds variables; the last one is smaller.
        [graph(1), graph(1), graph(3, signature=("2x8 float32",))],
        # Batches of another length in every step.
        [graph(step, signature=(f"6x{step} float32",)) for step in (1, 2, 3)],
        # A warm-up, and a phase of its own.
        [graph(1), graph(2, "second_phase"), graph(3, "third_phase")],
        [graph(asked=call(SHAPES, 0))],
        # Statistics of three layers, each by itself, have the shape of biases and not of kernels.
        [graph(asked=one_by_one([(4,), (4,), (4,)]), issued=3)],
        # Losses and counts.
        [graph(asked=one_by_one([(), (), (), ()]), issued=4)],
        # Calls cost nothing if the strategy adds up on one device.
        [graph(asked=one_by_one(SHAPES), issued=0)],
    ],
)
def test_correct_programs_pass(graphs):
    assert judged(*graphs).outcome is Outcome.PASS


def test_a_trace_in_every_step():
    result = judged(graph(1), graph(2), graph(3))
    assert cause(result) == "retraced-every-step"
    assert result.findings[0].step == 2


def test_one_retracing_step_is_not_every_step():
    assert judged(graph(1), graph(2), eager=(None, None)).outcome is Outcome.PASS


def test_eager_steps():
    assert cause(judged(eager=(True, True, True))) == "eager-step"


@pytest.mark.parametrize("eager", [(True, None, True), (True,)])
def test_some_eager_calls_are_no_eager_steps(eager):
    assert judged(eager=eager).outcome is not Outcome.FAIL


def test_an_eager_call_beside_a_graph_is_no_eager_step():
    assert judged(graph(), eager=(True, True, True)).outcome is Outcome.PASS


def test_a_reduction_for_each_variable():
    result = judged(graph(asked=one_by_one(SHAPES), issued=4))
    assert cause(result) == "collective-per-variable"
    assert "train.py:7" in result.findings[0].message


def test_nothing_observed_is_no_pass():
    assert judged().outcome is Outcome.NOT_APPLICABLE
    assert judged(graph(), replicas=1).outcome is Outcome.NOT_APPLICABLE
