"""Causes in the loss, in gradients and in their reduction over the replicas."""

from __future__ import annotations

from pytest_ddl.equivalence.causes.cause import Cause, Fix, Form

_AVERAGE = "loss = tf.nn.compute_average_loss(per_example_loss, global_batch_size=global_batch_size)"
_PER_EXAMPLE = "return keras.ops.mean(loss, axis=-1)  # one loss for each example"
_COMPUTE_LOSS = "loss = self.compute_loss(x=x, y=y, y_pred=y_pred)"
_REDUCED = 'gradients = tf.distribute.get_replica_context().all_reduce("sum", gradients)'
_ONE_DECISION = """
gradients = tf.distribute.get_replica_context().all_reduce("sum", gradients)
finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(gradient)) for gradient in gradients])
gradients = [tf.where(finite, gradient, tf.zeros_like(gradient)) for gradient in gradients]
"""
_ONE_DECISION_FOR_AN_OPTIMIZER = f"""
{_ONE_DECISION}
count = tf.distribute.get_strategy().num_replicas_in_sync  # the optimizer adds them up again
gradients = [gradient / count for gradient in gradients]
"""
_CLIP_THE_SUM = "Add the gradients up before they are clipped: put these lines in place of those that clip them now."
_CLIPPED = f"""
{_REDUCED}
gradients, _norm = tf.clip_by_global_norm(gradients, limit)
"""
_CLIPPED_FOR_AN_OPTIMIZER = """
context = tf.distribute.get_replica_context()
gradients = context.all_reduce("sum", gradients)
gradients, _norm = tf.clip_by_global_norm(gradients, limit)
count = context.num_replicas_in_sync  # the optimizer adds the gradients up again
gradients = [gradient / count for gradient in gradients]
"""
_CLIPPING_OPTIMIZER = """
class ClippedSGD(keras.optimizers.SGD):
    def apply(self, gradients, trainable_variables=None):
        context = tf.distribute.get_replica_context()
        gradients = context.all_reduce("sum", list(gradients))
        gradients, _norm = tf.clip_by_global_norm(gradients, limit)
        count = context.num_replicas_in_sync  # SGD adds the gradients up again
        super().apply([gradient / count for gradient in gradients], trainable_variables)

optimizer = ClippedSGD(learning_rate)
"""
_FULL_BATCHES = "dataset = dataset.batch(global_batch_size, drop_remainder=True)"
_BY_EXAMPLES = """
examples = tf.cast(tf.shape(per_example_loss)[0], per_example_loss.dtype)
examples = tf.distribute.get_replica_context().all_reduce("sum", examples)
loss = tf.reduce_sum(per_example_loss) / examples
"""
_ON_FULL_BATCHES = Fix(
    "Model.fit gives every replica the same weight: leave out a last batch that is smaller.", _FULL_BATCHES
)

GRADIENTS = (
    Cause(
        "gradient-scaled-by-replica-count",
        "The gradient is summed over replicas without dividing the loss by the global batch: it is N times too large.",
        Fix(
            "Divide the sum of the losses by the size of the global batch, as tf.nn.compute_average_loss does, and not "
            "by the number of a replica's examples, as tf.reduce_mean does. Reduce the gradients once "
            "(optimizer.apply_gradients already adds them up).",
            _AVERAGE,
            {
                Form.FIT: Fix(
                    "Return one loss for each example from the loss function of compile(). Keras divides only such "
                    "losses by the number of replicas, and adds up the gradients.",
                    _PER_EXAMPLE,
                ),
                Form.TRAIN_STEP: Fix(
                    "Model.fit of Keras 3 adds up the gradients of the replicas. Divide the loss in your train_step "
                    "before tape.gradient. self.compute_loss(...) and objects of keras.losses give a loss that is "
                    "already divided.",
                    "loss = loss / tf.distribute.get_strategy().num_replicas_in_sync",
                ),
            },
        ),
    ),
    Cause(
        "gradient-scaled-by-inverse-replica-count",
        "The gradient is divided by the number of replicas once too often: it is N times too small.",
        Fix(
            "Divide only once: by the size of the global batch.",
            _AVERAGE,
            {
                Form.FIT: Fix(
                    "Return the loss of each example as it is: Keras divides it by the number of replicas.",
                    _PER_EXAMPLE,
                ),
                Form.TRAIN_STEP: Fix("Use self.compute_loss as it is: Keras has divided it already.", _COMPUTE_LOSS),
            },
        ),
    ),
    Cause(
        "gradient-not-aggregated",
        "Gradients were not summed over all replicas: an update contains only the own part of a replica or worker.",
        Fix(
            "Call optimizer.apply_gradients inside strategy.run with a model and optimizer made in strategy.scope(). "
            "For an update by hand, add the gradients up first.",
            _REDUCED,
        ),
    ),
    Cause(
        "gradient-clipped-before-aggregation",
        "Gradients were clipped on each replica before they were summed, so the limit applies to parts of the batch.",
        Fix(
            "Add the gradients up before they are clipped: put these lines in place of the line that clips them now, "
            "or of the argument clipnorm, global_clipnorm or clipvalue of a Keras 3 optimizer.",
            _CLIPPED_FOR_AN_OPTIMIZER,
            {
                Form.MODULE: Fix(_CLIP_THE_SUM, _CLIPPED),
                Form.TRAIN_STEP: Fix(_CLIP_THE_SUM, _CLIPPED_FOR_AN_OPTIMIZER),
                Form.FIT: Fix(
                    "Keras 3 applies clipnorm, global_clipnorm and clipvalue on each replica. Leave them out, and clip "
                    "in an optimizer of your own, which adds the gradients up first.",
                    _CLIPPING_OPTIMIZER,
                ),
            },
        ),
    ),
    Cause(
        "clipping-lost",
        "The update exceeds the clipping limit that one device obeys: clipping did not take place.",
        Fix(
            "Clip the sum of the gradients under every strategy, and hand it to the optimizer in equal parts.",
            _CLIPPED_FOR_AN_OPTIMIZER,
            {
                Form.MODULE: Fix("Clip the sum of the gradients under every strategy.", _CLIPPED),
                Form.FIT: Fix(
                    "Clip under every strategy, in an optimizer of your own, which adds the gradients up first.",
                    _CLIPPING_OPTIMIZER,
                ),
            },
        ),
    ),
    Cause(
        "term-added-by-every-replica",
        "Every replica adds the same numbers, for example noise, to its gradient, so that the sum over the replicas "
        "counts them once per replica.",
        Fix(
            "Divide what each replica adds to its gradient by the number of replicas.",
            "term = term / tf.distribute.get_replica_context().num_replicas_in_sync",
        ),
    ),
    Cause(
        "regularization-scaled-by-replica-count",
        "The regularization term is counted once per replica instead of once per step.",
        Fix(
            "Divide the regularization term by the number of replicas in the replica function.",
            "loss += tf.nn.scale_regularization_loss(tf.add_n(model.losses))",
            {
                Form.TRAIN_STEP: Fix("Use self.compute_loss: it adds the losses of the layers.", _COMPUTE_LOSS),
                Form.MODULE: Fix(
                    "Divide the regularization term by the number of replicas in the replica function.",
                    "loss += tf.nn.scale_regularization_loss(penalty)",
                ),
            },
        ),
    ),
    Cause(
        "mean-of-replica-means",
        "Replicas with different numbers of examples count equally: the mean of their means is not the mean "
        "over the examples.",
        Fix(
            "Divide the sum of the losses by the number of examples that the global batch has, or leave out a last "
            "batch that is smaller (drop_remainder=True).",
            _BY_EXAMPLES,
            {Form.FIT: _ON_FULL_BATCHES},
        ),
    ),
    Cause(
        "empty-replica",
        "A batch with fewer examples than replicas left a replica empty, and its share was counted as zero or NaN.",
        Fix(
            "Divide the sum of the losses by the number of examples that the global batch has, or leave out a last "
            "batch that is smaller (drop_remainder=True).",
            _BY_EXAMPLES,
            {Form.FIT: _ON_FULL_BATCHES},
        ),
    ),
    Cause(
        "masked-loss-normalised-per-replica",
        "The loss is divided by the replica's own count of valid tokens or weights, not by the global count.",
        Fix(
            "Add the count up over the replicas, and divide the sum of the masked loss by it.",
            """
            count = tf.distribute.get_replica_context().all_reduce("sum", tf.reduce_sum(mask))
            loss = tf.reduce_sum(losses * mask) / count
            """,
            {
                Form.FIT: Fix(
                    "Add the count up over the replicas. Return one loss for each example: Keras divides their sum by "
                    "the number of examples.",
                    """
                    examples, count = tf.cast(tf.shape(mask)[0], mask.dtype), tf.reduce_sum(mask)
                    context = tf.distribute.get_replica_context()
                    if context is not None:  # None while Keras builds the model
                        examples, count = context.all_reduce("sum", [examples, count])
                    return tf.reduce_sum(losses * mask, axis=-1) * examples / count
                    """,
                ),
            },
        ),
    ),
    Cause(
        "batch-coupled-loss",
        "The loss or the weight of an example depends on the other examples of its batch, and a replica sees only its "
        "part.",
        Fix(
            "Gather what the loss compares from all replicas, and divide the loss of the whole batch by their number. "
            "If it is weights that come from the batch, for example from the share of each class in it, compute them "
            "from the gathered labels. "
            "If the replica function selects or leaves out examples, do that in the dataset, before the batch is "
            "split.",
            """
            context = tf.distribute.get_replica_context()
            y = context.all_gather(y, axis=0)
            prediction = context.all_gather(prediction, axis=0)
            loss = loss_function(y, prediction) / context.num_replicas_in_sync
            """,
            {
                Form.FIT: Fix(
                    "Gather what the loss compares from all replicas in the loss function of compile(), and divide the "
                    "loss of the whole batch by their number: Keras adds up the gradients, and divides only a loss for "
                    "each example.",
                    """
                    context = tf.distribute.get_replica_context()
                    if context is not None:  # None while Keras builds the model
                        y_true = context.all_gather(y_true, axis=0)
                        y_pred = context.all_gather(y_pred, axis=0)
                    count = tf.distribute.get_strategy().num_replicas_in_sync
                    return loss_of_the_batch(y_true, y_pred) / count
                    """,
                ),
            },
        ),
        legitimate=True,
    ),
    Cause(
        "reduced-value-wrong",
        "A statistic that is reduced over the replicas is not that of the whole batch.",
        Fix(
            "Add up sums and counts over the replicas, and compute the statistic from them. The variance is the mean "
            "of the squares minus the square of the mean, both over all replicas. Means of equal parts are averaged, "
            "and sums are added up."
        ),
    ),
    Cause(
        "gathered-positions-wrong",
        "Rows that were gathered from all replicas are addressed by positions in the replica's own part.",
        Fix(
            "The first of n rows of a replica is row replica_id_in_sync_group * n of the gathered ones: add this to "
            "labels, masks and indices.",
            """
            context = tf.distribute.get_replica_context()
            positions += context.replica_id_in_sync_group * tf.shape(positions)[0]
            """,
        ),
    ),
    Cause(
        "replica-computes-otherwise",
        "A replica computes another gradient than one device does for the same examples.",
        Fix(
            "Look in the replica function for what depends on the replica: its id, the number of replicas, or state "
            "that each replica has for itself."
        ),
    ),
    Cause(
        "attribute-shared-by-replicas",
        "A replica overwrites a Python attribute whose value another replica of the same process still uses.",
        Fix(
            "Keep the value in a local variable: replicas of a process are threads, which take turns at each "
            "collective."
        ),
    ),
    Cause(
        "gradient-accumulation-wrong",
        "Accumulated micro-batches do not add up to the update of one large batch.",
        Fix(
            "Add up gradients in variables that every replica has for itself and that are summed when they are read. "
            "Divide by the number of micro-batches, apply and reset once per cycle, and take no optimizer step in "
            "between.",
            """
            with strategy.scope():
                of_each = {
                    "synchronization": tf.VariableSynchronization.ON_READ,
                    "aggregation": tf.VariableAggregation.SUM,
                }
                zeros = [tf.zeros_like(variable) for variable in model.trainable_variables]
                totals = [tf.Variable(zero, trainable=False, **of_each) for zero in zeros]
            """,
        ),
    ),
    Cause(
        "loss-scale-not-synchronised",
        "The dynamic loss scale differs between replicas.",
        Fix(
            "Decide by the sum of the gradients over all replicas whether the scale grows or falls, or wrap the "
            "optimizer in keras.mixed_precision.LossScaleOptimizer inside strategy.scope().",
            _ONE_DECISION_FOR_AN_OPTIMIZER,
            {
                Form.MODULE: Fix(
                    "Decide by the sum of the gradients over all replicas whether the scale grows or falls.",
                    _ONE_DECISION,
                )
            },
        ),
    ),
    Cause(
        "non-finite-not-synchronised",
        "A gradient of a replica is not finite, and not all replicas left out the update, as one device does.",
        Fix(
            "Add the gradients up before tf.math.is_finite decides, so that every replica decides alike.",
            _ONE_DECISION_FOR_AN_OPTIMIZER,
            {
                Form.MODULE: Fix(
                    "Add the gradients up before tf.math.is_finite decides, so that every replica decides alike.",
                    _ONE_DECISION,
                )
            },
        ),
    ),
    Cause(
        "sparse-gradient-mismatch",
        "Sparse gradients (tf.IndexedSlices) of replicas were combined without regard to their indices.",
        Fix(
            "Pass the tf.IndexedSlices object itself to all_reduce, or make it dense first.",
            """
            gradient = tf.convert_to_tensor(gradient)
            gradient = tf.distribute.get_replica_context().all_reduce("sum", gradient)
            """,
        ),
    ),
    Cause(
        "reduction-overflow",
        "A sum over replicas exceeds the range of the dtype in which it is computed.",
        Fix(
            "Add the numbers up before they are cast to a smaller dtype, or cast them to float32 first.",
            _REDUCED,
        ),
    ),
    Cause(
        "gradient-unscaled-without-scale",
        "Gradients were divided by a loss scale that the loss was never multiplied with.",
        Fix(
            "Scale the loss inside the tape when a LossScaleOptimizer applies the gradients.",
            "loss = optimizer.scale_loss(loss)",
            {
                Form.TRAIN_STEP: Fix(
                    "Scale the loss inside the tape when a LossScaleOptimizer applies the gradients.",
                    "loss = self.optimizer.scale_loss(loss)",
                ),
            },
        ),
    ),
)
