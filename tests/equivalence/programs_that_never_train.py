"""Programs with a mistake in how they call ``run.steps`` or ``run.batches``, or in what they return."""

from __future__ import annotations

import functools

import tensorflow as tf


def program(run, wrong):
    strategy = run.strategy
    with strategy.scope():
        weight = tf.Variable(tf.ones(2))
    run.watch(variables=[weight])
    dataset = tf.data.Dataset.from_tensor_slices(tf.ones((8, 2))).batch(run.global_batch_size)

    @tf.function
    def step(iterator):
        batch = iterator if wrong == "takes the iterator" else next(iterator)
        return strategy.run(lambda x: tf.reduce_sum(x * weight), (batch,))

    if wrong == "steps":
        run.steps(step, dataset)
    elif wrong == "batches":
        run.batches(dataset)
    else:
        for _loss in run.steps(step, dataset):
            pass


def generator(run):
    program(run, wrong="")
    yield


async def coroutine(run):
    program(run, wrong="")


def function(run):
    return functools.partial(program, run, wrong="")
