"""``ddl_fit``: a project with a compiled model and its data is compared without a training function."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.slow

PROJECT = """
    import keras, numpy as np, pytest, tensorflow as tf

    x = np.random.default_rng(0).normal(size=(96, 4)).astype("float32")
    y = (x[:, :1] > 0).astype("float32")

    def build():
        layers = [keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1, activation="sigmoid")]
        model = keras.Sequential([keras.Input((4,)), *layers])
        model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["accuracy"])
        return model

    def data():
        return x, y

    class Slower(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.model.optimizer.learning_rate = 0.01 / (epoch + 1)
"""

RIGHT = """
    def of_two_inputs():
        first, second = keras.Input((4,), name="first"), keras.Input((4,), name="second")
        output = keras.layers.Dense(1)(keras.layers.Concatenate()([first, second]))
        model = keras.Model({"first": first, "second": second}, output)
        model.compile(keras.optimizers.SGD(0.1), "mse")
        return model

    def of_tf_keras():
        import tf_keras
        model = tf_keras.Sequential([tf_keras.layers.InputLayer((4,)), tf_keras.layers.Dense(1)])
        model.compile(tf_keras.optimizers.SGD(0.1), "mse")
        return model

    def weighted():
        return {"x": {"first": x, "second": x}, "y": y, "sample_weight": np.linspace(0.5, 1, 96).astype("float32")}

    def in_batches():
        return tf.data.Dataset.from_tensor_slices((x, y)).batch(12)

    def test_all_arguments_of_fit(ddl_fit):
        weights = {0: 1.0, 1: 2.0}
        given = {"callbacks": lambda: [Slower()], "validation_data": data, "class_weight": weights}
        report = ddl_fit(build, data, batch_size=12, epochs=2, steps=None, **given)
        assert report.passed and report.distributed.num_steps == 16
        assert {"val_loss", "val_accuracy"} <= report.distributed.ranks[0].results["fit"].keys()

    def test_two_inputs_and_weights_of_examples(ddl_fit):
        assert ddl_fit(of_two_inputs, weighted, batch_size=12).passed

    def test_a_dataset_and_an_object_as_callback(ddl_fit):
        report = ddl_fit(build, in_batches, callbacks=[Slower()], checks=["STEP-EQ"])
        assert report.passed and report.distributed.num_steps == 8

    def test_arrays_and_a_split(ddl_fit):
        assert ddl_fit(build, (x, y), batch_size=12, validation_split=0.25).passed

    def build_and_data():
        return build(), {"x": x, "y": y, "batch_size": 12}

    def test_one_function(ddl_fit):
        report = ddl_fit(build_and_data, epochs=3)
        assert report.passed and report.distributed.num_steps == 8

    def test_tf_keras(ddl_fit):
        assert ddl_fit(of_tf_keras, data, batch_size=12).passed
"""

WRONG = """
    class Doubled(keras.Sequential):
        def train_step(self, data):
            inputs, targets = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(inputs, training=True) - targets))
            self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
            return {"loss": loss}

    def build_doubled():
        model = Doubled([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1))
        return model

    def build_without_compile():
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])

    def test_a_mistake(ddl_fit):
        ddl_fit(build_doubled, data, batch_size=12)

    def test_no_compile(ddl_fit):
        ddl_fit(build_without_compile, data, batch_size=12)

    def test_no_data(ddl_fit):
        ddl_fit(build)

    def test_a_typing_mistake(ddl_fit):
        ddl_fit(build, data, batchsize=12)

    def test_four_values(ddl_fit):
        ddl_fit(build, (x, y, y, y), batch_size=12)

    def test_nothing_is_compared(ddl_fit):
        pass
"""


def run(pytester: pytest.Pytester, tests: str) -> pytest.RunResult:
    pytester.makepyfile(test_project=PROJECT + tests)
    pytester.makeini("[pytest]\n")
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", "--ddl-strategy=mirrored", timeout=300)


def test_right_projects_pass(pytester: pytest.Pytester) -> None:
    run(pytester, RIGHT).assert_outcomes(passed=6)


def test_mistakes_are_found_and_named(pytester: pytest.Pytester) -> None:
    result = run(pytester, WRONG)
    result.assert_outcomes(failed=6)
    for line in (
        "*DivergenceError: gradient-scaled-by-replica-count: *",
        "*build_without_compile() must return a compiled Keras model, but it returned a Sequential without*",
        "*build() must return a compiled Keras model and its data: `return model, (x, y)`*",
        "*ddl_fit() has no argument 'batchsize' (did you mean 'batch_size'?)*",
        "*data must be x, (x, y) or (x, y, sample_weight), and not 4 values*",
        "*the test asked for ddl_fit and never called it, so nothing was compared*",
    ):
        result.stdout.fnmatch_lines([line])
