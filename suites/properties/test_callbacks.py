"""Check when callbacks are called, and with which logs: in closed form for a linear model."""

from __future__ import annotations

import numpy as np
import pytest

from suites.linear import COPY_WARNING, check_weights, linear
from suites.models.linear import data, train
from suites.tables.callbacks import CASES, EPOCHS, RATE

pytestmark = [pytest.mark.usefixtures("float64"), pytest.mark.filterwarnings(COPY_WARNING)]

KERAS_3 = ["one_device", "mirrored"]
"""Strategies under which fit of Keras 3 has right logs. It multiplies losses by float32(1/replicas): exact for two."""
TF_KERAS = ["mirrored[replicas=3]", "multi_worker_mirrored"]
BATCH = 12
"""2, 3 and 4 replicas divide it."""
TRAIN, VALIDATION = data(3 * BATCH), data(2 * BATCH, seed=1)


def recorder(keras):
    """Return a callback with a list of the hooks that were called, with number and logs."""

    class Recorder(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.calls = []

        def logs_of(self, *names):
            return [logs for name, _, logs in self.calls if name in names]

    def hook(name, numbered):
        def call(self, *given, logs=None):
            number, logs = (given[0], *given[1:2], logs)[:2] if numbered else (None, given[0] if given else logs)
            # Predictions of several outputs are no array.
            several = (list, tuple, dict)
            logs = {k: v if isinstance(v, several) else np.array(v, copy=True) for k, v in (logs or {}).items()}
            self.calls.append((name, number, logs))

        return call

    for phase in ("train", "test", "predict"):
        for when in ("begin", "end"):
            for kind in ("", "_batch"):
                name = f"on_{phase}{kind}_{when}"
                setattr(Recorder, name, hook(name, bool(kind)))
    for when in ("begin", "end"):
        setattr(Recorder, f"on_epoch_{when}", hook(f"on_epoch_{when}", True))
    return Recorder()


def run_of(phase, batches):
    """Return the hooks of evaluate or predict, or of an epoch of fit."""
    for number in range(batches):
        yield f"on_{phase}_batch_begin", number
        yield f"on_{phase}_batch_end", number


def whole(phase, batches):
    return [(f"on_{phase}_begin", None), *run_of(phase, batches), (f"on_{phase}_end", None)]


def fit(strategy, callbacks, **compiled):
    """Train a model for all epochs, and return it with its history."""
    model = linear(strategy, rate=RATE, **compiled)
    arguments = {"batch_size": BATCH, "epochs": EPOCHS, "shuffle": False, "verbose": 0, "callbacks": callbacks}
    history = model.fit(TRAIN.x, TRAIN.y, validation_data=(VALIDATION.x, VALIDATION.y), **arguments)
    return model, history.history


def expected(rates=(RATE,) * EPOCHS):
    return train(list(TRAIN.unweighted.batches(BATCH)), rates, validation=VALIDATION.unweighted)


def hooks_are_called_once_in_order(strategy):
    """The last batches of evaluate and predict have one example, so that other replicas have none."""
    from suites.subject import keras

    seen = recorder(keras)
    model, _ = fit(strategy, [seen])
    wanted = [("on_train_begin", None)]
    for epoch in range(EPOCHS):
        wanted += [("on_epoch_begin", epoch), *run_of("train", 3), *whole("test", 2), ("on_epoch_end", epoch)]
    wanted += [("on_train_end", None)]
    assert [call[:2] for call in seen.calls] == wanted
    given, some = {"batch_size": BATCH, "verbose": 0, "callbacks": [seen]}, TRAIN[: BATCH + 1]
    seen.calls.clear()
    model.evaluate(some.x, some.y, **given)
    assert [call[:2] for call in seen.calls] == whole("test", 2)
    seen.calls.clear()
    model.predict(some.x, **given)
    assert [call[:2] for call in seen.calls] == whole("predict", 2)


def epochs_have_the_logs_of_the_whole(strategy):
    """Every rank gets them: losses and metrics of all replicas, and the weights that arithmetic gives."""
    from suites.subject import keras

    seen = recorder(keras)
    model, history = fit(strategy, [seen], metrics=["mae"])
    trained = expected()
    errors = [np.abs(VALIDATION.x @ weights - VALIDATION.y).mean() for weights in trained.after]
    for number, logs in enumerate(seen.logs_of("on_epoch_end")):
        assert logs == {name: values[number] for name, values in history.items()}
    (last,) = seen.logs_of("on_train_end")
    assert last == {name: values[-1] for name, values in history.items()}
    np.testing.assert_allclose(history["loss"], trained.loss, rtol=1e-12)
    np.testing.assert_allclose(history["val_loss"], trained.validation, rtol=1e-12)
    np.testing.assert_allclose(history["val_mae"], errors, rtol=1e-12)
    check_weights(strategy, model, trained.weights)
    return seen


def batches_have_the_logs_of_the_whole(seen):
    """The loss of a batch is the mean of all examples of the epoch so far, on all replicas."""
    running = [logs["loss"] for logs in seen.logs_of("on_train_batch_end")]
    np.testing.assert_allclose(running, np.concatenate(expected().running), rtol=1e-12)
    tested = [logs["loss"] for logs in seen.logs_of("on_test_end")]
    np.testing.assert_allclose(tested, expected().validation, rtol=1e-12)


def callback_has_its_effect(case, strategy, folder):
    """Every rank trains as many epochs, with the same rates, and has the same weights in the end."""
    from suites.subject import keras

    model, history = fit(strategy, [case.make(keras, folder)])
    trained = expected(case.rates)
    np.testing.assert_allclose(history["val_loss"], trained.validation, rtol=1e-12)
    check_weights(strategy, model, trained.after[case.left])
    if case.check is not None:
        case.check(keras, folder, trained, history)


@pytest.mark.ddl(strategies=["mirrored"])
@pytest.mark.ddl_item("callback.call_counts_and_order_of_all_hooks", shows="behavior")
def test_hooks_are_called_once_in_order(ddl_strategy):
    hooks_are_called_once_in_order(ddl_strategy)


@pytest.mark.ddl(strategies=TF_KERAS, keras="tf_keras")
@pytest.mark.ddl_item("callback.call_counts_and_order_of_all_hooks", shows="behavior")
def test_hooks_are_called_once_in_order_by_tf_keras(ddl_strategy):
    hooks_are_called_once_in_order(ddl_strategy)


@pytest.mark.ddl(strategies=KERAS_3)
@pytest.mark.ddl_item("callback.logs_given_to_on_train_batch_end_are_tho", "fit.fit.history", "fit.fit.validation")
def test_logs_are_those_of_the_whole(ddl_strategy):
    batches_have_the_logs_of_the_whole(epochs_have_the_logs_of_the_whole(ddl_strategy))


@pytest.mark.ddl(strategies=TF_KERAS, keras="tf_keras")
@pytest.mark.ddl_item("fit.fit.history", "fit.fit.validation", "fit.fit.sgd")
def test_logs_of_epochs_are_those_of_the_whole_by_tf_keras(ddl_strategy):
    epochs_have_the_logs_of_the_whole(ddl_strategy)


@pytest.mark.ddl(strategies=TF_KERAS, keras="tf_keras")
@pytest.mark.ddl_item("callback.logs_given_to_on_train_batch_end_are_tho")
def test_logs_of_batches_are_those_of_the_whole_by_tf_keras(ddl_strategy):
    batches_have_the_logs_of_the_whole(epochs_have_the_logs_of_the_whole(ddl_strategy))


PARAMETERS = [pytest.param(case, id=case.id, marks=pytest.mark.ddl_item(case.item)) for case in CASES]


@pytest.mark.ddl(strategies=KERAS_3)
@pytest.mark.parametrize("case", PARAMETERS)
def test_callback_has_its_effect(case, ddl_strategy, tmp_path):
    callback_has_its_effect(case, ddl_strategy, tmp_path)


@pytest.mark.ddl(strategies=TF_KERAS, keras="tf_keras")
@pytest.mark.parametrize("case", PARAMETERS)
def test_callback_has_its_effect_in_tf_keras(case, ddl_strategy, tmp_path):
    callback_has_its_effect(case, ddl_strategy, tmp_path)


def training_ends_at_a_number_that_is_not_finite(strategy):
    """Only the last example of the second batch, so only the last replica, has a label that is infinite."""
    from suites.subject import keras

    model, seen = linear(strategy), recorder(keras)
    labels = TRAIN.y.copy()
    labels[2 * BATCH - 1] = np.inf
    stop = keras.callbacks.TerminateOnNaN()
    arguments = {"batch_size": BATCH, "epochs": EPOCHS, "shuffle": False, "verbose": 0, "callbacks": [stop, seen]}
    model.fit(TRAIN.x, labels, **arguments)
    ends = [call[:2] for call in seen.calls if "end" in call[0]]
    assert ends == [*(("on_train_batch_end", n) for n in range(2)), ("on_epoch_end", 0), ("on_train_end", None)]


@pytest.mark.ddl(strategies=KERAS_3)
@pytest.mark.ddl_item("callback.CSVLogger_TerminateOnNaN")
def test_training_ends_at_a_number_that_is_not_finite(ddl_strategy):
    training_ends_at_a_number_that_is_not_finite(ddl_strategy)


@pytest.mark.ddl(strategies=TF_KERAS, keras="tf_keras")
@pytest.mark.ddl_item("callback.CSVLogger_TerminateOnNaN")
def test_training_ends_at_a_number_that_is_not_finite_in_tf_keras(ddl_strategy):
    training_ends_at_a_number_that_is_not_finite(ddl_strategy)
