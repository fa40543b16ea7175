"""Check options of compile and fit, and models with a step of their own: in closed form for linear models."""

from __future__ import annotations

import contextlib
import io
import re

import numpy as np
import pytest

from suites import subject
from suites.linear import COPY_WARNING, check_weights, linear, numbers, one_layer
from suites.models.linear import BOUND, FEATURES, OUTPUTS, START, Data, data, gradient, losses, train
from suites.running import components

pytestmark = [pytest.mark.usefixtures("float64"), pytest.mark.filterwarnings(COPY_WARNING)]

KERAS_3 = ["one_device", "mirrored"]
BATCH, RATE = 6, 0.125
TRAIN, VALIDATION = data(4 * BATCH).unweighted, data(2 * BATCH, seed=1).unweighted
BATCHES = list(TRAIN.batches(BATCH))
GIVEN = {"batch_size": BATCH, "shuffle": False, "verbose": 0}


def dataset(given):
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices((given.x, given.y)).batch(BATCH)


@pytest.mark.ddl(strategies=KERAS_3)
@pytest.mark.ddl_item("fit.fit.steps_per_epoch")
def test_epochs_of_some_steps_go_on_in_the_data(ddl_strategy):
    """Three steps are an epoch, and four batches are the data. The validation takes one batch, each second epoch."""
    model = linear(ddl_strategy, rate=RATE)
    history = model.fit(
        dataset(TRAIN).repeat(),
        epochs=4,
        initial_epoch=1,
        steps_per_epoch=3,
        validation_data=dataset(VALIDATION),
        validation_steps=1,
        validation_freq=2,
        shuffle=False,
        verbose=0,
    )
    assert history.epoch == [1, 2, 3]
    weights, means, validation = START, [], []
    for epoch in range(3):
        batches = [BATCHES[(3 * epoch + step) % 4] for step in range(3)]
        trained = train(batches, [RATE], start=weights, validation=VALIDATION[:BATCH])
        weights = trained.weights
        means += trained.loss
        validation += trained.validation if epoch % 2 == 0 else []
    np.testing.assert_allclose(history.history["loss"], means, rtol=1e-12)
    np.testing.assert_allclose(history.history["val_loss"], validation, rtol=1e-12)
    check_weights(ddl_strategy, model, weights)


@pytest.mark.ddl(strategies=KERAS_3)
@pytest.mark.ddl_item("fit.fit.steps_per_epoch", "fit.fit.validation")
def test_the_last_examples_are_for_validation(ddl_strategy):
    model = linear(ddl_strategy, rate=RATE)
    history = model.fit(TRAIN.x, TRAIN.y, epochs=2, validation_split=0.25, **GIVEN).history
    trained = train(BATCHES[:3], [RATE] * 2, validation=BATCHES[3])
    np.testing.assert_allclose(history["loss"], trained.loss, rtol=1e-12)
    np.testing.assert_allclose(history["val_loss"], trained.validation, rtol=1e-12)
    check_weights(ddl_strategy, model, trained.weights)


@pytest.mark.ddl(strategies=KERAS_3)
@pytest.mark.ddl_item("fit.fit.shuffle", shows="parity")
def test_examples_are_shuffled_as_on_one_device(ddl_strategy):
    """The losses of the batches and the weights depend on the order. It is not that of the data."""
    import tensorflow as tf

    from suites.subject import keras

    found = []
    for strategy in (ddl_strategy, tf.distribute.OneDeviceStrategy("CPU:0")):
        keras.utils.set_random_seed(3)
        model = linear(strategy, rate=RATE)
        history = model.fit(TRAIN.x, TRAIN.y, batch_size=BATCH, epochs=2, verbose=0).history
        found.append((history["loss"], model.get_weights()[0]))
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-12)
    np.testing.assert_allclose(found[0][1], found[1][1], **BOUND)
    assert not np.allclose(found[0][1], train(BATCHES, [RATE] * 2).weights)


@pytest.mark.ddl(strategies=KERAS_3)
@pytest.mark.ddl_item("fit.fit.jit")
@pytest.mark.parametrize("jit", ["auto", True])
def test_compiled_steps_train_alike(jit, ddl_strategy):
    """Keras does not compile under a strategy if jit_compile is "auto"."""
    model = linear(ddl_strategy, rate=RATE, jit_compile=jit)
    assert model.jit_compile is (jit is True)
    model.fit(TRAIN.x, TRAIN.y, **GIVEN)
    check_weights(ddl_strategy, model, train(BATCHES, [RATE]).weights)


@pytest.mark.ddl(strategies=KERAS_3)
@pytest.mark.ddl_item("fit.multi_output", "fit.compute_loss")
def test_losses_of_outputs_are_weighted(ddl_strategy):
    """Two layers on one input have losses of their own; one has a regularizer, which counts once."""

    def two_layers(keras):
        inputs = keras.Input((FEATURES,))
        layer = keras.layers.Dense(
            OUTPUTS, use_bias=False, name="linear", kernel_regularizer=keras.regularizers.L2(0.5)
        )
        other = keras.layers.Dense(1, use_bias=False, name="other", kernel_initializer="ones")
        model = keras.Model(inputs, {"linear": layer(inputs), "other": other(inputs)})
        layer.set_weights([START])
        return model

    model = linear(
        ddl_strategy,
        two_layers,
        rate=RATE,
        loss={"linear": "mse", "other": "mse"},
        loss_weights={"linear": 0.5, "other": 2.0},
    )
    sums = TRAIN.x.sum(axis=1, keepdims=True)
    labels = {"linear": TRAIN.y, "other": np.zeros_like(sums)}
    history = model.fit(TRAIN.x, labels, **GIVEN | {"batch_size": len(TRAIN)}).history
    penalty = 0.5 * (START**2).sum()
    expected = 0.5 * losses(START, TRAIN).mean() + 2 * (sums**2).mean() + penalty
    assert history["loss"] == [pytest.approx(expected, rel=1e-12)]
    check_weights(ddl_strategy, model, START - RATE * (0.5 * gradient(START, TRAIN) + START))
    for part in components(ddl_strategy, model.get_layer("other").kernel):
        np.testing.assert_allclose(part, 1 - RATE * 4 * TRAIN.x.T @ sums / len(TRAIN), **BOUND)


@pytest.mark.ddl(strategies=KERAS_3)
@pytest.mark.ddl_item("layer.frozen_layers_trainable_toggled_between_")
def test_a_frozen_layer_keeps_its_weights_until_it_is_trained(ddl_strategy):
    """The step of each compile has the layers that were trainable then."""

    def two_layers(keras):
        first = keras.layers.Dense(FEATURES, use_bias=False, kernel_initializer="identity", name="first")
        return keras.Sequential([keras.Input((FEATURES,)), first, one_layer(keras)])

    model = linear(ddl_strategy, two_layers, rate=RATE)
    inner = model.layers[1].get_layer("linear")
    first, second = np.eye(FEATURES), START
    for trainable in (False, True):
        with ddl_strategy.scope():
            model.get_layer("first").trainable = trainable
            model.compile(type(model.optimizer)(RATE), "mse", jit_compile=False)
        model.fit(TRAIN.x, TRAIN.y, **GIVEN | {"batch_size": len(TRAIN)})
        hidden = Data(TRAIN.x @ first, TRAIN.y, TRAIN.weight)
        errors = 2 / OUTPUTS / len(TRAIN) * (hidden.x @ second - TRAIN.y)
        change = TRAIN.x.T @ errors @ second.T if trainable else 0.0
        first, second = first - RATE * change, second - RATE * gradient(second, hidden)
        for variable, expected in ((model.get_layer("first").kernel, first), (inner.kernel, second)):
            for part in components(ddl_strategy, variable):
                np.testing.assert_allclose(part, expected, **BOUND)


def own_step(keras):
    """Return a linear model with steps of its own, which log values of each replica."""
    import tensorflow as tf

    from suites.subject import ops

    class Own(keras.Sequential):
        def logs(self, x, y, loss):
            errors = ops.mean(ops.abs(self(x) - y))
            rows = ops.cast(ops.shape(x)[0], "float64")
            return {"own_loss": loss, "errors": errors, "rows": rows}

        def train_step(self, batch):
            x, y = batch
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x, training=True))
            logs = self.logs(x, y, loss)
            variables = self.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            return logs

        def test_step(self, batch):
            x, y = batch
            return self.logs(x, y, self.compute_loss(x, y, self(x, training=False)))

    model = Own([keras.Input((FEATURES,)), keras.layers.Dense(OUTPUTS, use_bias=False, name="linear")])
    model.set_weights([START])
    return model


@pytest.mark.ddl(strategies=KERAS_3)
@pytest.mark.ddl_item("fit.custom_train_step")
def test_steps_of_the_model_itself(ddl_strategy):
    """The results of a step are averaged over replicas, or added up in tf_keras. Each replica's loss is its share."""
    replicas = ddl_strategy.num_replicas_in_sync
    model = linear(ddl_strategy, own_step, rate=RATE)
    history = model.fit(TRAIN.x, TRAIN.y, **GIVEN).history
    trained = train(BATCHES, [RATE])
    check_weights(ddl_strategy, model, trained.weights)
    # Logs of an epoch are those of its last step, before its update.
    before, last = train(BATCHES[:-1], [RATE]).weights, BATCHES[-1]
    for weights, part, got in (
        (before, last, {name: values[-1] for name, values in history.items()}),
        (
            trained.weights,
            VALIDATION,
            model.evaluate(VALIDATION.x, VALIDATION.y, batch_size=12, verbose=0, return_dict=True),
        ),
    ):
        errors = np.abs(part.x @ weights - part.y).mean()
        expected = {"own_loss": losses(weights, part).mean() / replicas, "errors": errors, "rows": len(part) / replicas}
        factor = replicas if subject.adds_up_logs() else 1
        assert numbers(got) == pytest.approx({name: factor * value for name, value in expected.items()}, rel=1e-12)


@pytest.mark.ddl(strategies=KERAS_3)
@pytest.mark.ddl_item("fit.reduction_method")
@pytest.mark.parametrize("method", ["sum"])
def test_a_model_says_how_its_logs_are_reduced(method, ddl_strategy):
    model = linear(ddl_strategy, own_step, rate=RATE)
    assert model.distribute_reduction_method == "auto"
    model.distribute_reduction_method = method
    got = model.evaluate(TRAIN.x, TRAIN.y, batch_size=len(TRAIN), verbose=0, return_dict=True)
    assert got["rows"] == len(TRAIN)


@pytest.mark.ddl(strategies=["mirrored", "multi_worker_mirrored"], keras="tf_keras")
@pytest.mark.ddl_item("fit.custom_train_step", "fit.reduction_method")
@pytest.mark.parametrize("method", ["sum", "first", "auto"])
def test_a_model_says_how_its_logs_are_reduced_in_tf_keras(method, ddl_strategy):
    """In tf_keras, "auto" is the sum."""
    from suites.subject import keras

    class Rows(keras.Sequential):
        def test_step(self, batch):
            return {"rows": keras.backend.cast(keras.backend.shape(batch[0])[0], "float64")}

    model = linear(ddl_strategy, lambda keras: Rows([keras.Input((FEATURES,)), keras.layers.Dense(OUTPUTS)]))
    model.distribute_reduction_method = method
    got = model.evaluate(TRAIN.x, TRAIN.y, batch_size=len(TRAIN), verbose=0, return_dict=True)
    assert got["rows"] == len(TRAIN) / (2 if method == "first" else 1)


@pytest.mark.ddl(strategies=KERAS_3)
@pytest.mark.ddl_item("fit.two_models", "loop.premade")
def test_two_models_with_optimizers_of_their_own(ddl_strategy):
    """The second model learns the errors of the first one, which are numbers for it."""
    from suites.subject import keras

    reduction = subject.reduction_in_a_loop()
    divisor = BATCH if reduction == "sum" else 1

    class Pair(keras.Model):
        def __init__(self):
            super().__init__()
            self.pair = [one_layer(keras), one_layer(keras)]
            self.optimizers = [keras.optimizers.SGD(RATE), keras.optimizers.SGD(RATE / 2)]
            for model, optimizer in zip(self.pair, self.optimizers, strict=True):
                optimizer.build(model.trainable_variables)
            self.error = keras.losses.MeanSquaredError(reduction=reduction)
            self.built = True

        def train_step(self, batch):
            import tensorflow as tf

            x, y = batch
            found, target = [], y
            for model in self.pair:
                with tf.GradientTape() as tape:
                    predicted = model(x)
                    loss = self.error(target, predicted) / divisor
                variables = model.trainable_variables
                found.append(tape.gradient(loss, variables))
                target = tf.stop_gradient(predicted - y)
            for model, optimizer, gradients in zip(self.pair, self.optimizers, found, strict=True):
                optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return {"loss": loss}

    with ddl_strategy.scope():
        both = Pair()
        both.compile()
    both.fit(TRAIN.x, TRAIN.y, epochs=2, **GIVEN)
    first = second = START
    for batch in BATCHES * 2:
        errors = Data(batch.x, batch.x @ first - batch.y, batch.weight)
        first, second = first - RATE * gradient(first, batch), second - RATE / 2 * gradient(second, errors)
    for model, expected in zip(both.pair, (first, second), strict=True):
        check_weights(ddl_strategy, model, expected)
    assert [int(optimizer.iterations.numpy()) for optimizer in both.optimizers] == [8, 8]


@pytest.mark.ddl(strategies=["one_device", "mirrored"])
@pytest.mark.ddl_item("fit.progress")
def test_progress_tells_epochs_steps_and_losses(ddl_strategy):
    """The loss at the end of an epoch is the mean over all its examples, with four digits."""
    model, weights = linear(ddl_strategy, rate=RATE), START
    for verbose in (1, 2):
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            model.fit(TRAIN.x, TRAIN.y, epochs=2, **GIVEN | {"verbose": verbose})
        text = re.sub(r"\x1b\[[\d;]*m|\x08", "", shown.getvalue())
        assert re.findall(r"Epoch (\d)/2", text) == ["1", "2"]
        # The bar shows each number of steps with the total; the last one of an epoch is all four.
        assert text.count("4/4") >= 2, text
        assert not re.search(r"[5-9]/4", text.replace("4/4", "")), text
        told = [float(loss) for loss in re.findall(r"4/4 .*?loss: ([\d.]+)", text)]
        expected = train(BATCHES, [RATE] * 2, start=weights)
        weights = expected.weights
        # The bar may show the last step twice, before and after the epoch's end.
        assert [told[0], told[-1]] == [pytest.approx(loss, rel=5e-4) for loss in expected.loss], text


@pytest.mark.ddl(strategies=["mirrored"])
@pytest.mark.ddl_item("fit.scope_errors", shows="behavior")
@pytest.mark.parametrize("outside", ["model", "optimizer"])
def test_what_is_made_out_of_the_scope_is_refused(outside, ddl_strategy):
    """The error says that strategies are mixed, or names the scope."""
    from suites.subject import keras

    model, optimizer = one_layer(keras), keras.optimizers.SGD(RATE, momentum=0.5)
    with ddl_strategy.scope():
        model = one_layer(keras) if outside == "optimizer" else model
        optimizer = keras.optimizers.SGD(RATE, momentum=0.5) if outside == "model" else optimizer

    def compile_and_fit():
        with ddl_strategy.scope():
            model.compile(optimizer, "mse", jit_compile=False)
        model.fit(TRAIN.x, TRAIN.y, **GIVEN)

    with pytest.raises((ValueError, RuntimeError), match=r"[Ss]trategy|[Ss]cope"):
        compile_and_fit()


LABELS = {
    "numbers": lambda chosen: chosen[:, 0],
    "a column": lambda chosen: chosen[:, :1],
    "rows of the unit matrix": lambda chosen: np.eye(3)[chosen[:, 0]],
    "a column for each time": lambda chosen: chosen[:, :, None],
    "rows for each time": lambda chosen: np.eye(3)[chosen],
}
"""Ways to write classes, with and without an axis for times."""


@pytest.mark.ddl(strategies=["one_device", "mirrored"])
@pytest.mark.ddl_item("fit.fit.class_sample_weight")
@pytest.mark.parametrize("source", ["arrays", "dataset"])
@pytest.mark.parametrize("labels", LABELS)
def test_classes_have_their_weights_in_every_form(labels, source, ddl_strategy):
    """All logits are zero, so that the loss of each element is log(3) times the weight of its class."""
    import tensorflow as tf

    from suites.subject import keras

    weights = {0: 0.5, 1: 3.0, 2: 2.0}
    chosen = np.array([[0, 1], [2, 1], [1, 2], [0, 0]])
    y = LABELS[labels](chosen).astype("float32")
    x = np.zeros((4, 2, 3) if "each time" in labels else (4, 3), "float32")
    kind = "CategoricalCrossentropy" if "rows" in labels else "SparseCategoricalCrossentropy"
    with ddl_strategy.scope():
        model = keras.Sequential([keras.Input(x.shape[1:]), keras.layers.Dense(3)])
        model.compile(keras.optimizers.SGD(0.0), getattr(keras.losses, kind)(from_logits=True))
    given = (x, y) if source == "arrays" else (tf.data.Dataset.from_tensor_slices((x, y)).batch(4),)
    size = 4 if source == "arrays" else None
    found = model.fit(*given, batch_size=size, class_weight=weights, shuffle=False, verbose=0)
    each = np.vectorize(weights.get)(chosen if "each time" in labels else chosen[:, 0])
    np.testing.assert_allclose(found.history["loss"], np.log(3) * each.mean(), rtol=1e-5)


@pytest.mark.ddl(strategies=["mirrored"])
@pytest.mark.ddl_item("fit.fit.uneven_last", shows="behavior")
@pytest.mark.parametrize("option", ["activity_regularizer", "kernel_regularizer", "layer", "normalization"])
def test_a_replica_without_examples_leaves_all_numbers_finite(option, ddl_strategy):
    """The last batch has one example, so that means over the examples of the other replica divide by zero."""
    from suites.subject import keras

    given = {option: "l2"} if option.endswith("regularizer") else {}
    further = {
        "layer": lambda: [keras.layers.ActivityRegularization(0.1)],
        "normalization": lambda: [keras.layers.LayerNormalization(), keras.layers.GroupNormalization(1)],
    }
    with ddl_strategy.scope():
        layers = [keras.layers.Dense(2, **given), *further.get(option, list)()]
        model = keras.Sequential([keras.Input((2,)), *layers])
        model.compile(keras.optimizers.SGD(0.125), "mse")
    told = model.fit(np.array([[1.0, 2], [3, 4], [5, -6]]), np.ones((3, 2)), batch_size=2, shuffle=False, verbose=0)
    assert np.isfinite(told.history["loss"]).all()
    for weights in model.get_weights():
        assert np.isfinite(weights).all()
