"""Real steps in this process: how many examples they take, that they have some, and that they are waited for."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import numpy as np
import pytest

from pytest_ddl.bench.launching import stopwatch
from pytest_ddl.bench.launching.pacing import BlockOrder
from pytest_ddl.bench.launching.stopwatch import EmptyPipelineError, Stopwatch
from pytest_ddl.strategies.base import RankContext
from pytest_ddl.training.run import Run
from pytest_ddl.training.settings import RunSettings

tf = pytest.importorskip("tensorflow")
# Keras 3.15 warns of its own default.
pytestmark = pytest.mark.filterwarnings("ignore:.*shuffle=True")

DECLARED = 8
WIDTH = 3


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """Runs a program against the clock, in this process on one device; gives the watch."""

    def measure(program, declared=DECLARED, warm_up=3):
        orders = [BlockOrder(2), BlockOrder(2), BlockOrder(0)]
        paced = SimpleNamespace(order=lambda: orders.pop(0), done=lambda *_: None, close=lambda: None)
        monkeypatch.setattr(stopwatch, "Paced", lambda *_given: paced)
        strategy = tf.distribute.OneDeviceStrategy("CPU:0")
        context = RankContext(spec=None, strategy=strategy, task="worker:0", rank=0, num_ranks=1, num_replicas=1)
        settings = RunSettings(global_batch_size=declared, tmp_path=str(tmp_path), observe=False, repeat=True)
        watch = Stopwatch(settings, context, "", warm_up, lambda: None)
        with watch.executions.watched(strategy):
            program(Run(settings, context, watch))
        assert watch.reached_limit
        return watch

    return measure


def rows(number, batch):
    return tf.data.Dataset.from_tensor_slices(np.ones((number, WIDTH), "float32")).batch(batch)


def total(run, batch):
    return run.strategy.reduce("SUM", run.strategy.run(tf.reduce_sum, args=(batch,)), axis=None)


def steps(run, step, data):
    for _ in run.steps(step, data):
        pass


def plain(run, batch=None, data=None):
    compiled = tf.function(lambda iterator: total(run, next(iterator)))
    steps(run, compiled, data or rows(48, batch or run.global_batch_size))


def eager(run):
    steps(run, lambda iterator: total(run, next(iterator)), rows(48, run.global_batch_size))


def of_a_function(run):
    plain(run, data=lambda context: rows(48, context.get_per_replica_batch_size(run.global_batch_size)))


def with_a_partial_batch(run):
    plain(run, data=rows(2 * run.global_batch_size + 3, run.global_batch_size))


def time_first(run):
    data = rows(48, run.global_batch_size).map(lambda x: (tf.zeros((5, tf.shape(x)[0], WIDTH)), x))
    steps(run, tf.function(lambda iterator: total(run, next(iterator)[1])), data)


def accumulates_in_its_graph(run):
    def step(iterator):
        return sum(total(run, next(iterator)) for _ in range(4))

    steps(run, tf.function(step), rows(48, run.global_batch_size // 4))


def accumulates_call_by_call(run):
    compiled = tf.function(lambda iterator: total(run, next(iterator)))
    steps(run, lambda iterator: sum(compiled(iterator) for _ in range(4)), rows(48, run.global_batch_size // 4))


def accumulates_batches(run):
    compiled = tf.function(lambda batch: total(run, batch))
    for number, batch in enumerate(run.batches(rows(48, run.global_batch_size // 4))):
        loss = compiled(batch)
        if number % 4 == 3:
            run.record(loss)


def fit(run, data=None, steps_per_execution=1, **given):
    import keras

    with run.strategy.scope():
        model = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", steps_per_execution=steps_per_execution)
    run.fit(model, data or rows(48, run.global_batch_size).map(lambda x: (x, x[:, :1])), **given)


def fit_with_several_steps_at_once(run):
    fit(run, steps_per_execution=2)


def fit_arrays(run, **given):
    import keras

    with run.strategy.scope():
        model = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    run.fit(model, np.ones((96, WIDTH), "float32"), np.ones((96, 1), "float32"), **given)


@pytest.mark.parametrize(
    "program",
    [
        plain,
        eager,
        of_a_function,
        with_a_partial_batch,
        time_first,
        accumulates_in_its_graph,
        accumulates_call_by_call,
        accumulates_batches,
        fit,
        fit_with_several_steps_at_once,
        lambda run: fit_arrays(run, batch_size=run.global_batch_size),
    ],
)
def test_a_program_that_takes_the_declared_batch_is_counted_so(measured, program):
    assert measured(program).examples == DECLARED


@pytest.mark.parametrize(
    ("program", "counted"),
    [
        (lambda run: plain(run, batch=2), 2),
        (lambda run: plain(run, data=rows(5, run.global_batch_size)), 5),
        (lambda run: fit(run, rows(48, 2).map(lambda x: (x, x[:, :1]))), 2),
        (fit_arrays, 32),
    ],
)
def test_another_batch_than_the_declared_is_counted(measured, program, counted):
    assert measured(program).examples == counted


def test_batches_that_a_loop_of_the_graph_takes_are_not_counted(measured):
    def program(run):
        @tf.function
        def step(iterator):
            loss = 0.0
            for _ in tf.range(4):
                loss += total(run, next(iterator))
            return loss

        steps(run, step, rows(48, 2))

    assert measured(program).examples is None


def test_batches_that_a_function_within_the_step_takes_are_not_counted(measured):
    def program(run):
        inner = tf.function(lambda iterator: total(run, next(iterator)))
        steps(run, tf.function(lambda iterator: inner(iterator) + inner(iterator)), rows(48, 4))

    assert measured(program).examples is None


def test_of_arrays_that_keras_divides_by_its_own_rule_nothing_is_counted(measured):
    assert measured(lambda run: fit_arrays(run, steps_per_epoch=3)).examples is None


@pytest.mark.parametrize("program", [plain, fit])
def test_steps_without_examples_are_refused(measured, program):
    empty = rows(48, DECLARED).map(lambda x: x[:0])
    if program is fit:
        empty = empty.map(lambda x: (x, x[:, :1]))
    with pytest.raises(EmptyPipelineError, match="the steps that were measured had no examples"):
        measured(lambda run: program(run, data=empty))


def test_calls_that_return_before_they_are_done_are_waited_for():
    may_end, done = threading.Event(), []

    def work():
        may_end.wait(60)
        done.append(1)
        return 1

    step = tf.function(lambda: tf.py_function(work, [], tf.int32))
    step.get_concrete_function()
    tf.config.experimental.set_synchronous_execution(False)
    try:
        step()
        assert not done  # the call has returned before
        threading.Timer(0.2, may_end.set).start()
        stopwatch.synchronize()
        assert done
    finally:
        may_end.set()
        tf.config.experimental.set_synchronous_execution(True)


def test_a_data_set_whose_last_batch_comes_often_is_reported(measured):
    # Steps 0 to 6 are over: the next two batches are a whole and a partial one.
    (told,) = measured(lambda run: plain(run, data=rows(12, DECLARED))).remarks
    assert "batches of 4 and of 8 examples were seen, and all are counted as 8" in told
    assert measured(plain).remarks == ()
