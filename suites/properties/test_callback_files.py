"""Check callbacks that save the model or resume training, and which rank writes their files."""

from __future__ import annotations

import importlib.util
import re

import numpy as np
import pytest

from pytest_ddl import current_rank, current_strategy
from suites.linear import COPY_WARNING, check_weights, in_float64, linear, one_layer
from suites.models.linear import BOUND, START, data, gradient, losses, train
from suites.pairwise import pairwise
from suites.parameters.spaces import Wrong
from suites.running import replicas_of

pytestmark = [pytest.mark.usefixtures("float64"), pytest.mark.filterwarnings(COPY_WARNING)]

KERAS_3 = ["mirrored"]
TF_KERAS = ["multi_worker_mirrored"]
BATCH, EPOCHS, RATE = 6, 3, 0.125
TRAIN, VALIDATION = data(3 * BATCH), data(BATCH, seed=1)
BATCHES = list(TRAIN.unweighted.batches(BATCH))


def fit(model, callbacks, epochs=EPOCHS, **arguments):
    given = {"batch_size": BATCH, "shuffle": False, "verbose": 0, "callbacks": callbacks} | arguments
    return model.fit(TRAIN.x, TRAIN.y, epochs=epochs, validation_data=(VALIDATION.x, VALIDATION.y), **given).history


def expected(epochs=EPOCHS, **arguments):
    return train(BATCHES, [RATE] * epochs, validation=VALIDATION.unweighted, **arguments)


def after_steps():
    """Return the weights after each step."""
    weights, found = START, []
    for batch in BATCHES * EPOCHS:
        weights = weights - RATE * gradient(weights, batch)
        found.append(weights)
    return found


def saved_models(epochs):
    """Return the arguments of ModelCheckpoint, and the files that it must write with the weights in each."""
    trained = expected()
    named = [f"{n + 1}-{loss:.4f}" for n, loss in enumerate(trained.validation)]
    # Three batches are an epoch, so that every second batch is at other places of the epochs.
    every_second = {f"{step // 3 + 1}-{step % 3 + 1}": after_steps()[step] for step in range(1, 3 * epochs, 2)}
    return {
        "epochs": ({}, "{epoch}-{val_loss:.4f}", dict(zip(named, trained.after, strict=True))),
        "best": ({"save_best_only": True, "mode": "max"}, "{epoch}-{val_loss:.4f}", {named[0]: trained.after[0]}),
        "batches": ({"save_freq": 2}, "{epoch}-{batch}", every_second),
    }


def checkpoints_hold_the_weights_of_their_step(strategy, kind, folder):
    """Only the chief's folder has files in the end. Without a strategy, they load as what arithmetic gives."""
    from suites.subject import keras

    arguments, name, files = saved_models(EPOCHS)[kind]
    path = str(folder / f"{name}.weights.h5")
    fit(linear(strategy, rate=RATE), [keras.callbacks.ModelCheckpoint(path, save_weights_only=True, **arguments)])
    found = {re.sub(r"\.weights\.h5$", "", one.name): one for one in folder.iterdir()}
    assert set(found) == (set(files) if current_rank().rank == 0 else set())
    for key, file in found.items():
        other = one_layer(keras)
        other.load_weights(str(file))
        np.testing.assert_allclose(other.get_weights()[0], files[key], **BOUND)


@pytest.mark.ddl(strategies=KERAS_3)
@pytest.mark.ddl_item("callback.ModelCheckpoint")
@pytest.mark.parametrize("kind", ["epochs", "best", "batches"])
def test_checkpoints_hold_the_weights_of_their_step(kind, ddl_strategy, tmp_path):
    checkpoints_hold_the_weights_of_their_step(ddl_strategy, kind, tmp_path)


@pytest.mark.ddl(strategies=TF_KERAS, keras="tf_keras")
@pytest.mark.ddl_item("callback.ModelCheckpoint")
@pytest.mark.parametrize("kind", ["epochs", "best", "batches"])
def test_checkpoints_hold_the_weights_of_their_step_in_tf_keras(kind, ddl_strategy, tmp_path):
    checkpoints_hold_the_weights_of_their_step(ddl_strategy, kind, tmp_path)


def momentum():
    """Return a gradient that SGD with momentum 0.5 would use. It keeps the velocity of one training."""
    velocity = np.zeros_like(START)

    def with_velocity(weights, batch):
        nonlocal velocity
        velocity = velocity / 2 + gradient(weights, batch)
        return velocity

    return with_velocity


def with_momentum(keras):
    return keras.optimizers.SGD(RATE, momentum=0.5)


def run_until(folder, save_freq, ends):
    """Train anew for each end, an epoch and a batch, after which all ranks raise. Return what is left after the last.

    :return: the epochs of each training, the number of updates, and the weights.
    """
    from suites.subject import keras

    class End(keras.callbacks.Callback):
        def __init__(self, end):
            super().__init__()
            self.end, self.epochs = end, []

        def on_epoch_begin(self, epoch, logs=None):
            self.epochs.append(epoch)

        def on_train_batch_end(self, batch, logs=None):
            if (self.epochs[-1], batch) == self.end:
                raise InterruptedError

    epochs = []
    for end in (*ends, None):
        with in_float64():
            model = linear(current_strategy(), optimizer=with_momentum)
            seen = End(end)
            callbacks = [keras.callbacks.BackupAndRestore(folder, save_freq=save_freq), seen]
            try:
                model.fit(
                    TRAIN.x, TRAIN.y, batch_size=BATCH, epochs=EPOCHS, shuffle=False, verbose=0, callbacks=callbacks
                )
            except InterruptedError:
                assert end is not None
        epochs.append(seen.epochs)
    return epochs, int(model.optimizer.iterations.numpy()), model.get_weights()[0]


def training_goes_on_where_it_was_saved(cluster, folder, case):
    """After interruptions, weights and velocity are those of a training that had none."""
    save_freq, ends, epochs = RESUMED[case]
    for got in cluster.run(run_until, str(folder / "backup"), save_freq, ends):
        assert got[:2] == (epochs, 3 * EPOCHS)
        np.testing.assert_allclose(got[2], expected(gradient=momentum()).weights, **BOUND)
    assert not [path for path in folder.rglob("*") if path.is_file()]


RESUMED = {
    "epochs": ("epoch", [(1, 1), (2, 0)], [[0, 1], [1, 2], [2]]),
    "batches": (2, [(1, 0)], [[0, 1], [1, 2]]),
    "batches_twice": (2, [(1, 0), (1, 2)], [[0, 1], [1], [1, 2]]),
}
"""Id -> save_freq, ends of trainings, and the epochs that each training must make."""


@pytest.mark.ddl(strategies=KERAS_3)
@pytest.mark.ddl_item("callback.BackupAndRestore")
@pytest.mark.parametrize("case", RESUMED)
def test_training_goes_on_where_it_was_saved(case, ddl_cluster, tmp_path):
    training_goes_on_where_it_was_saved(ddl_cluster, tmp_path, case)


@pytest.mark.ddl(strategies=["multi_worker_mirrored"], keras="tf_keras")
@pytest.mark.ddl_item("callback.BackupAndRestore")
@pytest.mark.parametrize("case", ["epochs"])
def test_training_goes_on_where_it_was_saved_in_tf_keras(case, ddl_cluster, tmp_path):
    training_goes_on_where_it_was_saved(ddl_cluster, tmp_path, case)


@pytest.mark.ddl(strategies=["one_device", *KERAS_3])
@pytest.mark.ddl_item("callback.SwapEMAWeights")
def test_averages_are_evaluated_and_weights_are_trained(ddl_strategy):
    """The validation sees the averages, each step the weights. After fit the model keeps the averages."""
    from suites.subject import keras

    def averaging(keras):
        return keras.optimizers.SGD(RATE, use_ema=True, ema_momentum=0.5)

    model = linear(ddl_strategy, optimizer=averaging)
    history = fit(model, [keras.callbacks.SwapEMAWeights()])
    average, means = after_steps()[0], []
    for number, weights in enumerate(after_steps()[1:], start=1):
        average = (average + weights) / 2
        if number % 3 == 2:
            means.append(losses(average, VALIDATION.unweighted).mean())
    np.testing.assert_allclose(history["loss"], expected().loss, rtol=1e-12)
    np.testing.assert_allclose(history["val_loss"], means, rtol=1e-12)
    check_weights(ddl_strategy, model, average)


@pytest.mark.ddl(strategies=["one_device", *KERAS_3])
@pytest.mark.ddl_item("callback.SwapEMAWeights")
@pytest.mark.parametrize("method", ["evaluate"])
def test_a_model_has_its_weights_back(method, ddl_strategy):
    """The averages are in the model only while it is evaluated or predicts."""
    from suites.subject import keras

    model = linear(ddl_strategy, optimizer=lambda keras: keras.optimizers.SGD(RATE, use_ema=True, ema_momentum=0.5))
    for batch in BATCHES[:2]:
        model.train_on_batch(batch.x, batch.y)
    first, second = after_steps()[:2]
    average, swap = (first + second) / 2, [keras.callbacks.SwapEMAWeights()]
    given = VALIDATION.unweighted
    if method == "evaluate":
        found = model.evaluate(given.x, given.y, batch_size=BATCH, verbose=0, callbacks=swap)
        np.testing.assert_allclose(found, losses(average, given).mean(), rtol=1e-12)
    else:
        found = model.predict(given.x, batch_size=BATCH, verbose=0, callbacks=swap)
        np.testing.assert_allclose(found, given.x @ average, **BOUND)
    check_weights(ddl_strategy, model, second)


@pytest.fixture
def scalar_summaries(monkeypatch):
    """Let TensorFlow write scalars without the package tensorboard, which only adds the kind of a summary."""
    import tensorflow as tf

    def scalar(name, data, step=None, description=None):
        kind = tf.compat.v1.SummaryMetadata(plugin_data={"plugin_name": "scalars"})
        return tf.summary.write(name, tf.cast(data, "float32"), step, kind)

    if importlib.util.find_spec("tensorboard") is None:
        for module in (importlib.import_module("tensorflow.summary"), tf.compat.v2.summary):
            monkeypatch.setattr(module, "scalar", scalar)


def scalars(folder):
    """Return tag -> steps and values of all event files below a folder."""
    import tensorflow as tf

    found = {}
    for path in sorted(folder.rglob("*tfevents*")):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == "scalars":
                    number = float(tf.make_ndarray(value.tensor))
                    found.setdefault(f"{path.parent.name}/{value.tag}", []).append((event.step, number))
    return found


def events_tell_the_logs(strategy, folder):
    """Only the chief writes. The steps of epoch losses are epoch numbers; those of evaluations count batches."""
    from suites.subject import keras

    trained = expected()
    fit(linear(strategy), [keras.callbacks.TensorBoard(str(folder), write_graph=False)])
    found = scalars(folder)
    if current_rank().rank:
        assert not found
        return
    for tag, values in (("train/epoch_loss", trained.loss), ("validation/epoch_loss", trained.validation)):
        steps, told = zip(*found[tag], strict=True)
        assert steps == tuple(range(EPOCHS))
        # Event files hold float32.
        np.testing.assert_allclose(told, values, rtol=1e-6)
    assert [step for step, _ in found["validation/evaluation_loss_vs_iterations"]] == [3, 6, 9]


@pytest.mark.ddl(strategies=KERAS_3)
@pytest.mark.ddl_item("callback.TensorBoard")
def test_events_tell_the_logs(ddl_strategy, tmp_path, scalar_summaries):
    events_tell_the_logs(ddl_strategy, tmp_path)


@pytest.mark.ddl(strategies=TF_KERAS, keras="tf_keras")
@pytest.mark.ddl_item("callback.TensorBoard")
def test_events_tell_the_logs_in_tf_keras(ddl_strategy, tmp_path, scalar_summaries):
    events_tell_the_logs(ddl_strategy, tmp_path)


EVENTS = {
    "optimizer": ("plain", "loss scale", "accumulates"),
    "validation": ("no", "yes"),
    "begins": ("0", "1"),
    "trainings": ("1", "2"),
}


def steps_of_events(case, update_freq):
    """Return tag -> the steps of all numbers, in the order in which they are written."""
    first, times = int(case["begins"]), int(case["trainings"])
    epochs = list(range(first, EPOCHS))
    batches = 3 * len(epochs)
    found = {"train/epoch_loss": epochs * times, "train/epoch_learning_rate": epochs * times}
    if update_freq != "epoch":
        found["train/batch_loss"] = [step for step in range(1, batches + 1) if step % update_freq == 0] * times
    if case["validation"] == "yes":
        found["validation/epoch_loss"] = epochs * times
        each = 3 if case["optimizer"] != "accumulates" else 1.5
        counted = [int(each * (number + 1)) for number in range(len(epochs) * times)]
        found["validation/evaluation_loss_vs_iterations"] = counted
    return found


@pytest.mark.ddl(strategies=["one_device", *KERAS_3])
@pytest.mark.ddl_item("callback.TensorBoard")
@pytest.mark.parametrize("update_freq", ["epoch", 1, 2])
def test_events_have_the_numbers_of_their_steps(update_freq, ddl_strategy, tmp_path, scalar_summaries):
    """Numbers of epochs and of batches count as ``fit`` does; a second training with the callback begins anew."""
    from suites.subject import keras

    makers = {
        "plain": lambda keras: keras.optimizers.SGD(RATE),
        "loss scale": lambda keras: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(RATE)),
        "accumulates": lambda keras: keras.optimizers.SGD(RATE, gradient_accumulation_steps=2),
    }
    wrong, replicas = Wrong(), replicas_of(ddl_strategy)
    # Keras cannot accumulate on several replicas. Each training compiles its model, which takes longest for several.
    cases = pairwise(EVENTS, lambda one: replicas == 1 or one.get("optimizer") != "accumulates")
    for number, case in enumerate(cases if replicas == 1 else cases[:2]):
        with wrong.of(case):
            folder = tmp_path / str(number)
            callback = keras.callbacks.TensorBoard(str(folder), write_graph=False, update_freq=update_freq)
            model = linear(ddl_strategy, optimizer=makers[case["optimizer"]])
            given = {"batch_size": BATCH, "shuffle": False, "verbose": 0, "initial_epoch": int(case["begins"])}
            held = {"validation_data": (VALIDATION.x, VALIDATION.y)} if case["validation"] == "yes" else {}
            for _ in range(int(case["trainings"])):
                model.fit(TRAIN.x, TRAIN.y, epochs=EPOCHS, callbacks=[callback], **given, **held)
            found = {tag: [step for step, _ in values] for tag, values in scalars(folder).items()}
            expected = steps_of_events(case, update_freq)
            assert {tag: found.get(tag) for tag in expected} == expected
    wrong.check()
