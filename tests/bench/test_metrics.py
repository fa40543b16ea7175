"""Metrics: formulas against published numbers, the registry, estimates with intervals over launches."""

from __future__ import annotations

import math
import random
import sys

import pytest

from pytest_ddl.bench import Counters
from pytest_ddl.bench.launching.records import EnergyReading, RankTiming
from pytest_ddl.bench.metrics import (
    METRICS,
    NoNumberError,
    baseline_of,
    costs,
    estimate,
    interval,
    metric_named,
    of_pair,
    speed,
)
from pytest_ddl.installing import install_line
from tests.bench.made import launch, matrix

# -- formulas ----------------------------------------------------------------------------------------

ONE, TWO = 109.5, 78.6
"""Seconds of the published experiment: the same data set, batch per replica fixed."""


def test_published_efficiency() -> None:
    one, two = launch("one_device", ONE, 1, 32), launch("mirrored", TWO, 2, 32)
    assert round(100 * of_pair.strong_scaling_efficiency(one, two), 2) == 69.66
    assert of_pair.strong_scaling_overhead(one, two) == pytest.approx(1.4356, abs=1e-4)
    assert of_pair.speed_up(one, two) == pytest.approx(1.3931, abs=1e-4)


def test_published_run_seen_step_by_step() -> None:
    # Two replicas take half of the steps, so that a step takes twice the share of the run.
    one, two = launch("one_device", ONE / 1000, 1, 32), launch("mirrored", TWO / 500, 2, 64)
    assert of_pair.weak_scaling_efficiency(one, two) == pytest.approx(0.6966, abs=1e-4)


def test_published_serial_fraction() -> None:
    assert of_pair.serial_fraction(ONE / TWO, 2) == pytest.approx(0.436, abs=5e-4)


@pytest.mark.parametrize("serial", [0.0, 0.05, 0.5, 1.0])
@pytest.mark.parametrize("replicas", [2, 8, 64])
def test_serial_fraction_inverts_amdahl(serial: float, replicas: int) -> None:
    speed_up = 1 / (serial + (1 - serial) / replicas)
    assert of_pair.serial_fraction(speed_up, replicas) == pytest.approx(serial, abs=1e-12)


# -- of one launch -----------------------------------------------------------------------------------


def test_step_is_that_of_the_slowest_rank() -> None:
    def rank(number: int, blocks: tuple[float, ...]) -> RankTiming:
        return RankTiming(number, f"worker {number}", blocks, 1.0, 2.0 + number, 0.0, 2**20)

    found = launch("multi_worker_mirrored", 1.0, ranks=(rank(0, (20.0, 40.0, 60.0)), rank(1, (30.0, 20.0, 20.0))))
    assert speed.step_time(found) == 2.0
    assert costs.time_to_first_step(found) == 4.0
    assert costs.peak_memory(found) == 1.0


def test_throughput_and_its_dual() -> None:
    found = launch("mirrored", 0.25, 2, 64)
    assert speed.throughput(found) == 256
    assert speed.seconds_per_1k_examples(found) == pytest.approx(1000 / 256)


def test_energy_of_a_step() -> None:
    found = launch("mirrored", 0.1, 2, 64, energy=EnergyReading(400.0, 20.0, "nvml: 2 GPUs"))
    assert costs.energy_per_step(found) == 2.0
    assert costs.examples_per_joule(found) == 32.0
    assert costs.joules_per_example(found) == 1 / 32


@pytest.mark.parametrize(("hosts", "whole"), [(("a", "a"), True), (("a", "b"), False)])
def test_energy_that_the_first_rank_reads_is_that_of_its_host(hosts: tuple[str, str], whole: bool) -> None:
    """All ranks of one machine share its counters, and no rank reads those of another host."""
    read, other = EnergyReading(400.0, 20.0, "nvml: 2 GPUs"), EnergyReading(None, reason="rank 0 reads the energy")
    ranks = tuple(
        RankTiming(number, f"worker {number}", (0.1,) * 10, 1.0, 2.0, 0.0, 2**20, energy=energy, host=host)
        for number, (host, energy) in enumerate(zip(hosts, (read, other), strict=True))
    )
    found = launch("multi_worker_mirrored", 0.1, 2, 64, ranks=ranks)
    if whole:
        assert costs.energy_per_step(found) > 0
    else:
        with pytest.raises(NoNumberError, match="nvml: 2 GPUs is the energy of one of 2 hosts"):
            costs.energy_per_step(found)


def test_energy_is_of_the_steps_that_were_taken() -> None:
    counters = Counters(steady_steps=400)
    found = launch("mirrored", 0.1, energy=EnergyReading(400.0, 20.0, "nvml: 1 GPU"), counters=counters)
    assert costs.energy_per_step(found) == 1.0


def test_measured_share() -> None:
    assert costs.measured_share(launch("mirrored", 0.1, wall_seconds=80.0)) == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("throughput", {}, "batch_per_replica="),
        ("seconds_per_1k_examples", {}, "global_batch_size="),
        ("peak_device_memory", {}, "no GPU was used"),
        ("peak_memory", {"peak_memory_bytes": 0}, "VmHWM"),
        ("energy_per_step", {}, "not asked for"),
        ("energy_per_step", {"energy": EnergyReading(0.0, 0.2, "rapl: 1 package")}, "did not advance"),
        ("retraces", {"counters": Counters(eager=True)}, "eagerly"),
        ("throughput", {"batch": 64, "examples": 2}, "2 examples were counted .* declares 64"),
        ("seconds_per_1k_examples", {"batch": 64, "examples": 128}, "128 examples were counted"),
    ],
)
def test_no_number_says_why(name: str, given: dict[str, object], words: str) -> None:
    with pytest.raises(NoNumberError, match=words):
        metric_named(name).compute(launch("mirrored", 0.1, **given))


# -- against one replica -----------------------------------------------------------------------------


def test_rule_follows_the_batch() -> None:
    one = launch("one_device", 0.10, 1, 32)
    weak, strong = launch("mirrored", 0.125, 2, 64), launch("mirrored", 0.0625, 2, 32)
    assert of_pair.weak_scaling_efficiency(one, weak) == pytest.approx(0.8)
    assert of_pair.strong_scaling_efficiency(one, strong) == pytest.approx(0.8)
    assert of_pair.speed_up(one, weak) == pytest.approx(of_pair.speed_up(one, strong)) == pytest.approx(1.6)
    assert of_pair.karp_flatt_serial_fraction(one, weak) == pytest.approx(0.25)
    with pytest.raises(NoNumberError, match=r"global batch 32 on 1 replica, 64 on 2.*global_batch_size="):
        of_pair.strong_scaling_efficiency(one, weak)
    with pytest.raises(NoNumberError, match="batch per replica was not kept"):
        of_pair.weak_scaling_efficiency(one, strong)


def test_rule_follows_the_batch_that_was_counted() -> None:
    def pair(counted: tuple[int, int], batches: tuple[int, int]) -> tuple[object, object]:
        times = (("one_device", 0.10, 1), ("mirrored", 0.10, 2))
        first, second = (
            launch(*each, batch, examples=n) for each, batch, n in zip(times, batches, counted, strict=True)
        )
        return first, second

    # A program that takes 2 examples, however many are declared: the work is that of strong scaling.
    words = r"per replica was not kept \(global batch 64 on 1 .*, as declared; 2 and 2, as counted"
    with pytest.raises(NoNumberError, match=words):
        of_pair.weak_scaling_efficiency(*pair((2, 2), (64, 128)))  # type: ignore[arg-type]
    with pytest.raises(NoNumberError, match="equal batches per replica"):
        of_pair.communication_time(*pair((2, 2), (64, 128)))  # type: ignore[arg-type]
    with pytest.raises(NoNumberError, match="2 examples were counted"):
        of_pair.speed_up(*pair((2, 2), (64, 128)))  # type: ignore[arg-type]
    assert of_pair.strong_scaling_efficiency(*pair((2, 2), (64, 64))) == pytest.approx(0.5)  # type: ignore[arg-type]
    with pytest.raises(NoNumberError, match="global batch was not kept"):
        of_pair.strong_scaling_efficiency(*pair((2, 4), (64, 64)))  # type: ignore[arg-type]
    # Graphs of nodes, say: what is counted is no example, and yet as many on each replica.
    assert of_pair.weak_scaling_efficiency(*pair((7, 14), (64, 128))) == 1  # type: ignore[arg-type]


def test_communication_is_what_two_replicas_take_longer() -> None:
    one, two = launch("one_device", 0.10, 1, 32), launch("mirrored", 0.125, 2, 64)
    assert of_pair.communication_time(one, two) == pytest.approx(0.025)
    assert of_pair.communication_share(one, two) == pytest.approx(0.2)
    with pytest.raises(NoNumberError, match="equal batches per replica"):
        of_pair.communication_time(one, launch("mirrored", 0.125, 2, 32))
    with pytest.raises(NoNumberError, match="does not communicate"):
        of_pair.communication_time(one, one)


@pytest.mark.parametrize(
    ("one", "many", "words"),
    [
        (
            launch("one_device", 1.0, 1, 8),
            launch("parameter_server[ps=1,workers=2]", 1.0, 1, 8),
            "do not step together",
        ),
        (launch("one_device", 1.0, 1, 8), launch("model_parallel[mesh=batch:2]", 1.0, 1, 8), "several devices"),
        (launch("mirrored", 1.0, 2, 8), launch("mirrored[replicas=4]", 1.0, 4, 8), "single replica"),
        (launch("one_device", 1.0, 1, 8), launch("mirrored", 1.0, 2, 8, device="gpu"), "ran on cpu, mirrored on gpu"),
    ],
)
def test_what_cannot_be_compared_says_why(one: object, many: object, words: str) -> None:
    with pytest.raises(NoNumberError, match=words):
        of_pair.strong_scaling_efficiency(one, many)  # type: ignore[arg-type]


# -- the registry ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_says_what_it_is(name: str) -> None:
    found = METRICS[name]
    assert found.name == name
    assert found.summary
    assert found.formula
    assert found.source
    assert found.compute.__doc__


@pytest.mark.parametrize("name", [name for name, found in METRICS.items() if found.dual and found.of])
def test_dual_can_be_gated_and_is_the_reciprocal(name: str) -> None:
    dual = metric_named(METRICS[name].dual or "")
    assert METRICS[name].higher_is_better
    assert dual.gated
    reading = EnergyReading(10.0, 1.0, "rapl: 1 package")
    one, few, many = (launch(f"mirrored[replicas={n}]", 0.1 * n, n, 32, energy=reading) for n in (1, 2, 4))
    if METRICS[name].scope == "pair":
        weak = name.startswith("weak")
        few, many = (launch("mirrored", 0.1 * n, n, 32 * n if weak else 32) for n in (2, 4))
    values = [
        [found.of(one, each) if found.scope == "pair" else found.of(each) for each in (few, many)]
        for found in (METRICS[name], dual)
        if found.of is not None
    ]
    assert values[0][0] * values[1][0] == pytest.approx(values[0][1] * values[1][1])


def test_every_dual_is_a_metric() -> None:
    for found in METRICS.values():
        if found.dual is not None:
            assert found.higher_is_better
            assert METRICS[found.dual].gated, f"{found.name} is to be gated on {found.dual}"


def test_metric_of_no_variant_says_where_it_is() -> None:
    with pytest.raises(ValueError, match=r"usl_contention is not a number of one variant.*metrics\.usl:fit_usl"):
        estimate("usl_contention", matrix({"one_device": [0.1]}), "one_device")


def test_unknown_metric_names_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"no metric 'speed'; valid: step_time, throughput"):
        metric_named("speed")


# -- estimates ---------------------------------------------------------------------------------------


def test_interval_is_over_launches() -> None:
    found = estimate("step_time", matrix({"one_device": [0.10, 0.11, 0.12]}), "one_device")
    assert len(found.samples) == 3, "ten blocks in each launch are not thirty samples"
    assert found.value == pytest.approx((0.10 * 0.11 * 0.12) ** (1 / 3))
    # scipy.stats.ttest_1samp of the logarithms; 4.3027 is t(0.975, 2).
    logs = [math.log(each) for each in found.samples]
    half = 4.3027 * math.sqrt(sum((x - sum(logs) / 3) ** 2 for x in logs) / 2 / 3)
    assert found.low == pytest.approx(math.exp(sum(logs) / 3 - half), rel=1e-4)
    assert found.high == pytest.approx(math.exp(sum(logs) / 3 + half), rel=1e-4)
    assert "3 launches" in str(found)


def test_one_launch_has_no_interval() -> None:
    found = estimate("step_time", matrix({"one_device": [0.1]}), "one_device")
    assert (found.value, found.low, found.high, found.half_width) == (0.1, None, None, None)
    assert found.no_interval == "one launch: no interval"
    assert "one launch: no interval" in str(found)


def test_number_without_scipy_has_no_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    made = matrix({"one_device": [0.1, 0.4]})
    found = estimate("step_time", made, "one_device")
    assert (found.value, found.low) == (pytest.approx(0.2), None)
    assert f"no interval: scipy is not installed: {install_line('bench')}" in str(found)
    assert install_line("bench") in " ".join(str(made).split())


def test_metric_and_dual_have_the_same_interval() -> None:
    made = matrix({"one_device": [0.10, 0.12, 0.11], "mirrored[replicas=2]": [0.15, 0.13, 0.15]})
    good, dual = (
        estimate(name, made, "mirrored[replicas=2]") for name in ("weak_scaling_efficiency", "weak_scaling_overhead")
    )
    assert (good.value or 0) * (dual.value or 0) == pytest.approx(1)
    assert (good.low or 0) * (dual.high or 0) == pytest.approx(1)


def test_pairs_of_launches_cancel_what_they_share() -> None:
    noise = random.Random(3)
    shared = [math.exp(noise.gauss(0, 0.2)) for _ in range(6)]
    made = matrix({
        "one_device": [0.1 * common * math.exp(noise.gauss(0, 0.01)) for common in shared],
        "mirrored[replicas=2]": [0.125 * common * math.exp(noise.gauss(0, 0.01)) for common in shared],
    })  # fmt: skip
    assert (estimate("step_time", made, "one_device").half_width or 0) > 0.1
    found = estimate("weak_scaling_efficiency", made, "mirrored[replicas=2]")
    assert found.value == pytest.approx(0.8, rel=0.02)
    assert (found.half_width or 1) < 0.03


def test_interval_holds_the_truth_as_often_as_it_says() -> None:
    noise = random.Random(17)
    held = 0
    for _ in range(1000):
        _value, low, high = interval([math.exp(noise.gauss(0, 0.1)) for _ in range(4)])
        held += low is not None and high is not None and low < 1.0 < high
    assert 930 <= held <= 968


def test_interval_of_what_may_be_negative_is_made_of_the_numbers_themselves() -> None:
    made = matrix({"one_device": [0.100, 0.101], "mirrored[replicas=2]": [0.101, 0.100]})
    found = estimate("communication_time", made, "mirrored[replicas=2]")
    assert found.value == pytest.approx(0.0)
    assert found.low is not None
    assert found.low < 0 < (found.high or 0)


def test_reason_instead_of_a_number() -> None:
    made = matrix({"one_device": [0.1], "parameter_server[workers=2]": [0.1]}, rule="none")
    found = estimate("throughput", made, "one_device")
    assert (found.value, found.low) == (None, None)
    assert "global batch size is not known" in str(found)


def test_no_baseline_is_said() -> None:
    found = estimate("speed_up", matrix({"mirrored[replicas=2]": [0.1]}), "mirrored[replicas=2]")
    assert found.value is None
    assert "add one_device to the variants" in found.note


def test_baseline_is_one_device_else_one_replica() -> None:
    assert baseline_of(matrix({"mirrored[replicas=1]": [1.0], "one_device": [1.0]})) == "one_device"
    made = matrix({"parameter_server": [1.0], "mirrored[replicas=1]": [1.0]})
    assert baseline_of(made) == "mirrored[replicas=1]"


def test_shared_cores_are_reported() -> None:
    made = matrix({"one_device": [0.1, 0.1], "mirrored[replicas=2]": [0.1, 0.1]}, pinned=False)
    assert "pin=True" in estimate("weak_scaling_efficiency", made, "mirrored[replicas=2]").note
    pinned = matrix({"one_device": [0.1, 0.1], "mirrored[replicas=2]": [0.1, 0.1]})
    assert estimate("weak_scaling_efficiency", pinned, "mirrored[replicas=2]").note == ""


def test_unequal_launches_are_reported() -> None:
    made = matrix({"one_device": [0.1, 0.1, 0.1], "mirrored[replicas=2]": [0.1, 0.1]})
    found = estimate("weak_scaling_efficiency", made, "mirrored[replicas=2]")
    assert len(found.samples) == 2
    assert "2 pair(s)" in found.note


def test_variant_that_was_not_measured() -> None:
    with pytest.raises(KeyError, match="no tpu; measured: one_device"):
        estimate("step_time", matrix({"one_device": [0.1]}), "tpu")


def test_level_has_to_be_one() -> None:
    with pytest.raises(ValueError, match=r"level=95 must be between 0 and 1"):
        estimate("step_time", matrix({"one_device": [0.1]}), "one_device", level=95)
