"""Suites for asv: what asv sees of them, what their methods give; what failed or is absent never gets a number."""

from __future__ import annotations

import importlib
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from asv_runner.benchmarks.mark import SkipNotImplemented
from asv_runner.discovery import disc_benchmarks, list_benchmarks

from pytest_ddl.bench import BenchSpec, Counters, Matrix
from pytest_ddl.bench.asv.suite import measure_cells, training_suite
from pytest_ddl.bench.asv.tracked import SAMPLES, pieces, tracked
from pytest_ddl.bench.launching.ranks import BenchError
from pytest_ddl.bench.provenance import SourceTrees
from tests.bench import made

MIRRORED = "mirrored[replicas=2]"
BROKEN = "multi_worker_mirrored[workers=2,replicas=1]"
TIMES = {"one_device": [0.010], MIRRORED: [0.014]}


def cache(matrix: Matrix, **cells: str | None) -> dict[str, Any]:
    """Return the result of setup_cache, through JSON, as asv pickles it."""
    found = {"one_device 1": "one_device", "one_device 2": None, "mirrored 2": MIRRORED, "mwms 2": BROKEN, **cells}
    return json.loads(json.dumps({"cells": found, "matrix": matrix.as_json()}))


def weak(**given: Any) -> Matrix:
    return made.matrix(TIMES, **given)


def suite(name: str, **given: Any) -> tuple[Any, Any]:
    """A suite of its own for each test: two of one name in a file are refused."""
    gate, dash = training_suite("training:train", name=name, **{"batch_per_replica": 32, **given})
    return gate(), dash()


# ----- what the methods give -----


def test_samples_are_kept_and_follow_the_formulas() -> None:
    gate, dash = suite("Formulas")
    data = cache(weak())
    steps = gate.track_step_time(data, "mirrored", 2)
    assert steps["number"] == 1
    assert steps["samples"] == pytest.approx([0.014] * SAMPLES)
    assert gate.track_weak_scaling_overhead(data, "mirrored", 2)["samples"] == pytest.approx([1.4] * SAMPLES)
    assert dash.track_weak_scaling_efficiency(data, "mirrored", 2)["samples"] == pytest.approx([1 / 1.4] * SAMPLES)
    assert dash.track_throughput(data, "mirrored", 2)["samples"] == pytest.approx([64 / 0.014] * SAMPLES)
    assert dash.track_communication_time(data, "mirrored", 2)["samples"] == pytest.approx([0.004] * SAMPLES)


def test_strong_scaling_has_the_strong_names() -> None:
    gate, dash = suite("Strong", batch_per_replica=None, global_batch_size=64)
    data = cache(made.matrix(TIMES, rule="strong", batch=64))
    assert gate.track_strong_scaling_overhead(data, "mirrored", 2)["samples"][0] == pytest.approx(2.8)
    assert dash.track_strong_scaling_efficiency(data, "mirrored", 2)["samples"][0] == pytest.approx(1 / 2.8)
    assert not hasattr(gate, "track_weak_scaling_overhead")


def test_samples_of_launches_stay_in_order() -> None:
    gate, _ = suite("Order", launches=3)
    data = cache(made.matrix({"one_device": [0.01, 0.02, 0.03], MIRRORED: [0.02, 0.06, 0.12]}))
    samples = gate.track_step_time(data, "one_device", 1)["samples"]
    assert [samples[index * SAMPLES] for index in range(3)] == pytest.approx([0.01, 0.02, 0.03])
    overheads = gate.track_weak_scaling_overhead(data, "mirrored", 2)["samples"]
    assert [overheads[index * SAMPLES] for index in range(3)] == pytest.approx([2.0, 3.0, 4.0])


@pytest.mark.parametrize(("blocks", "expected"), [(10, [1] * 10), (25, [2, 3] * 5), (3, [1, 1, 1])])
def test_a_launch_is_cut_into_equal_pieces(blocks: int, expected: list[int]) -> None:
    launch = made.launch("one_device", 0.01)
    longer = replace(launch, ranks=(replace(launch.ranks[0], blocks=(1.0,) * blocks),))
    assert [len(piece.ranks[0].blocks) for piece in pieces(longer)] == expected


def test_counters_are_plain_numbers() -> None:
    counters = Counters(
        collectives={"all_reduce": 2, "all_gather": 1},
        reduced_bytes=400,
        parameter_bytes=200,
        traces=1,
        copies={"a": 3},
    )
    gate, _ = suite("Counters")
    data = cache(weak(counters=counters))
    assert gate.track_collectives(data, "mirrored", 2) == 3
    assert gate.track_reduced_bytes(data, "mirrored", 2) == 400
    assert gate.track_parameter_bytes(data, "mirrored", 2) == 200
    assert gate.track_retraces(data, "mirrored", 2) == 0
    assert gate.track_copies(data, "mirrored", 2) == 3
    assert gate.track_eager(data, "mirrored", 2) == 0


@pytest.mark.parametrize(
    ("launches", "expected"),
    [([(1, 0), (2, 0)], 0), ([(1, 0), (1, 3)], 1), ([(51, 8)], 1), ([(51, 0)], 1)],
    ids=["settled", "retraces", "ragged", "ragged-by-luck"],
)
def test_what_is_the_same_in_every_run_of_retraces(launches: list[tuple[int, int]], expected: int) -> None:
    """The number of retraces is not the same if batches are ragged."""
    one = weak().launches[1]
    counted = [Counters(traces=traces, retraces=retraces) for traces, retraces in launches]
    data = cache(Matrix(tuple(replace(one, counters=counters) for counters in counted), {}, "weak"))
    gate = suite(f"Retraces{launches}")[0]
    assert gate.track_traces_on(data, "mirrored", 2) == expected
    assert gate.track_retraces(data, "mirrored", 2) == max(retraces for _, retraces in launches)
    assert gate.track_traces_on.deterministic
    assert not gate.track_retraces.deterministic


# ----- what has no number -----


def skipped(method: Any, *arguments: Any) -> str:
    with pytest.raises(SkipNotImplemented) as raised:
        method(*arguments)
    return str(raised.value)


def test_a_cell_that_does_not_exist_is_skipped_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    gate, _ = suite("Missing")
    assert "one_device has no variant with 2" in skipped(gate.track_step_time, cache(weak()), "one_device", 2)
    assert "skipped: one_device has no variant with 2" in capsys.readouterr().err


def test_a_cell_that_cannot_run_here_is_skipped_with_the_reason() -> None:
    gate, _ = suite("Skipped")
    data = cache(Matrix(weak().launches, {BROKEN: "there are no GPUs"}, "weak"))
    assert skipped(gate.track_step_time, data, "mwms", 2) == "there are no GPUs"


def test_a_launch_that_failed_makes_its_benchmarks_fail_and_no_others() -> None:
    gate, _ = suite("Failed")
    data = cache(Matrix(weak().launches, {}, "weak", {BROKEN: "worker 1 failed while it was measured: OOM"}))
    with pytest.raises(BenchError, match="worker 1 failed while it was measured: OOM"):
        gate.track_step_time(data, "mwms", 2)
    assert gate.track_step_time(data, "mirrored", 2)["samples"]


def test_without_a_baseline_there_is_no_overhead_and_a_failed_baseline_is_a_failure() -> None:
    gate, _ = suite("Baseline")
    alone = made.matrix({MIRRORED: [0.014]})
    assert "no variant on one replica" in skipped(gate.track_weak_scaling_overhead, cache(alone), "mirrored", 2)
    failed = cache(Matrix(alone.launches, {}, "weak", {"one_device": "killed"}))
    with pytest.raises(BenchError, match="no baseline, because one_device failed: killed"):
        gate.track_weak_scaling_overhead(failed, "mirrored", 2)


def test_eager_steps_have_no_counters_and_absent_energy_a_reason() -> None:
    gate, dash = suite("Eager", energy=True)
    data = cache(weak(counters=Counters(eager=True)))
    assert "ran eagerly" in skipped(gate.track_collectives, data, "mirrored", 2)
    assert gate.track_eager(data, "mirrored", 2) == 1
    assert gate.track_eager.deterministic
    assert "copies between host and devices were not counted" in skipped(
        suite("Uncounted")[0].track_copies, cache(weak()), "mirrored", 2
    )
    assert "no energy was read" in skipped(dash.track_examples_per_joule, data, "mirrored", 2)


# ----- what asv sees -----


@pytest.fixture
def discovered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return asv's benchmarks.json for a folder with two suites in one file, one in another, and a loop."""
    folder = tmp_path / "benchmarks_of_this_test"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "several.py").write_text(
        "from pytest_ddl.bench.asv import training_suite\n"
        'GateA, DashA = training_suite("m:a", name="A", batch_per_replica=8)\n'
        'GateB, DashB = training_suite("m:b", name="B", batch_per_replica=8, launches=3)\n'
    )
    (folder / "loop.py").write_text(
        "from pytest_ddl.bench.asv import training_suite\n"
        'for name in ("C", "D", "E"):\n'
        '    globals()["Gate" + name], _ = training_suite(f"m:{name}", name=name)\n'
        'GateF, _ = training_suite("m:f", name="F")\n'
    )
    (folder / "one.py").write_text(
        'from pytest_ddl.bench.asv import training_suite\nGate, Dash = training_suite("m:c")\n'
    )
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sys, "path", list(sys.path))
    with (tmp_path / "found.json").open("w") as file:
        list_benchmarks(str(folder), file)
    for name in [name for name in sys.modules if name.startswith(folder.name)]:
        del sys.modules[name]
    return {entry["name"]: entry for entry in json.loads((tmp_path / "found.json").read_text())}


def test_asv_finds_the_suites_and_their_pinned_versions(discovered: dict[str, Any]) -> None:
    assert {name.rpartition(".")[0] for name in discovered} == {
        "several.GateA", "several.DashA", "several.GateB", "several.DashB", "one.Gate", "one.Dash",
        "loop.GateC", "loop.GateD", "loop.GateE", "loop.GateF"
    }  # fmt: skip
    assert {entry["version"] for entry in discovered.values()} == {"1"}
    assert {entry["type"] for entry in discovered.values()} == {"track"}
    assert all("rounds" not in entry for entry in discovered.values())
    step = discovered["several.GateA.track_step_time"]
    assert step["unit"] == "seconds"
    assert step["param_names"] == ["strategy", "replicas"]
    assert step["params"] == [["'one_device'", "'mirrored'", "'multi_worker_mirrored'"], ["1", "2"]]
    assert step["timeout"] == 60
    assert step["setup_cache_timeout"] > 6 * BenchSpec().timeout
    assert "step_time = " in step["code"]


def test_directions_and_launches_reach_the_results(discovered: dict[str, Any]) -> None:
    better_when_higher = {
        name.rpartition("track_")[2] for name, entry in discovered.items() if entry["higher_is_better"]
    }
    assert better_when_higher == {"throughput", "weak_scaling_efficiency"}
    assert not [name for name, entry in discovered.items() if "Gate" in name and entry["higher_is_better"]]
    assert discovered["several.GateB.track_step_time"]["launches"] == 3
    assert {name.rpartition("track_")[2] for name, entry in discovered.items() if entry["deterministic"]} >= {
        "collectives"
    }


def test_each_suite_has_a_cache_of_its_own_and_shares_it_between_its_classes(discovered: dict[str, Any]) -> None:
    keys = {name.rpartition(".")[0]: entry["setup_cache_key"] for name, entry in discovered.items()}
    assert keys["several.GateA"] == keys["several.DashA"] == "several:2"
    assert keys["several.GateB"] == keys["several.DashB"] == "several:3"
    assert keys["one.Gate"] == "one:2"
    of_loop = [keys[f"loop.Gate{name}"] for name in "CDEF"]
    assert len(set(of_loop)) == 4
    assert (of_loop[0], of_loop[3]) == ("loop:3", "loop:4")


def test_the_suite_of_this_project_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(__file__).parents[3] / "asv_bench" / "benchmarks"
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    before = set(sys.modules)
    try:
        found = {benchmark.name: benchmark for benchmark in disc_benchmarks_of(root)}
    finally:
        for name in set(sys.modules) - before:
            if name.partition(".")[0] == "benchmarks":
                del sys.modules[name]
    classes = {name.rpartition(".")[0] for name in found}
    for model in ("Mlp", "Cnn", "Embedding", "Transformer"):
        assert {f"training.Gate{model}", f"training.Dash{model}"} <= classes
    assert {"surroundings.GateInput", "surroundings.GateSaving", "surroundings.GateRestoring"} <= classes
    assert {"collectives.GateCollectives", "collectives.DashCollectives", "harness.FreshCluster"} <= classes
    # Versions are pinned: without, an edit of the source would cut the history.
    assert [name for name, benchmark in found.items() if benchmark.version != "1"] == []
    # Of rounds under plain `asv run`, each would read the same cache again: samples that are none.
    cached = [benchmark for benchmark in found.values() if benchmark.setup_cache_key]
    assert [benchmark.name for benchmark in cached if getattr(benchmark, "rounds", 1) != 1] == []


def disc_benchmarks_of(root: Path) -> list[Any]:
    from asv_runner._aux import update_sys_path

    update_sys_path(str(root))
    importlib.invalidate_caches()
    return list(disc_benchmarks(str(root)))


# ----- what is refused -----


def test_a_second_suite_of_the_same_name_in_a_file_is_refused() -> None:
    suite("Twice")
    with pytest.raises(ValueError, match=r"name='Twice'.*already has a suite with this name.*would mix"):
        training_suite("training:train", name="Twice")


def test_suites_of_the_same_name_in_a_loop_are_refused() -> None:
    def looped() -> None:
        for one in ("training:small", "training:large"):
            training_suite(one, name="Looped")

    with pytest.raises(ValueError, match=r"name='Looped'.*already has a suite with this name"):
        looped()


def test_a_module_that_is_imported_again_makes_its_suites_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "made_again.py").write_text(
        'from pytest_ddl.bench.asv import training_suite\nGate, Dash = training_suite("m:a")\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    first = importlib.import_module("made_again")
    assert importlib.reload(first).Gate().track_step_time.unit == "seconds"
    del sys.modules["made_again"]
    importlib.import_module("made_again")


@pytest.mark.parametrize(
    ("train", "given", "words"),
    [
        ("train", {}, 'train=.train. must be of the form "module:function"'),
        ("m:train", {"launches": 0}, "launches=0 must be at least 1"),
        ("m:train", {"metrics": ["step_tim"]}, "no step_tim here; there are step_time"),
        ("m:train", {"batch_per_replica": 0}, "batch_per_replica=0"),
    ],
)
def test_arguments_that_cannot_be_used_are_named(train: str, given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        training_suite(train, name=f"Wrong{words}", **given)


def test_chosen_metrics_alone_are_tracked() -> None:
    gate, dash = suite("Chosen", metrics=("step_time", "throughput"))
    assert [name for name in dir(gate) if name.startswith("track_")] == ["track_step_time"]
    assert [name for name in dir(dash) if name.startswith("track_")] == ["track_throughput"]


def test_whatever_is_gated_is_better_when_lower() -> None:
    for spec in (BenchSpec(batch_per_replica=8, energy=True), BenchSpec(global_batch_size=8), BenchSpec()):
        assert not [one.name for one in tracked(spec) if one.gated and one.higher_is_better]


def test_under_pytest_ddl_asv_run_what_is_measured_is_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []

    def measure(train: Any, *_given: Any, **_how: Any) -> Matrix:
        measured.append(train)
        return weak()

    monkeypatch.setattr("pytest_ddl.bench.matrix.measure", measure)
    measure_cells(print, [("one_device", 1)], BenchSpec())
    source = SourceTrees(("/tree",), ("/tree/src",), "/tree/benchmarks")
    for name, value in source.as_environ().items():
        monkeypatch.setenv(name, value)
    measure_cells(print, [("one_device", 1)], BenchSpec())
    assert measured[0] is print
    assert (measured[1].func, measured[1].source) == (print, source)


def test_a_tpu_has_only_the_cell_of_its_own_number_of_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = Matrix((made.launch("one_device", 0.01), made.launch("tpu", 0.01, replicas=8)), {})
    monkeypatch.setattr("pytest_ddl.bench.matrix.measure", lambda *_given, **_how: matrix)
    cells = [("one_device", 1), ("tpu", 1), ("tpu", 8)]
    data = measure_cells(print, cells, BenchSpec())
    assert data["cells"] == {"one_device 1": "one_device", "tpu 1": None, "tpu 8": "tpu"}


# ----- a real launch -----


@pytest.mark.slow
def test_cells_are_measured_and_a_program_that_fails_under_one_fails_there_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fails_on_two(run: Any) -> None:
        import tensorflow as tf

        if run.num_replicas == 2:
            raise RuntimeError("not on two")

        @tf.function
        def step(iterator: Any) -> Any:
            return run.strategy.reduce(
                "SUM", run.strategy.run(lambda batch: batch[0], args=(next(iterator),)), axis=None
            )

        for _loss in run.steps(step, tf.data.Dataset.range(64).batch(run.global_batch_size)):
            pass

    monkeypatch.setenv("DDL_BENCH_QUICK", "1")
    monkeypatch.setenv("DDL_BENCH_RECORDS", str(tmp_path))
    cells = [("one_device", 1), ("one_device", 2), ("mirrored", 2)]
    data = json.loads(json.dumps(measure_cells(fails_on_two, cells, BenchSpec(batch_per_replica=4), title="of_test")))
    assert data["cells"] == {"one_device 1": "one_device", "one_device 2": None, "mirrored 2": MIRRORED}
    gate, _ = suite("Real")
    assert all(seconds > 0 for seconds in gate.track_step_time(data, "one_device", 1)["samples"])
    with pytest.raises(BenchError, match="not on two"):
        gate.track_step_time(data, "mirrored", 2)
    (written,) = tmp_path.glob("*-of_test.json")
    assert json.loads(written.read_text())["failed"].keys() == {MIRRORED}


def test_the_configuration_of_this_project_avoids_the_traps_of_asv() -> None:
    from asv.config import Config

    found = Config.load(str(Path(__file__).parents[3] / "asv_bench" / "asv.conf.json"))
    assert found.build_command == ["python -m pip wheel --no-deps -w {build_cache_dir} {build_dir}"]
    assert found.matrix["req"]["pip+asv_runner"] == ["0.3.2"]
    assert found.launch_method == "spawn"
    assert found.default_benchmark_timeout >= 600
    (pattern,) = found.regressions_first_commits
    assert found.regressions_first_commits[pattern] is None
    assert re.match(pattern, "training.DashMlp.track_throughput('mirrored', 2)")
    assert not re.match(pattern, "training.GateMlp.track_step_time('mirrored', 2)")
