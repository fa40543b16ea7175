"""Measurements of a rank's clock, for given times and without TensorFlow."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pytest_ddl.bench.launching import stopwatch
from pytest_ddl.bench.launching.pacing import BlockOrder
from pytest_ddl.bench.launching.stopwatch import Stopwatch
from pytest_ddl.strategies.base import RankContext
from pytest_ddl.training import coordinator
from pytest_ddl.training.settings import RunSettings


class Clock:
    now = 100.0

    def perf_counter(self):
        return self.now


class Controller:
    """Stands in for the connection to the pacer: orders that were given beforehand."""

    def __init__(self, orders):
        self.orders, self.done_blocks, self.hello = list(orders), [], None

    def __call__(self, _address, rank, traces):
        self.hello = rank, traces
        return self

    def order(self):
        return self.orders.pop(0)

    def done(self, seconds, traces):
        self.done_blocks.append((seconds, traces))

    def close(self):
        pass


class Program:
    """A watch with a program that takes steps of given seconds."""

    def __init__(self, monkeypatch, *orders, warm_up=3):
        self.clock, self.controller = Clock(), Controller(orders)
        self.pending, self.scheduled, self.steady = 0.0, 0.0, []
        monkeypatch.setattr(stopwatch, "time", self.clock)
        monkeypatch.setattr(stopwatch, "Paced", self.controller)
        monkeypatch.setattr(stopwatch, "synchronize", self.synchronize)
        monkeypatch.setattr(stopwatch, "join_scheduled", self.join)
        context = RankContext(spec=None, strategy=None, task="worker:0", rank=0, num_ranks=1, num_replicas=1)
        self.watch = Stopwatch(RunSettings(), context, "", warm_up, lambda: self.steady.append(self.clock.now))

    def join(self, _strategy):
        """Workers begin what was scheduled for them."""
        self.pending, self.scheduled = self.pending + self.scheduled, 0.0

    def synchronize(self, _loss=None):
        """A device finishes what it was given."""
        self.clock.now += self.pending
        self.pending = 0.0

    def steps(self, number, seconds=1.0, on_device=0.0, traces=None, loss=None, scheduled=0.0):
        for _ in range(number):
            assert not self.watch.reached_limit
            self.clock.now += seconds
            self.pending += on_device
            self.scheduled += scheduled
            self.watch.end_step(loss, traces=traces)


def test_building_the_first_step_and_the_warm_up_are_told_apart_from_steady_steps(monkeypatch):
    program = Program(monkeypatch, BlockOrder(5), BlockOrder(5), BlockOrder(0))
    watch = program.watch
    program.clock.now += 20  # models and data
    watch.begin()
    program.steps(1, seconds=10)
    program.steps(2)
    assert watch.is_steady
    program.steps(5, seconds=2)
    program.steps(5, seconds=3)
    assert (watch.build_seconds, watch.first_step_seconds, watch.warm_up_seconds) == (20, 10, 2)
    assert watch.blocks == [10, 15]
    assert watch.steady_steps == 10
    assert watch.completed == 13
    assert watch.reached_limit
    assert program.steady == [132]


def test_work_that_devices_have_still_to_do_belongs_to_its_block(monkeypatch):
    program = Program(monkeypatch, BlockOrder(4), BlockOrder(4), BlockOrder(0), warm_up=2)
    program.watch.begin()
    program.steps(2, seconds=0, on_device=7)
    program.steps(4, seconds=0, on_device=1)
    program.steps(4, seconds=0, on_device=2)
    assert program.watch.blocks == [4, 8]
    assert program.watch.first_step_seconds == 7
    assert program.watch.warm_up_seconds == 7


def test_waiting_for_an_order_is_not_measured(monkeypatch):
    program = Program(monkeypatch, warm_up=1)
    orders = iter([BlockOrder(2), BlockOrder(2), BlockOrder(0)])

    def order():
        program.clock.now += 1000  # the other side's turn
        return next(orders)

    program.controller.order = order
    program.watch.begin()
    program.steps(5)
    assert program.watch.blocks == [2, 2]


def test_a_block_that_is_dropped_counts_as_warm_up(monkeypatch):
    program = Program(monkeypatch, BlockOrder(2), BlockOrder(2, drop=True), BlockOrder(2), BlockOrder(0), warm_up=2)
    watch = program.watch
    watch.begin()
    program.steps(2, traces=1)
    assert (program.controller.hello, watch.traces_before) == ((0, 1), 1)
    program.steps(2, seconds=9, traces=2)
    assert (watch.blocks, watch.steady_steps, watch.traces_before) == ([], 0, 2)
    program.steps(4, traces=2)
    assert (watch.blocks, watch.steady_steps) == ([2, 2], 4)
    assert watch.retraces == 0
    assert program.controller.done_blocks == [(18, 2), (2, 2), (2, 2)]


def test_each_block_says_whether_it_counts(monkeypatch):
    program = Program(
        monkeypatch,
        BlockOrder(2),
        BlockOrder(2, drop=True),
        BlockOrder(2),
        BlockOrder(2, drop=True),
        BlockOrder(0),
        warm_up=1,
    )
    told = []
    program.watch._on_block = told.append
    program.watch._on_stopped = lambda: told.append("stopped")
    program.steps(9)
    assert told == [False, True, False, True, "stopped"]


def test_traces_within_blocks_that_are_kept_are_retraces(monkeypatch):
    program = Program(monkeypatch, BlockOrder(2), BlockOrder(2), BlockOrder(0), warm_up=1)
    program.watch.begin()
    for number in range(5):
        program.steps(1, traces=number + 1)
    assert program.watch.retraces == 4


def test_a_loop_that_takes_several_steps_at_once_is_scaled_to_what_was_ordered(monkeypatch):
    program = Program(monkeypatch, BlockOrder(6), BlockOrder(0), warm_up=4)
    program.watch._watcher._models = [SimpleNamespace(steps_per_execution=4)]
    program.watch.begin()
    program.steps(1)
    program.steps(2, seconds=4)
    assert program.watch.completed == 12
    assert program.watch.blocks == [6.0]  # eight steps took 8 s
    assert program.controller.done_blocks == [(6.0, 0)]
    assert program.watch.steady_steps == 8


def test_the_loss_is_that_of_the_last_steady_step(monkeypatch):
    program = Program(monkeypatch, BlockOrder(2), BlockOrder(0), warm_up=1)
    program.watch.begin()
    program.steps(1, loss=9.0)
    assert program.watch.loss is None
    program.steps(1, loss=5.0)
    program.steps(1, loss=0.5)
    assert program.watch.loss == 0.5


def test_a_program_that_ends_within_its_warm_up_has_measured_nothing(monkeypatch):
    program = Program(monkeypatch, warm_up=10)
    program.watch.begin()
    program.steps(9)
    assert not program.watch.is_steady
    assert (program.watch.blocks, program.watch.completed) == ([], 9)


@pytest.mark.parametrize(("unrolled", "expected"), [(1, 1), (2, 2), (8, 4)])
def test_unrolled_steps_are_no_more_than_keras_runs_at_once(monkeypatch, unrolled, expected):
    program = Program(monkeypatch)
    model = SimpleNamespace(steps_per_execution=4, unrolled_steps_per_execution=unrolled)
    program.watch._watcher._models = [model]
    assert program.watch.unrolled_steps == expected


def test_what_a_program_has_scheduled_by_itself_belongs_to_its_block(monkeypatch):
    """Under parameter_server ``schedule`` returns at once: the coordinator is joined before the clock is read."""
    program = Program(monkeypatch, BlockOrder(4), BlockOrder(4), BlockOrder(0), warm_up=2)
    program.steps(2, seconds=0, scheduled=5)
    program.steps(4, seconds=0, scheduled=1)
    program.steps(4, seconds=0, scheduled=3)
    assert program.watch.blocks == [4, 12]
    assert (program.watch.build_seconds, program.watch.first_step_seconds) == (0, 5)  # it began no loop


def test_the_coordinator_of_the_strategy_is_the_one_that_is_joined(monkeypatch):
    joined = []
    program = Program(monkeypatch, BlockOrder(1), BlockOrder(0), warm_up=1)
    monkeypatch.setattr(stopwatch, "join_scheduled", joined.append)
    program.watch._context = SimpleNamespace(strategy="the strategy")
    program.steps(2)
    assert set(joined) == {"the strategy"}


def loop_notes(program):
    return [note for note in program.watch.notes if "loop" in note]


@pytest.mark.parametrize("begin", ["begin", "begin_loop"])
def test_one_loop_alone_needs_no_note(monkeypatch, begin):
    program = Program(monkeypatch, BlockOrder(2), BlockOrder(0), warm_up=1)
    getattr(program.watch, begin)()
    program.steps(3)
    assert program.watch.notes == ()


def test_loops_that_come_after_the_measurement_are_reported(monkeypatch):
    program = Program(monkeypatch, BlockOrder(2), BlockOrder(0), warm_up=1)
    program.watch.begin_loop()
    program.steps(3)
    assert program.watch.reached_limit
    program.watch.begin_loop()
    (note,) = loop_notes(program)
    assert "of the program's 2 loops over data (run.steps, run.batches) only loop 1 was measured" in note
    assert "counters" not in note


def test_counters_of_another_loop_than_the_measured_one_are_reported(monkeypatch):
    program = Program(monkeypatch, BlockOrder(2), BlockOrder(0), warm_up=1)
    program.watch.begin_loop()
    program.steps(1)
    program.watch.begin_loop()
    program.steps(2)
    (note,) = loop_notes(program)
    assert "only loop 2 was measured" in note
    assert "counters are those of loop 1" in note


def test_blocks_that_have_steps_of_several_loops_are_reported(monkeypatch):
    program = Program(monkeypatch, BlockOrder(2), BlockOrder(2, drop=True), BlockOrder(2), BlockOrder(0), warm_up=1)
    for number in (3, 1, 1, 0):  # the block with steps of the first loop is dropped
        program.watch.begin_loop()
        program.steps(number)
    (note,) = loop_notes(program)
    assert "steps of the loops 2 to 3 of the program's 4 loops" in note
    assert "the code between these loops; counters are those of loop 1" in note


def test_a_loop_after_a_fit_that_was_measured_is_reported(monkeypatch):
    program = Program(monkeypatch, BlockOrder(2), BlockOrder(0), warm_up=1)
    program.watch.begin()
    program.steps(3)
    program.watch.begin_loop()
    (note,) = loop_notes(program)
    assert "of the program's 1 loop over data (run.steps, run.batches) none was measured" in note


def test_steps_that_all_run_before_the_first_is_recorded_cannot_be_measured(monkeypatch):
    watch = Program(monkeypatch).watch
    with pytest.raises(ValueError, match=r"concurrent=True\) cannot be measured.*run\.record\(\)"):
        next(coordinator.concurrently(watch, None, None, None, 5))
