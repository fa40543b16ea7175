"""Fixes for a cause in one of its particular shapes, which a recomputation or an exception identifies."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_ddl.equivalence.causes.cause import Fix, Form
from pytest_ddl.hints import Hint

_SUM_SHARE = 'share = tf.distribute.get_replica_context().all_reduce("sum", share)'
_UNLESS_BUILDING = """
context = tf.distribute.get_replica_context()
if context is not None:  # None while Keras builds the model
""".rstrip()
_SUM_SHARE_IN_A_LAYER = f'{_UNLESS_BUILDING}\n    share = context.all_reduce("sum", share)'
_SUM_GRADIENTS = 'gradients = tf.distribute.get_replica_context().all_reduce("sum", gradients)'
_AVERAGE = "loss = tf.nn.compute_average_loss(per_example_loss, global_batch_size=global_batch_size)"
_RIGHT = "The reported loss is right (LOSS-EQ passes), "
_WHOLE_VALUES = (
    "Its aggregation adds up what the replicas assign, and each assigns a whole value: the same one, or one that is a "
    "mean over its own examples. Declare that the mean of them counts."
)
_CONDITION = (
    "Look at the condition under which the program assigns it: a replica or worker decides by its own data or number. "
    "Decide by a value that is equal everywhere, for example one that all_reduce gave, or a count of global steps."
)


def _of_others(known: str, part: str = "") -> Fix:
    """Return the fix for a state that is neither a sum nor a mean of the replicas' own values.

    :param part: what divides the value, if its aggregation adds up what the replicas assign.
    """
    text = f"{known} Compute it from the whole batch: gather the examples, or add up the sums and counts it is made of."
    value = f"state_of(context.all_gather(x, axis=0)){part}"
    return Fix(
        text,
        f"context = tf.distribute.get_replica_context()\nstate.assign({value})",
        {Form.LAYER: Fix(text, f"{_UNLESS_BUILDING}\n    self.state.assign({value})")},
    )


SPECIAL: Mapping[str, Fix] = {
    "loss-scale-of-keras": Fix(
        "Train in bfloat16, which needs no loss scale. To stay with float16, give keras.optimizers.LossScaleOptimizer "
        "an initial_scale at which no gradient overflows, for example 256.",
        'keras.mixed_precision.set_global_policy("mixed_bfloat16")',
    ),
    "train-on-batch": Fix(
        "Model.train_on_batch of Keras 3 gives the whole batch to every replica, so all do the same work. Train "
        "with model.fit(x, y, batch_size=...), which splits each batch over the replicas."
    ),
    # Gradients that are added up, averaged or divided once too often.
    "two-sums": Fix(
        _RIGHT + "so look at the gradients: all_reduce adds them up, and the optimizer adds them up once more. Divide "
        "what all_reduce returns, or leave all_reduce out.",
        "gradients = [gradient / strategy.num_replicas_in_sync for gradient in gradients]",
    ),
    "average-of-a-part": Fix(
        "The program calls tf.nn.compute_average_loss already. Look at its global_batch_size: it must be the number of "
        "examples of all replicas together, and not that of one replica. If it is, look for gradients that are added "
        "up twice: optimizer.apply_gradients already adds them up.",
        _AVERAGE,
    ),
    "sum-switched-off": Fix(
        "The program tells its optimizer not to add up the gradients of the replicas. Leave out "
        "skip_gradients_aggregation=True (or experimental_aggregate_gradients=False), or add the gradients up before.",
        "optimizer.apply_gradients(zip(gradients, model.trainable_variables))",
    ),
    "assigned-mean": Fix(
        _RIGHT + "and aggregation=MEAN averages what the replicas assign. Add the gradients up first. If each replica "
        "calls assign_sub or assign_add with its own update, aggregation=tf.VariableAggregation.SUM does the same.",
        _SUM_GRADIENTS,
    ),
    "assigned-sum": Fix(
        _RIGHT + "and aggregation=SUM adds up what the replicas assign. If the gradients are all-reduced before, "
        "declare aggregation=tf.VariableAggregation.MEAN, or assign each replica's own update.",
        "weight = tf.Variable(start, aggregation=tf.VariableAggregation.MEAN)",
    ),
    "divided": Fix(
        _RIGHT + "so look at the gradients: add them up, and do not average them. Look for a division between the loss "
        "in the tape and the update.",
        _SUM_GRADIENTS,
    ),
    "mean-term": Fix(
        "One term of the loss is a mean over the replica's examples. Divide it by the global batch size too.",
        "loss += tf.nn.compute_average_loss(term_per_example, global_batch_size=global_batch_size)",
    ),
    "divided-term": Fix(
        "One term of the loss is divided by the number of replicas too often. Divide it once: fit of Keras already "
        "divides the whole loss, with the terms of add_loss, and a loop divides each term itself.",
        "loss += tf.nn.compute_average_loss(term_per_example, global_batch_size=global_batch_size)",
        {Form.FIT: Fix("Do not divide this term: fit of Keras divides the whole loss.", "self.add_loss(term)")},
    ),
    "summed-term": Fix(
        "One term of the loss is a sum over the replica's examples, and the whole loss is divided by the number of "
        "replicas. Make the term a mean over the examples, too, or multiply it by this number.",
        "term *= tf.distribute.get_strategy().num_replicas_in_sync",
    ),
    "shared-decision": Fix(
        "If a replica skips or zeroes its gradient, decide on a value that is the same on all replicas: add up the "
        "loss or the gradients first, then test them.",
        "loss_of_all = tf.distribute.get_replica_context().all_reduce('sum', loss)",
    ),
    "norms-of-parts": Fix(
        "Add the gradients up first, then compute norms and ratios from the sum. Add up a loss that they use, too. "
        "Apply the result once: an optimizer of Keras adds it up over the replicas.",
        """
        context = tf.distribute.get_replica_context()
        gradients = context.all_reduce("sum", gradients)
        count = context.num_replicas_in_sync
        gradients = [scaled(gradient) / count for gradient in gradients]
        """,
    ),
    "factors-of-parts": Fix(
        "Each replica multiplies the whole gradient by a number of its own, for example one that it computes from its "
        "own loss. Compute this number from the whole batch.",
        "loss_of_all = tf.distribute.get_replica_context().all_reduce('sum', loss)",
    ),
    "clipped-micro-batches": Fix(
        "Clip the sum of all replicas' gradients of a micro-batch, and keep an equal part of it on each replica: the "
        "sums of micro-batches are added up over the replicas later. Put these lines in place of those that clip.",
        """
        context = tf.distribute.get_replica_context()
        gradients = context.all_reduce("sum", gradients)
        gradients, _norm = tf.clip_by_global_norm(gradients, limit)
        gradients = [gradient / context.num_replicas_in_sync for gradient in gradients]
        """,
    ),
    # States.
    "share-with-decay": Fix(
        "Add the shares up before the assignment.",
        _SUM_SHARE,
        {Form.LAYER: Fix("Add the shares up before the assignment.", _SUM_SHARE_IN_A_LAYER)},
    ),
    "averaged-shares": Fix(
        "Add the shares up before assign, or let aggregation=tf.VariableAggregation.SUM do so in assign_add(share) of "
        "a tf.Variable. If all replicas hand it to an optimizer, which adds it up, it is right: accept the difference.",
        _SUM_SHARE,
        {Form.LAYER: Fix("Add the shares up before they are assigned.", _SUM_SHARE_IN_A_LAYER)},
    ),
    "sum-of-old-values": Fix(
        "Add the share on each replica, and not the old value with it.",
        "state.assign_add(share)",
        {
            Form.LAYER: Fix(
                "assign_add of Keras assigns the old value and the share, which aggregation='sum' adds up. Add the "
                "shares up first, and assign equal parts.",
                f"{_SUM_SHARE_IN_A_LAYER}\n    self.state.assign((self.state + share) / context.num_replicas_in_sync)",
            ),
        },
    ),
    "summed-values": Fix(
        _WHOLE_VALUES,
        "state = tf.Variable(start, trainable=False, aggregation=tf.VariableAggregation.MEAN)",
        {
            Form.LAYER: Fix(
                _WHOLE_VALUES,
                'self.state = self.add_weight(shape=shape, trainable=False, aggregation="mean")',
            ),
        },
    ),
    "not-the-mean": _of_others("The mean of the replicas' own values is not the value of the whole batch."),
    "not-the-sum": _of_others(
        "The sum of the replicas' own values is not the value of the whole batch.", " / context.num_replicas_in_sync"
    ),
    "not-the-first": _of_others("Its aggregation keeps only the value of the first replica."),
    "parts-read-from-one": Fix(
        "Declare aggregation=tf.VariableAggregation.SUM, which adds up the replicas' parts when the state is read.",
        """
        on_read, added = tf.VariableSynchronization.ON_READ, tf.VariableAggregation.SUM
        state = tf.Variable(start, trainable=False, synchronization=on_read, aggregation=added)
        """,
    ),
    "neither": _of_others("Neither the mean nor the sum of the replicas' own values is that of the whole batch."),
    "condition": Fix(_CONDITION),
    "shares-or-condition": Fix(
        "If every replica adds a share of its own, add the shares up before they are assigned. If a condition decides "
        "whether it is assigned, decide by a value that all have.",
        _SUM_SHARE,
    ),
    "moving-statistics": Fix(
        "Combine the statistics over the replicas. Without synchronized=True, Keras 3 gives every replica moving "
        "statistics of its own, never combines them, and saves those of the first replica.",
        "keras.layers.BatchNormalization(synchronized=True)",
    ),
    # Data and what is shown.
    "fewer-steps": Fix(
        "Train on the same batches under every strategy: keep a last batch that is smaller, or leave it out on one "
        "device too.",
        "dataset = dataset.batch(global_batch_size)",
    ),
    "other-orders": Fix(
        "Every worker takes its share of one order of the examples: shuffle with the same seed on every worker.",
        "dataset = dataset.shuffle(buffer_size, seed)",
    ),
    "sharded-twice": Fix(
        "A strategy shards a dataset that it distributes. Leave out a dataset.shard(...) of the program, or switch the "
        "sharding of the strategy off.",
        """
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        dataset = dataset.with_options(options)
        """,
    ),
    "watched-otherwise": Fix(Hint.WATCH_ALIKE()),
    "watched-late": Fix(
        "Record the steps that change it, so that each of them is compared and the cause can be found: train it with "
        f"{Hint.LOOPS()}."
    ),
    # Concurrent closures of a coordinator.
    "lost-by-closures": Fix(
        "Use the optimizer, or assign_add or assign_sub of a tf.Variable; never assign(v + x) in several closures. The "
        "methods of a variable of Keras read and write back, too: use those of its value.",
        "weight.value.assign_sub(learning_rate * gradient)",
    ),
    "counter-of-keras": Fix(
        "Keras 3 writes its own counters as assign(value + 1), which loses updates of workers that read at the same "
        "time (seen up to Keras 3.15.1); its optimizers subtract from weights with assign_sub, which loses none. For a "
        "count that a program needs, use a tf.Variable and assign_add."
    ),
    "data-of-workers": Fix(
        "To use each example once, pass on a dataset in place of the function: the workers take its batches in turn. "
        "In a loop of your own, read the batches on the coordinator, and give them to coordinator.schedule.",
        "data = dataset",
    ),
    "examples-left-out": Fix(
        "Let every example of its batch count once in the replica function: look for slices, masks and gathers of the "
        "batch that depend on its size or on the replica."
    ),
    "pairs-broken": Fix(
        "Keep inputs and labels of an example together in the replica function: what reverses, rolls or shuffles the "
        "rows of one of them must do so with all."
    ),
    "parts-of-a-value": Fix(
        "Of means over equal parts, take the mean, and do not add them up.",
        'value = strategy.reduce("MEAN", value, axis=None)',
    ),
    "shares-of-a-value": Fix(
        "If each replica has a share of the value, add the shares up, and neither average them nor take that of one "
        "replica.",
        'value = strategy.reduce("SUM", value, axis=None)',
    ),
    "value-of-all-examples": Fix(
        "Look at how the parts of the replicas become one value. A mean over unequal parts, or over batches of unequal "
        "size, is not the mean over all examples: add up sums and numbers of examples over all replicas and batches, "
        "and divide once, value = total / count. Of rows, such as predictions, gather each batch along axis 0 before "
        "the next one, so that they keep the order of the labels: strategy.gather(rows, axis=0).",
        """
        total += strategy.reduce("SUM", sum_of_examples, axis=None)
        count += strategy.reduce("SUM", number_of_examples, axis=None)
        """,
    ),
    "steps-one-by-one": Fix(
        "Compute in each step under the coordinator what one device computes: the same loss, divided by the examples "
        "of the batch that this step consumes, with the same learning rate."
    ),
    # Exceptions.
    "keras-loop-in-run": Fix(
        "Call fit, evaluate, predict and the methods that end with _on_batch outside of strategy.run: they call "
        "strategy.run themselves. In a function that strategy.run calls, call the model, and apply the gradients of a "
        "tf.GradientTape.",
        "model.fit(dataset)",
    ),
    "value-of-every-replica": Fix(
        "A batch of a distributed dataset has a part for each replica (PerReplica). Hand it to a function of the "
        "model's step with strategy.run, and do what the line does in that function. If the value is a result of "
        "strategy.run, combine it with strategy.reduce first.",
        'loss = strategy.reduce("SUM", strategy.run(replica_step, args=(batch,)), axis=None)',
    ),
    "stateful-layer": Fix(
        "Under a strategy a stateful layer gets the part of its replica, not the global batch. Give the model's input "
        "the size of the part. Leave out a last batch that is smaller (drop_remainder=True).",
        "inputs = keras.Input(batch_shape=(global_batch_size // strategy.num_replicas_in_sync, *shape))",
    ),
    "update-outside-of-run": Fix(
        "Call optimizer.apply_gradients (and get_replica_context()) inside the function that strategy.run calls, not "
        "around it: there is no replica in strategy.scope() alone."
    ),
    "fewer-files-than-workers": Fix(
        "Fewer files than workers cannot be sharded by file: write at least one file per worker, or shard by examples.",
        """
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
        dataset = dataset.with_options(options)
        """,
    ),
    "synchronized-in-a-branch": Fix(
        "Call strategy.run inside the condition instead of the condition inside strategy.run, for example "
        "`if count % 2 == 0: strategy.run(apply_step)` in the tf.function around it. In place of an optimizer's "
        "gradient_accumulation_steps, which has such a condition, add up the gradients in variables of the program."
    ),
    "assigned-without-aggregation": Fix(
        "Give a variable that the program makes an aggregation: tf.Variable(..., aggregation=...). Assign a variable "
        "of Keras, for example the weights of a target network, after strategy.run, in the function that calls it."
    ),
    "closures-per-step": Fix("Schedule as many training closures as one device takes steps."),
    "strategy-of-the-program": Fix(
        f"{Hint.USE_STRATEGY} If the program makes its own strategy, set TF_CONFIG on every worker first, and make the "
        "strategy before any other TensorFlow operation."
    ),
    "end-of-training": Fix(
        "Save what decides when training ends with the step, and restore it: a callback keeps its counters in "
        "attributes (EarlyStopping: wait and best), which no checkpoint contains."
    ),
    "dataset-of-the-coordinator": Fix(
        "A dataset cannot be sent to a worker. Make it inside the function that create_per_worker_dataset gets, so "
        "that each worker makes its own."
    ),
    "iterator-for-a-batch": Fix(
        "A train_step that takes its own data gets an iterator, not a batch: begin it with batch = next(iterator)."
    ),
}
"""Fixes by a name of their own."""
