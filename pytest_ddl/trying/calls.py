"""Run the Keras loops and the datasets of a script with the run's data, precision and number of steps."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pytest_ddl.training import data, environment
from pytest_ddl.training.fitting import KERAS_BATCH
from pytest_ddl.training.replacing import Replacements
from pytest_ddl.trying.drawing import same_items
from pytest_ddl.trying.found import Found, place
from pytest_ddl.trying.objects import Objects
from pytest_ddl.trying.steps import Steps


@dataclass
class Calls:
    """Replacements of ``fit``, ``evaluate``, ``predict`` and of the functions that distribute datasets."""

    run: Any
    objects: Objects
    steps: Steps
    found: Found
    batches: int
    """Maximum number of batches of each loop and epoch."""
    epochs: int
    told: int
    """Number of replicas that the script reads in the reference run; 1 under a strategy."""
    joined: int = 1
    """Number of batches of the script that make a global batch."""
    whole: bool = False
    """True if the datasets of the script's own loops keep all their batches."""
    distributed: int = 0

    def install_keras(self, put: Replacements, keras: Any) -> None:
        import tensorflow as tf

        for namespace in (keras, tf.keras):
            # Its logs would be removed, and the package may not be installed.
            put.put(namespace.callbacks, "TensorBoard", self._ignored("TensorBoard", namespace.callbacks.Callback))
            if keras.__name__ == "tf_keras" and self.run.is_reference:
                # It accepts only the strategies that it lists, and OneDeviceStrategy is not one of them.
                ignored = self._ignored("BackupAndRestore", namespace.callbacks.Callback)
                put.put(namespace.callbacks, "BackupAndRestore", ignored)
        if keras.__name__ == "tf_keras":
            put.put(keras.Model, "compile", self._compile(keras.Model.compile))
        if keras.__name__ != "tf_keras":  # it splits the batch over the replicas
            put.put(keras.Model, "train_on_batch", self._on_batch(keras.Model.train_on_batch))
        for name in ("fit", "evaluate", "predict"):
            put.put(keras.Model, name, self._replaced(name, getattr(keras.Model, name)))

    def _ignored(self, name: str, callback: Any) -> Callable[..., Any]:
        def ignored(*_args: Any, **_kwargs: Any) -> Any:
            self.found.add("ignored", f"callbacks.{name}")
            return callback()

        return ignored

    def _on_batch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def train_on_batch(model: Any, *args: Any, **kwargs: Any) -> Any:
            self.run._listener.add_facts({"trains_on_batches": True})
            return original(model, *args, **kwargs)

        return train_on_batch

    def _compile(self, original: Callable[..., None]) -> Callable[..., None]:
        # Keras 3 cannot do it under a strategy, and its users must see that.
        def compile_for_single_steps(model: Any, *args: Any, steps_per_execution: Any = None, **kwargs: Any) -> None:
            if steps_per_execution is not None:
                self.found.add("ignored", "compile(steps_per_execution=...)")
            original(model, *args, **kwargs)

        return compile_for_single_steps

    def _replaced(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(original)

        def called(model: Any, *args: Any, **kwargs: Any) -> Any:
            if self.steps.paused:
                return original(model, *args, **kwargs)
            given = dict(signature.bind(model, *args, **kwargs).arguments)
            given.pop(next(iter(given)))
            given |= given.pop("kwargs", {})
            self.steps.flush()
            if not self.objects.is_distributed(model):
                self.found.add("not compared", f"{name} at {place()}: its model was created outside strategy.scope()")
                self.objects.leave_out(model)
                self.steps.paused += 1
                try:
                    return original(model, **self._cut(given, name))
                finally:
                    self.steps.paused -= 1
            if name == "fit":
                self.found.add("loops", f"fit at {place()}")
                self.objects.watch_model(model)
            options = self._cut(given, name)
            self.steps.paused += 1
            try:
                return getattr(self.run, name)(model, options.pop("x", None), **options)
            finally:
                self.steps.paused -= 1

        return called

    def _cut(self, given: dict[str, Any], name: str) -> dict[str, Any]:
        """Return the arguments of a loop of Keras for at most ``batches`` batches of its data."""
        given["verbose"] = 0
        for key in given.keys() & {"x", "validation_data"}:
            given[key] = same_items(given[key], environment.keras_modules())
        if self.joined > 1 and hasattr(given.get("x"), "unbatch"):
            given["x"] = _joined(given["x"], self.joined)
        elif self.joined > 1:
            given["batch_size"] = (given.get("batch_size") or KERAS_BATCH) * self.joined
        size = given.get("batch_size") or KERAS_BATCH
        steps = "steps_per_epoch" if name == "fit" else "steps"
        most = min(self.batches, given.get(steps) or self.batches)
        if name == "fit" and given.get("validation_data") is None:
            _split(given)
        rows = int(np.ceil(most * size / (1 - (given.get("validation_split") or 0))))
        x = given.get("x")
        for key in ("x", "y", "sample_weight"):
            given[key] = _first(given.get(key), most, rows)
        if given.get(steps) or not _is_cut(x):
            given[steps] = most
        if name != "fit":
            return {key: value for key, value in given.items() if value is not None}
        epochs = min(given.get("epochs") or 1, self.epochs)
        given["epochs"] = (given.get("initial_epoch") or 0) + epochs
        if given.get(steps) and x is not None and hasattr(x, "take"):
            given["x"] = x.take(most * epochs)
        self._cut_validation(given, size)
        return {key: value for key, value in given.items() if value is not None}

    def _cut_validation(self, given: dict[str, Any], size: int) -> None:
        """Leave at most ``batches`` batches of the data on which ``fit`` evaluates the model after each epoch.

        :param size: number of examples in a batch, if the arguments name no other for this data.
        """
        validation = given.get("validation_data")
        if validation is None:
            return
        if hasattr(validation, "unbatch"):
            validation = _joined(validation, self.joined)
        elif given.get("validation_batch_size"):
            given["validation_batch_size"] *= self.joined
        most = min(self.batches, given.get("validation_steps") or self.batches)
        rows = most * (given.get("validation_batch_size") or size)
        several = type(validation) is tuple
        given["validation_data"] = (
            tuple(_first(item, most, rows) for item in validation) if several else _first(validation, most, rows)
        )
        if given.get("validation_steps") or not (several or _is_cut(validation)):
            given["validation_steps"] = most

    def install_datasets(self, put: Replacements) -> None:
        """Replace the functions that distribute datasets."""
        strategy = self.run.strategy
        whole = strategy.experimental_distribute_dataset

        def of_dataset(dataset: Any, *args: Any, **kwargs: Any) -> Any:
            if self.steps.paused:
                return whole(dataset, *args, **kwargs)
            return whole(self._first_of(dataset, self._prepared(dataset), self.batches), *args, **kwargs)

        put.put(strategy, "experimental_distribute_dataset", of_dataset)
        for name in ("distribute_datasets_from_function", "experimental_distribute_datasets_from_function"):
            original = getattr(strategy, name, None)
            if original is not None:
                put.put(strategy, name, self._from_function(original))

    def _from_function(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def of_function(function: Any, *args: Any, **kwargs: Any) -> Any:
            if self.steps.paused:
                return original(function, *args, **kwargs)
            made: list[Any] = []

            def own(context: Any) -> Any:
                made.append(function(context))
                return made[-1]

            prepared = self._prepared(self._of_one_device(own) if self.told > 1 else own, joined=1)

            @functools.wraps(function)  # a finding names the line of the script's function
            def cut(context: Any) -> Any:
                here = 1 if self.told > 1 else context.num_replicas_in_sync // context.num_input_pipelines
                dataset = prepared(context)
                return self._first_of(made[-1], dataset, self.batches * max(1, here))

            return original(cut, *args, **kwargs)

        return of_function

    def _first_of(self, own: Any, prepared: Any, batches: int) -> Any:
        """Return the first batches of a dataset, or all if that of the script never ends.

        A script that reads such a dataset counts its steps, of which one call may have several.
        """
        import tensorflow as tf

        if self.whole:
            self.found.add("data", "all batches, because one step of the script reads more than --steps")
            return prepared
        length = int(own.cardinality()) if tf.executing_eagerly() else tf.data.UNKNOWN_CARDINALITY
        if length == tf.data.INFINITE_CARDINALITY:
            return prepared
        self.found.cut |= not 0 <= length <= batches
        return prepared.take(batches)

    def _of_one_device(self, function: Any) -> Any:
        """Return a dataset function that joins the batches of all replicas into one."""
        import tensorflow as tf

        def joined(_context: Any) -> Any:
            replicas = self.told if self.joined == 1 else 1
            return _grouped(function(tf.distribute.InputContext(1, 0, replicas)), self.told)

        return joined

    def _prepared(self, dataset: Any, joined: int | None = None) -> Any:
        """Prepare a dataset. Only the first of a script may be replaced by the batches of another run."""
        settings = self.run._settings
        dataset = _joined(dataset, self.joined if joined is None else joined)
        self.distributed += 1
        if self.distributed == 1:
            return data.prepare(dataset, settings, self.run._completed)
        return data.prepare(dataset, replace(settings, constant=False, repeat=False))


def _joined(dataset: Any, batches: int) -> Any:
    """Return a dataset whose elements are several batches of another, joined."""
    import tensorflow as tf

    if batches == 1:
        return dataset
    first = tf.nest.flatten(next(iter(dataset)))[0]
    return dataset.unbatch().batch(int(first.shape[0]) * batches)


def _grouped(dataset: Any, replicas: int) -> Any:
    """Return a dataset whose elements are those that so many replicas get from one input pipeline, joined.

    A batch is never split: it may be smaller than others, for example the last one before a repetition.
    """
    import tensorflow as tf

    specs = tf.nest.flatten(dataset.element_spec)
    if replicas == 1 or not all(_has_examples(spec) for spec in specs):
        return _joined(dataset, replicas)

    def joined(tensor: Any) -> Any:
        if isinstance(tensor, tf.RaggedTensor):
            return tensor.merge_dims(0, 1)
        return tf.reshape(tensor, [-1, *tensor.shape[2:]])

    def one(*element: Any) -> Any:
        whole = element if type(dataset.element_spec) is tuple else element[0]
        return tf.nest.map_structure(joined, whole)

    return dataset.ragged_batch(replicas).map(one)


def _has_examples(spec: Any) -> bool:
    """Return whether tensors of a dataset are dense batches of examples, all of one shape."""
    import tensorflow as tf

    return isinstance(spec, tf.TensorSpec) and bool(spec.shape.rank) and spec.shape[1:].is_fully_defined()


def _split(given: dict[str, Any]) -> None:
    """Put the last rows of arrays into ``validation_data``, as ``fit`` does for ``validation_split``.

    The same share of fewer rows is another number of rows, perhaps one that the replicas cannot divide among them.
    """
    import tensorflow as tf

    columns = {key: given[key] for key in ("x", "y", "sample_weight") if given.get(key) is not None}
    items = tf.nest.flatten(list(columns.values()))
    share = given.get("validation_split")
    if not share or not all(len(getattr(item, "shape", ())) for item in items):
        return
    first = int(np.floor(items[0].shape[0] * (1 - share)))
    if not 0 < first < items[0].shape[0]:
        return  # Keras refuses it
    del given["validation_split"]
    given |= {key: tf.nest.map_structure(lambda item: item[:first], value) for key, value in columns.items()}
    given["validation_data"] = tuple(
        tf.nest.map_structure(lambda item: item[first:], value) for value in columns.values()
    )


def _is_cut(given: Any) -> bool:
    import tensorflow as tf

    return isinstance(given, tf.data.Dataset) or all(hasattr(item, "shape") for item in tf.nest.flatten(given))


def _first(given: Any, batches: int, rows: int) -> Any:
    """Return the first batches of a dataset, or the first rows of arrays; other data is returned unchanged."""
    import tensorflow as tf

    if isinstance(given, tf.data.Dataset):
        return given.take(batches)
    if given is None or not _is_cut(given):
        return given
    return tf.nest.map_structure(lambda item: item[:rows] if len(item.shape) else item, given)
