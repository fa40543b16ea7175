"""Run and record ``fit``, ``evaluate`` and ``predict`` of Keras 3 and tf_keras."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from pytest_ddl.notes import NoteKind
from pytest_ddl.training import end_of_data, values
from pytest_ddl.training.coordinator import uses_coordinator
from pytest_ddl.training.data import distribute, prepare, prepare_arrays
from pytest_ddl.training.keras_objects import metric_variables
from pytest_ddl.training.listener import StepListener, traces_of
from pytest_ddl.training.settings import RunSettings
from pytest_ddl.training.values import RUNNING_MEAN as RUNNING_MEAN

KERAS_BATCH = 32
"""Number of rows that Keras 2.0 to 3.15 puts into a batch of arrays if ``batch_size`` is not given."""

_ENDLESS = 1_000_000
"""Number of epochs for a run that another condition ends."""


class Fitting:
    """Caller of ``fit``, ``evaluate`` and ``predict`` for one run."""

    def __init__(self, listener: StepListener, settings: RunSettings, strategy: Any) -> None:
        self._listener = listener
        self._settings = settings
        self._fixed = replace(settings, constant=False, repeat=False)
        """Settings for data that must end, because an evaluation consumes all of it."""
        self._strategy = strategy
        self._cut: list[tuple[Any, Any]] = []
        """Epochs, and steps in each, that were asked for when the limit of steps ended a fit."""

    def fit(self, model: Any, data: Any, kwargs: Mapping[str, Any]) -> Any:
        """Call ``model.fit``, record after each batch, and stop at the step limit."""
        listener = self._listener
        listener.begin_call("run.fit", model)
        if listener.reached_limit:
            listener.note(NoteKind.NOT_RUN, "Model.fit was not run: the limit of steps was reached before it")
            return None
        if self._settings.repeat and uses_coordinator(self._strategy):
            raise TypeError(
                "run.fit under parameter_server cannot be measured: Keras runs its batches asynchronously and "
                "reports only the end of an epoch. Measure a loop: run.steps(train_step, dataset)"
            )
        options = _options(self._settings, kwargs)
        callback = _callback(listener, model, self._strategy)
        # Last: after the program's own callbacks, which may change variables.
        options["callbacks"] = [*_as_list(options.get("callbacks")), callback]
        options["callbacks"] += self._of_evaluations(model)
        follow = self._settings.follow is not None
        if (follow or self._settings.points or self._settings.shared_by) and not uses_coordinator(self._strategy):
            options["callbacks"].insert(0, _first_callback(listener, model, follow))
        if self._settings.repeat:
            options["epochs"] = _ENDLESS
        data = _as_dataset(model, data, options, self._settings) if self._settings.slices else data
        given = _given(self._settings, data, lambda: listener.completed)
        options["callbacks"][:0] = self._counting_back(model, given, options.get("validation_data"))
        history = model.fit(given, **options)
        listener.end_of_steps(_batches(given, options, self._strategy), batches=1)
        listener.result("fit", _each(history.history, _number))
        self._note_length(kwargs)
        return history

    def _note_length(self, kwargs: Mapping[str, Any]) -> None:
        """Record how long a fit would have been that the limit of steps has ended."""
        if self._listener.reached_limit:
            self._cut.append((kwargs.get("epochs", 1), kwargs.get("steps_per_epoch")))
            self._listener.add_facts({"cut_fits": tuple(self._cut)})

    def evaluate(self, model: Any, data: Any, kwargs: Mapping[str, Any]) -> Any:
        """Call ``model.evaluate`` and record its result; a list or dict of numbers keeps its structure."""
        self._listener.begin_phase("evaluation")
        options = _options(self._settings, kwargs)
        given = _given(self._fixed, data)
        callbacks = [*_as_list(options.get("callbacks")), *self._of_evaluations(model)]
        callbacks[:0] = self._counting_back(model, given)
        results = model.evaluate(given, **{**options, **({"callbacks": callbacks} if callbacks else {})})
        self._listener.end_phase("evaluation")
        self._listener.result("evaluate", _each(results, _number))
        self._listener.end_without_step()  # what an evaluation consumed belongs to no step
        return results

    def predict(self, model: Any, data: Any, kwargs: Mapping[str, Any]) -> Any:
        """Call ``model.predict`` and record its result as arrays."""
        self._listener.begin_phase("evaluation")
        outputs = model.predict(_given(self._fixed, data), **_options(self._settings, kwargs))
        self._listener.end_phase("evaluation")
        self._listener.result("predict", _each(outputs, values.copy_of))
        self._listener.end_without_step()
        return outputs

    def _counting_back(self, model: Any, *data: Any) -> list[Any]:
        """Return a callback that undoes what chance counts at the end of the data, or no callback."""
        if uses_coordinator(self._strategy) or not end_of_data.is_unseen(*data):
            return []
        return [end_of_data.counting_back(model, self._strategy, flavor_of(model).callbacks.Callback)]

    def _of_evaluations(self, model: Any) -> list[Any]:
        """Return a callback that multiplies the metrics in an evaluation, or no callback; see RunSettings.shared_by."""
        number = self._settings.shared_by
        if not number:
            return []

        def on_test_batch_begin(_self: Any, _batch: int, logs: Any = None) -> None:
            values.multiply(metric_variables(model), number)

        methods = {"on_test_batch_begin": on_test_batch_begin}
        return [type("EvaluationCallback", (flavor_of(model).callbacks.Callback,), methods)()]


def _options(settings: RunSettings, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {"verbose": 0, **kwargs}
    for name in ("y", "sample_weight"):
        if options.get(name) is not None:
            options[name] = prepare_arrays(options[name], settings)
    if options.get("validation_data") is not None:
        options["validation_data"] = _given(replace(settings, constant=False, repeat=False), options["validation_data"])
    return options


def _as_dataset(model: Any, data: Any, options: dict[str, Any], settings: RunSettings) -> Any:
    """Return arrays as the dataset of the batches that ``fit`` makes of them, so that a batch can be cut down.

    ``y``, ``sample_weight`` and ``class_weight`` become parts of the dataset, and what ``validation_split`` holds back
    becomes ``validation_data``. If only Keras knows its batches, the arrays are returned.
    """
    import tensorflow as tf

    columns = (data, options.get("y"), options.get("sample_weight"))
    rows = {len(item) if isinstance(item, np.ndarray) and item.ndim else 0 for item in tf.nest.flatten(columns[:2])}
    adapter = None if flavor_of(model).__name__ == "tf_keras" else _adapter()
    if len(rows) != 1 or 0 in rows or columns[1] is None or options.get("steps_per_epoch") or adapter is None:
        return data
    for name in ("y", "sample_weight"):
        options.pop(name, None)
    size, split = options.pop("batch_size", None) or KERAS_BATCH, options.pop("validation_split", None)
    if split and options.get("validation_data") is None:
        # Keras holds back the last rows, and rounds the number of the others down.
        kept = math.floor(rows.pop() * (1.0 - split))
        held_back = tuple(_rows(column, slice(kept, None)) for column in columns if column is not None)
        options["validation_data"] = prepare_arrays(held_back, settings)
        options["validation_batch_size"] = options.get("validation_batch_size") or size
        columns = tuple(_rows(column, slice(kept)) for column in columns)
    shuffle, weights = options.pop("shuffle", True), options.pop("class_weight", None)
    return adapter(*columns, batch_size=size, shuffle=shuffle, class_weight=weights).get_tf_dataset()


def _adapter() -> Any:
    """Return the class of Keras 3 that makes batches of arrays, in the order in which ``fit`` shuffles them."""
    try:
        from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
    except ImportError:  # it is no public class, so another version may not have it
        return None
    return ArrayDataAdapter


def _rows(column: Any, chosen: slice) -> Any:
    import tensorflow as tf

    return None if column is None else tf.nest.map_structure(lambda item: item[chosen], column)


def _given(settings: RunSettings, data: Any, completed: Callable[[], int] | None = None) -> Any:
    import tensorflow as tf

    return prepare(data, settings, completed) if isinstance(data, tf.data.Dataset) else prepare_arrays(data, settings)


def _batches(given: Any, options: Mapping[str, Any], strategy: Any) -> Iterator[Any]:
    """Yield the batches that ``fit`` makes of its data, from the first, or none if only Keras knows them.

    For arrays, row indices stand in for the rows. Nothing is read before the first batch is taken.
    """
    import tensorflow as tf

    if isinstance(given, tf.data.Dataset | tf.distribute.DistributedDataset):
        yield from distribute(strategy, given)
        return
    rows = [len(item) for item in tf.nest.flatten(given) if isinstance(item, np.ndarray) and item.ndim]
    size = options.get("batch_size")
    if not rows or (size is None and options.get("steps_per_epoch")):  # tf_keras divides the rows by its steps
        return
    yield from distribute(strategy, tf.data.Dataset.range(rows[0]).batch(size or KERAS_BATCH).repeat())


def _as_list(callbacks: Any) -> list[Any]:
    if callbacks is None:
        return []
    return list(callbacks) if isinstance(callbacks, list | tuple) else [callbacks]


def _callback(listener: StepListener, model: Any, strategy: Any) -> Any:
    """Return a callback that records, of the flavor of Keras that the model belongs to."""
    keras = flavor_of(model)
    epochs: dict[int, int] = {}

    def on_train_batch_end(self: Any, _batch: int, logs: Any = None) -> None:
        shown = dict(logs or {})
        loss = shown.pop("loss", None)
        # A train_step of the program may show no loss, and its other numbers are those of an epoch so far as well.
        shown[RUNNING_MEAN] = 0.0 if loss is None else loss
        traces = traces_of(getattr(self.model, "train_function", None) or len)
        listener.end_step(loss, shown, traces)
        if listener.reached_limit:
            self.model.stop_training = True

    def on_test_end(_self: Any, logs: Any = None) -> None:
        listener.end_phase("evaluation")
        listener.end_without_step()  # validation consumes examples that belong to no step

    def on_epoch_begin(_self: Any, epoch: int, logs: Any = None) -> None:
        epochs.setdefault(epoch, listener.completed)
        listener.add_facts({"epochs": epochs})
        listener.begin()  # the program's callbacks may restore variables in on_train_begin

    methods: dict[str, Callable[..., Any]] = {"on_test_end": on_test_end, "on_epoch_begin": on_epoch_begin}
    if uses_coordinator(strategy):
        # Keras refuses on_train_batch_end under this strategy, because batches run asynchronously.
        listener.note(
            NoteKind.EPOCHS_AS_STEPS,
            "Model.fit under parameter_server is recorded by epochs: Keras does not report the end of a batch",
        )
        listener.begin_asynchronous(epochs_as_steps=True)
        methods["on_epoch_end"] = on_train_batch_end
    else:
        methods["on_train_batch_end"] = on_train_batch_end
    return type("RecordingCallback", (keras.callbacks.Callback,), methods)()


def _first_callback(listener: StepListener, model: Any, follow: bool) -> Any:
    """Return a callback that runs before those of the program.

    :param follow: True to take values over after each batch, so that callbacks of the program see the same ones as
        under the strategy.
    """

    def on_train_batch_begin(_self: Any, _batch: int, logs: Any = None) -> None:
        listener.begin_step()

    def on_train_batch_end(_self: Any, _batch: int, logs: Any = None) -> None:
        listener.step_done()
        if follow:
            listener.end_update()

    def on_test_begin(_self: Any, logs: Any = None) -> None:
        listener.begin_phase("evaluation")

    methods = {
        "on_train_batch_begin": on_train_batch_begin,
        "on_train_batch_end": on_train_batch_end,
        "on_test_begin": on_test_begin,
    }
    return type("FirstCallback", (flavor_of(model).callbacks.Callback,), methods)()


def flavor_of(model: Any) -> Any:
    tf_keras = sys.modules.get("tf_keras")
    if tf_keras is not None and isinstance(model, tf_keras.Model):
        return tf_keras
    import keras

    return keras


def _each(value: Any, read: Callable[[Any], Any]) -> Any:
    """Apply ``read`` to each value in nested dicts and lists."""
    if isinstance(value, Mapping):
        return {str(key): _each(item, read) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_each(item, read) for item in value]
    return read(value)


def _number(value: Any) -> Any:
    number = values.scalar(value)
    return number if number is not None else np.asarray(value)
