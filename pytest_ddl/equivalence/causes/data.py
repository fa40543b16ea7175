"""Causes in the input pipeline, in checkpoints, and in what becomes of a run that is interrupted."""

from __future__ import annotations

from pytest_ddl.equivalence.causes.cause import Cause, Fix, Form

_SHARD = "dataset = dataset.shard(context.num_input_pipelines, context.input_pipeline_id)"

DATA = (
    Cause(
        "examples-dropped",
        "Examples that one device trained on were not seen under the strategy.",
        Fix(
            "Take all examples under every strategy: keep a last batch that is smaller, and shard once.",
            "dataset = dataset.batch(global_batch_size)",
        ),
    ),
    Cause(
        "examples-duplicated",
        "Examples were counted more often than on one device.",
        Fix(
            "Shard the dataset over the input pipelines in the function of the dataset, with the same seed on every "
            "worker.",
            _SHARD,
        ),
    ),
    Cause(
        "examples-altered",
        "The same examples have other values than on one device.",
        Fix(
            "Derive augmentation from the example, not from the worker, the replica or the order of examples. Zip "
            "inputs and labels before you shard or shuffle them.",
            """
            def augment(number, example):
                x, y = example
                noise = tf.random.stateless_normal(tf.shape(x), tf.stack([seed, number]))
                return x + noise, y

            dataset = dataset.enumerate().map(augment)
            """,
        ),
    ),
    Cause(
        "examples-equal",
        "All replicas consumed equal examples in every step, so that mistakes of one replica do not show.",
        Fix("Use data whose examples differ, for example random numbers from a fixed seed in place of ones."),
        legitimate=True,
    ),
    Cause(
        "global-batch-wrong",
        "The replicas' batches do not add up to the global batch.",
        Fix(
            "Batch a dataset that the strategy distributes by the size of the global batch. In the function of "
            "distribute_datasets_from_function, batch by context.get_per_replica_batch_size(global_batch_size).",
            "dataset = dataset.batch(global_batch_size)",
            {
                Form.FIT: Fix(
                    "Batch the dataset for Model.fit by the size of the global batch: Keras splits it.",
                    "dataset = dataset.batch(global_batch_size)",
                ),
            },
        ),
    ),
    Cause(
        "unequal-steps",
        "The number of steps differs between ranks or from one device.",
        Fix(
            "Give every worker the same number of batches: repeat the data and take a fixed number, or shard evenly.",
        ),
    ),
)

CHECKPOINTS = (
    Cause(
        "checkpoint-incomplete",
        "Variables are missing from the checkpoint or were not matched on loading.",
        Fix(
            "Track model and optimizer in one checkpoint, and end restore() with .assert_consumed().",
            "checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)",
        ),
    ),
    Cause(
        "resume-lost-state",
        "State was lost by interrupting and resuming.",
        Fix(
            "Build the optimizer before it is restored, and save it with the model.",
            """
            with strategy.scope():
                optimizer.build(model.trainable_variables)
            checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
            """,
            {
                Form.FIT: Fix(
                    "Build the optimizer before it is restored, and save it with the model.",
                    """
                    with strategy.scope():
                        model.optimizer.build(model.trainable_variables)
                    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
                    """,
                ),
            },
        ),
    ),
    Cause(
        "resume-step-wrong",
        "The step or epoch counter is wrong after resuming.",
        Fix(
            "Save the counter after the update it counts, and start from the restored value (initial_epoch=, "
            "iterations).",
            "checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, step=step)",
        ),
    ),
    Cause(
        "resume-data-wrong",
        "After resuming, examples are repeated or skipped.",
        Fix(
            "Save the iterator's position, or skip the batches that were trained on, of a dataset with a fixed seed.",
            "dataset = dataset.skip(int(optimizer.iterations.numpy()))",
        ),
    ),
    Cause(
        "resume-random-wrong",
        "After resuming, random numbers are drawn that belong to another step.",
        Fix(
            "Save the state of the generator with the weights: of a tf.random.Generator, or of a "
            "keras.random.SeedGenerator (seed_generator.state). tf.random.normal and the like have a state that "
            "nothing saves: draw with tf.random.stateless_* and a seed that contains the step.",
            "checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, generator=generator)",
        ),
        gone_without="random",
    ),
    Cause(
        "unsafe-checkpoint-path",
        "Several ranks write the same path.",
        Fix(
            "Save on every worker. Those other than the chief save to a temporary folder of their own.",
            "folder = folder if worker == 0 else folder / f'temporary-{worker}'",
        ),
    ),
)
