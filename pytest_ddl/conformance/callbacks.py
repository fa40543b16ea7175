"""Check that a callback sees and leaves the same training on every worker, and that one worker writes its files."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pytest_ddl.conformance.comparing import SINGLE, MismatchError, compare
from pytest_ddl.conformance.data import Array, cast
from pytest_ddl.conformance.kinds import package_of
from pytest_ddl.conformance.registry import Subject, register
from pytest_ddl.conformance.running import distributed, replicas_of

_EPOCHS = 3
_BATCH = 12
"""Examples of a global batch: 2, 3 and 4 replicas divide it."""
_BATCHES = 2
Logs = dict[str, float]


@dataclass
class Seen:
    """Calls and values that a training with the callback has shown."""

    calls: dict[str, int] = field(default_factory=dict)
    """Hook -> number of its calls."""
    logs: list[tuple[str, Logs]] = field(default_factory=list)
    """Logs of each end of an epoch, as the callback left them, with the name of the hook."""
    weights: list[Array] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    """Files in the working folder after the training."""


def _recorder(keras: Any, seen: Seen) -> Any:
    """Return a callback behind the one under check, which has every call of it."""

    class RecordingCallback(keras.callbacks.Callback):  # type: ignore[misc]
        pass

    def hook(name: str) -> Any:
        def call(self: Any, *arguments: Any, **named: Any) -> None:
            seen.calls[name] = seen.calls.get(name, 0) + 1
            logs = named.get("logs", arguments[-1] if arguments else None)
            if name == "on_epoch_end" and logs is not None:
                seen.logs.append((f"{name} {arguments[0]}", {key: float(value) for key, value in logs.items()}))

        return call

    for when in ("begin", "end"):
        for name in ("train", "epoch", "test", "train_batch", "test_batch"):
            setattr(RecordingCallback, f"on_{name}_{when}", hook(f"on_{name}_{when}"))
    return RecordingCallback()


@contextlib.contextmanager
def _own_folder(seen: Seen) -> Iterator[None]:
    """Run with an empty working folder, and note the files in it."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
            seen.files += sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file())
        finally:
            os.chdir(before)


def _examples(precision: str) -> tuple[Array, Array]:
    draw = np.random.default_rng(5)
    rows = _BATCH * _BATCHES
    inputs = draw.normal(size=(rows, 3)) * np.linspace(0.5, 2, rows)[:, None]
    labels = inputs @ np.array([[1.0], [-2.0], [0.5]]) + 1
    examples: tuple[Array, Array] = cast((inputs, labels), precision)
    return examples


def observe(strategy: Any, subject: Subject) -> Seen:
    """Train a linear model with the callback, and return what was seen.

    Keras 3 has no ``fit`` for several workers. There, a loop calls the callbacks as ``fit`` does.
    """
    keras, seen = package_of(subject.flavor), Seen()
    inputs, labels = _examples(subject.precision)
    with _own_folder(seen):
        with strategy.scope():
            model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="ones")])
            # Eagerly, because nothing of a callback is in a function, and tracing them would take most of the time.
            model.compile(keras.optimizers.SGD(0.05), "mse", run_eagerly=True)
            callback = subject.make()
        callbacks = [callback, _recorder(keras, seen)]
        if subject.flavor == "keras" and _workers(strategy) > 1:
            _loop(strategy, keras, model, callbacks, (inputs, labels))
        else:
            given: dict[str, Any] = {"batch_size": _BATCH, "shuffle": False, "verbose": 0}
            given |= {"validation_data": (inputs, labels), "validation_batch_size": _BATCH}
            model.fit(inputs, labels, epochs=_EPOCHS, callbacks=callbacks, **given)
        seen.weights = [np.asarray(weight) for weight in model.get_weights()]
    return seen


def _workers(strategy: Any) -> int:
    resolver = strategy.cluster_resolver
    return 1 if resolver is None else len(resolver.cluster_spec().as_dict().get("worker", "1"))


def _loop(strategy: Any, keras: Any, model: Any, callbacks: Sequence[Any], data: tuple[Array, Array]) -> None:
    """Train as ``fit`` does, and call the callbacks at the same points with the same logs."""
    import tensorflow as tf

    model.optimizer.build(model.trainable_variables)
    replicas = replicas_of(strategy)

    def step(inputs: Any, labels: Any, training: bool) -> Any:
        with tf.GradientTape() as tape:
            found = model(inputs, training=training)
            losses = tf.reduce_mean((found - labels) ** 2, axis=-1)
            loss = tf.nn.compute_average_loss(losses, global_batch_size=_BATCH)
        if training:
            weights = model.trainable_variables
            model.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    def run(inputs: Any, labels: Any, training: bool) -> Any:
        losses = strategy.run(step, args=(tf.nest.map_structure(tf.identity, inputs), labels, training))
        return strategy.reduce("SUM", losses, axis=None)

    run_in_function = tf.function(run, autograph=False)

    def batches(name: str, training: bool) -> float:
        total = 0.0
        for number in range(_BATCHES):
            getattr(group, f"on_{name}_batch_begin")(number, {})
            rows = slice(number * _BATCH, (number + 1) * _BATCH)
            parts = (distributed(strategy, np.split(array[rows], replicas)) for array in data)
            total += float(run_in_function(*parts, training))
            getattr(group, f"on_{name}_batch_end")(number, {"loss": total / (number + 1)})
        return total / _BATCHES

    group = keras.callbacks.CallbackList(list(callbacks), model=model, epochs=_EPOCHS, verbose=0, steps=_BATCHES)
    model.stop_training = False
    group.on_train_begin()
    logs: Logs = {}
    for epoch in range(_EPOCHS):
        group.on_epoch_begin(epoch)
        logs = {"loss": batches("train", True)}
        group.on_test_begin()
        logs["val_loss"] = batches("test", False)
        group.on_test_end({"loss": logs["val_loss"]})
        group.on_epoch_end(epoch, logs)
        if model.stop_training:
            break
    group.on_train_end(logs)


def _alone(subject: Subject) -> Seen:
    import tensorflow as tf

    return observe(tf.distribute.get_strategy(), subject)


@register(
    "callback",
    "Every hook is called as often as on one device, on every worker.",
    advice="Decide from the logs, which are equal on all workers, and not from a clock or from the rank.",
)
def callback_calls(strategy: Any, subject: Subject) -> None:
    found, wanted = observe(strategy, subject).calls, _alone(subject).calls
    for name in sorted({*found, *wanted}):
        if found.get(name) != wanted.get(name):
            raise MismatchError(
                f"{name} is called {found.get(name, 0)} times, and {wanted.get(name, 0)} times on one device"
            )


def _same_logs(results: Sequence[Seen]) -> None:
    for rank, seen in enumerate(results[1:], 1):
        for (name, logs), (_name, first) in zip(seen.logs, results[0].logs, strict=False):
            if logs != first:
                raise MismatchError(f"the logs of {name} are {logs} on rank {rank}, and {first} on rank 0")


@register(
    "callback",
    "The logs at the end of each epoch are those of one device, and equal on every worker.",
    advice="Put no value of one worker into the logs that other callbacks get.",
    together=_same_logs,
)
def callback_logs(strategy: Any, subject: Subject) -> Seen:
    seen, wanted = observe(strategy, subject), _alone(subject)
    for (name, logs), (_name, others) in zip(seen.logs, wanted.logs, strict=False):
        if sorted(logs) != sorted(others):
            raise MismatchError(f"the logs of {name} have {sorted(logs)}, and {sorted(others)} on one device")
        for key in logs:
            compare(f"{key} in the logs of {name}", logs[key], others[key], SINGLE)
    return seen


@register(
    "callback",
    "Training with the callback ends with the weights of one device, on every worker.",
    advice="Set weights and learning rates to the same numbers on every worker, whatever the number of replicas.",
)
def callback_weights(strategy: Any, subject: Subject) -> None:
    compare("the model after training", observe(strategy, subject).weights, _alone(subject).weights, SINGLE)


def _one_writer(results: Sequence[tuple[list[str], list[str]]]) -> None:
    writers = [rank for rank, (files, _wanted) in enumerate(results) if files]
    wanted = results[0][1]
    if len(writers) > 1:
        names = ", ".join(results[writers[0]][0][:3])
        raise MismatchError(f"ranks {', '.join(map(str, writers))} have all written {names}")
    missing = sorted({*wanted} - {name for files, _wanted in results for name in files})
    if missing:
        raise MismatchError(f"no rank has written {', '.join(missing[:3])}, which one device writes")


@register(
    "callback",
    "Files are written by one worker only. Each worker has a working folder of its own for this check.",
    advice="Let one worker write: the one whose task has the index 0 in TF_CONFIG or in strategy.cluster_resolver.",
    together=_one_writer,
)
def callback_files(strategy: Any, subject: Subject) -> tuple[list[str], list[str]]:
    return observe(strategy, subject).files, _alone(subject).files
