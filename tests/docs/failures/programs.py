"""A correct program, and eight mistakes in it that are common in distributed training."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import dedent, indent

PROGRAM = """\
import keras
import numpy as np
import tensorflow as tf


def train(run):
    x = np.random.default_rng(0).normal(size=(48, 4)).astype("float32")
    dataset = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(run.global_batch_size)
    with run.strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)
    run.watch(model=model, optimizer=optimizer)

    @tf.function
    def train_step(iterator):
        def replica_step(batch):
            x, y = batch
            with tf.GradientTape() as tape:
                losses = tf.reduce_sum((model(x) - y) ** 2, axis=1)
                loss = tf.nn.compute_average_loss(losses, global_batch_size=run.global_batch_size)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables))
            return loss

        losses = run.strategy.run(replica_step, args=(next(iterator),))
        return run.strategy.reduce("SUM", losses, axis=None)

    for loss in run.steps(train_step, dataset):
        pass
"""
"""The program whose lines the mistakes replace. It is right."""

GRADIENT = "gradients = tape.gradient(loss, model.trainable_variables)"
APPLY = "optimizer.apply_gradients(zip(gradients, model.trainable_variables))"
DATA = "dataset = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(run.global_batch_size)"
_DATASET_FUNCTION = """
def dataset(context):
    examples = tf.data.Dataset.from_tensor_slices((x, x[:, :1])){shard}
    return examples.batch(context.get_per_replica_batch_size(run.global_batch_size))

"""
_SHARD = "\n    examples = examples.shard(context.num_input_pipelines, context.input_pipeline_id)"


@dataclass(frozen=True)
class Failure:
    """A mistake, and how to mend it: lines in place of some lines of the program."""

    title: str
    cause: str
    text: str
    """Description of the failure, in a sentence or two."""
    right: str
    """Lines of the program that are replaced. Indentation is that of the program."""
    wrong: str
    mended: str = ""
    """Lines that mend it; empty if these are the lines of the program."""
    strategy: str = "mirrored"
    before: str = ""
    """Program that runs first, in the same folder."""

    def program(self, *, mended: bool) -> str:
        """Return the whole program with the mistake, or the mended one."""
        lines = (self.mended or self.right) if mended else self.wrong
        return replaced(PROGRAM, self.right, lines)


def replaced(program: str, old: str, new: str) -> str:
    """Replace lines of a program by others at the same indentation."""
    first = next(line for line in program.splitlines() if line.strip() == old.strip().splitlines()[0])
    depth = " " * (len(first) - len(first.lstrip()))
    before, after = (indent(dedent(text).strip("\n"), depth) for text in (old, new))
    assert program.count(before) == 1, before
    return program.replace(before, after)


FAILURES = (
    Failure(
        "The loss is divided by the wrong number",
        "gradient-scaled-by-replica-count",
        "Each replica takes the mean over its own examples, and the gradients of all replicas are added up. So the "
        "update is as many times too large as there are replicas, and the learning rate seems to be too high.",
        "loss = tf.nn.compute_average_loss(losses, global_batch_size=run.global_batch_size)",
        "loss = tf.reduce_mean(losses)",
    ),
    Failure(
        "The gradient is never reduced",
        "gradient-not-aggregated",
        "The weights are updated by hand. Each worker applies the gradient of its own examples, so the workers train "
        "different models.",
        APPLY,
        """
        for variable, gradient in zip(model.trainable_variables, gradients):
            variable.assign_sub(0.1 * gradient)
        """,
        """
        gradients = tf.distribute.get_replica_context().all_reduce("SUM", gradients)
        for variable, gradient in zip(model.trainable_variables, gradients):
            variable.assign_sub(0.1 * gradient)
        """,
        strategy="multi_worker_mirrored",
    ),
    Failure(
        "Each replica clips its own gradient",
        "gradient-clipped-before-aggregation",
        "The limit is meant for the gradient of the whole batch. Here it applies to the part of each replica, before "
        "the optimizer adds up the parts.",
        APPLY,
        """
        gradients, _norm = tf.clip_by_global_norm(gradients, 0.5)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        """,
        """
        gradients = tf.distribute.get_replica_context().all_reduce("SUM", gradients)
        gradients, _norm = tf.clip_by_global_norm(gradients, 0.5)
        gradients = [gradient / run.num_replicas for gradient in gradients]  # the optimizer adds them up again
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        """,
    ),
    Failure(
        "The dataset is not sharded",
        "examples-duplicated",
        "TensorFlow calls the dataset function once on each worker, and shards nothing by itself. Both workers train "
        "on the same examples.",
        DATA,
        _DATASET_FUNCTION.format(shard=""),
        _DATASET_FUNCTION.format(shard=_SHARD),
        strategy="multi_worker_mirrored",
    ),
    Failure(
        "A variable is made outside the scope",
        "variable-outside-scope",
        "Only variables that are made inside of the scope have a copy on each replica. Here the model is made before "
        "the scope is entered.",
        "with run.strategy.scope():\n    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])",
        """
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        with run.strategy.scope():
        """,
    ),
    Failure(
        "All replicas draw the same random numbers",
        "random-stream-repeated-across-replicas",
        "The seed of the noise depends on the step and not on the replica. So the noise of both replicas is the same.",
        "x, y = batch",
        """
        x, y = batch
        seed = tf.stack([7, tf.cast(optimizer.iterations, tf.int32)])
        x += tf.random.stateless_normal(tf.shape(x), seed, stddev=0.1)
        """,
        """
        x, y = batch
        seed = tf.stack([7, tf.cast(optimizer.iterations, tf.int32)])
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        seed = tf.random.experimental.stateless_fold_in(seed, replica)
        x += tf.random.stateless_normal(tf.shape(x), seed, stddev=0.1)
        """,
    ),
    Failure(
        "A metric is that of one replica",
        "metric-wrong",
        "The program evaluates a batch on all replicas, and reports the error on the first replica.",
        """
        for loss in run.steps(train_step, dataset):
            pass
        """,
        """
        for loss in run.steps(train_step, dataset):
            pass


        @tf.function
        def errors(batch):
            return run.strategy.run(lambda x, y: tf.reduce_mean((model(x) - y) ** 2), args=batch)


        batch = next(iter(run.strategy.experimental_distribute_dataset(dataset)))
        run.value("error", run.strategy.experimental_local_results(errors(batch))[0])
        """,
        """
        for loss in run.steps(train_step, dataset):
            pass


        @tf.function
        def errors(batch):
            return run.strategy.run(lambda x, y: tf.reduce_mean((model(x) - y) ** 2), args=batch)


        batch = next(iter(run.strategy.experimental_distribute_dataset(dataset)))
        run.value("error", run.strategy.reduce("MEAN", errors(batch), axis=None))
        """,
    ),
    Failure(
        "Only one worker restores the checkpoint",
        "initial-weights-differ",
        "The chief continues from the saved weights, and the other worker begins with new ones.",
        "run.watch(model=model, optimizer=optimizer)",
        """
        if run.rank == 0:  # the chief
            model.load_weights("start.weights.h5")
        run.watch(model=model, optimizer=optimizer)
        """,
        """
        model.load_weights("start.weights.h5")
        run.watch(model=model, optimizer=optimizer)
        """,
        strategy="multi_worker_mirrored",
        before="""
        import keras

        keras.utils.set_random_seed(1)
        keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)]).save_weights("start.weights.h5")
        """,
    ),
)
