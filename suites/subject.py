"""The package that the suite tests, Keras 3 or tf_keras: tests import ``keras`` and ``ops`` from here.

In a rank and in the pytest process the package is that of ``--ddl-keras``. If the marker of a test names the other
package, the test runs in ranks that use that one.
"""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from packaging.version import Version

from pytest_ddl.cluster.worker import current_rank
from pytest_ddl.config import SETTINGS
from pytest_ddl.items.selection import KERAS, parse_mark
from suites.installed import version_of

KERAS_3, TF_KERAS = KERAS
VARIABLE = "TF_USE_LEGACY_KERAS"
"""Environment variable by which TensorFlow chooses the package of ``tf.keras``."""


def name() -> str:
    """Return the name of the package that is tested in this process."""
    return TF_KERAS if os.environ.get(VARIABLE) in ("1", "true", "True") else KERAS_3


def follow(config: pytest.Config) -> None:
    """Let this process test what the ranks test, until the end of the run."""
    settings = config.stash[SETTINGS]
    # A rank begins with the package of its test's marker, or else with that of the option.
    if settings.origin("keras") != "default" and current_rank() is None:
        patch = pytest.MonkeyPatch()
        patch.setenv(VARIABLE, "1" if settings["keras"] == TF_KERAS else "0")
        config.add_cleanup(patch.undo)


def of_test(test: pytest.Item) -> str:
    """Return the name of the package that a collected test is about."""
    return parse_mark(test).keras or name()


def __getattr__(attribute: str) -> Any:
    # Keras must not be imported before a test uses it: importing it takes seconds, and the pytest process has no use
    # for it.
    if attribute == "keras":
        return importlib.import_module(name())
    if attribute == "ops":
        return importlib.import_module("keras").ops if name() == KERAS_3 else _Operations()
    raise AttributeError(f"module {__name__!r} has no attribute {attribute!r}")


def _entropy(target: Any, output: Any, from_logits: bool = False) -> Any:
    keras = importlib.import_module(TF_KERAS)
    return keras.losses.sparse_categorical_crossentropy(target, output, from_logits=from_logits)


class _Operations:
    """The operations of ``keras.ops`` that tests use, by their other names for tf_keras."""

    _NAMES: Mapping[str, str] = {"sum": "reduce_sum", "mean": "reduce_mean"}
    _OWN: Mapping[str, Callable[..., Any]] = {"sparse_categorical_crossentropy": _entropy}

    def __getattr__(self, operation: str) -> Any:
        tf = importlib.import_module("tensorflow")
        return self._OWN.get(operation) or getattr(tf, self._NAMES.get(operation, operation))


_SLOTS = {"m": "momentum", "v": "velocity", "vhat": "velocity_hat", "u": "norm"}
"""Name of a slot in tf_keras -> name in Keras 3, if they differ."""


def is_slot(variable: Any, name: str, slot: str) -> bool:
    """Return whether a variable of an optimizer is a slot of the variable with a name. ``slot`` is as in Keras 3."""
    if not hasattr(variable, "path"):
        parts = variable.name.partition(":")[0].split("/")
        return parts[-1] == name and slot in [_SLOTS.get(part, part) for part in parts[:-1]]
    return bool(variable.name.endswith(f"{name}_{slot}"))


def first_average(weights: Sequence[Any]) -> list[Any] | None:
    """Return the averages of weights before the first step; ``None`` if they begin with the weights after it."""
    return None if name() == KERAS_3 else list(weights)


def next_rate(optimizer: Any) -> float:
    """Return the learning rate of the next step, if it follows a schedule."""
    # The property of tf_keras is the rate of the last step.
    rate = optimizer.learning_rate if name() == KERAS_3 else optimizer._learning_rate(optimizer.iterations)
    return float(rate.numpy())


def value_of(variable: Any) -> Any:
    """Return the variable of TensorFlow that is in a variable of the package; in tf_keras it is the same."""
    return variable if callable(variable.value) else variable.value


def variable(values: Any, dtype: str) -> Any:
    """Return a variable of the package, which an optimizer takes."""
    package = importlib.import_module("keras" if name() == KERAS_3 else "tensorflow")
    return package.Variable(values, dtype=dtype)


def export(model: Any, path: str) -> None:
    """Write what a model serves."""
    quiet = "verbose" in inspect.signature(model.export).parameters
    model.export(path, **({"verbose": False} if quiet else {}))


def aggregation(kind: str) -> Any:
    """Return what ``add_weight`` takes as the aggregation ``sum``, ``mean`` or ``only_first_replica``."""
    tf = importlib.import_module("tensorflow")
    return kind if name() == KERAS_3 else tf.VariableAggregation[kind.upper()]


def reduction_in_a_loop() -> str:
    """Return a reduction of a loss for a loop under a strategy: a sum in tf_keras, which refuses a mean there."""
    return "sum_over_batch_size" if name() == KERAS_3 else "sum"


def reduces(reduction: str | None) -> bool:
    """Return whether a loss takes this reduction in a loop. tf_keras refuses all means, and Keras has two since 3.7."""
    if name() != KERAS_3:
        return reduction in ("none", "sum")
    new = reduction in ("mean", "mean_with_sample_weight")
    return not new or Version(version_of("keras") or "0") >= Version("3.7")


def with_mask(tensor: Any, mask: Any) -> Any:
    """Return a tensor with a mask, like the output of a layer: the mask says which rows a loss counts."""
    layers = importlib.import_module(name()).layers
    return layers.Lambda(lambda values: values, mask=lambda *_: mask, dtype=tensor.dtype.name)(tensor)


def reset(layer: Any) -> None:
    """Reset the state of a recurrent layer."""
    (layer.reset_state if name() == KERAS_3 else layer.reset_states)()


def loss_scaled(optimizer: Any, **arguments: Any) -> Any:
    """Return an optimizer that divides its gradients by a dynamic loss scale."""
    keras = importlib.import_module(name())
    if name() == KERAS_3:
        return keras.optimizers.LossScaleOptimizer(optimizer, **arguments)
    made = keras.mixed_precision.LossScaleOptimizer(optimizer, **arguments)
    apply = made.apply_gradients

    def unscale_and_apply(pairs: Any) -> None:
        gradients, variables = zip(*pairs, strict=True)
        apply(zip(made.get_unscaled_gradients(gradients), variables, strict=True))

    made.apply_gradients = unscale_and_apply
    return made


def scale_of(optimizer: Any) -> float:
    """Return by what an optimizer lets a loss be multiplied, in this replica."""
    if name() == KERAS_3:
        return float(optimizer.scale_loss(1.0))
    scaled = getattr(optimizer, "get_scaled_loss", None)
    return float(scaled(importlib.import_module("tensorflow").constant(1.0))) if scaled else 1.0


def compiles_clones() -> bool:
    """Return whether a clone of a model is compiled as the model is, which tf_keras does not promise."""
    return name() == KERAS_3


def clips_sums() -> bool:
    """Return whether gradients are clipped after they are summed over replicas. Keras 3 has entries for it."""
    return name() == TF_KERAS


def adds_up_logs() -> bool:
    """Return whether what steps of a model return is added up over replicas, and not averaged."""
    return name() == TF_KERAS


def merges_results() -> bool:
    """Return whether the result of a metric on one replica is that of all, as tf_keras documents it."""
    return name() == TF_KERAS


def counts_steps_without_update() -> bool:
    """Return whether a step that a loss scale stops counts, as in tf_keras, which says so in its source."""
    return name() == TF_KERAS


def loss_scale_of(optimizer: Any) -> Any:
    """Return the variable with the loss scale of such an optimizer."""
    return optimizer.dynamic_scale if name() == KERAS_3 else optimizer._loss_scale._current_loss_scale
