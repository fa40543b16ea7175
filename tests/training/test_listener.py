"""The calls of a run to its listener: their order, and that three methods are enough."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_ddl.strategies.base import RankContext
from pytest_ddl.training.listener import StepListener
from pytest_ddl.training.run import Run
from pytest_ddl.training.settings import RunSettings

tf = pytest.importorskip("tensorflow")
# Keras 3.15 warns of its own default.
pytestmark = pytest.mark.filterwarnings("ignore:.*shuffle=True")

HOOKS = [name for name, value in vars(StepListener).items() if callable(value) and not name.startswith("_")]


class Counting(StepListener):
    """Counts steps, and ends the run after ``enough`` of them."""

    def __init__(self, enough):
        self.steps, self.enough = 0, enough

    @property
    def completed(self):
        return self.steps

    @property
    def reached_limit(self):
        return self.steps >= self.enough

    def end_step(self, loss=None, shown=None, traces=None, left=0):
        self.steps += 1


class Logging(Counting):
    """Writes down which of its methods are called."""

    def __init__(self, enough):
        super().__init__(enough)
        self.calls = []

    def __getattribute__(self, name):
        if name in HOOKS:
            object.__getattribute__(self, "calls").append(name)
        return object.__getattribute__(self, name)


def model():
    made = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(1)])
    made.compile("sgd", "mse")
    return made


def by_steps(run):
    for _ in run.steps(lambda iterator: tf.reduce_sum(next(iterator)), tf.data.Dataset.range(8).batch(4)):
        pass


def by_pairs(run):
    """Take two batches in each step, so that the data ends within the second step."""
    for _ in run.steps(lambda iterator: (next(iterator), next(iterator))[0], tf.data.Dataset.range(3).batch(1)):
        pass


def by_batches(run):
    for batch in run.batches(tf.data.Dataset.range(8).batch(4)):
        run.record(loss=tf.reduce_sum(batch))


def by_keras(run):
    made = model()
    run.watch(model=made)
    data = np.ones((8, 3), "float32"), np.ones((8, 1), "float32")
    run.fit(made, *data, batch_size=4, epochs=1)
    run.evaluate(made, *data)
    run.predict(made, data[0])


def trained(program, listener):
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    context = RankContext(spec=None, strategy=strategy, task="worker:0", rank=0, num_ranks=1, num_replicas=1)
    program(Run(RunSettings(global_batch_size=4, observe=False, follow=True), context, listener))
    return listener


LOOP = ["begin_loop", "begin", "begin_call"]
STEP = ["begin_step", "step_done", "end_step"]
BATCH = ["begin_step", "end_step"]


@pytest.mark.parametrize(
    ("program", "enough", "calls"),
    [
        (by_steps, 1, [*LOOP, *STEP, "end_of_steps"]),
        (by_steps, 9, [*LOOP, *STEP, *STEP]),
        (by_pairs, 9, [*LOOP, *STEP, "begin_step", "end_of_data"]),
        (by_batches, 1, [*LOOP, *BATCH, "end_of_steps"]),
        (by_batches, 9, [*LOOP, *BATCH, *BATCH]),
        (
            by_keras,
            9,
            ["watch", "begin_call", "add_facts", "begin"]
            + ["begin_step", "step_done", "end_update", "end_step"] * 2
            + ["end_of_steps", "result"]
            + ["begin_phase", "end_phase", "result", "end_without_step"] * 2,
        ),
    ],
)
def test_calls_come_in_the_documented_order(program, enough, calls):
    assert trained(program, Logging(enough)).calls == calls


@pytest.mark.parametrize("program", [by_steps, by_batches, by_keras])
def test_a_listener_needs_no_other_methods(program):
    assert trained(program, Counting(9)).steps == 2
