"""Causes in concurrent steps, in collectives, in the speed of a step, and in the run itself."""

from __future__ import annotations

from pytest_ddl.equivalence.causes.cause import Cause, Fix, Form

PARAMETER_SERVER = (
    Cause(
        "lost-update",
        "Updates were lost: a step changes no weight, or concurrent steps overwrite each other's changes.",
        Fix(
            "Use assign_add, assign_sub or the optimizer; never assign(v + x) from several workers. If a whole step "
            "changes nothing, look for the condition that skips it."
        ),
    ),
    Cause(
        "duplicate-update",
        "An update was applied more than once.",
        Fix(
            "Make scheduled functions safe to repeat: a worker's failure makes the coordinator schedule them again.",
        ),
    ),
    Cause(
        "closures-not-awaited",
        "Weights were read or assigned while closures still ran on the workers: nothing waited for them.",
        Fix(
            "Call coordinator.join() after the last coordinator.schedule(), before weights are read, saved or recorded,"
            " and before weights or learning rates are assigned."
        ),
    ),
    Cause(
        "closure-depends-on-others",
        "A concurrent closure computes its gradient from more than the weights that it read and its examples.",
        Fix(
            "Compute each gradient only from the batch and the weights of its closure. Do not read there what other "
            "closures count or keep, and do not scale by how many of them run."
        ),
    ),
    Cause(
        "staleness-exceeded",
        "A gradient was computed on weights older than the bound.",
        Fix(
            "Apply each gradient in the step that computes it, and look for gradients that are kept between steps. "
            "Under a coordinator, join more often (coordinator.join()), or lower the number of closures in flight.",
            "optimizer.apply_gradients(zip(gradients, model.trainable_variables))",
        ),
    ),
)

COLLECTIVES = (
    Cause(
        "collective-order-mismatch",
        "Ranks issued their collectives in different orders.",
        Fix(
            "Issue collectives in one deterministic order on every rank; avoid iterating over sets.",
            "names = sorted(names)",
        ),
    ),
    Cause(
        "collective-shape-mismatch",
        "Ranks reduced tensors of different shape or dtype in the same collective.",
        Fix(
            "Pad to one shape, or use all_gather, which allows a different first dimension.",
            "values = tf.distribute.get_replica_context().all_gather(values, axis=0)",
        ),
    ),
    Cause(
        "rank-conditional-collective",
        "A collective (save, evaluation, reading a synchronized variable) is issued on some ranks only.",
        Fix(
            "Every rank must take part: look before it for a condition, continue or break that ranks decide "
            "differently."
        ),
    ),
    Cause(
        "collective-per-variable",
        "One collective is issued per variable instead of one for many.",
        Fix(
            "Reduce the whole list in one call. tf.distribute.experimental.CommunicationOptions(bytes_per_pack=...) "
            "splits it into few collectives.",
            'gradients = tf.distribute.get_replica_context().all_reduce("sum", gradients)',
        ),
    ),
    Cause(
        "retraced-every-step",
        "The step function is traced again in every step.",
        Fix(
            "Decorate the function once, outside the loop, and pass tensors instead of Python numbers.",
            "number = tf.constant(number)",
        ),
    ),
    Cause(
        "eager-step",
        "The step runs eagerly: strategy.run is not inside a tf.function.",
        Fix(
            "Compile the function that calls strategy.run.",
            "train_step = tf.function(train_step)",
        ),
    ),
)

RUN = (
    Cause(
        "unsupported-by-framework",
        "The installed TensorFlow or Keras cannot do this under the strategy.",
        Fix("Use the alternative named in the message, or accept this with a reason."),
        accepted=True,
    ),
    Cause(
        "optimizer-not-built",
        "An optimizer makes its slots in the step itself, which is not possible for several replicas.",
        Fix(
            "Build every optimizer that the program applies itself in strategy.scope(). Model.fit builds only the "
            "optimizer that compile() gets as optimizer=.",
            """
            with strategy.scope():
                optimizer.build(model.trainable_variables)
            """,
            {
                Form.TRAIN_STEP: Fix(
                    "Model.fit builds only the optimizer that compile() gets as optimizer=. Build every other one in "
                    "strategy.scope().",
                    """
                    with strategy.scope():
                        model.second_optimizer.build(model.trainable_variables)
                    """,
                ),
            },
        ),
        accepted=True,
    ),
    Cause(
        "cluster-misconfigured",
        "The strategy does not span the cluster that was asked for.",
        Fix("Set TF_CONFIG before the strategy is made, and make the strategy before any other TensorFlow operation."),
    ),
    Cause(
        "worker-raised",
        "The training function raised an exception.",
        Fix("The traceback below shows how the program got to the line that raised."),
    ),
    Cause(
        "worker-died",
        "A worker process ended before it returned a result.",
        Fix(
            "See the end of its output below. Exit code -9 often means no memory left, and -11 that native code "
            "crashed."
        ),
    ),
    Cause(
        "rank-did-not-run",
        "A rank delivered no result.",
        Fix("Every rank must make its model and reach the training steps: look for code that depends on the rank."),
    ),
    Cause(
        "deadline-exceeded",
        "The run did not end in time.",
        Fix(
            "The stacks below show where each rank waits: a collective that not all ranks issue is the usual reason. "
            "If the work is merely long, allow more time."
        ),
    ),
)
