"""Causes that a finding can name: what happened, what to do, and whether a correct program may do it.

Cause ids are part of the contract with users, because ``expect=`` names them. Add ids, but never rename one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pytest_ddl.equivalence.cause import Cause

_GRADIENTS = (
    Cause(
        "gradient-scaled-by-replica-count",
        "The gradient is summed over replicas without dividing the loss by the global batch: it is N times too large.",
        "Use tf.nn.compute_average_loss(per_example_loss, global_batch_size=run.global_batch_size) instead "
        "of tf.reduce_mean, and reduce the gradients once (optimizer.apply_gradients already sums them).",
    ),
    Cause(
        "gradient-scaled-by-inverse-replica-count",
        "The gradient is divided by the number of replicas once too often: it is N times too small.",
        "Divide only once. Either divide the loss by the global batch size, or return the mean over the replica's "
        "examples and let Model.fit scale it.",
    ),
    Cause(
        "gradient-not-aggregated",
        "Gradients were not summed over all replicas: an update contains only the own part of a replica or worker.",
        "Call optimizer.apply_gradients inside strategy.run with a model and optimizer made in "
        "strategy.scope(), or reduce first with tf.distribute.get_replica_context().all_reduce('sum', gradients).",
    ),
    Cause(
        "gradient-clipped-before-aggregation",
        "Gradients were clipped on each replica before they were summed, so the limit applies to parts of the batch.",
        "All-reduce first (get_replica_context().all_reduce('sum', gradients)), then "
        "tf.clip_by_global_norm, then apply what was clipped, divided by the number of replicas: an optimizer of "
        "Keras adds it up over the replicas once more. Do not pass clipnorm, global_clipnorm or clipvalue to a "
        "Keras 3 optimizer under a strategy.",
    ),
    Cause(
        "clipping-lost",
        "The update exceeds the clipping limit that one device obeys: clipping did not take place.",
        "Clip the all-reduced gradient with tf.clip_by_norm or tf.clip_by_global_norm before apply_gradients.",
    ),
    Cause(
        "regularization-scaled-by-replica-count",
        "The regularization term is counted once per replica instead of once per step.",
        "Scale it with tf.nn.scale_regularization_loss(sum(model.losses)) in the replica function.",
    ),
    Cause(
        "mean-of-replica-means",
        "Replicas with different numbers of examples count equally: the mean of their means is not the mean "
        "over the examples.",
        "Sum per-example losses and divide by the number of examples of the global batch "
        "(tf.nn.compute_average_loss), or batch with drop_remainder=True.",
    ),
    Cause(
        "empty-replica",
        "A batch with fewer examples than replicas left a replica empty, and its share was counted as zero or NaN.",
        "Batch with drop_remainder=True, or divide by the number of examples present in the global batch.",
    ),
    Cause(
        "masked-loss-normalised-per-replica",
        "The loss is divided by the replica's own count of valid tokens or weights, not by the global count.",
        "Sum the masked loss, all-reduce the count with get_replica_context().all_reduce('sum', count), and"
        " divide by the global count.",
    ),
    Cause(
        "batch-coupled-loss",
        "The loss of an example depends on the other examples of its batch, and a replica sees only its part.",
        "Gather what the loss compares from all replicas first: "
        "tf.distribute.get_replica_context().all_gather(x, axis=0). If the replica function selects or leaves out "
        "examples, do that in the dataset, before the batch is split.",
        legitimate=True,
    ),
    Cause(
        "gathered-positions-wrong",
        "Rows that were gathered from all replicas are addressed by positions in the replica's own part.",
        "The first of n rows of a replica is row replica_id_in_sync_group * n of the gathered ones: add "
        "tf.distribute.get_replica_context().replica_id_in_sync_group * n to labels, masks and indices.",
    ),
    Cause(
        "replica-computes-otherwise",
        "A replica computes another gradient than one device does for the same examples.",
        "Look in the replica function for what depends on the replica: its id, the number of replicas, or state that "
        "each replica has for itself.",
    ),
    Cause(
        "attribute-shared-by-replicas",
        "A replica overwrites a Python attribute whose value another replica of the same process still uses.",
        "Keep the value in a local variable: replicas of a process are threads, which take turns at each collective.",
    ),
    Cause(
        "gradient-accumulation-wrong",
        "Accumulated micro-batches do not add up to the update of one large batch.",
        "Add up gradients in variables with synchronization=ON_READ, divide by the number of micro-batches,"
        " apply and reset once per cycle; take no optimizer step in between.",
    ),
    Cause(
        "loss-scale-not-synchronised",
        "The dynamic loss scale differs between replicas.",
        "Wrap the optimizer in keras.mixed_precision.LossScaleOptimizer inside strategy.scope(), and decide"
        " on the all-reduced gradient.",
    ),
    Cause(
        "non-finite-not-synchronised",
        "A gradient of a replica is not finite, and not all replicas left out the update, as one device does.",
        "All-reduce the gradients before tf.math.is_finite decides, so that every replica decides alike.",
    ),
    Cause(
        "sparse-gradient-mismatch",
        "Sparse gradients (tf.IndexedSlices) of replicas were combined without regard to their indices.",
        "Pass the tf.IndexedSlices object itself to all_reduce, or make it dense with tf.convert_to_tensor(gradient) "
        "first.",
    ),
    Cause(
        "reduction-overflow",
        "A sum over replicas exceeds the range of the dtype in which it is computed.",
        "Cast to float32 before all_reduce, or scale before summing.",
    ),
    Cause(
        "gradient-unscaled-without-scale",
        "Gradients were divided by a loss scale that the loss was never multiplied with.",
        "Call optimizer.scale_loss(loss) inside the tape when a LossScaleOptimizer applies the gradients.",
    ),
)

_VALUES = (
    Cause(
        "reported-loss-wrong",
        "The loss that the program reports is not the mean over the examples of the global batch.",
        "Return tf.nn.compute_average_loss(..., global_batch_size=run.global_batch_size) from the replica "
        "function and reduce it with strategy.reduce('SUM', loss, axis=None).",
    ),
    Cause(
        "metric-wrong",
        "A metric differs from the one computed on one device.",
        "Make the metric in strategy.scope(), update it in strategy.run and read result() in cross-replica context.",
    ),
    Cause(
        "initial-weights-differ",
        "Weights differ before the first step.",
        "Set the same seed on every worker before the model is made (keras.utils.set_random_seed(run.seed)); "
        "restore a checkpoint on all workers, not only on the chief.",
    ),
    Cause(
        "replicas-diverged",
        "Components of one variable differ between replicas of a process.",
        "Give the variable an aggregation (tf.VariableAggregation.MEAN or SUM), or reduce the value with "
        "all_reduce before it is assigned.",
    ),
    Cause(
        "workers-diverged",
        "Copies of one variable differ between worker processes.",
        "Assign the same value on every worker: broadcast or seed it, and restore on all workers.",
    ),
    Cause(
        "state-not-aggregated",
        "Non-trainable state was updated from each replica's own data, and not combined into the value of one device.",
        "Compute it from the whole batch: reduce what it is made of with get_replica_context().all_reduce before it is "
        "assigned. For a mean over the examples, synchronization=tf.VariableSynchronization.ON_READ with "
        "aggregation=tf.VariableAggregation.MEAN does the same.",
        accepted=True,
    ),
    Cause(
        "state-scaled-by-replica-count",
        "Non-trainable state counts once per replica: every replica adds a whole value, and not only its share.",
        "Let every replica add only its own share. Otherwise make it with "
        "aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA if all replicas add the same value, or with MEAN if "
        "each adds a mean over its own examples.",
    ),
    Cause(
        "optimizer-state-mismatch",
        "Slots of the optimizer differ from those of one device.",
        "Build the optimizer in strategy.scope() (optimizer.build(model.trainable_variables)) and let "
        "only apply_gradients write its slots.",
    ),
    Cause(
        "iteration-count-wrong",
        "The optimizer's count of updates does not grow by one per global step.",
        "Call optimizer.apply_gradients once per global step and write optimizer.iterations nowhere else.",
    ),
    Cause(
        "learning-rate-differs",
        "The learning rate differs between workers or from one device.",
        "Use a keras.optimizers.schedules.LearningRateSchedule of optimizer.iterations; set a rate on every worker.",
    ),
    Cause(
        "variable-did-not-move",
        "A trainable variable moves on one device and stands still under the strategy.",
        "Check that its gradient is not None on every replica, and that the optimizer was built on this "
        "model's variables, in strategy.scope().",
    ),
    Cause(
        "frozen-variable-moved",
        "A frozen variable was changed.",
        "Pass model.trainable_variables to tape.gradient and apply_gradients, and set trainable=False before "
        "the optimizer is built.",
    ),
    Cause(
        "variable-outside-scope",
        "A variable was made outside strategy.scope() and is not mirrored.",
        "Make model, optimizer and metrics inside `with strategy.scope():`.",
    ),
    Cause(
        "changed-after-last-step",
        "The program changed a variable after its last step, and the result differs from that on one device.",
        "Look at what the program does after its loop, for example averaging or scaling weights: it must give the "
        "same values for any number of replicas.",
    ),
    Cause(
        "layout-wrong",
        "A sharded variable does not have the layout that was asked for.",
        "Check run.layout_map: the pattern must match the variable's path, and the spec must have one entry for each "
        "dimension of the variable and name only dimensions of the mesh.",
    ),
)

_RANDOM = (
    Cause(
        "random-stream-repeated-across-replicas",
        "Several replicas drew the same random numbers (for example the same dropout mask).",
        "Fold the replica id into the seed: tf.random.experimental.stateless_fold_in(seed, "
        "tf.distribute.get_replica_context().replica_id_in_sync_group).",
        gone_without="random",
    ),
    Cause(
        "random-stream-repeated-across-steps",
        "Several steps drew the same random numbers.",
        "Advance the seed with the step (optimizer.iterations), or use a keras.random.SeedGenerator that is"
        " a tracked attribute of its layer.",
        gone_without="random",
    ),
    Cause(
        "random-stream-differs-across-replicas",
        "Each replica draws its own random numbers, so the results cannot equal those of one device.",
        "If this is intended, nothing needs repair: declare it with expect=, or set the rates to 0 in the "
        "equivalence test.",
        legitimate=True,
        gone_without="random",
    ),
    Cause(
        "per-replica-normalization",
        "Batch normalization used the statistics of each replica's part of the batch.",
        "Use keras.layers.BatchNormalization(synchronized=True), or declare it with expect= if intended.",
        legitimate=True,
        gone_without="normalization",
    ),
)

_DATA = (
    Cause(
        "examples-dropped",
        "Examples that one device trained on were not seen under the strategy.",
        "Shard with a fixed seed (dataset.shuffle(n, seed=...)) and set options.experimental_distribute."
        "auto_shard_policy, or shard by context.input_pipeline_id yourself.",
    ),
    Cause(
        "examples-duplicated",
        "Examples were counted more often than on one device.",
        "Shard the dataset over the input pipelines (dataset.shard(context.num_input_pipelines, "
        "context.input_pipeline_id)) with the same seed on every worker.",
    ),
    Cause(
        "examples-altered",
        "The same examples have other values than on one device.",
        "Derive augmentation from the example (stateless random operations with its id as the seed), not from the "
        "worker, the replica or the order of examples. Zip inputs and labels before you shard or shuffle them.",
    ),
    Cause(
        "global-batch-wrong",
        "The replicas' batches do not add up to the global batch.",
        "With experimental_distribute_dataset, batch by run.global_batch_size. With "
        "distribute_datasets_from_function, batch by context.get_per_replica_batch_size(run.global_batch_size).",
    ),
    Cause(
        "unequal-steps",
        "The number of steps differs between ranks or from one device.",
        "Give every worker the same number of batches: dataset.repeat() with a fixed number of steps, or shard evenly.",
    ),
)

_CHECKPOINTS = (
    Cause(
        "checkpoint-incomplete",
        "Variables are missing from the checkpoint or were not matched on loading.",
        "Track model and optimizer in one tf.train.Checkpoint and end restore() with .assert_consumed().",
    ),
    Cause(
        "resume-lost-state",
        "State was lost by interrupting and resuming.",
        "Build the optimizer before restoring (optimizer.build(model.trainable_variables)) and save it with the model.",
    ),
    Cause(
        "resume-step-wrong",
        "The step or epoch counter is wrong after resuming.",
        "Save the counter after the update it counts, and start from the restored value (initial_epoch=, iterations).",
    ),
    Cause(
        "resume-data-wrong",
        "After resuming, examples are repeated or skipped.",
        "Save the iterator's position, or skip(step * global batch) on a dataset with a fixed seed.",
    ),
    Cause(
        "resume-random-wrong",
        "After resuming, random numbers are drawn that belong to another step.",
        "Save the state of the generator with the weights: track a tf.random.Generator in the tf.train.Checkpoint, or "
        "save the state of keras.random.SeedGenerator (seed_generator.state). tf.random.normal and the like have a "
        "state that nothing saves: draw with tf.random.stateless_* and a seed that contains the step.",
        gone_without="random",
    ),
    Cause(
        "unsafe-checkpoint-path",
        "Several ranks write the same path.",
        "Save on every worker. Those other than the chief must save to a temporary path of their own (run.rank_path).",
    ),
)

_PARAMETER_SERVER = (
    Cause(
        "lost-update",
        "Updates were lost: a step changes no weight, or concurrent steps overwrite each other's changes.",
        "Use assign_add, assign_sub or the optimizer; never assign(v + x) from several workers. If a whole step "
        "changes nothing, look for the condition that skips it.",
    ),
    Cause(
        "duplicate-update",
        "An update was applied more than once.",
        "Make scheduled functions safe to repeat: a worker's failure makes the coordinator schedule them again.",
    ),
    Cause(
        "closures-not-awaited",
        "Weights were read while closures still ran on the workers: nothing waited for them.",
        "Call coordinator.join() after the last coordinator.schedule(), before weights are read, saved or recorded "
        "(run.record()).",
    ),
    Cause(
        "staleness-exceeded",
        "A gradient was computed on weights older than the bound.",
        "Apply each gradient in the step that computes it, and look for gradients that are kept between steps. Under a "
        "coordinator, join more often (coordinator.join()), or lower the number of closures in flight.",
    ),
)

_COLLECTIVES = (
    Cause(
        "collective-order-mismatch",
        "Ranks issued their collectives in different orders.",
        "Issue collectives in one deterministic order on every rank; avoid iterating over sets.",
    ),
    Cause(
        "collective-shape-mismatch",
        "Ranks reduced tensors of different shape or dtype in the same collective.",
        "Pad to one shape, or use all_gather, which allows a different first dimension.",
    ),
    Cause(
        "rank-conditional-collective",
        "A collective (save, evaluation, reading a synchronized variable) is issued on some ranks only.",
        "Every rank must take part: look before it for a condition, continue or break that ranks decide differently.",
    ),
    Cause(
        "collective-per-variable",
        "One collective is issued per variable instead of one for many.",
        "Reduce the whole list in one call: get_replica_context().all_reduce('sum', gradients), and set "
        "tf.distribute.experimental.CommunicationOptions(bytes_per_pack=...).",
    ),
    Cause(
        "retraced-every-step",
        "The step function is traced again in every step.",
        "Decorate the function once, outside the loop; pass tensors instead of Python numbers; set input_signature or "
        "reduce_retracing=True.",
    ),
    Cause(
        "eager-step",
        "The step runs eagerly: strategy.run is not inside a tf.function.",
        "Decorate the function that calls strategy.run with @tf.function.",
    ),
)

_RUN = (
    Cause(
        "unsupported-by-framework",
        "The installed TensorFlow or Keras cannot do this under the strategy.",
        "Declare it with expect= and a reason, or use the alternative named in the message.",
        accepted=True,
    ),
    Cause(
        "optimizer-not-built",
        "An optimizer makes its slots in the step itself, which is not possible for several replicas.",
        "Call optimizer.build(model.trainable_variables) in strategy.scope() for every optimizer that the program "
        "applies itself. Model.fit builds only the optimizer that compile() gets as optimizer=.",
        accepted=True,
    ),
    Cause(
        "cluster-misconfigured",
        "The strategy does not span the cluster that was asked for.",
        "Set TF_CONFIG before the strategy is made, and make the strategy before any other TensorFlow operation.",
    ),
    Cause(
        "worker-raised",
        "The training function raised an exception.",
        "The traceback below shows how the program got to the line that raised.",
    ),
    Cause(
        "worker-died",
        "A worker process ended before it returned a result.",
        "See the end of its output below. Exit code -9 often means no memory left, and -11 that native code crashed.",
    ),
    Cause(
        "rank-did-not-run",
        "A rank delivered no result.",
        "Every rank must reach run.watch and the training steps: look for code that depends on the rank.",
    ),
    Cause(
        "deadline-exceeded",
        "The run did not end in time.",
        "The stacks below show where each rank waits: a collective that not all ranks issue is the usual "
        "reason. Raise timeout= if the work is merely long.",
    ),
)

CAUSES: Mapping[str, Cause] = {
    cause.id: cause
    for group in (_GRADIENTS, _VALUES, _RANDOM, _DATA, _CHECKPOINTS, _PARAMETER_SERVER, _COLLECTIVES, _RUN)
    for cause in group
}
"""All causes by id, in the order of the documentation."""


def fix_of(cause: str | None) -> str | None:
    """Return what to do about a cause, or ``None`` if there is no cause."""
    return CAUSES[cause].fix if cause is not None else None


def is_possible(cause: str | None, neutralized: Collection[str]) -> bool:
    """Return whether a cause can act in runs in which some things were switched off."""
    return cause is None or CAUSES[cause].gone_without not in neutralized
