"""Training functions whose steps do a known amount of work, right and with an injected defect."""

from __future__ import annotations

import os
import signal
import threading
import time
from functools import partial

WIDTH = 6
LAYERS = 4


def _data(run, rows=48, width=WIDTH):
    import numpy as np
    import tensorflow as tf

    generator = np.random.default_rng(run.seed)
    x = generator.normal(size=(rows, width)).astype("float32")
    return tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(run.global_batch_size)


def train(run, sin="", *, width=WIDTH, names="dense", half=False, loop="steps", rows=48):
    """A perceptron by hand: one all-reduce of all gradients, in one pack."""
    import itertools

    import tensorflow as tf

    with run.strategy.scope():
        variables = [
            tf.Variable(tf.ones((width, width)) * 0.1, name=f"{names}_{number}") for number in range(LAYERS - 1)
        ]
        if sin != "wrong device":
            variables.append(tf.Variable(tf.ones((width, width)) * 0.1, name=f"{names}_last"))
    if sin == "wrong device":
        with tf.device("CPU:0"):
            variables.append(tf.Variable(tf.ones((width, width)) * 0.1, name=f"{names}_last"))
    run.watch(variables=variables)

    writer = tf.summary.create_file_writer(str(run.rank_path)) if sin == "summary in the step" else None

    def replica_step(batch, number):
        x, y = batch
        context = tf.distribute.get_replica_context()
        with tf.GradientTape() as tape:
            for variable in variables:
                x = tf.tanh(tf.matmul(x, variable))
            loss = tf.reduce_sum(tf.square(x[:, :1] - y)) / run.global_batch_size
        gradients = tape.gradient(loss, variables)
        if half and sin != "cast before reduce":
            gradients = [tf.cast(gradient, tf.float16) for gradient in gradients]
        if sin == "gathered on the host":
            with tf.device("CPU:0"):
                gradients = [tf.cumsum(gradient) for gradient in gradients]
        if sin == "python in the step":
            tf.py_function(float, [loss], tf.float32)
        if sin == "summary in the step":
            with writer.as_default():
                tf.summary.write("loss", loss, step=0)
        if sin == "print in the step":
            tf.print(loss, output_stream=f"file://{run.rank_path}/printed")
        if sin == "one by one":
            reduced = [context.all_reduce("SUM", gradient) for gradient in gradients]
        else:
            reduced = context.all_reduce("SUM", gradients)
        if sin == "reduced twice":
            reduced = context.all_reduce("MEAN", reduced)
        if sin == "extra all-reduce":
            loss += 0.0 * context.all_reduce("SUM", tf.norm(gradients[0]))
        for variable, gradient in zip(variables[: LAYERS - (sin == "wrong device")], reduced, strict=False):
            variable.assign_sub(0.01 * (1.0 + 0.0 * number) * tf.cast(gradient, tf.float32))
        return loss

    def step(batch, number):
        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(batch, number)), axis=None)

    compiled = step if sin == "eager" else tf.function(step)
    numbers = itertools.count()

    def number():
        seen = next(numbers)
        if sin == "late trace":
            return float(seen > 6)
        return float(seen) if sin == "retrace" else 0.0

    if loop == "batches":
        for batch in run.batches(_data(run, rows, width)):
            run.record(loss=compiled(batch, number()))
        return
    for _ in run.steps(lambda iterator: compiled(next(iterator), number()), _data(run, rows, width)):
        pass


def two_functions_of_one_name(run):
    """Call two functions named ``step`` in every step, as adversarial training does; a new shape traces one again."""
    import tensorflow as tf

    with run.strategy.scope():
        weights = [tf.Variable(tf.ones((3, 3))), tf.Variable(tf.ones((5,)))]
    run.watch(variables=weights)

    def made(weight):
        @tf.function
        def step(x):
            def replica_step(x):
                context = tf.distribute.get_replica_context()
                weight.assign_sub(context.all_reduce("SUM", tf.reduce_mean(x) * tf.ones_like(weight)) * 0.01)
                return tf.reduce_sum(weight)

            return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(x,)), axis=None)

        return step

    first, second = made(weights[0]), made(weights[1])
    for x, _y in run.batches(_data(run, rows=run.global_batch_size * 2 + 2)):
        first(x)
        run.record(loss=second(x))


def fit(run, steps_per_execution=1):
    import keras

    with run.strategy.scope():
        model = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(5, "tanh"), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse", steps_per_execution=steps_per_execution)
    run.watch(model=model)
    run.fit(model, _data(run), validation_data=_data(run))
    run.evaluate(model, _data(run))  # has an end, unlike what is trained on


def keras_loop(run):
    """TensorFlow's guide, without a word of how replicas share: what every strategy runs."""
    import keras
    import tensorflow as tf

    with run.strategy.scope():
        model = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(2)])
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)
    run.watch(model=model, optimizer=optimizer)

    @tf.function
    def train_step(iterator):
        def replica_step(batch):
            x, y = batch
            with tf.GradientTape() as tape:
                losses = tf.reduce_mean(tf.square(model(x, training=True) - y), 1)
                loss = tf.nn.compute_average_loss(losses, global_batch_size=run.global_batch_size)
            variables = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            return loss

        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(next(iterator),)), axis=None)

    for _ in run.steps(train_step, _data(run)):
        pass


def reduced_in_a_loop(run, passes=8, known=True, rarely=False):
    """A loop in the graph, with a collective in its body; or a branch that few steps take."""
    import tensorflow as tf

    weight = tf.Variable(1.0)
    limit = passes if known else tf.Variable(passes)

    def replica_step(x):
        gradient = tf.distribute.get_replica_context().all_reduce("SUM", tf.reduce_mean(x))
        weight.assign_sub(0.01 * gradient)

    @tf.function
    def step(batch):
        for _ in tf.range(limit):
            run.strategy.run(replica_step, args=(batch[0],))
        if rarely and weight > 100.0:
            run.strategy.run(replica_step, args=(batch[0],))

    for batch in run.batches(_data(run)):
        step(batch)
        run.record(loss=1.0)


def helper_is_traced_in_every_step(run, sin=True):
    """The function that is traced again is not a step: it does not call ``strategy.run``, and the loop ignores it."""
    import tensorflow as tf

    weight = tf.Variable(1.0)
    rate = tf.function(lambda number: weight.assign_sub(number * 0.0))
    step = tf.function(lambda x: weight.assign_sub(0.01 * tf.reduce_mean(x)))
    for number, (x, _y) in enumerate(run.batches(_data(run))):
        rate(float(number) if sin else tf.constant(float(number)))
        step(x)
        run.record(loss=1.0)


PROGRAMS = {
    "right": train,
    **{
        sin: partial(train, sin=sin)
        for sin in (
            "extra all-reduce", "one by one", "retrace", "reduced twice", "wrong device", "gathered on the host",
            "python in the step", "print in the step", "summary in the step", "eager",
        )
    },
    "half": partial(train, half=True),
    "cast before reduce": partial(train, half=True, sin="cast before reduce"),
    "renamed": partial(train, names="other"),
    "batches": partial(train, loop="batches"),
    "partial batches": partial(train, rows=44),
    "wider": partial(train, width=2 * WIDTH),
    "late trace": partial(train, sin="late trace"),
    "two functions": two_functions_of_one_name,
    "fit": fit,
    "fit, 4 at once": partial(fit, steps_per_execution=4),
    "keras loop": keras_loop,
    "in a loop": reduced_in_a_loop,
    "in a loop of unknown length": partial(reduced_in_a_loop, known=False),
    "in a branch": partial(reduced_in_a_loop, passes=1, rarely=True),
    "helper": partial(helper_is_traced_in_every_step, sin=False),
    "helper retraced": helper_is_traced_in_every_step,
}  # fmt: skip


def count(names, folder, batch=8, seed=7):
    """The counters of programs, measured one after the other on this rank; every rank paces itself alike."""
    from pytest_ddl.bench.launching.launch import drive
    from pytest_ddl.bench.launching.pacing import Pacer
    from pytest_ddl.bench.launching.records import BenchSpec
    from pytest_ddl.bench.launching.remote import LaunchOrders, measure_training
    from pytest_ddl.training.settings import RunSettings

    bench = BenchSpec(blocks=2, steps_per_block=4, seconds=1e-9, warm_up=5)
    found = {}
    for name in names:
        settings = RunSettings(global_batch_size=batch, seed=seed, tmp_path=str(folder), observe=False, repeat=True)
        with Pacer(folder) as pacer:
            deadline = time.monotonic() + 120

            def paced(pacer=pacer, deadline=deadline):
                drive(pacer.accept(1, deadline), bench, deadline)

            driver = threading.Thread(target=paced, daemon=True)
            driver.start()
            result = measure_training(PROGRAMS[name], settings, LaunchOrders(pacer.address, bench.warm_up))
            driver.join()
        found[name] = result.counters, len(result.timing.blocks), result.timing.loss
    return found


# -- programs that do not do what a benchmark needs ----------------------------------------------


def ends_early(run):
    train_some(run, steps=3)


def ends_between(run):
    train_some(run, steps=20)


def raises(run):
    train_some(run, steps=6)
    if run.rank == 0:
        raise ArithmeticError("the sixth step went wrong")


def dies(run):
    train_some(run, steps=6)
    if run.rank == run.num_ranks - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    train(run)


def starts_a_program(run, file):
    """One that leaves the rank's process group, which a rank is killed with."""
    import subprocess
    from pathlib import Path

    Path(file).write_text(str(subprocess.Popen(["sleep", "600"], start_new_session=True).pid))
    train_some(run, steps=3)


def trains_on_one_rank_alone(run):
    if run.rank == 0:
        train(run)


def consumes_nothing(run):
    import tensorflow as tf

    empty = tf.data.Dataset.from_tensors(tf.zeros((0, WIDTH))).repeat(8)

    @tf.function
    def step(iterator):
        return run.strategy.reduce(
            "SUM", run.strategy.run(lambda x: tf.reduce_sum(x), args=(next(iterator),)), axis=None
        )

    for _ in run.steps(step, lambda _context: empty.repeat()):
        pass


def train_some(run, steps):
    import tensorflow as tf

    weight = tf.Variable(1.0)
    function = tf.function(lambda x: weight.assign_sub(0.01 * tf.reduce_mean(x)))
    for number in range(steps):
        function(tf.ones((4, number % 2 + 3)))
        run.record(loss=1.0)
