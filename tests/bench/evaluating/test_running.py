"""The order of parts, what is kept after each, and that an interrupted evaluation repeats none."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_ddl.bench.evaluating import running
from pytest_ddl.bench.evaluating.plan import EvaluationPlan, cells_of, cores_for, learning_rate_of
from pytest_ddl.bench.evaluating.records import EvaluatedCell, Evaluation, TrainingCurve
from pytest_ddl.bench.evaluating.running import EvaluationError, EvaluationRunner
from pytest_ddl.bench.launching.ranks import BenchError
from pytest_ddl.bench.outcome import UsageError
from pytest_ddl.bench.training_to_target import StepsToTarget, TargetTrial
from pytest_ddl.hosts.placement import place
from pytest_ddl.strategies.registry import StrategyRegistry
from pytest_ddl.strategies.spec import Topology
from tests.bench import made
from tests.bench.evaluating.synthetic import ABSENT, COPIES, ONE, TWO, WORKERS, curve, identity


def plan(**given: Any) -> EvaluationPlan:
    fields = {
        "batch": 32,
        "batch_rule": "replica",
        "seeds": 3,
        "launches": 2,
        "steps": None,
        "check_steps": None,
        "target": None,
        "metric": "",
        "batch_sizes": (16, 32),
        "device": "cpu",
        "timeout": 60.0,
        "seconds": 1.0,
    }
    return EvaluationPlan(**{**fields, **given})


def harness(missing: str = "") -> Any:
    """A harness that starts nothing."""
    return SimpleNamespace(
        registry=StrategyRegistry(),
        unavailable=lambda spec, _mark: "there is none" if spec.name == missing else None,
        device_for=lambda _spec, _mark: "cpu",
        over_hosts=False,
    )


def fresh(*cells: EvaluatedCell) -> Evaluation:
    return Evaluation(identity(), cells, "now", "command")


class Stage:
    """Stands in for all that would start processes, and writes down what was asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[str] = []
        self.kept: list[Evaluation] = []
        self.told: list[str] = []
        self.fails: dict[str, Exception] = {}
        self.seconds: dict[str, list[float]] = {}
        """Step times of the next launches of a variant."""
        self.launches = 9
        """Launches of a variant after which one fails."""
        monkeypatch.setattr(EvaluationRunner, "_train_once", self._train)
        monkeypatch.setattr("pytest_ddl.equivalence.runs.api.check_training", self._check)
        monkeypatch.setattr("pytest_ddl.bench.launching.launch.launch", self._launch)
        monkeypatch.setattr("pytest_ddl.bench.training_to_target.steps_to_target", self._sweep)

    def run(self, evaluation: Evaluation, train: Callable[..., Any] = lambda run: None, **given: Any) -> Evaluation:
        return EvaluationRunner(harness(), train, plan(**given), self.told.append, self.kept.append).run(evaluation)

    def _did(self, what: str) -> None:
        self.done.append(what)
        for name, error in self.fails.items():
            if what.startswith(name):
                raise error

    def _train(self, cell: EvaluatedCell, batch: int, seed: int, moved: bool = False) -> TrainingCurve:
        self._did(f"train {cell.variant} {batch} {seed}{' moved' if moved else ''}")
        return curve(EvaluatedCell(cell.strategy, cell.replicas, cell.variant, batch), seed, moved=moved)

    def _check(self, _train: Any, variant: str, **given: Any) -> Any:
        self._did(f"check {variant} {given['global_batch_size']}")
        findings = [SimpleNamespace(cause="gradient-scaled", message="twice\n too large")]
        return SimpleNamespace(verdict="fail", findings=findings, passed=False, inconclusive=())

    def _launch(self, _harness: Any, _train: Any, spec: Any, bench: Any, *, cores_per_replica: int) -> Any:
        self._did(f"launch {spec} overlap={bench.overlap} cores={cores_per_replica}")
        if sum(what.startswith(f"launch {spec}") for what in self.done) > self.launches:
            raise BenchError("worker:1 was killed")
        return made.launch(str(spec), self.seconds[str(spec)].pop(0) if self.seconds.get(str(spec)) else 0.001)

    def _sweep(self, train: Any, target: float, batches: list[int], rates: list[float], **given: Any) -> StepsToTarget:
        self._did(f"sweep {batches[0]} {rates}")
        train(None, learning_rate=rates[0])  # must take a learning rate
        return StepsToTarget(target, tuple(TargetTrial(batches[0], rate, int(100 / rate), 100, 0.1) for rate in rates))


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(monkeypatch)


def test_all_parts_run_in_order_and_are_kept(stage: Stage) -> None:
    found = stage.run(fresh(ONE, TWO, ABSENT))
    seed = plan().first_seed
    assert stage.done[:2] == [f"train one_device 32 {seed}", f"train one_device 32 {seed + 1}"]
    assert stage.done[3] == f"train one_device 32 {seed} moved"
    assert stage.done[6] == f"train one_device 64 {seed}", "the reference of two replicas"
    assert stage.done[12:14] == [f"check {TWO.variant} 64", f"train {TWO.variant} 64 {seed}"]
    launches = [what.split()[1] for what in stage.done if what.startswith("launch")]
    assert launches == ["one_device", TWO.variant] * 2, "variants take turns"
    assert stage.done[-2:] == ["sweep 16 [1.0]", "sweep 32 [1.0]"]
    assert len(stage.kept) == len(stage.done) + 1
    assert [one.complete for one in stage.kept] == [False] * len(stage.done) + [True]
    assert found.target is not None
    assert found.swept == (16, 32)
    assert found.verdicts[TWO.variant].headline == "gradient-scaled: twice too large"
    assert f"{ABSENT.variant} cannot run here: {ABSENT.reason}" in stage.told


@pytest.mark.parametrize(
    ("seconds", "launches"),
    [
        ([0.001, 0.0011], 2),
        # The third launch shows that the second one is no exception; after three more it ends in any case.
        ([0.001, 0.0012], 3),
        ([0.001, 0.002, 0.004, 0.001, 0.002], 5),
    ],
)
def test_a_cell_whose_launches_differ_is_launched_more_often(stage: Stage, seconds: list[float], launches: int) -> None:
    stage.seconds[TWO.variant] = seconds
    found = stage.run(fresh(ONE, TWO, WORKERS, COPIES))
    counts = {name: len(found.matrix.of(name)) for name in found.matrix.variants}
    assert counts.pop(TWO.variant) == launches
    assert set(counts.values()) == {2}
    again = len(stage.done)
    stage.run(replace(found, complete=False))
    assert len(stage.done) == again, "a completed evaluation has nothing more to do"


def test_a_further_launch_that_fails_costs_its_cell_nothing(stage: Stage) -> None:
    stage.seconds[TWO.variant] = [0.001, 0.002]
    stage.launches = 2
    found = stage.run(fresh(ONE, TWO, WORKERS, COPIES))
    assert len(found.matrix.of(TWO.variant)) == 2
    assert "measuring" not in found.failures.get(TWO.variant, {})
    assert sum("measuring launch 3" in text for text in stage.told) == 1
    assert not any("measuring launch 4" in text for text in stage.told), "it is not tried again"
    assert f"  {TWO.variant}: worker:1 was killed" in stage.told
    counted = [text[1 : text.index("]")].split("/") for text in stage.told if text.startswith("[")]
    assert all(int(place) <= int(total) for place, total in counted)


def test_progress_counts_up_to_the_number_of_parts(stage: Stage) -> None:
    stage.run(fresh(ONE, TWO))
    counted = [text[1 : text.index("]")] for text in stage.told if text.startswith("[")]
    total = len(stage.done)
    assert counted == [f"{place}/{total}" for place in range(1, total + 1)]
    assert "left)" in stage.told[-1]


@pytest.mark.parametrize("after", [1, 4, 7, 13, 15, 17, 19, 22])
def test_an_interrupted_evaluation_repeats_no_part(stage: Stage, after: int) -> None:
    whole = stage.run(fresh(ONE, TWO))
    everything, stage.done = stage.done, []
    stage.kept.clear()

    def stop(evaluation: Evaluation) -> None:
        stage.kept.append(evaluation)
        if len(stage.kept) == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        EvaluationRunner(harness(), lambda run: None, plan(), stage.told.append, stop).run(fresh(ONE, TWO))
    again = stage.run(stage.kept[-1])
    assert stage.done == everything
    assert again.curves == whole.curves
    assert again.launches == whole.launches
    assert again.target == whole.target
    assert again.complete


def test_a_part_that_fails_is_kept_and_not_repeated(stage: Stage) -> None:
    stage.fails = {
        f"train {TWO.variant}": BenchError("a rank died\nTraceback"),
        f"launch {COPIES.variant}": BenchError("hung"),
    }
    found = stage.run(fresh(ONE, TWO, WORKERS, COPIES))
    failed = {TWO.variant: {"training": "a rank died\nTraceback"}, COPIES.variant: {"measuring": "hung"}}
    assert found.failures == failed
    assert sum(what.startswith(f"train {TWO.variant}") for what in stage.done) == 1
    assert not any(what.startswith(f"launch {TWO.variant}") for what in stage.done), "it did not train"
    assert sum(what.startswith(f"launch {COPIES.variant}") for what in stage.done) == 1
    assert found.matrix.failed == {COPIES.variant: "hung"}
    assert any(what.startswith(f"train {WORKERS.variant}") for what in stage.done), "the others go on"


def test_a_program_that_fails_on_one_device_ends_the_evaluation(stage: Stage) -> None:
    stage.fails = {"train one_device": BenchError("NameError: x")}
    with pytest.raises(EvaluationError, match="does not train on one device: NameError: x"):
        stage.run(fresh(ONE, TWO))


def test_a_number_that_is_not_reported_ends_it_after_the_first_training(stage: Stage) -> None:
    words = "--metric=auc: no training reported 'auc'; reported: test_accuracy, training loss"
    with pytest.raises(UsageError, match=words):
        stage.run(fresh(ONE, TWO), metric="auc")
    assert len(stage.done) == 1
    assert stage.run(fresh(ONE), metric="test_accuracy").complete


def test_asynchronous_steps_overlap_and_have_the_cores_of_all_workers(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1, 2, 3})
    stage.run(fresh(ONE, TWO, WORKERS))
    launches = {what.split()[1]: what for what in stage.done if what.startswith("launch")}
    assert launches[WORKERS.variant].endswith("overlap=True cores=4")
    assert launches[TWO.variant].endswith("overlap=False cores=2")
    assert launches[ONE.variant].endswith("overlap=False cores=2")


def test_the_sweep_tunes_the_learning_rate_beyond_its_edge(stage: Stage) -> None:
    def train(run: Any, learning_rate: float = 0.1) -> None:
        assert learning_rate > 0

    found = stage.run(fresh(ONE), train, batch_sizes=(16,))
    # A larger rate always takes fewer steps here, so the sweep goes on until it may not.
    rates = [trial.learning_rate for trial in found.trials]
    assert rates == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2])
    assert found.swept == (16,)


def test_a_sweep_that_fails_ends_with_its_reason(stage: Stage) -> None:
    stage.fails = {"sweep": BenchError("Keras shows the mean loss\nTraceback …")}
    found = stage.run(fresh(ONE))
    assert found.sweep_failure == "Keras shows the mean loss"
    assert sum(what.startswith("sweep") for what in stage.done) == 1
    assert found.complete


def test_a_given_target_is_used(stage: Stage) -> None:
    assert stage.run(fresh(ONE), target=0.25).target == 0.25


# -- the plan --------------------------------------------------------------------------------------


def test_all_strategies_have_a_cell_for_each_size() -> None:
    found = {cell.variant: cell for cell in cells_of(harness("tpu"), "all", (1, 2), plan())}
    assert next(iter(found)) == "one_device"
    assert found["mirrored[replicas=2]"].batch == 64
    assert found["multi_worker_mirrored[workers=1,replicas=1]"].batch == 32
    workers = found["parameter_server[workers=2,ps=1,processes=shared]"]
    assert (workers.kind, workers.batch, workers.replicas) == ("asynchronous", 32, 2)
    assert found["model_parallel[mesh=batch:2;model:1]"].kind == "global"
    assert found["central_storage[replicas=2]"].kind == "copies"
    assert found["tpu"].reason == "there is none"
    assert sum(cell.strategy == "one_device" for cell in found.values()) == 1


def test_a_variant_with_a_shape_is_one_cell() -> None:
    found = cells_of(harness(), "mirrored[replicas=3],ps[workers=4,ps=2]", (1, 2), plan())
    assert [cell.variant for cell in found] == [
        "one_device",
        "mirrored[replicas=3]",
        "parameter_server[workers=4,ps=2,processes=shared]",
    ]
    assert [cell.replicas for cell in found] == [1, 3, 4]


def test_a_fixed_global_batch_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    found = cells_of(harness(), "mirrored", (2, 3), plan(batch_rule="global"))
    assert [cell.batch for cell in found] == [32, 32, 32]
    assert "3 replicas cannot split a global batch of 32 evenly" in found[2].reason


def test_an_unknown_strategy_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--strategy=miror: 'miror' is not a strategy \(did you mean 'mirrored'"):
        cells_of(harness(), "miror", (1,), plan())


def test_more_replicas_than_cores_are_not_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {4, 5})
    cells = cells_of(harness(), "mirrored", (2, 4), plan())
    assert [cell.pinned for cell in cells] == [True, True, False]
    assert [cores_for(harness(), cell, cells) for cell in cells] == [1, 1, 0]


@pytest.mark.parametrize(
    ("hosts", "cores", "strategy", "expected"),
    [
        # All replicas of one process are on the first host.
        (2, 2, "mirrored", {1: 1, 2: 1, 4: 0}),
        # Each process of a worker is placed: two on each of two hosts.
        (2, 2, "multi_worker_mirrored", {1: 1, 2: 1, 4: 1}),
        # Two of four are on the first of three hosts, which limits all cells.
        (3, 4, "multi_worker_mirrored", {1: 2, 2: 2, 4: 2}),
        # The process of a parameter server gets the cores of all its workers.
        (2, 4, "parameter_server", {1: 1, 2: 2, 4: 4}),
    ],
)
def test_cores_are_those_of_the_hosts_where_replicas_are(
    hosts: int, cores: int, strategy: str, expected: dict[int, int]
) -> None:
    def crowds(topology: Topology) -> dict[str, tuple[int, int]]:
        of_ranks = place(topology, [cores] * hosts)[: len(topology.ranks)]
        return {str(host): (ranks, cores) for host, ranks in Counter(of_ranks).items()}

    given = harness()
    given.over_hosts, given.pool = True, SimpleNamespace(launcher=SimpleNamespace(crowds=crowds))
    cells = [cell for cell in cells_of(given, strategy, (1, 2, 4), plan()) if cell.strategy == strategy]
    assert {cell.replicas: cores_for(given, cell, cells) for cell in cells} == expected


def test_larger_batches_take_fewer_steps() -> None:
    assert plan(steps=100).steps_for(64) == 50
    assert plan().steps_for(64) is None


def test_the_learning_rate_is_the_default_of_its_parameter() -> None:
    def tunable(run: Any, learning_rate: float = 0.5) -> None: ...

    def fixed(run: Any) -> None: ...

    assert learning_rate_of(tunable) == 0.5
    assert learning_rate_of(fixed) is None


def test_the_rate_beyond_the_best_is_tried() -> None:
    def trials(**steps: int | None) -> list[TargetTrial]:
        return [TargetTrial(8, float(rate[1:]), number, 1, 0.0) for rate, number in steps.items()]

    assert running._beyond(trials(r1=9, r2=5)) == [4.0]
    assert running._beyond(trials(r1=5, r2=9)) == [0.5]
    assert running._beyond(trials(r1=9, r2=5, r4=9)) == []
    assert running._beyond(trials(r1=None)) == []
