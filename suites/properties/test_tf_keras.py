"""Check what only tf_keras has: exact evaluation with parameter servers, an evaluator beside, and renormalization."""

from __future__ import annotations

import numpy as np
import pytest

from suites.linear import COPY_WARNING, linear
from suites.models.linear import START, data, losses
from suites.properties.layers import BOUND, by_replica, check, rows
from suites.properties.test_callbacks import recorder
from suites.running import SIZES, replicas_of

pytestmark = [pytest.mark.usefixtures("float64"), pytest.mark.filterwarnings(COPY_WARNING)]
# TensorFlow warns about its own use of options when a worker gets a distributed dataset.
OPTIONS = pytest.mark.filterwarnings("ignore:To make it possible to preserve tf.data options:UserWarning")

SERVERS = "parameter_server"
GIVEN = data(29).unweighted
"""No batch and no number of shards divides it."""


def dataset(given, size):
    import tensorflow as tf

    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return tf.data.Dataset.from_tensor_slices((given.x, given.y)).batch(size).with_options(options)


def errors(weights):
    return np.abs(GIVEN.x @ weights - GIVEN.y).mean()


@OPTIONS
@pytest.mark.ddl(strategies=SERVERS, keras="tf_keras", timeout=100)
@pytest.mark.ddl_item("fit.evaluate.ps_exact", "callback.validation_callbacks_under_PS")
@pytest.mark.parametrize("shards", ["auto", 3])
def test_evaluation_visits_each_example_once(shards, ddl_strategy):
    """The workers share the shards, and the coordinator adds their sums: what counts twice or not at all would show.

    Nothing is learned, so that the validation after each epoch is that of the first weights.
    """
    from tensorflow import keras

    calls = []

    class Recorder(keras.callbacks.Callback):
        def on_test_begin(self, logs=None):
            calls.append("begin")

        def on_test_end(self, logs=None):
            calls.append("end")

        def on_epoch_end(self, epoch, logs=None):
            calls.append(float(logs["val_loss"]))

    model = linear(ddl_strategy, rate=0.0, metrics=["mae", "mse"], pss_evaluation_shards=shards)
    arguments = {"epochs": 2, "steps_per_epoch": 3, "validation_data": dataset(GIVEN, 2), "verbose": 0}
    history = model.fit(dataset(GIVEN, 6).repeat(), callbacks=[Recorder()], **arguments).history
    mean = losses(START, GIVEN).mean()
    expected = {"loss": mean, "mae": errors(START), "mse": mean}
    for name, value in expected.items():
        np.testing.assert_allclose(history[f"val_{name}"], [value] * 2, rtol=1e-12)
    assert calls == ["begin", "end", *history["val_loss"][:1], "begin", "end", *history["val_loss"][1:]]
    for size in (2, 3):
        found = model.evaluate(dataset(GIVEN, size), verbose=0, return_dict=True)
        for name, value in expected.items():
            assert float(found[name]) == pytest.approx(value, rel=1e-12)


@OPTIONS
@pytest.mark.ddl(strategies=SERVERS, keras="tf_keras", timeout=100)
@pytest.mark.ddl_item("fit.evaluate.ps_exact")
def test_evaluation_before_training(ddl_strategy):
    model = linear(ddl_strategy, metrics=["mae"], pss_evaluation_shards="auto")
    found = model.evaluate(dataset(GIVEN, 4), verbose=0, return_dict=True)
    assert found == pytest.approx({"loss": losses(START, GIVEN).mean(), "mae": errors(START)}, rel=1e-12)


@OPTIONS
@pytest.mark.ddl(strategies=SERVERS, keras="tf_keras", timeout=100)
@pytest.mark.ddl_item("callback.validation_callbacks_under_PS", shows="behavior")
def test_callbacks_for_batches_are_refused(ddl_strategy):
    """A coordinator does not wait for batches. The error says so, and names the callback."""
    from tensorflow import keras

    model = linear(ddl_strategy)
    with pytest.raises(ValueError, match=r"Batch-level .* not supported with `ParameterServerStrategy`.*Recorder"):
        model.evaluate(dataset(GIVEN, 4), steps=2, callbacks=[recorder(keras)], verbose=0)


@pytest.mark.ddl(strategies=["one_device", "mirrored[replicas=3]"], keras="tf_keras", timeout=100)
@pytest.mark.ddl_item("fit.sidecar")
def test_an_evaluator_beside_takes_each_checkpoint(ddl_strategy, tmp_path):
    """The training writes the next checkpoint when the evaluator is done with the last one."""
    import tensorflow as tf
    from tensorflow import keras

    trained, model = linear(ddl_strategy), linear(ddl_strategy, metrics=["mae"])
    manager = tf.train.CheckpointManager(
        tf.train.Checkpoint(model=trained, optimizer=trained.optimizer), str(tmp_path), 5
    )

    def save(number):
        with ddl_strategy.scope():
            trained.set_weights([START * number])
            trained.optimizer.iterations.assign(10 * number)
        manager.save()

    found = []

    class Next(keras.callbacks.Callback):
        def on_test_end(self, logs=None):
            found.append((int(model.optimizer.iterations.numpy()), dict(logs)))
            if len(found) < 3:
                save(len(found) + 1)

    save(1)
    keras.utils.SidecarEvaluator(model, dataset(GIVEN, 4), str(tmp_path), max_evaluations=3, callbacks=[Next()]).start()
    assert [steps for steps, _ in found] == [10, 20, 30]
    for number, (_, logs) in enumerate(found, 1):
        expected = {"loss": losses(START * number, GIVEN).mean(), "mae": errors(START * number)}
        assert logs == pytest.approx(expected, rel=1e-12)


FEATURES = 4
BOUNDS = {"float64": BOUND, "float32": {"rtol": 1e-4, "atol": 1e-5}}
"""Some hundred operations with numbers below 10; a root of a small variance makes an error ten times larger."""


class Renormalized:
    """NumPy model of one replica's renormalization (Ioffe, 2017), with tf_keras' epsilon in all deviations."""

    epsilon, momentum, renorm_momentum = 1e-3, 0.75, 0.5
    clipping = {"rmin": 0.5, "rmax": 2.0, "dmax": 0.75}  # noqa: RUF012

    def __init__(self):
        self.mean, self.renorm_mean = np.zeros(FEATURES), np.zeros(FEATURES)
        self.deviation, self.renorm_deviation = np.ones(FEATURES), np.ones(FEATURES)

    def train(self, x):
        mean, deviation = x.mean(axis=0), np.sqrt(x.var(axis=0) + self.epsilon)
        r = np.clip(deviation / self.renorm_deviation, self.clipping["rmin"], self.clipping["rmax"])
        d = (mean - self.renorm_mean) / self.renorm_deviation
        found = (x - mean) / deviation * r + np.clip(d, -self.clipping["dmax"], self.clipping["dmax"])

        def moved(old, new, momentum):
            return momentum * old + (1 - momentum) * new

        self.renorm_mean = moved(self.renorm_mean, mean, self.renorm_momentum)
        self.renorm_deviation = moved(self.renorm_deviation, deviation, self.renorm_momentum)
        self.mean = moved(self.mean, mean, self.momentum)
        self.deviation = moved(self.deviation, deviation, self.momentum)
        return found

    @property
    def variance(self):
        return self.deviation**2 - self.epsilon


@pytest.mark.ddl(strategies=["one_device", "mirrored[replicas=3]", "multi_worker_mirrored"], keras="tf_keras")
@pytest.mark.ddl_item("layer.BatchNormalization_renorm")
@pytest.mark.parametrize("dtype", BOUNDS)
def test_each_replica_renormalizes_by_its_own_past(dtype, ddl_strategy):
    """The caller reads, and so saves, the mean of the replicas' values."""
    import tensorflow as tf

    with ddl_strategy.scope():
        made = tf.compat.v1.keras.layers.BatchNormalization(
            dtype=dtype,
            momentum=Renormalized.momentum,
            renorm=True,
            renorm_clipping=Renormalized.clipping,
            renorm_momentum=Renormalized.renorm_momentum,
        )
        made.build((None, FEATURES))
    models = [Renormalized() for _ in range(replicas_of(ddl_strategy))]
    step = by_replica(ddl_strategy, lambda x: made(x, training=True))
    for number in range(len(SIZES)):
        sizes = [size + 1 for size in SIZES[number][: len(models)]]
        parts = [part.astype(dtype) for part in rows(sizes, FEATURES, seed=number)]
        expected = [model.train(part.astype("float64")) for model, part in zip(models, parts, strict=True)]
        check(step([(part,) for part in parts]), expected, BOUNDS[dtype])
        for name, variable in (
            ("mean", made.moving_mean),
            ("renorm_mean", made.renorm_mean),
            ("renorm_deviation", made.renorm_stddev),
            ("variance", made.moving_variance),
        ):
            expected = np.mean([getattr(model, name) for model in models], axis=0)
            np.testing.assert_allclose(variable.numpy(), expected, **BOUNDS[dtype], err_msg=name)
