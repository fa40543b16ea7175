"""Causes in what a program shows, in its variables, and in its random numbers."""

from __future__ import annotations

from pytest_ddl.equivalence.causes.cause import Cause, Fix, Form

_WHOLE_BATCH = "Compute it from the whole batch: add up or average what it is made of before it is assigned."
_MEAN = 'value = tf.distribute.get_replica_context().all_reduce("mean", value)'
_MEAN_IN_A_LAYER = """
context = tf.distribute.get_replica_context()
if context is not None:  # None while Keras builds the model
    value = context.all_reduce("mean", value)
"""
_ONE_VALUE = (
    "Assign one value on all replicas: that of the first one, which an aggregation declares, or one that is reduced "
    "before it is assigned."
)
_OF_THE_FIRST = """
first = tf.VariableAggregation.ONLY_FIRST_REPLICA
variable = tf.Variable(start, aggregation=first)
"""
_SYNCHRONIZED = "keras.layers.BatchNormalization(synchronized=True)"
_IN_SCOPE = """
with strategy.scope():
    model = make_model()
    optimizer = keras.optimizers.SGD(learning_rate)
"""

VALUES = (
    Cause(
        "reported-loss-wrong",
        "The loss that the program reports is not the mean over the examples of the global batch.",
        Fix(
            "Return the loss that tf.nn.compute_average_loss gives from the replica function, and add it up.",
            'return strategy.reduce("SUM", losses, axis=None)',
            {
                Form.FIT: Fix(
                    "Keras shows the mean of what the loss function of compile() returns. Return one loss for each "
                    "example, which depends on no other example.",
                    "return keras.ops.mean(loss, axis=-1)  # one loss for each example",
                ),
                Form.TRAIN_STEP: Fix(
                    "self.compute_loss(...) and objects of keras.losses give a loss that is already divided by the "
                    "number of replicas. Multiply it for the metric, and return the results of the metrics.",
                    "self.loss_tracker.update_state(loss * tf.distribute.get_strategy().num_replicas_in_sync)",
                ),
            },
        ),
    ),
    Cause(
        "metric-wrong",
        "A metric differs from the one computed on one device.",
        Fix(
            "Make the metric in strategy.scope(), update it in strategy.run and read result() outside of it. Give a "
            "mean of losses that are divided by the global batch the loss times strategy.num_replicas_in_sync.",
            "metric.update_state(y, prediction)",
        ),
    ),
    Cause(
        "initial-weights-differ",
        "Weights differ before the first step.",
        Fix(
            "Set the same seed on every worker before the model is made. Restore a checkpoint on all workers, not only "
            "on the chief.",
            "keras.utils.set_random_seed(seed)",
        ),
    ),
    Cause(
        "replicas-diverged",
        "Components of one variable differ between replicas of a process.",
        Fix(_ONE_VALUE, _OF_THE_FIRST),
    ),
    Cause(
        "workers-diverged",
        "Copies of one variable differ between worker processes.",
        Fix("Assign the same value on every worker: seed it or reduce it, and restore checkpoints on all workers."),
    ),
    Cause(
        "state-not-aggregated",
        "Non-trainable state was updated from each replica's own data, and not combined into the value of one device.",
        Fix(_WHOLE_BATCH, _MEAN, {Form.LAYER: Fix(_WHOLE_BATCH, _MEAN_IN_A_LAYER)}),
        accepted=True,
    ),
    Cause(
        "state-scaled-by-replica-count",
        "Non-trainable state counts once per replica: every replica adds a whole value, and not only its share.",
        Fix(
            "Let every replica add only its own share. If all replicas add the same value, declare that only the first "
            "one counts.",
            """
            first = tf.VariableAggregation.ONLY_FIRST_REPLICA
            state = tf.Variable(0.0, trainable=False, aggregation=first)
            """,
            {
                Form.LAYER: Fix(
                    "Let every replica add only its own share. If all replicas add the same value, declare that only "
                    "the first one counts.",
                    """
                    self.state = self.add_weight(
                        shape=(), initializer="zeros", trainable=False, aggregation="only_first_replica"
                    )
                    """,
                ),
            },
        ),
    ),
    Cause(
        "optimizer-state-mismatch",
        "Slots of the optimizer differ from those of one device.",
        Fix(
            "Let only apply_gradients write the slots of an optimizer, and build it in strategy.scope().",
            "optimizer.apply_gradients(zip(gradients, model.trainable_variables))",
        ),
    ),
    Cause(
        "iteration-count-wrong",
        "A count of steps, such as the optimizer's count of updates, does not grow by one per global step.",
        Fix(
            "Apply gradients once per global step, and write optimizer.iterations nowhere else.",
            "optimizer.apply_gradients(zip(gradients, model.trainable_variables))",
        ),
    ),
    Cause(
        "learning-rate-differs",
        "The learning rate differs between workers or from one device.",
        Fix(
            "Set the same rate on every worker, outside of tf.function, or use a schedule of optimizer.iterations "
            "(keras.optimizers.schedules).",
            "optimizer.learning_rate = learning_rate",
            {
                Form.FIT: Fix(
                    "Use the same rate for any number of replicas, and give every worker the callbacks that set it.",
                    "optimizer = keras.optimizers.SGD(learning_rate)",
                ),
            },
        ),
    ),
    Cause(
        "variable-did-not-move",
        "A trainable variable moves on one device and stands still under the strategy.",
        Fix(
            "Check that its gradient is not None on every replica, and hand all variables of the model to the "
            "optimizer.",
            "optimizer.apply_gradients(zip(gradients, model.trainable_variables))",
        ),
    ),
    Cause(
        "frozen-variable-moved",
        "A frozen variable was changed.",
        Fix(
            "Set trainable=False before the optimizer is built, and train only model.trainable_variables.",
            """
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables))
            """,
        ),
    ),
    Cause(
        "variable-outside-scope",
        "A variable was made outside strategy.scope() and is not mirrored.",
        Fix(
            "Make model, optimizer and metrics inside strategy.scope().",
            _IN_SCOPE,
            {
                Form.FIT: Fix(
                    "Make and compile the model inside strategy.scope().",
                    """
                    with strategy.scope():
                        model = make_model()
                        model.compile(keras.optimizers.SGD(learning_rate), "mse")
                    """,
                ),
                Form.MODULE: Fix(
                    "Make the variables inside strategy.scope().",
                    """
                    with strategy.scope():
                        model = make_model()
                    """,
                ),
            },
        ),
    ),
    Cause(
        "changed-after-last-step",
        "The program changed a variable after its last step, and the result differs from that on one device.",
        Fix(
            "Look at what the program does after its loop, for example averaging or scaling weights: it must give the "
            "same values for any number of replicas."
        ),
    ),
    Cause(
        "layout-wrong",
        "A sharded variable does not have the layout that was asked for.",
        Fix(
            "Set the layout before the variables are made. Its pattern must match the variable's path, and it has one "
            "entry for each dimension of the variable: the name of a dimension of the mesh, or None.",
            'layout_map["dense/kernel"] = (None, "model")',
        ),
    ),
)

RANDOM = (
    Cause(
        "random-stream-repeated-across-replicas",
        "Several replicas drew the same random numbers (for example the same dropout mask).",
        Fix(
            "Fold the id of the replica into the seed.",
            """
            context = tf.distribute.get_replica_context()
            if context is not None:  # None while Keras builds the model
                replica = context.replica_id_in_sync_group
                seed = tf.random.experimental.stateless_fold_in(seed, replica)
            """,
        ),
        gone_without="random",
    ),
    Cause(
        "random-stream-repeated-across-steps",
        "Several steps drew the same random numbers.",
        Fix(
            "Advance the seed with the step, or use a keras.random.SeedGenerator that is a tracked attribute of its "
            "layer.",
            "seed = tf.random.experimental.stateless_fold_in(seed, tf.cast(optimizer.iterations, tf.int32))",
        ),
        gone_without="random",
    ),
    Cause(
        "random-stream-differs-across-replicas",
        "Each replica draws its own random numbers, so the results cannot equal those of one device.",
        Fix(
            "If this is intended, nothing needs repair, and it can be accepted. Set the rates to 0 to compare the rest."
        ),
        legitimate=True,
        gone_without="random",
    ),
    Cause(
        "random-stream-differs-across-workers",
        "Each worker draws its own numbers from a generator of its process, because the program does not seed it.",
        Fix(
            "Seed the generators of Python and NumPy with the same number on every worker, before anything is drawn.",
            "keras.utils.set_random_seed(seed)",
        ),
        legitimate=True,
    ),
    Cause(
        "per-replica-normalization",
        "Batch normalization used the statistics of each replica's part of the batch.",
        Fix("Use the statistics of the global batch, unless those of the parts are intended.", _SYNCHRONIZED),
        legitimate=True,
        gone_without="normalization",
    ),
)
