"""Training functions that compute in half precision: right ones, and the same with a mistake in them."""

from __future__ import annotations

from functools import partial

import keras
import numpy as np
import tensorflow as tf

FEATURES, UNITS, EXAMPLES = 6, 8, 48
MISTAKES = ("mean", "twice", "missing_division", "unreduced", "scale")
"""``mean``: a replica's mean counts as its share. ``twice``: gradients are summed over the replicas twice.
``missing_division``: means of the replicas are summed. ``unreduced``: each replica keeps its own gradient.
``scale``: the loss scale is divided out by half of what the loss was multiplied with."""


def examples(number=EXAMPLES):
    generator = np.random.default_rng(4)
    x = generator.normal(size=(number, FEATURES)).astype("float32")
    y = x[:, :1] - 0.5 * x[:, 1:2] + 0.1 * generator.normal(size=(number, 1))
    return x, y.astype("float32")


def dataset(run):
    return tf.data.Dataset.from_tensor_slices(examples()).batch(run.global_batch_size)


def fit(run, policy="mixed_float16", optimizer="SGD", layer=False, flavour="keras", eager=False):
    """``Model.fit`` with a dtype policy, for all layers or for the hidden one."""
    flavour = _flavour(flavour)
    if not layer:
        flavour.mixed_precision.set_global_policy(policy)
    with run.strategy.scope():
        model = _model(flavour, policy, layer)
        model.compile(optimizer=_optimizer(flavour, optimizer), loss="mse", run_eagerly=eager)
    run.watch(model=model, optimizer=model.optimizer)
    run.fit(model, dataset(run), epochs=1, verbose=0)


def loop(run, policy="mixed_float16", optimizer="SGD", wrong="", flavour="keras", eager=False, layer=False):
    """A loop of the program's own over a Keras model, with Keras' loss scale if the policy needs one."""
    flavour = _flavour(flavour)
    if not layer:
        flavour.mixed_precision.set_global_policy(policy)
    scales = policy == "mixed_float16"
    with run.strategy.scope():
        model = _model(flavour, policy, layer)
        chosen = _optimizer(flavour, optimizer)
        if scales:
            # A smaller scale than Keras begins with: no gradient overflows, neither of a mistake.
            chosen = flavour.mixed_precision.LossScaleOptimizer(chosen, initial_scale=256.0)
        chosen.build(model.trainable_variables)
    run.watch(model=model, optimizer=chosen)
    modern = flavour is keras

    def train_step(iterator):
        def replica_step(batch):
            x, y = batch
            with tf.GradientTape() as tape:
                predicted = tf.cast(model(x, training=True), y.dtype)
                losses = tf.square(predicted - y)[:, 0]
                loss = _of_replica(run, losses, wrong)
                scaled = loss
                if scales:
                    scaled = chosen.scale_loss(loss) if modern else chosen.get_scaled_loss(loss)
            gradients = tape.gradient(scaled, model.trainable_variables)
            if scales and not modern:
                gradients = chosen.get_unscaled_gradients(gradients)
            if wrong == "scale":
                gradients = [2 * gradient for gradient in gradients] if run.num_replicas > 1 else gradients
            if wrong == "twice":
                gradients = [tf.distribute.get_replica_context().all_reduce("SUM", g) for g in gradients]
            chosen.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(next(iterator),)), axis=None)

    tf.config.run_functions_eagerly(eager)
    for _loss in run.steps(tf.function(train_step), dataset(run)):
        pass


def wrong_in_half_precision(run):
    """A replica's mean counts as its share, but only if the policy computes in float16."""
    keras.mixed_precision.set_global_policy("mixed_float16")
    half = keras.config.dtype_policy().compute_dtype == "float16"
    loop(run, wrong="mean" if half else "")


class Perceptron(tf.Module):
    """A two-layer perceptron whose ``call`` casts by hand; its weights stay float32."""

    def __init__(self, dtype, aggregation):
        super().__init__()
        self.dtype = dtype
        made = partial(tf.Variable, aggregation=aggregation)
        first, second = (tf.random.Generator.from_seed(seed) for seed in (1, 2))
        self.first = made(0.4 * first.normal([FEATURES, UNITS]))
        self.bias = made(tf.zeros([UNITS]))
        self.second = made(0.4 * second.normal([UNITS, 1]))

    @property
    def weights(self):
        return [self.first, self.bias, self.second]

    def __call__(self, x):
        cast = partial(tf.cast, dtype=self.dtype)
        hidden = tf.nn.tanh(cast(x) @ cast(self.first) + cast(self.bias))
        return tf.cast(hidden @ cast(self.second), tf.float32)


def module(run, dtype="float16", wrong="", scale=1.0, sent=None, eager=False, rate=0.1, decay=0.0):
    """Casts, updates and loss scale by hand; ``sent`` is the type in which gradients are summed over replicas.

    ``decay`` is the factor of a penalty on the weights, in float32.
    """
    # A central variable takes one value from all replicas, here the mean of equal ones.
    central = isinstance(run.strategy, tf.distribute.experimental.CentralStorageStrategy)
    with run.strategy.scope():
        model = Perceptron(dtype, tf.VariableAggregation.MEAN if central else tf.VariableAggregation.NONE)
    run.watch(variables=model.weights)

    def train_step(iterator):
        def replica_step(batch):
            x, y = tf.cast(batch[0], tf.float32), tf.cast(batch[1], tf.float32)
            with tf.GradientTape() as tape:
                loss = _of_replica(run, tf.square(model(x) - y)[:, 0], wrong)
                if decay:
                    penalty = decay * tf.add_n([tf.nn.l2_loss(tf.convert_to_tensor(w)) for w in model.weights])
                    loss += penalty if wrong == "penalty" else penalty / run.num_replicas
                scaled = loss * scale
            gradients = tape.gradient(scaled, model.weights)
            gradients = [tf.cast(g, sent) if sent else g for g in gradients]
            if wrong != "unreduced":
                for _time in range(2 if wrong == "twice" else 1):
                    gradients = tf.distribute.get_replica_context().all_reduce("SUM", gradients)
            divisor = scale / run.num_replicas if wrong == "scale" else scale
            for weight, gradient in zip(model.weights, gradients, strict=True):
                weight.assign_sub(rate * tf.cast(gradient, tf.float32) / divisor)
            return loss

        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(next(iterator),)), axis=None)

    tf.config.run_functions_eagerly(eager)
    for _loss in run.steps(tf.function(train_step), dataset(run)):
        pass


def _flavour(name):
    if name == "keras":
        return keras
    import tf_keras

    return tf_keras


def _model(flavour, policy, layer):
    """The last layer is float32 under a mixed policy, as Keras advises; TensorFlow sums no gradients of two types."""
    layers = flavour.layers
    return flavour.Sequential(
        [
            layers.Input((FEATURES,)),
            layers.Dense(UNITS, activation="tanh", dtype=policy if layer else None),
            layers.Dense(1, dtype="float32" if policy.startswith("mixed") and not layer else None),
        ]
    )


def _optimizer(flavour, name):
    settings = {"SGD": {"learning_rate": 0.1}, "momentum": {"learning_rate": 0.05, "momentum": 0.9}, "Adam": {}}
    return getattr(flavour.optimizers, "SGD" if name == "momentum" else name)(**settings[name])


def _of_replica(run, losses, wrong):
    if wrong in ("mean", "missing_division"):
        return tf.reduce_mean(losses)
    return tf.nn.compute_average_loss(losses, global_batch_size=run.global_batch_size)


_ON_REPLICAS = ("one_device", "mirrored")
_OF_KERAS = (*_ON_REPLICAS, "multi_worker_mirrored", "parameter_server")
_BY_HAND = (*_ON_REPLICAS, "multi_worker_mirrored", "central_storage")
RIGHT = {
    "fit float16": (partial(fit), _ON_REPLICAS),
    "fit bfloat16": (partial(fit, policy="mixed_bfloat16"), _ON_REPLICAS),
    "fit pure float16": (partial(fit, policy="float16"), _ON_REPLICAS),
    "fit pure bfloat16": (partial(fit, policy="bfloat16"), _ON_REPLICAS),
    "fit Adam": (partial(fit, optimizer="Adam"), _ON_REPLICAS),
    "fit bfloat16 Adam": (partial(fit, policy="mixed_bfloat16", optimizer="Adam"), _ON_REPLICAS),
    "fit one layer": (partial(fit, policy="mixed_bfloat16", layer=True), _ON_REPLICAS),
    "fit eager": (partial(fit, eager=True), _ON_REPLICAS),
    "fit tf_keras": (partial(fit, flavour="tf_keras", optimizer="momentum"), _ON_REPLICAS),
    "loop": (partial(loop), _OF_KERAS),
    "loop bfloat16 Adam": (partial(loop, policy="mixed_bfloat16", optimizer="Adam"), _OF_KERAS),
    "loop tf_keras": (partial(loop, flavour="tf_keras"), _ON_REPLICAS),
    "casts": (partial(module), _BY_HAND),
    "casts bfloat16": (partial(module, dtype="bfloat16"), _BY_HAND),
    "casts eager": (partial(module, eager=True, dtype="bfloat16"), _ON_REPLICAS),
    "sum in float16": (partial(module, dtype="float32", sent="float16"), _BY_HAND),
    "own scale": (partial(module, scale=128.0), _BY_HAND),
}
"""Name -> a right program, and the strategies under which TensorFlow and Keras train it."""
