"""Defects of Keras' losses, optimizers, metrics and training loops."""

from __future__ import annotations

from typing import Any

from suites.defects.registry import defect, put, replace

_LOSSES = r"test_(losses|fit)\.py"
_OPTIMIZERS = r"test_optimizers\.py|^test_training.py::test_(custom_loop|fit)\[.*mlp"


@defect(
    rf"{_LOSSES}|test_(fit_options|steps_of_fit)\.py|test_precision\.py::test_weights"
    r"|test_preprocessing\.py::test_(words|every)|test_models_of_users\.py::test_(a_class|a_model|weights)"
)
def loss_is_not_divided() -> None:
    """A loss is not divided by the number of replicas."""
    from keras.src.losses import loss

    replace(loss, "scale_loss_for_distribution", lambda original: lambda value: value)


@defect(_LOSSES)
def loss_is_divided_twice() -> None:
    """A loss is divided by the number of replicas twice."""
    from keras.src.losses import loss

    replace(loss, "scale_loss_for_distribution", lambda original: lambda value: original(original(value)))


@defect(
    r"test_losses\.py::test_(regularization)|test_models_of_users\.py::test_a_penalty"
    r"|test_penalties\.py::test_a_regularizer_of_weights"
)
def regularization_counts_twice() -> None:
    """Losses of layers are added twice."""
    import keras

    def make(original: Any) -> Any:
        return lambda self: [*original(self), *original(self)]

    replace(keras.Layer, "_get_own_losses", make)
    replace(keras.Layer, "_get_regularization_losses", make)


@defect(r"test_penalties\.py::test_a_regularizer_of_outputs")
def outputs_are_not_penalized() -> None:
    """Layers ignore their regularizer of outputs."""
    import keras

    def make(original: Any) -> Any:
        return lambda self, *given, **options: original(self, *given, **{**options, "activity_regularizer": None})

    replace(keras.Layer, "__init__", make)


@defect(r"test_losses\.py::test_(class_weights|loss_object|mean_divides)")
def weights_of_examples_are_squared() -> None:
    """Sample weights and class weights count squared."""
    from keras.src.losses import loss

    def make(original: Any) -> Any:
        def reduce(values: Any, sample_weight: Any = None, **kwargs: Any) -> Any:
            weight = None if sample_weight is None else sample_weight * sample_weight
            return original(values, sample_weight=weight, **kwargs)

        return reduce

    replace(loss, "reduce_weighted_values", make)


@defect(r"test_losses\.py::test_(masked)")
def masks_are_ignored() -> None:
    """A loss counts masked values."""
    from keras.src.losses import loss

    replace(loss, "apply_mask", lambda original: lambda sample_weight, *args, **kwargs: sample_weight)


@defect(
    rf"{_OPTIMIZERS}|test_training\.py::test_(any|optimizer)|test_wrong_use\.py::test_gradients"
    r"|test_layers\.py::test_a_weight|test_precision\.py::test_gradients|test_fit\.py::test_several"
)
def gradients_of_own_replica() -> None:
    """Each replica applies its own gradient."""
    from tensorflow import keras

    for name in ("_all_reduce_sum_gradients", "aggregate_gradients"):  # Keras 3 and tf_keras
        if hasattr(keras.optimizers.Optimizer, name):
            replace(keras.optimizers.Optimizer, name, lambda original: lambda self, pairs: [*pairs])


@defect(r"test_wrong_use\.py::test_gradients_that_are_not")
def gradients_are_always_reduced() -> None:
    """An optimizer of tf_keras adds up the gradients of the replicas, although a flag says that it must not."""
    import tf_keras

    def make(original: Any) -> Any:
        return lambda self, grads_and_vars, *args, **flags: original(self, grads_and_vars)

    replace(tf_keras.optimizers.Optimizer, "apply_gradients", make)


@defect(r"test_optimizers\.py::test_(update_is|optimizer_that|infinite)")
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


@defect(r"test_optimizers\.py::test_(the_summed)")
def no_clipping() -> None:
    """Gradients are not clipped."""
    from keras.src.optimizers.base_optimizer import BaseOptimizer

    replace(BaseOptimizer, "_clip_gradients", lambda original: lambda self, grads: grads)


@defect(r"test_optimizers\.py::test_(decay)")
def weight_decay_twice() -> None:
    """Weight decay is applied twice."""
    from keras.src.backend.tensorflow import optimizer

    def make(original: Any) -> Any:
        def decay(self: Any, variables: Any) -> None:
            original(self, variables)
            original(self, variables)

        return decay

    replace(optimizer.TFOptimizer, "_apply_weight_decay", make)


@defect(r"test_optimizers\.py::test_(average)")
def no_average_of_weights() -> None:
    """The moving average of weights stays at its start."""
    from keras.src.optimizers.base_optimizer import BaseOptimizer

    replace(BaseOptimizer, "_update_model_variables_moving_average", lambda original: lambda self, variables: None)


@defect(r"test_optimizers\.py::test_(accumulated)")
def accumulated_gradients_are_summed() -> None:
    """Accumulated gradients are added, and not averaged."""
    from keras.src.optimizers.base_optimizer import BaseOptimizer

    def make(original: Any) -> Any:
        return lambda self, grads, accumulators: original(self, [grad * 2 for grad in grads], accumulators)

    replace(BaseOptimizer, "_backend_increment_gradient_accumulators", make)
    from keras.src.backend.tensorflow import optimizer

    if "_backend_increment_gradient_accumulators" in vars(optimizer.TFOptimizer):
        replace(optimizer.TFOptimizer, "_backend_increment_gradient_accumulators", make)


@defect(r"test_optimizers\.py::test_(loss_scale|dynamic|infinite)")
def loss_scale_stays() -> None:
    """Gradients are divided by a loss scale of 1, and the loss scale of an optimizer is 1."""
    import keras

    replace(keras.optimizers.LossScaleOptimizer, "scale_loss", lambda original: lambda self, loss: loss)
    replace(keras.optimizers.Optimizer, "scale_loss", lambda original: lambda self, loss: loss)


@defect(r"test_optimizers\.py::test_(schedule)|test_models_of_users\.py::test_a_schedule")
def schedule_counts_double() -> None:
    """A schedule of learning rates gets twice the number of steps."""
    import keras

    for kind in vars(keras.optimizers.schedules).values():
        if isinstance(kind, type) and kind is not keras.optimizers.schedules.LearningRateSchedule:
            replace(kind, "__call__", lambda original: lambda self, step: original(self, step * 2))


@defect(
    r"test_optimizers\.py::test_(variable_without|updates_of|each_variable|gradients_are_not)"
    r"|test_models_of_users\.py::test_variables_that"
)
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


@defect(r"test_metrics\.py")
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


@defect(r"test_metrics\.py")
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


@defect(r"test_random\.py::test_initial")
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


@defect(r"test_layers\.py::test_attention")
def attention_is_doubled() -> None:
    """An attention layer returns twice what it attends to."""
    import keras

    def make(original: Any) -> Any:
        def compute(self: Any, *args: Any, **kwargs: Any) -> Any:
            found, scores = original(self, *args, **kwargs)
            return found * 2, scores

        return compute

    replace(keras.layers.MultiHeadAttention, "_compute_attention", make)


@defect(r"test_layers\.py::test_(masks|a_stateful)")
def recurrent_layers_forget() -> None:
    """A recurrent layer ignores its mask, and begins each sequence with a state of 0."""
    import keras

    def make(original: Any) -> Any:
        def loop(self: Any, sequences: Any, initial_state: Any, mask: Any, training: bool = False) -> Any:
            state = keras.tree.map_structure(lambda one: one * 0, initial_state)
            return original(self, sequences, state, None, training)

        return loop

    for kind in (keras.layers.RNN, keras.layers.SimpleRNN):
        if "inner_loop" in vars(kind):
            replace(kind, "inner_loop", make)


@defect(r"test_layers\.py::test_(random|images|seeds)")
def seeds_do_not_advance() -> None:
    """A seed generator gives the same seed in each step."""
    import keras

    def make(original: Any) -> Any:
        return lambda self, *args, **kwargs: keras.ops.convert_to_tensor(self.state.value)

    replace(keras.random.SeedGenerator, "next", make)


@defect(r"test_normalization\.py::test_(replicas|local|synchronized|masked|a_replica)")
def means_of_batches_are_moved() -> None:
    """A batch normalization finds a mean that is 1 too large."""
    from tensorflow import keras

    def make(original: Any) -> Any:
        def moments(self: Any, *args: Any, **kwargs: Any) -> Any:
            mean, variance = original(self, *args, **kwargs)
            return mean + 1, variance

        return moments

    for name in ("_moments", "_calculate_mean_and_var"):
        if hasattr(keras.layers.BatchNormalization, name):
            replace(keras.layers.BatchNormalization, name, make)


@defect(r"test_normalization\.py::test_examples")
def normalized_values_are_doubled() -> None:
    """A layer normalization returns twice its result."""
    import keras

    replace(keras.layers.LayerNormalization, "call", lambda original: lambda self, inputs: original(self, inputs) * 2)


@defect(r"test_normalization\.py::test_spectral")
def layers_with_normalized_kernels_are_doubled() -> None:
    """A spectral normalization returns twice what its layer returns."""
    import keras

    def make(original: Any) -> Any:
        return lambda self, inputs, training=False: original(self, inputs, training=training) * 2

    replace(keras.layers.SpectralNormalization, "call", make)


@defect(r"test_preprocessing\.py::test_(workers_of|what_was)")
def words_have_the_next_code() -> None:
    """A lookup of strings returns the code after the right one."""
    import keras

    replace(keras.layers.StringLookup, "call", lambda original: lambda self, inputs: original(self, inputs) + 1)


@defect(r"test_metrics\.py::test_every_class")
def keras_has_another_metric() -> None:
    """Keras has a metric that the tables of the suite do not have."""
    import keras

    put(keras.metrics, "Unknown", type("Unknown", (keras.metrics.Mean,), {}))


@defect(r"test_loops\.py")
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


@defect(r"test_loops\.py::\S*a_distribution")
def distributions_of_keras_train_other_weights() -> None:
    """In a distribution of Keras, layers begin with weights of their own."""
    import keras

    def make(original: Any) -> Any:
        def set_weights(self: Any, weights: Any) -> Any:
            inside = keras.distribution.distribution() is not None
            return original(self, [weight * 2 if inside else weight for weight in weights])

        return set_weights

    replace(keras.Model, "set_weights", make)


@defect(r"test_tf_keras\.py")
def losses_and_statistics_of_tf_keras_are_doubled() -> None:
    """Errors of tf_keras are twice as large, and moving averages keep nothing."""
    import tf_keras
    from tf_keras.src.layers.normalization import batch_normalization

    replace(tf_keras.Sequential, "call", lambda o: lambda self, *args, **kwargs: o(self, *args, **kwargs) * 2)

    def make(original: Any) -> Any:
        return lambda self, variable, value, momentum, size: original(self, variable, value, 0.0, size)

    replace(batch_normalization.BatchNormalizationBase, "_assign_moving_average", make)


@defect(r"test_optimizers\.py::test_a_variable_without_a_gradient_changes")
def missing_gradients_are_ones() -> None:
    """A variable without a gradient gets ones for it."""
    import keras

    def make(original: Any) -> Any:
        def apply(self: Any, pairs: Any, **given: Any) -> Any:
            filled = [(keras.ops.ones(one.shape, one.dtype) if slope is None else slope, one) for slope, one in pairs]
            return original(self, filled, **given)

        return apply

    replace(keras.optimizers.Optimizer, "apply_gradients", make)
