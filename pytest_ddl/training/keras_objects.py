"""Describe the layers, weights and optimizers of Keras that a program watches.

The functions support Keras 3 and tf_keras, with its legacy optimizers, and optimizers with an ``inner_optimizer``.
A slot is matched with its weight by name, because nothing else is public. Keras 3 names a slot
``<path with underscores>_momentum``, tf_keras ``m/<name>``, and its legacy optimizers ``<name>/momentum``.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

from pytest_ddl.records import LayerRecord, OptimizerRecord, VariableKind
from pytest_ddl.training.adapter import created_trainable, flatten_layers
from pytest_ddl.training.values import backing, is_variable

_COUNTERS = ("iteration", "iterations", "iter")
_OPTIMIZER_SETTINGS = (
    *("momentum", "nesterov", "beta_1", "beta_2", "rho", "epsilon", "amsgrad", "centered", "weight_decay"),
    *("clipnorm", "global_clipnorm", "clipvalue", "use_ema", "ema_momentum", "gradient_accumulation_steps"),
)
"""Attributes to read if an optimizer cannot return its configuration."""
_LAYER_SETTINGS = (
    "synchronized", "momentum", "epsilon", "rate", "stddev", "seed", "factor", "renorm", "data_format_axis",
)  # fmt: skip
_REGULARIZERS = (
    "kernel_regularizer", "bias_regularizer", "activity_regularizer", "embeddings_regularizer",
    "beta_regularizer", "gamma_regularizer", "recurrent_regularizer", "depthwise_regularizer",
)  # fmt: skip


def variables_of(optimizer: Any) -> list[Any]:
    """Return the optimizer's variables, which are a property in Keras 3 and a method in the legacy optimizers."""
    variables = getattr(optimizer, "variables", ())
    return list(variables() if callable(variables) else variables)


def name_of(variable: Any) -> str:
    """Return the name of a variable in the program, without TensorFlow's output suffix."""
    name = getattr(variable, "path", None) or getattr(variable, "name", None) or "variable"
    return str(name).removesuffix(":0")


def kind_of(variable: Any, slot_of: int | None) -> VariableKind:
    last = name_of(variable).rsplit("/", 1)[-1]
    if slot_of is not None:
        return VariableKind.SLOT
    if last in _COUNTERS:
        return VariableKind.ITERATIONS
    if "learning_rate" in last:
        return VariableKind.LEARNING_RATE
    return VariableKind.STATE


def owner_of(
    variable: Any, weights: Sequence[tuple[int, str, tuple[int, ...]]], taken: set[tuple[int, str]]
) -> int | None:
    """Return the index of the weight that a slot belongs to, or ``None``.

    The weight with the longest matching name wins, so that a slot of ``dense_1`` does not go to ``dense``.
    Factored slots (Adafactor) have a smaller shape than their weight, so the shape only breaks a tie.

    :param weights: ``(index, name, shape)`` of each weight.
    :param taken: pairs of weight and slot name that are matched already; the function adds to it. With it,
        weights that share a name (plain variables do) get their slots in order.
    """
    name = _flat(name_of(variable))
    shape = tuple(int(size) for size in variable.shape)
    found = [
        (len(weight), weight_shape == shape, -index, index)
        for index, weight, weight_shape in weights
        if _contains(name, _flat(weight)) and (index, name) not in taken
    ]
    if not found:
        return None
    owner = max(found)[3]
    taken.add((owner, name))
    return owner


def _flat(name: str) -> str:
    return name.replace("/", "_")


def _contains(name: str, part: str) -> bool:
    """Return True if ``name`` contains ``part`` between underscores or at its ends."""
    return f"_{part}_" in f"_{name}_"


def has_rate_variable(optimizer: Any) -> bool:
    """Return True if the learning rate is one of the optimizer's own variables."""
    return any(kind_of(item, None) is VariableKind.LEARNING_RATE for item in variables_of(optimizer))


def learning_rate(optimizer: Any) -> Any:
    """Return the current learning rate; a schedule is evaluated at the count of updates."""
    rate = getattr(optimizer, "learning_rate", None)
    if callable(rate) and not hasattr(rate, "numpy"):
        return rate(optimizer.iterations)
    return rate


def rate_and_schedule(optimizer: Any) -> tuple[Any, Any]:
    """Return the variable of the learning rate, and the method of a schedule that asks which replica it runs on."""
    rate = getattr(getattr(optimizer, "inner_optimizer", None) or optimizer, "_learning_rate", None)
    if is_variable(rate):
        return backing(rate), None
    method = rate if inspect.isfunction(rate) else inspect.getattr_static(rate, "__call__", None)
    code = getattr(method, "__code__", None)
    asks = code is not None and bool({"get_replica_context", "replica_id_in_sync_group"} & set(code.co_names))
    return None, method if asks else None


def made_with(optimizer: Any) -> Any:
    """Return a variable that an optimizer creates when it is made; ``None`` for one that creates it later."""
    return None if hasattr(optimizer, "_hyper") else getattr(optimizer, "iterations", None)


_OF_A_RATE = ("learning_rate", "schedule", "inner")
"""Settings that hold a learning rate, which is recorded as a variable after each step."""


def optimizer_record(optimizer: Any) -> OptimizerRecord:
    """Return the settings of an optimizer from its configuration."""
    try:
        config = dict(optimizer.get_config())
    except (AttributeError, NotImplementedError):
        # A learning rate schedule without get_config makes get_config of the whole optimizer fail.
        config = {name: getattr(optimizer, name) for name in _OPTIMIZER_SETTINGS if hasattr(optimizer, name)}
        rate = getattr(optimizer, "_learning_rate", None)
        if callable(rate) and not hasattr(rate, "numpy"):
            config["learning_rate"] = rate
    settings = {key: _plain(value) for key, value in config.items() if key != "inner_optimizer"}
    rate = config.get("learning_rate")
    if isinstance(rate, dict) and "config" in rate:
        settings["learning_rate"] = _initial_rate(optimizer)
        settings["schedule"] = {"schedule": rate.get("class_name"), **_plain(rate["config"])}
    elif callable(rate):
        settings["learning_rate"] = _initial_rate(optimizer)
        settings["schedule"] = _schedule(rate)
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is not None:
        settings["inner"] = {"type": type(inner).__name__, **optimizer_record(inner).settings}
    return OptimizerRecord(type=type(optimizer).__name__, settings=settings)


def changes(first: OptimizerRecord, optimizer: Any) -> dict[str, Any]:
    """Return the settings of an optimizer that are not those of its first record, with their values now."""
    now = optimizer_record(optimizer).settings
    return {key: value for key, value in now.items() if key not in _OF_A_RATE and value != first.settings.get(key)}


def _initial_rate(optimizer: Any) -> float | None:
    try:
        return float(learning_rate(optimizer))
    except (TypeError, ValueError, AttributeError):
        return None


def layer_records(model: Any) -> Iterator[LayerRecord]:
    """Yield layers that synchronize, draw random numbers, regularize, compute in lower precision or are frozen."""
    for layer in flatten_layers(model):
        settings = _layer_settings(layer)
        if settings:
            yield LayerRecord(name=str(layer.name), type=type(layer).__name__, settings=settings)


def _layer_settings(layer: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for name in _LAYER_SETTINGS:
        value = getattr(layer, name, None)
        if isinstance(value, bool | int | float):
            settings[name] = value
    compute_dtype = getattr(layer, "compute_dtype", None)
    if compute_dtype is not None and compute_dtype != getattr(layer, "variable_dtype", compute_dtype):
        settings["compute_dtype"] = str(compute_dtype)
    for name in _REGULARIZERS:
        value = getattr(layer, name, None)
        if value is not None:
            settings[name] = _regularizer(value)
    if type(layer).__name__ == "SyncBatchNormalization":
        settings["synchronized"] = True
    if "BatchNormalization" in type(layer).__name__:
        settings.setdefault("synchronized", False)
        settings["by_keras"] = type(layer).__module__.split(".")[0] == "keras"
    if getattr(layer, "trainable", True) is False:
        settings["trainable"] = False
    elif settings:
        settings["trainable"] = True
    return settings


def _regularizer(value: Any) -> dict[str, Any]:
    try:
        config = dict(value.get_config())
    except (AttributeError, NotImplementedError):
        config = {}
    return {"type": type(value).__name__, **{key: _plain(item) for key, item in config.items()}}


def weight_kinds(model: Any) -> dict[int, VariableKind]:
    """Return the kind of every weight of a model, by the ``id`` of the variable object.

    A weight is frozen if it was created trainable and its layer is not trainable now. A variable
    that was never trainable (a moving mean, a seed) is state.
    """
    kinds: dict[int, VariableKind] = {}
    trainable = {id(item) for item in getattr(model, "trainable_variables", ())}
    for layer in flatten_layers(model):
        for variable in created_trainable(layer) or ():
            kinds[id(variable)] = VariableKind.FROZEN
    for variable in getattr(model, "metrics_variables", ()) or metric_variables(model):
        kinds[id(variable)] = VariableKind.METRIC
    for variable in getattr(model, "variables", ()):
        if id(variable) in trainable:
            kinds[id(variable)] = VariableKind.TRAINABLE
        else:
            kinds.setdefault(id(variable), VariableKind.STATE)
    return kinds


def metric_variables(model: Any) -> list[Any]:
    """Return the state of the metrics that a model was compiled with, including its running loss."""
    try:
        metrics = list(getattr(model, "metrics", ()))
    except (AttributeError, ValueError):
        return []
    return [variable for metric in metrics for variable in getattr(metric, "variables", ())]


def _schedule(value: Any) -> Any:
    """Return the settings of a learning rate schedule as plain values, or only its class name."""
    get_config = getattr(value, "get_config", None)
    if get_config is None:
        return type(value).__name__
    try:
        config = get_config()
    except NotImplementedError:
        return type(value).__name__
    return {"schedule": type(value).__name__, **{key: _plain(item) for key, item in config.items()}}


def _plain(value: Any) -> Any:
    """Return a setting as a built-in value, or as text if it cannot be converted."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    try:
        return float(value)
    except (TypeError, ValueError):
        return repr(value)[:200]
