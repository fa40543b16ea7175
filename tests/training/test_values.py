"""Numbers that ``run.value`` records: they count no step, and belong to the step that a reader expects."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_ddl.equivalence.evidence.results import returned
from pytest_ddl.notes import NoteKind
from pytest_ddl.strategies.base import RankContext
from pytest_ddl.training.recorder import Recorder
from pytest_ddl.training.run import Run
from pytest_ddl.training.settings import RunSettings

tf = pytest.importorskip("tensorflow")


def numbers():
    return tf.data.Dataset.range(8).batch(4)


def recorded(program):
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    context = RankContext(spec=None, strategy=strategy, task="worker:0", rank=0, num_ranks=1, num_replicas=1)
    settings = RunSettings(global_batch_size=4, observe=False)
    recorder = Recorder(settings, context)
    program(Run(settings, context, recorder))
    return recorder.rank_record(None, {})


def test_in_a_loop_over_steps_it_belongs_to_the_step_that_has_ended():
    def program(run):
        for position, loss in enumerate(run.steps(lambda iterator: tf.reduce_sum(next(iterator)), numbers())):
            run.value("twice", 2 * loss)
            run.value("position", tf.constant(position))

    record = recorded(program)
    assert [dict(step.values) for step in record.steps] == [
        {"twice": 12.0, "position": 0.0},
        {"twice": 44.0, "position": 1.0},
    ]


def test_in_a_loop_over_batches_it_belongs_to_the_step_that_ends_next():
    def program(run):
        for batch in run.batches(numbers()):
            run.value("first", batch[0])
            run.record(loss=tf.reduce_sum(batch), last=batch[-1])

    assert [dict(step.values) for step in recorded(program).steps] == [
        {"first": 0.0, "last": 3.0},
        {"first": 4.0, "last": 7.0},
    ]


def test_no_number_takes_the_place_of_another_of_its_name():
    def over_steps(run):
        for loss in run.steps(lambda iterator: tf.reduce_sum(next(iterator)), numbers()):
            for part in (0.25, 0.5, 0.75):
                run.value("part", part * loss)

    def over_batches(run):
        for batch in run.batches(numbers()):
            for part in tf.split(batch, 2):
                run.value("part", tf.reduce_sum(part))
            run.record(loss=tf.reduce_sum(batch), part=-1.0)

    first = {"part": 1.5, "part#2": 3.0, "part#3": 4.5}
    assert dict(recorded(over_steps).steps[0].values) == first
    assert dict(recorded(over_batches).steps[0].values) == {"part": 1.0, "part#2": 5.0, "part#3": -1.0}


def test_a_metric_does_not_replace_a_number_of_its_name():
    keras = pytest.importorskip("keras")

    def program(run):
        metric = keras.metrics.Mean(name="mean")
        run.watch(metrics=metric)
        for batch in run.batches(numbers()):
            metric.update_state(batch)
            run.value("mean", -1.0)
            run.record(loss=0.0)

    assert dict(recorded(program).steps[0].values) == {"mean": -1.0, "mean#2": 1.5}


@pytest.mark.parametrize("kind", [tf.stack, np.asarray], ids=["tensor", "array"])
def test_the_parts_of_a_vector_loss_are_numbers_of_their_own(kind):
    def program(run):
        for batch in run.batches(numbers()):
            loss = float(tf.reduce_sum(batch))
            run.record(loss=kind([loss, 2 * loss]))

    first = recorded(program).steps[0]
    assert first.loss is None
    assert dict(first.values) == {"loss (1 of 2 by size)": 6.0, "loss (2 of 2 by size)": 12.0}


def test_a_long_vector_is_no_loss():
    def program(run):
        for batch in run.batches(numbers()):
            run.record(loss=tf.repeat(batch, 100))

    record = recorded(program)
    assert dict(record.steps[0].values) == {}
    assert [note.kind for note in record.notes] == [NoteKind.LOSSES]


def test_outside_of_loops_it_is_a_result_after_the_steps_so_far():
    def program(run):
        run.value("start", 1)
        for _ in run.steps(lambda iterator: tf.reduce_sum(next(iterator)), numbers()):
            pass
        run.value("accuracy", 0.5)
        run.value("recall", 0.25)

    record = recorded(program)
    assert len(record.steps) == 2
    assert [dict(step.values) for step in record.steps] == [{}, {}]
    found = [(one.name, one.step, float(one.value)) for one in returned(record).values()]
    assert found == [("value/start", 0, 1.0), ("value#2/accuracy", 2, 0.5), ("value#3/recall", 2, 0.25)]


def test_a_loop_that_is_left_early_is_over():
    def program(run):
        for _ in run.steps(lambda iterator: tf.reduce_sum(next(iterator)), numbers()):
            break
        run.record(loss=1.0)
        run.value("after", 3)

    record = recorded(program)
    assert len(record.steps) == 2
    assert [one.name for one in returned(record).values()] == ["value/after"]


def test_record_refuses_to_count_a_step_that_run_steps_counts():
    def program(run):
        for _ in run.steps(lambda iterator: tf.reduce_sum(next(iterator)), numbers()):
            run.record(accuracy=0.5)

    with pytest.raises(RuntimeError, match=r"run\.steps records each step itself.*run\.value\(name, number\)"):
        recorded(program)


@pytest.mark.parametrize("wrong", ["text", [1.0, 2.0], None])
def test_only_one_number_is_a_value(wrong):
    with pytest.raises(TypeError, match=r"run\.value\('it', \.\.\.\) takes one number, not a "):
        recorded(lambda run: run.value("it", wrong))


def test_a_tensor_of_a_graph_is_refused():
    def program(run):
        @tf.function
        def train_step(iterator):
            loss = tf.reduce_sum(next(iterator))
            run.value("loss", loss)
            return loss

        list(run.steps(train_step, numbers()))

    with pytest.raises(TypeError, match=r"call it outside tf\.function"):
        recorded(program)
