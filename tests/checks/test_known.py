"""The catalogue of known behaviors recognizes what a framework does by itself, and nothing that a program does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from simulated_training import Program, simulate

from pytest_ddl.equivalence.causes import CAUSES
from pytest_ddl.equivalence.checks.seed import ACROSS_REPLICAS
from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.evidence.slices import Slices
from pytest_ddl.equivalence.evidence.tolerance import Tolerance
from pytest_ddl.equivalence.known.catalogue import KNOWN, recognized
from pytest_ddl.equivalence.runs.slices import sharing_replicas
from pytest_ddl.equivalence.verdict.judge import judge
from pytest_ddl.equivalence.verdict.report import Report
from pytest_ddl.records import (
    DrawRecord,
    ErrorRecord,
    LayerRecord,
    TrainingRecord,
    VariableKind,
    VariableRecord,
)

VERSIONS = {"keras": "3.15.1", "tensorflow": "2.21.0"}
REPLICAS = 2
GENERATOR = "seed_generator"


def _with(record: TrainingRecord, versions: dict[str, str] = VERSIONS, **fields: object) -> TrainingRecord:
    return replace(record, ranks=tuple(replace(rank, versions=versions, **fields) for rank in record.ranks))


def _drawing(record: TrainingRecord, *generators: str, versions: dict[str, str] = VERSIONS) -> TrainingRecord:
    """Return a record in which every replica draws the same numbers in a step, once for each generator."""

    def draw(replica: int, position: int, step: int, rows: int) -> DrawRecord:
        size = rows * 8
        given = {"digest": 100 * position + step, "size": size, "shape": (rows, 8), "dtype": "float32"}
        name = f"draw_{position}"
        return DrawRecord(
            replica, position, "uniform", name, **given, distinct=size, generator=generators[position]
        )  # fmt: skip

    rows = 12 // record.num_replicas
    ranks = tuple(
        replace(
            rank,
            versions=versions,
            draws_observed=True,
            steps=tuple(
                replace(
                    step,
                    draws=tuple(
                        draw(replica, position, step.index, rows)
                        for replica in rank.replicas
                        for position in range(len(generators))
                    ),
                )
                for step in rank.steps
            ),
        )
        for rank in record.ranks
    )
    return replace(record, ranks=ranks)


def _judged(*generators: str, versions: dict[str, str] = VERSIONS, strict: bool = False, **sins: object) -> Report:
    reference = _drawing(simulate(Program()), *generators)
    distributed = _drawing(simulate(Program(replicas=REPLICAS, **sins)), *generators, versions=versions)
    return judge(reference, distributed, strict=strict)


def test_the_seed_generator_of_keras_is_recognized_and_is_no_pass() -> None:
    report = _judged(GENERATOR, GENERATOR)
    assert report.verdict == "known", str(report)
    assert not report.passed
    assert not report
    assert [behavior.id for behavior in report.known_behaviors] == ["keras-seed-generator"]
    assert [finding.cause for finding in report.known] == [ACROSS_REPLICAS]
    assert 'expect={"mirrored": {"random-stream-repeated-across-replicas": "keras-seed-generator"}}' in str(report)


def test_strict_mode_fails_on_it_and_names_it() -> None:
    report = _judged(GENERATOR, strict=True)
    assert report.verdict == "fail"
    assert "known as:    keras-seed-generator" in str(report)


def test_a_seed_of_the_program_is_not_recognized() -> None:
    report = _judged("")
    assert report.verdict == "fail"
    assert [finding.known for finding in report.findings] == [None]


def test_a_seed_of_the_program_beside_one_of_keras_fails() -> None:
    report = _judged(GENERATOR, "")
    assert report.verdict == "fail", str(report)
    assert "draw_1" in str(report.findings[0].evidence)


@pytest.mark.parametrize("versions", [{}, {"keras": "3.17.0"}, {"tf_keras": "2.21"}])
def test_another_version_is_not_assumed_to_behave_alike(versions: dict[str, str]) -> None:
    assert _judged(GENERATOR, versions=versions).verdict == "fail"


def test_another_defect_beside_it_fails() -> None:
    report = _judged(GENERATOR, scale=2.0)
    assert report.verdict == "fail", str(report)
    assert report.findings[0].cause == "gradient-scaled-by-replica-count", str(report)


LAYER = LayerRecord(
    "norm", "BatchNormalization", {"synchronized": False, "trainable": True, "by_keras": True, "momentum": 0.9}
)


def _normalized(layer: LayerRecord, name: str = "norm/moving_mean") -> Report:
    def named(record: TrainingRecord) -> TrainingRecord:
        ranks = tuple(
            replace(
                rank,
                versions=VERSIONS,
                layers=(layer,),
                variables=tuple(replace(v, name=name) if v.kind == "state" else v for v in rank.variables),
            )
            for rank in record.ranks
        )
        return replace(record, ranks=ranks)

    return judge(named(simulate(Program())), named(simulate(Program(replicas=2, state_local=True))))


def test_moving_statistics_fail_with_a_fix_for_keras() -> None:
    report = _normalized(LAYER)
    assert report.verdict == "fail", str(report)
    assert "keras.layers.BatchNormalization(synchronized=True)" in str(report.findings[0].fix)
    assert 'expect={"mirrored": {"state-not-aggregated": "the reason"}}' in str(report)
    assert "Keras 3" not in str(_normalized(LAYER, "norm/seen").findings[0].fix)


def _with_statistics(replicas: int, *wrong: str, layer: LayerRecord = LAYER) -> TrainingRecord:
    """Return a record with moving statistics of which every replica keeps those of its own examples.

    :param wrong: ``own`` for another state that differs over replicas too, ``shifted`` for a mean of something else.
    """
    record = simulate(Program(replicas=replicas, state_local="own" in wrong))
    first = len(record.variables)
    names = ("norm/moving_mean", "norm/moving_variance")
    added = tuple(
        VariableRecord(first + i, name, VariableKind.STATE, (3,), "float64", distributed=replicas > 1)
        for i, name in enumerate(names)
    )
    inputs = np.random.default_rng(5).normal(size=(len(record.ranks[0].steps), 12, 3))
    values = [[np.zeros(3), np.ones(3)] for _replica in range(replicas)]

    def snapshot() -> dict[int, tuple[np.ndarray, ...]]:
        return {first + i: tuple(value[i].copy() for value in values) for i in (0, 1)}

    (rank,) = record.ranks
    initial, steps = {**rank.initial, **snapshot()}, []
    for step, rows in zip(rank.steps, inputs, strict=True):
        for value, part in zip(values, np.split(rows, replicas), strict=True):
            shift = 0.5 if "shifted" in wrong and replicas > 1 else 0.0
            value[0] = 0.9 * value[0] + 0.1 * (part.mean(axis=0) + shift)
            value[1] = 0.9 * value[1] + 0.1 * part.var(axis=0)
        steps.append(replace(step, snapshot={**step.snapshot, **snapshot()}))
    changed = replace(rank, variables=(*rank.variables, *added), initial=initial, steps=tuple(steps))
    return _with(replace(record, ranks=(changed,)), layers=(layer,))


def test_moving_statistics_of_each_replica_are_recognized() -> None:
    report = judge(_with_statistics(1), _with_statistics(REPLICAS))
    assert report.verdict == "known", str(report)
    assert {behavior.id for behavior in report.known_behaviors} == {"keras-batch-normalization"}
    assert "synchronized=True" in str(report)


@pytest.mark.parametrize("wrong", ["own", "shifted"])
def test_a_wrong_state_beside_moving_statistics_fails(wrong: str) -> None:
    report = judge(_with_statistics(1, wrong), _with_statistics(REPLICAS, wrong))
    assert report.verdict == "fail", str(report)
    layer = "ema" if wrong == "own" else "norm"
    assert {str(finding.variable).split("/")[0] for finding in report.findings} == {layer}


@pytest.mark.parametrize(("neutralized", "verdict"), [((), "known"), (("random", "normalization"), "fail")])
def test_random_numbers_before_moving_statistics_leave_them_to_the_runs_without(
    neutralized: tuple[str, ...], verdict: str
) -> None:
    reference, distributed = (
        replace(_drawing(_with_statistics(replicas, "shifted"), GENERATOR), neutralized=neutralized)
        for replicas in (1, REPLICAS)
    )
    assert judge(reference, distributed).verdict == verdict


@pytest.mark.parametrize("changes", [{"by_keras": False}, {"synchronized": True}])
def test_moving_statistics_of_another_layer_are_not_recognized(changes: dict[str, bool]) -> None:
    layer = replace(LAYER, settings={**LAYER.settings, **changes})
    assert judge(_with_statistics(1, layer=layer), _with_statistics(REPLICAS, layer=layer)).verdict == "fail"


def test_runs_on_the_examples_of_each_replica_show_moving_statistics_behind_others() -> None:
    """The inputs of a second layer are not those of one device, so that its statistics do not add up to them."""
    reference, distributed = _with_statistics(1), _with_statistics(REPLICAS, "shifted")
    (rank,) = distributed.ranks
    alone = {}
    for replica in range(REPLICAS):
        steps = tuple(
            replace(
                step,
                snapshot={i: parts[replica : replica + 1] for i, parts in step.snapshot.items()},
                batches=tuple(batch for batch in step.batches if batch.replica == replica),
            )
            for step in rank.steps
        )
        alone[replica] = replace(reference, ranks=(replace(reference.ranks[0], steps=steps),))
    assert judge(reference, distributed, slices=Slices(1, alone)).verdict == "known"
    swapped = dict(zip(alone, reversed(alone.values()), strict=True))
    assert judge(reference, distributed, slices=Slices(1, swapped)).verdict == "fail"


def test_runs_that_could_not_be_cut_down_to_the_examples_of_a_replica_show_nothing() -> None:
    reference = _with_statistics(1)
    whole = Slices(1, dict.fromkeys(range(REPLICAS), reference))
    assert judge(reference, _with_statistics(REPLICAS), slices=whole).verdict == "known"
    assert judge(reference, _with_statistics(REPLICAS, "shifted"), slices=whole).verdict == "fail"


SUMMED = (2 * 3 + 6) / (2 * 6 + 4)
"""Mean loss of two batches with 6 and 4 examples, and sums of losses 3 and 6, if the second batch sums both again."""


def _evaluated(value: float, step: int = 3, shared: bool = True) -> Report:
    """Return the report of an evaluation of these batches.

    :param shared: judge with a run on one device whose metrics are multiplied before each batch.
    """

    def with_result(record: TrainingRecord, number: float) -> TrainingRecord:
        return _with(record, results={"evaluate": [number]}, result_steps={"evaluate": step})

    reference = simulate(Program())
    distributed = replace(simulate(Program(replicas=REPLICAS)), strategy="central_storage[replicas=2]")
    runs = Slices(0, shared=with_result(reference, SUMMED) if shared else None)
    return judge(with_result(reference, 0.9), with_result(distributed, value), slices=runs)


def test_an_evaluation_that_sums_its_metrics_again_is_recognized() -> None:
    assert _evaluated(0.9).verdict == "pass"
    for step in (0, 3):
        report = _evaluated(SUMMED, step)
        assert report.verdict == "known", str(report)
        assert [behavior.id for behavior in report.known_behaviors] == ["keras-metrics-central-storage"]


def test_without_a_run_whose_metrics_are_multiplied_nothing_is_recognized() -> None:
    report = _evaluated(SUMMED, shared=False)
    assert report.verdict == "fail", str(report)
    assert sharing_replicas(report) == REPLICAS


def test_another_result_of_an_evaluation_is_not_recognized() -> None:
    report = _evaluated(0.8)
    assert report.verdict == "fail", str(report)
    assert report.findings[0].cause == "metric-wrong"


KERAS = "/venv/site-packages/keras/src/utils/traceback_utils.py"
ENDS = {
    "keras-fit-multi-worker": (
        "multi_worker_mirrored[workers=2]",
        "Attempt to convert a value (PerReplica:{ 0: 1 }) with an unsupported type",
    ),
    "keras-fit-parameter-server": (
        "parameter_server[workers=2,ps=1]",
        "To use this dataset, you need to pass this dataset to ClusterCoordinator.create_per_worker_dataset.",
    ),
    "keras-fit-unequal-parts": (
        "mirrored[replicas=2]",
        "{{function_node AddN_N_2}} Inputs to operation AddN of type AddN must have the same size and shape.",
    ),
    "keras-fit-strings": (
        "mirrored[replicas=2]",
        "Value for attr 'T' of string is not in the list of allowed values: float\n\t; NodeDef: {{node AddN}}",
    ),
}
INDICES = (
    "Unable to automatically build the model. RuntimeError: Value passed to parameter 'indices' has DataType float32 "
    "not in list of allowed values: int16, int32, int64"
)
ENDS["keras-fit-averaged-indices"] = ("mirrored[replicas=2]", INDICES)
ENDS["keras-fit-several-steps"] = (
    "mirrored[replicas=2]",
    "You must feed a value for placeholder tensor 'while/body/_10/while/cond/then/_232/while/cond/Placeholder'",
)


def _ended(strategy: str, message: str, *calls: str) -> Report:
    frames = "".join(f'  File "/project/train.py", line {n}, in train\n    {call}\n' for n, call in enumerate(calls, 1))
    trace = f'Traceback (most recent call last):\n{frames}  File "{KERAS}", line 1, in error_handler\n    raise e\n'
    error = ErrorRecord("ValueError", message, f"{trace}ValueError: {message}\n", step=0)
    distributed = simulate(Program(replicas=REPLICAS))
    ended = replace(_with(distributed, error=error, steps=()), strategy=strategy)
    return judge(simulate(Program()), ended)


@pytest.mark.parametrize("name", ENDS)
def test_a_run_that_a_framework_ends_is_recognized(name: str) -> None:
    report = _ended(*ENDS[name], "model.fit(data)")
    assert report.verdict == "known", str(report)
    assert [behavior.id for behavior in report.known_behaviors] == [name]
    assert "nothing was compared" in str(report).splitlines()[0]


@pytest.mark.parametrize("name", ENDS)
def test_the_same_exception_in_code_of_the_program_is_not_recognized(name: str) -> None:
    assert _ended(*ENDS[name], "model.fit(data)", "tf.reduce_mean(losses)").verdict == "fail"
    assert _ended(*ENDS[name], "tf.reduce_mean(losses)").verdict == "fail"


def test_what_one_device_refuses_too_is_not_recognized() -> None:
    strategy, message = ENDS["keras-fit-averaged-indices"]
    report = _ended(strategy, message, "model.fit(data)")
    assert report.reference is not None
    assert report.distributed is not None
    (_rank, error) = report.distributed.errors[0]
    again = judge(replace(report.reference, refused=error), report.distributed)
    assert again.verdict == "fail", str(again)


@pytest.mark.parametrize("name", ENDS)
def test_the_same_exception_under_another_strategy_is_not_recognized(name: str) -> None:
    assert _ended("tpu", ENDS[name][1], "model.fit(data)").verdict == "fail"


def test_entries_are_complete() -> None:
    for name, entry in KNOWN.items():
        assert name == entry.id
        assert entry.title
        assert entry.workaround
        assert entry.versions
        assert set(entry.causes) <= set(CAUSES)


def test_what_is_right_is_not_recognized() -> None:
    reference, distributed = simulate(Program()), simulate(Program(replicas=REPLICAS, scale=2.0))
    report = judge(_with(reference), _with(distributed))
    assert all(
        recognized(finding, Comparison(reference, _with(distributed), Tolerance(reference))) is None
        for finding in report.findings
    )
    assert np.all([finding.known is None for finding in report.findings])


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"train_step": True, "loss_function": False}, "in your train_step"),
        ({"train_step": False, "loss_function": True}, "one loss for each example from the loss function"),
        ({"train_step": False, "loss_function": False}, "one loss for each example from the loss function"),
    ],
)
def test_a_program_with_fit_gets_a_fix_for_fit(facts: dict[str, bool], words: str) -> None:
    distributed = _with(simulate(Program(replicas=REPLICAS, scale=2.0)), facts={"fitted": facts})
    report = judge(simulate(Program()), distributed)
    assert report.findings[0].cause == "gradient-scaled-by-replica-count"
    assert words in str(report.findings[0].fix)
