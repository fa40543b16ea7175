"""Programs with an excused difference and something beside or after it: correct ones, and planted bugs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

FEATURES = 6
EXAMPLES = 33
"""Batches of 12 leave a last one of 9, which two replicas share as 5 and 4."""
_FIRST = tf.VariableAggregation.ONLY_FIRST_REPLICA
_MEAN = tf.VariableAggregation.MEAN
_SUM = tf.VariableAggregation.SUM

Change = Callable[[tf.Variable, Any, Any], None]
"""Changes a state from the features of a replica's batch and from the run."""


def _train(
    run: Any,
    *,
    passes: int = 1,
    change: Change | None = None,
    aggregation: Any = _MEAN,
    layers: tuple[Any, ...] = (),
    exact: bool = False,
    wrong_from: int | None = None,
    factor: float = 1.0,
    rate: float = 0.05,
    momentum: float = 0.0,
    limit: float | None = None,
    limit_of_each: float | None = None,
    limit_by_hand: float | None = None,
    factor_after_clipping: float = 1.0,
    factor_of_bias: float = 1.0,
    penalty: float = 0.0,
) -> None:
    """Train in a loop.

    :param exact: divide by the global batch, so that uneven batches are right.
    :param wrong_from: number of updates after which the gradient is too large by the number of replicas.
    :param factor: factor on the loss under the strategy only.
    :param momentum: momentum of the optimizer under the strategy only.
    :param limit: limit to which the optimizer cuts the gradient.
    :param limit_of_each: limit to which the optimizer cuts the gradient of each variable.
    :param limit_by_hand: limit to which the program cuts the gradient itself, on each replica.
    :param factor_after_clipping: factor on these gradients, under the strategy only.
    :param factor_of_bias: factor on the gradient of the last bias, under the strategy only.
    :param penalty: size of a term that every replica adds in whole.
    """
    generator = np.random.default_rng(0)
    x = generator.normal(size=(EXAMPLES, FEATURES)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, x[:, :1] - 2 * x[:, 1:2])).batch(run.global_batch_size)
    with run.strategy.scope():
        model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(4), *layers, keras.layers.Dense(1)])
        own = momentum if run.num_replicas > 1 else 0.5 * bool(momentum)
        optimizer = keras.optimizers.SGD(rate, momentum=own, global_clipnorm=limit, clipnorm=limit_of_each)
        optimizer.build(model.trainable_variables)
        state = tf.Variable(1.0, trainable=False, name="state", aggregation=aggregation)
    run.watch(model=model, optimizer=optimizer, variables=[state] if change else [])
    size = run.global_batch_size

    def replica_step(batch: Any) -> Any:
        features, labels = (tf.cast(part, model.compute_dtype) for part in batch)
        with tf.GradientTape() as tape:
            losses = tf.square(model(features, training=True) - labels)[:, 0]
            whole = tf.nn.compute_average_loss(losses, global_batch_size=size)
            loss = whole if exact else tf.reduce_mean(losses) / run.num_replicas
            if wrong_from is not None:
                late = optimizer.iterations >= wrong_from
                loss *= tf.where(late, tf.cast(run.num_replicas, loss.dtype), tf.ones_like(loss))
            if run.num_replicas > 1:
                loss *= factor
            if penalty:
                loss += penalty * tf.reduce_sum(tf.square(model.trainable_variables[-1]))
        gradients = tape.gradient(loss, model.trainable_variables)
        if run.num_replicas > 1:
            gradients[-1] *= factor_of_bias
        if limit_by_hand is not None:
            after = factor_after_clipping if run.num_replicas > 1 else 1.0
            gradients = [after * part for part in tf.clip_by_global_norm(gradients, limit_by_hand)[0]]
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        if change is not None:
            change(state, features, run)
        return loss

    @tf.function
    def step(iterator: Any) -> Any:
        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(next(iterator),)), axis=None)

    for _loss in run.steps(step, data.repeat(passes)):
        pass


def _average(state: tf.Variable, features: Any, _run: Any) -> None:
    state.assign(0.9 * state + 0.1 * tf.cast(tf.reduce_mean(features), state.dtype))


def _average_of_uneven_sevenfold(state: tf.Variable, features: Any, run: Any) -> None:
    is_partial = tf.not_equal(tf.shape(features)[0] * run.num_replicas, run.global_batch_size)
    is_wrong = tf.logical_and(is_partial, run.num_replicas > 1)
    state.assign(tf.where(is_wrong, state * 7.0, state) + 0.1)


def _count(state: tf.Variable, features: Any, _run: Any) -> None:
    state.assign_add(tf.cast(tf.shape(features)[0], state.dtype))


def _count_for_all(state: tf.Variable, features: Any, run: Any) -> None:
    state.assign_add(tf.cast(tf.shape(features)[0] * run.num_replicas, state.dtype))


def _add_means_of_uneven(state: tf.Variable, features: Any, run: Any) -> None:
    is_partial = tf.not_equal(tf.shape(features)[0] * run.num_replicas, run.global_batch_size)
    share = tf.where(is_partial, tf.reduce_mean(features), tf.reduce_sum(features))
    state.assign_add(tf.cast(share, state.dtype))


def _sum_of_the_first(state: tf.Variable, features: Any, _run: Any) -> None:
    state.assign_add(tf.cast(tf.reduce_sum(tf.abs(features)), state.dtype))


# -- correct ------------------------------------------------------------------------------------


def averages_features(run: Any) -> None:
    """A declared mean over replicas, whose uneven batches count them equally, in two passes."""
    _train(run, passes=2, change=_average)


def averages_features_and_trains_exactly(run: Any) -> None:
    _train(run, passes=2, change=_average, exact=True)


def counts_examples(run: Any) -> None:
    _train(run, change=_count, aggregation=_SUM)


def doubled_on_purpose(run: Any) -> None:
    """A gradient that is N times too large in every step, and is declared."""
    _train(run, factor=2.0, exact=True)


def clips_on_each_replica(run: Any) -> None:
    _train(run, exact=True, limit=0.5)


def clips_each_variable_on_each_replica(run: Any) -> None:
    """Both replicas cut the gradient of a bias to the limit. If its signs differ, the bias does not move."""
    _train(run, exact=True, limit_of_each=0.3)


def clips_on_each_replica_and_counts_replicas_equally(run: Any) -> None:
    """The last step has two causes: parts that are cut, and means over 5 and 4 examples that count equally."""
    _train(run, passes=2, limit=0.5)


def counts_replicas_equally(run: Any) -> None:
    _train(run, passes=2)


def normalizes_and_counts_replicas_equally(run: Any) -> None:
    _train(run, passes=2, layers=(keras.layers.BatchNormalization(),))


def synchronizes_statistics_and_counts_replicas_equally(run: Any) -> None:
    _train(run, passes=2, layers=(keras.layers.BatchNormalization(synchronized=True),))


def twice_the_rate_with_momentum(run: Any) -> None:
    _train(run, exact=True, momentum=0.5, rate=0.05 * run.num_replicas)


def doubled_with_momentum(run: Any) -> None:
    _train(run, factor=2.0, exact=True, momentum=0.5)


# -- planted bugs -------------------------------------------------------------------------------


def multiplies_the_mean_in_uneven_batches(run: Any) -> None:
    _train(run, change=_average_of_uneven_sevenfold, exact=True)


def counts_too_many_in_uneven_batches(run: Any) -> None:
    _train(run, change=_count_for_all, aggregation=_FIRST)


def adds_up_means_of_uneven_batches(run: Any) -> None:
    """The replicas' means are added up in a step whose other means count equally, which is tolerated."""
    _train(run, change=_add_means_of_uneven, aggregation=tf.VariableAggregation.SUM)


def wrong_from_the_25th_uneven_step(run: Any) -> None:
    """Train with a global batch of 3, so that every step is uneven."""
    _train(run, passes=3, wrong_from=24)


def doubled_on_purpose_and_again_later(run: Any) -> None:
    _train(run, factor=2.0, exact=True, wrong_from=2)


def clips_and_penalizes_on_each_replica(run: Any) -> None:
    """The penalty of a bias that begins at zero shows from the second step on."""
    _train(run, exact=True, limit=0.5, penalty=1.0)


def clips_on_each_replica_and_scales_a_bias(run: Any) -> None:
    """Each update follows from the clipped parts, whatever the program did to them before."""
    _train(run, exact=True, limit=0.5, factor_of_bias=1.5)


def clips_on_each_replica_and_doubles_an_uneven_step(run: Any) -> None:
    _train(run, limit=0.5, wrong_from=2)


def counts_replicas_equally_and_doubles_a_later_step(run: Any) -> None:
    _train(run, passes=2, wrong_from=4)


def normalizes_and_doubles_an_uneven_step(run: Any) -> None:
    _train(run, passes=2, layers=(keras.layers.BatchNormalization(),), wrong_from=5)


def synchronizes_statistics_and_scales_a_bias(run: Any) -> None:
    _train(run, passes=2, layers=(keras.layers.BatchNormalization(synchronized=True),), factor_of_bias=1.5)


def clips_by_hand_on_each_replica(run: Any) -> None:
    _train(run, exact=True, limit_by_hand=0.05)


def clips_by_hand_on_each_replica_and_doubles_afterwards(run: Any) -> None:
    """Looks like twice the limit."""
    _train(run, exact=True, limit_by_hand=0.05, factor_after_clipping=2.0)


def doubled_with_another_momentum(run: Any) -> None:
    _train(run, factor=2.0, exact=True, momentum=0.75)


def normalizes_and_counts_the_first_replica(run: Any) -> None:
    """Moving statistics of the layer, and a sum of the program's own, both of the first replica only."""
    layers = (keras.layers.BatchNormalization(), keras.layers.Activation("tanh"))
    _train(run, change=_sum_of_the_first, aggregation=_FIRST, layers=layers, exact=True)
