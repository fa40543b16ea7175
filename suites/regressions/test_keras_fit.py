"""Defects of Keras 3 in ``fit`` and ``evaluate``."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

pytestmark = pytest.mark.filterwarnings("ignore")
"""Old versions warn about what newer packages changed, which is not what a test here is about."""

RATE = 0.5


def counting_model(strategy, **arguments):
    """Return a compiled model whose weight goes down by 1 in each step.

    Lion moves by the sign of the gradient, so that a gradient that is scaled by the number of replicas, which some
    versions had, does not matter here.
    """
    import keras

    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
        model.compile(keras.optimizers.Lion(1.0), loss=lambda labels, predicted: predicted[:, 0], **arguments)
        # In the first step it could not make its variables if there is a loop or XLA, which is another defect.
        model.optimizer.build(model.trainable_variables)
    return model


def check_steps(model, number):
    np.testing.assert_array_equal(np.ravel(model.get_weights()[0]), [-number], err_msg="weight after all steps")
    assert int(model.optimizer.iterations.numpy()) == number, "number of steps"


@pytest.mark.ddl_regression("9")
@pytest.mark.ddl_item("fit.reduction_method")
@pytest.mark.ddl(strategies="mirrored")
@pytest.mark.parametrize("method", ["auto", "sum"])
def test_9_the_reduction_method_is_used(method, ddl_strategy):
    """Let each replica return the sum of its part: ``auto`` gives the mean over replicas, and ``sum`` their sum."""
    import keras

    class Model(keras.Model):
        def call(self, inputs):
            return inputs

        def train_step(self, data):
            return {"found": keras.ops.sum(data[0])}

    with ddl_strategy.scope():
        model = Model()
        model.compile()
    if method == "auto":
        assert model.distribute_reduction_method == "auto"
    else:
        model.distribute_reduction_method = method
    inputs = np.float32([[1], [2], [3], [10]])
    found = model.fit(inputs, inputs, batch_size=4, verbose=0).history["found"][0]
    expected = inputs.sum() / (ddl_strategy.num_replicas_in_sync if method == "auto" else 1)
    np.testing.assert_array_equal(found, expected, err_msg=f"{method} of the replicas")


@pytest.mark.ddl_regression("12")
@pytest.mark.ddl_item("fit.fit.strings")
@pytest.mark.ddl(strategies="mirrored")
def test_12_strings_are_features(ddl_strategy):
    """The weight of each word goes up by the rate of Lion, which moves by the sign of the gradient.

    Each replica has each word, because Keras 3.4 did not add up the gradients, which is another defect.
    """
    import keras
    import tensorflow as tf

    with ddl_strategy.scope():
        words = keras.Input((1,), dtype="string")
        encoded = keras.layers.StringLookup(vocabulary=["a", "b"], output_mode="multi_hot")(words)
        outputs = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")(encoded)
        model = keras.Model(words, outputs)
        model.compile(keras.optimizers.Lion(RATE), "mse")
    labels = np.float32([[1], [2], [3], [10], [6], [5]])
    data = tf.data.Dataset.from_tensor_slices(([["a"], ["b"], ["c"], ["b"], ["c"], ["a"]], labels)).batch(6)
    model.fit(data, verbose=0)
    np.testing.assert_array_equal(np.ravel(model.get_weights()[0]), [RATE] * 3, err_msg="weights of words")


@pytest.mark.ddl_regression("19")
@pytest.mark.ddl_item("fit.fit.steps_per_execution")
@pytest.mark.ddl(strategies="one_device")
def test_19_an_execution_may_have_33_steps(ddl_strategy):
    """The last execution has fewer steps. Several replicas cannot train in the loop of an execution at all."""
    model = counting_model(ddl_strategy, steps_per_execution=33)
    ones = np.ones((2 * 38, 1), np.float32)
    model.fit(ones, ones, batch_size=2, verbose=0)
    check_steps(model, 38)


@pytest.mark.ddl_regression("22")
@pytest.mark.ddl_item("fit.evaluate.uneven")
@pytest.mark.ddl(strategies="one_device")
def test_22_evaluate_counts_batches_of_a_fixed_size(ddl_strategy):
    """Several replicas would add the other defects that metrics had until Keras 3.9."""
    import keras
    import tensorflow as tf

    batches = np.float32([[[1], [2], [3], [4]], [[5], [6], [7], [18]]])
    with ddl_strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Rescaling(2.0)])
        model.compile(loss="mse", metrics=["mae"])
    spec = tf.TensorSpec((4, 1), tf.float32)
    data = tf.data.Dataset.from_generator(lambda: ((one, 0 * one) for one in batches), output_signature=(spec, spec))
    loss, error = model.evaluate(data, verbose=0)
    expected = [np.mean((2 * batches) ** 2), np.mean(2 * batches)]
    np.testing.assert_allclose([loss, error], expected, rtol=1e-6, err_msg="loss and error of all batches")


@pytest.mark.ddl_regression("29")
@pytest.mark.ddl_item("callback.BackupAndRestore")
@pytest.mark.ddl(strategies="mirrored")
def test_29_an_interrupted_backup_leaves_the_one_before(ddl_strategy, tmp_path):
    """Cut the file of the third epoch in half, as a process leaves it that is killed while it writes."""
    import keras

    kind = keras.callbacks.BackupAndRestore
    double = {"double_checkpoint": True} if "double_checkpoint" in inspect.signature(kind).parameters else {}
    ones, began = np.ones((4, 1), np.float32), []

    class Killed(Exception):  # noqa: N818
        pass

    class Kill(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 2:
                (path,) = tmp_path.rglob("*.weights.h5")
                path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
                raise Killed

    def train(*callbacks):
        model = counting_model(ddl_strategy)
        backup = kind(str(tmp_path / "backup"), **double)
        callbacks = [backup, *callbacks, keras.callbacks.LambdaCallback(on_epoch_begin=lambda e, logs: began.append(e))]
        with ddl_strategy.scope():  # in which Keras 3.3 must restore
            model.fit(ones, ones, batch_size=2, epochs=4, verbose=0, callbacks=callbacks)
        return model

    with pytest.raises(Killed):
        train(Kill())
    check_steps(train(), 8)
    assert began == [0, 1, 2, 2, 3]


def fit_without_the_first_input(strategy):
    """The weight goes up by the mean of products of inputs and labels."""
    import keras

    if "optional" not in inspect.signature(keras.Input).parameters:
        pytest.skip("Keras 3.3 has no optional inputs")

    class Sum(keras.layers.Layer):
        def call(self, first, second):
            return second if first is None else first + second

        def compute_output_shape(self, first_shape, second_shape):
            return second_shape

    with strategy.scope():
        first, second = keras.Input((1,), name="a", optional=True), keras.Input((1,), name="b")
        dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
        model = keras.Model({"a": first, "b": second}, dense(Sum()(first, second)))
        model.compile(keras.optimizers.SGD(RATE), "mse")
    inputs, labels = np.float32([[1], [2], [3], [10]]), np.float32([[4], [3], [2], [1]])
    model.fit({"a": None, "b": inputs}, labels, batch_size=4, verbose=0)
    expected = RATE * 2 * np.mean(inputs * labels)
    np.testing.assert_allclose(np.ravel(model.get_weights()[0]), [expected], rtol=1e-6, err_msg="weight")


@pytest.mark.ddl_regression("30")
@pytest.mark.ddl_item("fit.fit.numpy")
@pytest.mark.ddl(strategies="one_device")
def test_30_the_first_input_may_be_none(ddl_strategy):
    fit_without_the_first_input(ddl_strategy)


@pytest.mark.ddl_regression("30b")
@pytest.mark.ddl_item("fit.fit.numpy")
@pytest.mark.ddl(strategies="mirrored")
def test_30b_the_first_input_may_be_none_on_replicas(ddl_strategy):
    fit_without_the_first_input(ddl_strategy)


@pytest.mark.ddl_regression("36")
@pytest.mark.ddl_item("fit.fit.jit")
@pytest.mark.ddl(strategies="mirrored")
def test_36_steps_are_compiled_with_xla(ddl_strategy):
    model = counting_model(ddl_strategy, jit_compile=True)
    ones = np.ones((6, 1), np.float32)
    model.fit(ones, ones, batch_size=2, verbose=0)
    check_steps(model, 3)
