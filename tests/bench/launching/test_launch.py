"""Launches of programs that measure well, and of those that end, fail, die or train on nothing."""

from __future__ import annotations

import contextlib
import math
from functools import partial
from pathlib import Path

import counter_programs as programs
import pytest

from pytest_ddl.bench import measure
from pytest_ddl.bench.launching import launch as launching
from pytest_ddl.bench.launching.launch import drive
from pytest_ddl.bench.launching.pacing import Pacer
from pytest_ddl.bench.launching.ranks import BenchError
from pytest_ddl.bench.launching.records import BenchSpec
from pytest_ddl.harness import process_harness
from suites.loops import train_in_a_loop
from suites.workloads import WORKLOADS

SMALL = {"global_batch_size": 8, "warm_up": 4, "steps_per_block": 3, "blocks": 2, "seconds": 1e-9}


class Lane:
    """Blocks whose seconds, and whether they are dropped, are given."""

    def __init__(self, *blocks):
        self.blocks = list(blocks)
        self.ordered, self.stopped, self.was_dropped = [], False, False

    def run_block(self, steps, _deadline):
        self.ordered.append(steps)
        seconds, self.was_dropped = self.blocks.pop(0)
        return seconds

    def stop(self):
        self.stopped = True


def test_blocks_are_ordered_until_their_number_and_their_seconds_are_reached():
    lane = Lane(*[([0.1, 0.2], False)] * 9)
    drive(lane, BenchSpec(blocks=3, seconds=1.0, steps_per_block=7), math.inf)
    assert lane.ordered == [7] * 5  # of the slower rank
    assert lane.stopped
    lane = Lane(*[([2.0], False)] * 9)
    drive(lane, BenchSpec(blocks=3, seconds=1.0), math.inf)
    assert len(lane.ordered) == 3


def test_blocks_that_are_dropped_do_not_count():
    lane = Lane(([50.0], True), ([50.0], True), ([1.0], False), ([1.0], False))
    drive(lane, BenchSpec(blocks=2, seconds=1.0), math.inf)
    assert len(lane.ordered) == 4


def test_ranks_are_let_go_after_an_error():
    lane = Lane()
    with pytest.raises(IndexError):
        drive(lane, BenchSpec(), math.inf)
    assert lane.stopped


@pytest.mark.slow
def test_a_program_that_ends_within_its_warm_up_is_told_how_long_it_has_to_be():
    words = r"ended on worker:0 after 3 step\(s\), before its warm-up did: nothing was measured.*must leave room"
    with pytest.raises(BenchError, match=words):
        measure(programs.ends_early, ["one_device"], **SMALL)


@pytest.mark.slow
def test_a_program_that_ends_between_blocks_is_told_what_to_change():
    with pytest.raises(
        BenchError, match=r"ended on worker:0 after 20 step\(s\), before the measurement did; remove the steps="
    ):
        measure(programs.ends_between, ["one_device"], **{**SMALL, "blocks": 50})


@pytest.mark.slow
def test_a_rank_that_raises_is_named_with_its_error():
    with pytest.raises(
        BenchError, match=r"(?s)worker:0 failed while it was measured: .*ArithmeticError: the sixth step"
    ):
        measure(programs.raises, ["multi_worker_mirrored"], **SMALL)


@pytest.mark.slow
def test_a_rank_that_dies_is_named():
    with pytest.raises(BenchError, match=r"worker:1 failed while it was measured.*SIGKILL"):
        measure(programs.dies, ["multi_worker_mirrored"], **SMALL)


@pytest.mark.slow
def test_a_rank_that_returns_at_once_is_named_and_not_the_one_that_waits_for_it():
    words = r"(?s)ended on worker:1 after 0 step\(s\), before its warm-up did.*\nworker:0 was still waiting for it"
    with pytest.raises(BenchError, match=words):
        measure(programs.trains_on_one_rank_alone, ["multi_worker_mirrored"], **SMALL)


@pytest.mark.slow
def test_what_a_rank_has_started_ends_with_the_launch(tmp_path):
    psutil = pytest.importorskip("psutil")
    file = tmp_path / "pid"
    with pytest.raises(BenchError, match="before its warm-up did"):
        measure(partial(programs.starts_a_program, file=str(file)), ["one_device"], **SMALL)
    with contextlib.suppress(psutil.NoSuchProcess):
        started = psutil.Process(int(file.read_text()))
        psutil.wait_procs([started], timeout=3)
        assert started.status() == psutil.STATUS_ZOMBIE


@pytest.mark.slow
def test_steps_without_examples_are_refused():
    with pytest.raises(BenchError, match=r"EmptyPipelineError: the steps that were measured had no examples"):
        measure(programs.consumes_nothing, ["one_device"], **SMALL)


@pytest.mark.slow
@pytest.mark.parametrize("program", [programs.train, partial(programs.train, loop="batches"), programs.fit])
def test_every_kind_of_loop_is_measured_and_data_that_ends_is_repeated(monkeypatch, program):
    folders = []

    class Recorded(Pacer):
        def __init__(self, parent):
            super().__init__(parent)
            folders.append(Path(self.address).parent)

    monkeypatch.setattr(launching, "Pacer", Recorded)
    psutil = pytest.importorskip("psutil")
    harness = process_harness()
    _ = harness.machine  # its probe
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    (launch,) = measure(program, ["mirrored"], **SMALL).launches
    assert len(launch.step_seconds) == 2
    assert launch.counters.steady_steps == 6
    assert launch.examples_per_step == 8
    assert launch.counters.retraces == 0
    assert all(seconds > 0 for seconds in launch.step_seconds)
    (rank,) = launch.ranks
    assert rank.build_seconds > 0
    assert rank.first_step_seconds > 0
    assert rank.warm_up_seconds > 0
    assert math.isfinite(rank.loss)
    assert rank.program == str(Path(programs.__file__).resolve())
    # 48 examples are six batches of 8, and ten steps were run.
    assert not list(harness.folder.glob("bench-*"))
    (folder,) = folders
    assert not folder.exists()
    left = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
    _gone, alive = psutil.wait_procs(left, timeout=30)
    # The launcher may have been started by this launch: it stays, and has no rank left.
    assert len(alive) <= 1


def choose_tensor_float_32(run):
    import tensorflow as tf

    tf.config.experimental.enable_tensor_float_32_execution(True)
    assert tf.config.experimental.tensor_float_32_execution_enabled()
    train_in_a_loop(run, WORKLOADS["mlp"], WORKLOADS["mlp"].load())


@pytest.mark.slow
def test_a_measured_program_chooses_tensor_float_32():
    assert measure(choose_tensor_float_32, ["one_device"], **SMALL).of("one_device")
