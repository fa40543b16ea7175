"""Defects of Keras' losses, optimizers, metrics and training loops."""

from __future__ import annotations

from typing import Any

from suites.defects.registry import defect, replace

_LOSSES = "test_losses or test_fit"
_OPTIMIZERS = "test_optimizers or (test_training and mlp)"


@defect(_LOSSES)
def loss_is_not_divided() -> None:
    """A loss is not divided by the number of replicas."""
    from keras.src.losses import loss

    replace(loss, "scale_loss_for_distribution", lambda original: lambda value: value)


@defect(_LOSSES)
def loss_is_divided_twice() -> None:
    """A loss is divided by the number of replicas twice."""
    from keras.src.losses import loss

    replace(loss, "scale_loss_for_distribution", lambda original: lambda value: original(original(value)))


@defect(_LOSSES)
def regularization_counts_twice() -> None:
    """Losses of layers are added twice."""
    import keras

    def make(original: Any) -> Any:
        return lambda self: [*original(self), *original(self)]

    replace(keras.Layer, "_get_own_losses", make)
    replace(keras.Layer, "_get_regularization_losses", make)


@defect(_LOSSES)
def weights_of_examples_are_squared() -> None:
    """Sample weights and class weights count squared."""
    from keras.src.losses import loss

    def make(original: Any) -> Any:
        def reduce(values: Any, sample_weight: Any = None, **kwargs: Any) -> Any:
            weight = None if sample_weight is None else sample_weight * sample_weight
            return original(values, sample_weight=weight, **kwargs)

        return reduce

    replace(loss, "reduce_weighted_values", make)


@defect(_LOSSES)
def masks_are_ignored() -> None:
    """A loss counts masked values."""
    from keras.src.losses import loss

    replace(loss, "apply_mask", lambda original: lambda sample_weight, *args, **kwargs: sample_weight)


@defect(_OPTIMIZERS)
def gradients_of_own_replica() -> None:
    """Each replica applies its own gradient, twice as long."""
    import tensorflow as tf
    from keras.src.backend.tensorflow import optimizer

    def make(original: Any) -> Any:
        def all_reduce(self: Any, *args: Any, **kwargs: Any) -> Any:
            return tf.nest.map_structure(lambda one: one * 2, original(self, *args, **kwargs))

        return all_reduce

    replace(optimizer.TFOptimizer, "_all_reduce_sum_gradients", make)


@defect(_OPTIMIZERS)
def iterations_count_twice() -> None:
    """An optimizer counts each step twice."""
    from keras.src.optimizers.base_optimizer import BaseOptimizer

    def make(original: Any) -> Any:
        def apply(self: Any, *args: Any, **kwargs: Any) -> Any:
            found = original(self, *args, **kwargs)
            self._iterations.assign_add(1)
            return found

        return apply

    replace(BaseOptimizer, "apply", make)


@defect(_OPTIMIZERS)
def no_clipping() -> None:
    """Gradients are not clipped."""
    from keras.src.optimizers.base_optimizer import BaseOptimizer

    replace(BaseOptimizer, "_clip_gradients", lambda original: lambda self, grads: grads)


@defect(_OPTIMIZERS)
def weight_decay_twice() -> None:
    """Weight decay is applied twice."""
    from keras.src.backend.tensorflow import optimizer

    def make(original: Any) -> Any:
        def decay(self: Any, variables: Any) -> None:
            original(self, variables)
            original(self, variables)

        return decay

    replace(optimizer.TFOptimizer, "_apply_weight_decay", make)


@defect(_OPTIMIZERS)
def no_average_of_weights() -> None:
    """The moving average of weights stays at its start."""
    from keras.src.optimizers.base_optimizer import BaseOptimizer

    replace(BaseOptimizer, "_update_model_variables_moving_average", lambda original: lambda self, variables: None)


@defect(_OPTIMIZERS)
def accumulated_gradients_are_summed() -> None:
    """Accumulated gradients are added, and not averaged."""
    from keras.src.optimizers.base_optimizer import BaseOptimizer

    def make(original: Any) -> Any:
        return lambda self, grads, accumulators: original(self, [grad * 2 for grad in grads], accumulators)

    replace(BaseOptimizer, "_backend_increment_gradient_accumulators", make)
    from keras.src.backend.tensorflow import optimizer

    if "_backend_increment_gradient_accumulators" in vars(optimizer.TFOptimizer):
        replace(optimizer.TFOptimizer, "_backend_increment_gradient_accumulators", make)


@defect(_OPTIMIZERS)
def loss_scale_stays() -> None:
    """Gradients are divided by a loss scale of 1, and the loss scale of an optimizer is 1."""
    import keras

    replace(keras.optimizers.LossScaleOptimizer, "scale_loss", lambda original: lambda self, loss: loss)
    replace(keras.optimizers.Optimizer, "scale_loss", lambda original: lambda self, loss: loss)


@defect(_OPTIMIZERS)
def schedule_counts_double() -> None:
    """A schedule of learning rates gets twice the number of steps."""
    import keras

    for kind in vars(keras.optimizers.schedules).values():
        if isinstance(kind, type) and kind is not keras.optimizers.schedules.LearningRateSchedule:
            replace(kind, "__call__", lambda original: lambda self, step: original(self, step * 2))


@defect(_OPTIMIZERS)
def missing_gradients_move_weights() -> None:
    """A variable without a gradient moves, and each update is the reverse."""
    from keras.src.optimizers.base_optimizer import BaseOptimizer

    def make(original: Any) -> Any:
        def apply(self: Any, grads: Any, variables: Any = None) -> Any:
            for variable in variables or ():
                variable.assign_add(variable * 0 + 1)
            return original(self, grads, variables)

        return apply

    replace(BaseOptimizer, "apply", make)


@defect("test_metrics")
def metrics_of_first_replica() -> None:
    """A metric keeps the state of the first replica only."""
    from keras.src.metrics.metric import Metric

    def make(original: Any) -> Any:
        def add(
            self: Any, shape: Any, initializer: Any, dtype: Any = None, aggregation: str = "sum", name: Any = None
        ) -> Any:
            return original(self, shape, initializer, dtype, "only_first_replica", name)

        return add

    replace(Metric, "add_variable", make)


@defect("test_metrics")
def metrics_grow() -> None:
    """Reading a metric adds to its state."""
    import keras

    for kind in list(vars(keras.metrics).values()):
        if isinstance(kind, type) and "result" in vars(kind):

            def make(original: Any) -> Any:
                def result(self: Any) -> Any:
                    found = original(self)
                    return {name: one * 2 for name, one in found.items()} if isinstance(found, dict) else found * 2

                return result

            replace(kind, "result", make)


@defect("test_random or test_training")
def weights_of_another_seed() -> None:
    """Under a strategy, layers have other initial weights."""
    import keras
    import tensorflow as tf

    def make(original: Any) -> Any:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            found = original(self, *args, **kwargs)
            return found * 1.5 if tf.distribute.has_strategy() else found

        return call

    for kind in (keras.initializers.GlorotUniform, keras.initializers.RandomNormal, keras.initializers.RandomUniform):
        replace(kind, "__call__", make)


@defect("test_loops")
def metrics_in_loops_count_twice() -> None:
    """Strategy.run calls its function twice, and so does each step of fit."""
    import tensorflow as tf

    def make(original: Any) -> Any:
        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            original(self, *args, **kwargs)
            return original(self, *args, **kwargs)

        return run

    for kind in (tf.distribute.Strategy, tf.distribute.MultiWorkerMirroredStrategy, tf.distribute.OneDeviceStrategy):
        if "run" in vars(kind) or kind is tf.distribute.Strategy:
            replace(kind, "run", make)


@defect("test_loops and a_distribution")
def distributions_of_keras_train_other_weights() -> None:
    """In a distribution of Keras, layers begin with weights of their own."""
    import keras

    def make(original: Any) -> Any:
        def set_weights(self: Any, weights: Any) -> Any:
            inside = keras.distribution.distribution() is not None
            return original(self, [weight * 2 if inside else weight for weight in weights])

        return set_weights

    replace(keras.Model, "set_weights", make)


@defect("test_tf_keras")
def losses_and_statistics_of_tf_keras_are_doubled() -> None:
    """Errors of tf_keras are twice as large, and moving averages keep nothing."""
    import tf_keras
    from tf_keras.src.layers.normalization import batch_normalization

    replace(tf_keras.Sequential, "call", lambda o: lambda self, *args, **kwargs: o(self, *args, **kwargs) * 2)

    def make(original: Any) -> Any:
        return lambda self, variable, value, momentum, size: original(self, variable, value, 0.0, size)

    replace(batch_normalization.BatchNormalizationBase, "_assign_moving_average", make)
