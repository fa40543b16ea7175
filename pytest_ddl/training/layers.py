"""Record layers whose type decides which differences a correct distributed run may show."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pytest_ddl.records import LayerRecord, VariableKind
from pytest_ddl.training.adapter import created_trainable, flatten_layers, plain

_FACTS = (
    "synchronized", "momentum", "epsilon", "rate", "stddev", "seed", "factor", "renorm", "data_format_axis",
)  # fmt: skip
_REGULARIZERS = (
    "kernel_regularizer", "bias_regularizer", "activity_regularizer", "embeddings_regularizer",
    "beta_regularizer", "gamma_regularizer", "recurrent_regularizer", "depthwise_regularizer",
)  # fmt: skip


def layer_records(model: Any) -> Iterator[LayerRecord]:
    """Yield layers that synchronize, draw random numbers, regularize, compute in lower precision or are frozen."""
    for layer in flatten_layers(model):
        settings = _settings(layer)
        if settings:
            yield LayerRecord(name=str(layer.name), type=type(layer).__name__, settings=settings)


def _settings(layer: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in _FACTS:
        value = getattr(layer, name, None)
        if isinstance(value, bool | int | float):
            found[name] = value
    compute_dtype = getattr(layer, "compute_dtype", None)
    if compute_dtype is not None and compute_dtype != getattr(layer, "variable_dtype", compute_dtype):
        found["compute_dtype"] = str(compute_dtype)
    for name in _REGULARIZERS:
        value = getattr(layer, name, None)
        if value is not None:
            found[name] = _regularizer(value)
    if type(layer).__name__ == "SyncBatchNormalization":
        found["synchronized"] = True
    if "BatchNormalization" in type(layer).__name__:
        found.setdefault("synchronized", False)
    if getattr(layer, "trainable", True) is False:
        found["trainable"] = False
    elif found:
        found["trainable"] = True
    return found


def _regularizer(value: Any) -> dict[str, Any]:
    try:
        config = dict(value.get_config())
    except (AttributeError, NotImplementedError):
        config = {}
    return {"type": type(value).__name__, **{key: plain(item) for key, item in config.items()}}


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
