"""Records of launches: to JSON and back, and what is derived from them."""

from __future__ import annotations

import json

import pytest

from pytest_ddl.bench.launching.records import Counters, EnergyReading, Launch, RankTiming
from pytest_ddl.json_records import RecordError

COUNTERS = Counters(
    collectives={"all_reduce": 2},
    reduced_bytes=1004,
    packs=1,
    unpacked=1,
    nodes=330,
    traces=1,
    retraces=2,
    steady_steps=200,
    parameter_bytes=1000,
    reduced_dtypes={"float32": 1004},
    copies={"device_to_device": 3},
    host_calls=1,
    misplaced=("kernel: CPU:0",),
    eager=True,
    notes=("a note",),
)


def timing(rank, blocks, **given):
    return RankTiming(
        rank=rank,
        task=f"worker:{rank}",
        blocks=blocks,
        build_seconds=0.5,
        first_step_seconds=1.5,
        warm_up_seconds=0.1,
        peak_memory_bytes=2**28,
        **given,
    )


def launch(**given):
    fields = {
        "strategy": "mirrored[replicas=2]",
        "replicas": 2,
        "ranks": (timing(0, (1.0, 3.0, 2.0)), timing(1, (2.0, 1.0, 2.0))),
        "counters": COUNTERS,
        "global_batch_size": 16,
        "steps_per_block": 10,
        "wall_seconds": 9.0,
    }
    return Launch(**{**fields, **given})


def test_a_launch_comes_back_from_json_as_it_was():
    energy = EnergyReading(12.5, 3.0, "nvml: 2 GPUs")
    one = launch(
        ranks=(
            timing(
                0,
                (1.0,),
                energy=energy,
                loss=0.25,
                remarks=("a remark",),
                device_peak_bytes={"GPU:0": 7},
                program="train.py",
            ),
        ),
        device="gpu",
        pinned=True,
        machine={"host": "h"},
        versions={"tensorflow": "2"},
    )
    again = Launch.from_json(json.loads(json.dumps(one.as_json())))
    assert again == one
    assert isinstance(again.counters.misplaced, tuple)
    assert isinstance(again.ranks[0].blocks, tuple)


def test_what_was_not_counted_stays_not_counted():
    one = launch(counters=Counters())
    assert Launch.from_json(json.loads(json.dumps(one.as_json()))).counters.copies is None


def test_counters_of_an_earlier_version_are_read():
    data = launch().as_json()
    del data["counters"]["host_calls"]
    assert Launch.from_json(data).counters.host_calls == 0


def test_what_a_later_version_tells_besides_is_left_out_on_request():
    data = json.loads(json.dumps(launch().as_json()))
    for told in (data, data["counters"], data["ranks"][0], data["ranks"][0]["energy"]):
        told["of_a_later_version"] = 1
    assert Launch.from_json(data, other_version=True) == launch()
    with pytest.raises(RecordError, match="Launch has the unknown field 'of_a_later_version'"):
        Launch.from_json(data)


def test_a_step_takes_as_long_as_on_its_slowest_rank():
    one = launch()
    assert one.step_seconds == [0.2, 0.3, 0.2]
    assert one.median_step_seconds == 0.2
    assert one.throughput == pytest.approx(80)
    assert one.measured_seconds == pytest.approx(7)
    assert one.as_json()["derived"] == {
        "step_seconds": [0.2, 0.3, 0.2],
        "median_step_seconds": 0.2,
        "throughput": pytest.approx(80),
    }


def test_ranks_that_measured_another_number_of_blocks_do_not_go_together():
    with pytest.raises(ValueError, match="zip"):
        _ = launch(ranks=(timing(0, (1.0,)), timing(1, (1.0, 2.0)))).step_seconds


def test_without_a_batch_size_there_is_no_throughput():
    assert launch(global_batch_size=None).throughput is None


def test_examples_that_are_not_those_declared_give_no_throughput():
    seen = {rank: timing(rank, (1.0,), examples=rows) for rank, rows in ((0, 8), (1, 8))}
    right = launch(ranks=tuple(seen.values()))
    assert (right.examples_per_step, right.batch_problem) == (16, "")
    assert right.throughput == pytest.approx(160)
    wrong = launch(ranks=tuple(seen.values()), global_batch_size=128)
    assert "16 examples were counted in a step where" in wrong.batch_problem
    assert "declares 128" in wrong.batch_problem
    assert wrong.throughput is None


def test_blocks_without_time_have_no_throughput():
    assert launch(ranks=(timing(0, (0.0,)),)).throughput is None


def test_a_rank_that_did_not_count_leaves_what_was_declared():
    one = launch(ranks=(timing(0, (1.0,), examples=3), timing(1, (1.0,))))
    assert (one.examples_per_step, one.batch_problem) == (None, "")
    assert one.throughput == pytest.approx(160)
