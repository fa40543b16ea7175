"""Text that is printed after a measurement."""

from __future__ import annotations

import dataclasses

from pytest_ddl.bench import Counters, Matrix
from pytest_ddl.bench.launching.records import EnergyReading
from tests.bench.made import launch, matrix

TWO = "mirrored[replicas=2]"
WORKERS = "multi_worker_mirrored[workers=2,replicas=1]"


def row(text: str, name: str) -> list[str]:
    """The cells of a variant's line."""
    return next(line for line in text.splitlines() if line.startswith(name)).split()


def test_numbers_of_every_variant() -> None:
    made = matrix({"one_device": [0.100] * 3, TWO: [0.125] * 3, WORKERS: [0.2] * 3})
    text = str(made)
    assert row(text, "one_device") == ["one_device", "100", "±0.0%", "320", "baseline", "baseline", "-", "512", "[1]"]
    assert row(text, TWO) == [TWO, "125", "±0.0%", "512", "0.800", "±0.0%", "1.250", "20%", "512", "[1]"]
    assert row(text, "multi_worker_mirrored")[3:7] == ["320", "0.500", "±0.0%", "2.000"]
    assert "  [workers=2, replicas=1]" in text.splitlines()
    assert "[1] no energy was read: not asked for (energy=True reads it)" in text
    assert "95 % t interval over 3 launches" in text


def test_it_fits_into_100_columns() -> None:
    given = {"machine": {"host": "h" * 60, "cpu": "An expensive processor " * 4, "cores": "128", "load": "0.5"}}
    made = matrix(
        {"one_device": [123.456, 1.0], WORKERS: [123.456, 1.0], "parameter_server[ps=1,workers=2]": [0.1, 0.2]},
        batch=10**9,
        energy=EnergyReading(123456789.0, 1.0, "nvml: 2 GPUs"),
        **given,
    )
    assert max(map(len, str(made).splitlines())) <= 100


def test_one_launch_says_that_it_has_no_interval() -> None:
    text = str(matrix({"one_device": [0.1], TWO: [0.125]}))
    assert "±" not in text
    assert "One launch of each variant: no interval" in text


def test_strong_scaling_is_reported() -> None:
    text = str(matrix({"one_device": [0.1], TWO: [0.0625]}, rule="strong"))
    assert row(text, TWO)[2:5] == ["512", "0.800", "1.250"]
    assert "global batch fixed (strong scaling)" in text
    assert "t_N - t_1 needs equal batches per replica" in text


def test_what_is_missing_says_why() -> None:
    made = matrix({"parameter_server[ps=1,workers=2]": [0.1]}, rule="none")
    made = dataclasses.replace(
        made, skipped={"tpu": "no TPU on this machine"}, failed={"mirrored": "worker 0 failed\nTraceback"}
    )
    text = str(made)
    assert "global batch size is not known" in text
    assert "add one_device to the variants" in text
    assert "tpu was skipped: no TPU on this machine" in text
    assert "mirrored failed: worker 0 failed" in text
    assert "Traceback" not in text


def test_tracing_within_steady_steps_is_reported() -> None:
    text = str(Matrix((launch("one_device", 0.1, 1, 8, counters=Counters(retraces=3)),), {}, "weak"))
    assert "one_device traced 3 more function(s) within its steady steps" in text


def test_eager_steps_are_reported() -> None:
    text = str(Matrix((launch("one_device", 0.1, 1, 8, counters=Counters(eager=True)),), {}, "weak"))
    assert "one_device: steps ran eagerly" in text
    assert "eagerly" not in str(matrix({"one_device": [0.1]}))


def test_loops_that_were_not_measured_are_reported_once() -> None:
    told = "of the program's 2 loops only loop 1 was measured"
    assert str(matrix({"one_device": [0.1] * 3, TWO: [0.1] * 3}, remarks=(told,))).splitlines().count(told) == 1
    one = (launch("one_device", 0.1, 1, 8, remarks=(told,)), launch(TWO, 0.1, 2, 16))
    assert f"one_device: {told}" in str(Matrix(one, {}, "weak"))


def test_no_time_at_all_gives_no_number() -> None:
    text = str(matrix({"one_device": [0.0], TWO: [0.0]}))
    assert row(text, TWO)[1:6] == ["[1]"] * 5
    assert "[1] blocks of 20 step(s) took 0 s: give a larger steps_per_block=" in text


def test_busy_machine_is_reported() -> None:
    busy = matrix({"one_device": [0.1]}, machine={"cores": "2", "load": "13.50"})
    assert "the machine was busy (load 13.50 on 2 cores)" in str(busy)
    calm = matrix({"one_device": [0.1]}, machine={"cores": "2", "load": "1.50"})
    assert "busy" not in str(calm)


def test_energy_and_machine() -> None:
    facts = {"host": "lab", "cpu": "EPYC", "cores": "2", "load": "0.31"}
    text = str(matrix({"one_device": [0.1]}, energy=EnergyReading(400.0, 20.0, "rapl: 1 package"), machine=facts))
    assert row(text, "one_device")[-1] == "2"
    assert "cpu of lab, EPYC, 2 cores, one core or more for each replica, load 0.31." in text
    assert "50% of it in measured steps" in text


def test_another_batch_than_the_declared_is_reported() -> None:
    text = str(matrix({"one_device": [0.1], TWO: [0.1]}, examples=2))
    assert row(text, "one_device")[2] == "[1]"
    assert row(text, TWO)[2:6] == ["[3]", "[4]", "[4]", "[5]"]
    assert "[1] 2 examples were counted in a step" in text
    assert "declared: batch per replica fixed (weak scaling); counted: another batch size." in " ".join(text.split())


def test_nothing_measured() -> None:
    assert str(Matrix((), {"tpu": "no TPU"})) == "nothing was measured\ntpu was skipped: no TPU"
