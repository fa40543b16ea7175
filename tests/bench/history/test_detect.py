"""Changes in simulated series: found, placed, in the right direction, and confirmed before anybody is alerted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from pytest_ddl.bench.history.detect import ChangeVerdict, beyond_steps, changes, noise, relative_noise
from pytest_ddl.bench.history.meaning import family, higher_is_better, variant, workload
from pytest_ddl.bench.history.model import Benchmark, Commit, HistoryPoint, Series
from tests.bench.history.power import THROUGHPUT, creeping, flat, rates, simulated, step_at

SERIES = 120


def series(values: list[float], name: str = "training.Gate.track_step_time", **attributes: object) -> Series:
    points = tuple(HistoryPoint(Commit(index, f"{index:040x}", index), value) for index, value in enumerate(values))
    return Series("runner", "env", Benchmark(name, "", "1", (), attributes), (), points)


def test_a_slowdown_of_5_percent_is_found_10_commits_later() -> None:
    found = rates(step_at(40, 0.05), 0.02, SERIES, 40)
    assert found.alerts >= 0.95
    # The range of commits that is named has the one that did it.
    assert found.placed >= 0.95


@pytest.mark.parametrize("cv", [0.01, 0.02, 0.05])
def test_a_flat_series_alerts_nobody(cv: float) -> None:
    found = rates(flat, cv, SERIES)
    assert found.alerts <= 0.01
    assert found.candidates <= 0.1


def test_a_gain_in_throughput_is_no_regression() -> None:
    one = simulated(step_at(40, -0.1), 0.02, 1, kind=THROUGHPUT)
    (found,) = changes(one)
    assert found.effect == pytest.approx(0.11, abs=0.02)
    assert not found.worse
    assert not found.is_candidate
    assert rates(step_at(40, -0.1), 0.02, 20, kind=THROUGHPUT).candidates == 0


def test_a_loss_of_throughput_is_one() -> None:
    found = changes(simulated(step_at(40, 0.1), 0.02, 1, kind=THROUGHPUT))[0]
    assert found.kind == "step"
    assert found.worse
    assert found.is_candidate
    assert found.effect < 0


def test_a_shorter_step_is_no_regression() -> None:
    (found,) = changes(simulated(step_at(40, -0.1), 0.02, 1))
    assert not found.worse


def test_a_slowdown_that_was_repaired_is_recovered() -> None:
    one = simulated(lambda number: 0.02 * (1.1 if 15 <= number < 30 else 1), 0.01, 3)
    worse, better = changes(one)
    assert (worse.worse, worse.standing) == (True, False)
    assert not worse.is_candidate
    assert not better.worse


def partly(kept: float, repaired: int = 32) -> Callable[[int], float]:
    """20 % slower from commit 20 on, and ``kept`` of it since commit ``repaired``."""
    return lambda number: 0.02 * (1 if number < 20 else 1.2 if number < repaired else 1 + kept)


@pytest.mark.parametrize("kept", [0.05, 0.09, 0.15])
def test_a_slowdown_that_was_repaired_in_part_stands(kept: float) -> None:
    """A slowdown stands also for metrics such as efficiency, for which creeps are not searched."""
    kind = replace(THROUGHPUT, name="training.Dash.track_weak_scaling_efficiency")
    for one in (simulated(partly(kept), 0.01, 1), simulated(partly(kept), 0.01, 1, kind=THROUGHPUT)):
        for series in (one, replace(one, benchmark=kind)) if one.benchmark is THROUGHPUT else (one,):
            worse = next(change for change in changes(series) if change.worse and change.kind == "step")
            assert worse.standing
            assert worse.is_candidate


@pytest.mark.parametrize("cv", [0.005, 0.01, 0.02])
@pytest.mark.parametrize("repaired", [32, 44])
def test_a_slowdown_that_was_repaired_does_not_come_back_by_noise(cv: float, repaired: int) -> None:
    standing = [
        change
        for seed in range(SERIES)
        for change in changes(simulated(partly(0, repaired), cv, seed))
        if change.kind == "step" and change.worse and change.standing
    ]
    assert len(standing) <= 0.03 * SERIES


def test_what_creeps_in_after_a_repair_in_part_is_not_hidden_by_the_slowdown_before() -> None:
    def level(number: int) -> float:
        return partly(0.09, 26)(number) * (1 + 0.12 * max(0, number - 26) / 23)

    one = simulated(level, 0.003, 1)
    found = changes(one)
    steps = [change.judged(ChangeVerdict("confirmed")) for change in found if change.kind == "step"][:2]
    (creep,) = [change for change in found if change.kind == "creep"]
    assert [change.worse for change in steps] == [True, False]
    assert beyond_steps(creep, steps)
    calm = changes(simulated(partly(0.09, 26), 0.003, 1))
    assert not beyond_steps(next(change for change in calm if change.kind == "creep"), calm)


def test_a_single_slow_result_is_no_change() -> None:
    assert not changes(simulated(lambda number: 0.02 * (1.3 if number == 20 else 1), 0.01, 4))


def test_slow_creep_is_found_where_no_step_is() -> None:
    """asv never adds up small changes (asv issue 932)."""
    found = rates(creeping(0.05), 0.02, SERIES)
    assert found.alerts >= 0.8
    (creep,) = [one for one in changes(simulated(creeping(0.05), 0.005, 1)) if one.kind == "creep"]
    assert creep.worse
    assert creep.before.position < 12
    assert creep.after.position == 49


def test_getting_faster_bit_by_bit_is_no_creep() -> None:
    assert not [one for one in changes(simulated(creeping(-0.08), 0.01, 1)) if one.worse]


def test_counters_are_exact() -> None:
    up, down = changes(series([6.0] * 3 + [7.0] * 3 + [6.0] * 2, "training.Gate.track_collectives"))
    assert up.verdict.status == "exact"
    assert (up.worse, up.standing) == (True, False)
    assert not down.worse
    (stays,) = changes(series([6.0] * 3 + [7.0], "training.Gate.track_collectives"))
    assert stays.alerts
    assert (stays.before.position, stays.after.position) == (2, 3)


def test_a_counter_that_rises_from_zero_alerts() -> None:
    (found,) = changes(series([0.0, 0.0, 1.0], "training.Gate.track_retraces"))
    assert found.alerts
    assert found.effect == float("inf")


def test_retraces_by_chance_are_no_change_and_the_first_ones_are() -> None:
    """Four launches of a program with ragged batches had 6, 5, 7 and 12."""
    counted = series([6.0, 5.0, 7.0, 12.0] * 10, "training.Gate.track_retraces", deterministic=True)
    assert changes(counted) == []
    (found,) = changes(series([0.0, 0.0, 6.0, 12.0], "training.Gate.track_retraces"))
    assert (found.old, found.new, found.alerts) == (0.0, 6.0, True)


def test_few_points_say_nothing() -> None:
    one = series([1.0, 1.0, 1.5, 1.5, 1.5])
    assert changes(one) == []
    assert relative_noise(one) is None


def test_noise_is_told_from_steps() -> None:
    assert noise([1.0, 1.0, 2.0, 2.0, 2.0]) == 0.0
    assert relative_noise(simulated(step_at(40, 0.5), 0.02, 1)) == pytest.approx(0.02, rel=0.3)


@pytest.mark.parametrize(
    ("name", "attributes", "better", "kind"),
    [
        ("training.Dash.track_throughput", {}, True, "throughput"),
        ("training.Dash.track_weak_scaling_efficiency", {}, True, "efficiency"),
        ("training.Gate.track_weak_scaling_overhead", {}, False, "overhead"),
        ("training.Gate.track_step_time", {}, False, "step"),
        ("training.Gate.track_seconds_per_1k_examples", {}, False, "step"),
        ("training.Dash.track_examples_per_joule", {}, True, "energy"),
        ("training.Gate.track_joules_per_example", {}, False, "energy"),
        ("training.Gate.track_peak_memory", {}, False, "memory"),
        ("training.Gate.track_time_to_first_step", {}, False, "first_step"),
        ("training.Dash.track_communication_share", {}, False, "communication"),
        ("training.Gate.track_reduced_bytes", {}, False, "counters"),
        ("training.Gate.track_packs", {}, None, "counters"),
        ("training.Gate.track_nodes", {"higher_is_better": False}, None, "counters"),
        ("training.Gate.track_retraces", {"higher_is_better": False}, False, "counters"),
        ("training.Gate.track_unpacked", {}, False, "counters"),
        ("collectives.track_bus_bandwidth", {}, True, "other"),
        ("harness.Start.track_median", {}, False, "other"),
        ("mine.track_goodness", {"higher_is_better": True}, True, "other"),
        ("mine.track_goodness", {"metric": "throughput"}, True, "throughput"),
        ("mine.peakmem_training", {}, False, "memory"),
    ],
)
def test_names_tell_the_metric_and_its_direction(
    name: str, attributes: dict[str, object], better: bool | None, kind: str
) -> None:
    benchmark = Benchmark(name, "", "1", (), attributes)
    assert higher_is_better(benchmark) is better
    assert family(benchmark).name == kind


@pytest.mark.parametrize(
    ("parameters", "said", "replicas"),
    [
        ((("strategy", "one_device"), ("replicas", "1")), "one_device", 1),
        ((("strategy", "mirrored"), ("replicas", "2")), "mirrored \N{MULTIPLICATION SIGN} 2", 2),
        (
            (("strategy", "multi_worker_mirrored[workers=2,replicas=2]"),),
            "multi_worker_mirrored \N{MULTIPLICATION SIGN} 4",
            4,
        ),
        ((("variant", "mirrored"),), "mirrored", 0),
    ],
)
def test_parameters_tell_the_variant(parameters: tuple[tuple[str, str], ...], said: str, replicas: int) -> None:
    one = Series("m", "e", Benchmark("t.track_step_time", "", "1", ()), parameters, ())
    found = variant(one)
    assert found is not None
    assert (str(found), found.replicas) == (said, replicas)


def test_the_workload_is_a_parameter_or_the_suite() -> None:
    def named(name: str, *parameters: tuple[str, str]) -> str:
        return workload(Series("m", "e", Benchmark(name, "", "1", ()), parameters, ()))

    assert named("training.GateCnn.track_step_time", ("strategy", "mirrored")) == "Cnn"
    assert named("training.Gate.track_step_time", ("strategy", "mirrored")) == "training"
    assert named("training.Gate.track_step_time", ("strategy", "mirrored"), ("model", "cnn")) == "cnn"
