"""Read the parts of an optimizer: its counters, its slots with their weights, and its settings.

The functions support the optimizers of Keras 3 and of tf_keras (also its legacy ones), and wrappers
with an ``inner_optimizer``. A slot is matched with its weight by name, since nothing else is public.
Keras 3 names a slot ``<path with underscores>_momentum``, tf_keras ``m/<name>``, and its legacy
optimizers ``<name>/momentum``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytest_ddl.records import OptimizerRecord, VariableKind
from pytest_ddl.training.adapter import plain, settings_of_schedule

_COUNTERS = ("iteration", "iterations", "iter")
_SETTINGS = (
    *("momentum", "nesterov", "beta_1", "beta_2", "rho", "epsilon", "amsgrad", "centered", "weight_decay"),
    *("clipnorm", "global_clipnorm", "clipvalue", "use_ema", "ema_momentum", "gradient_accumulation_steps"),
)
"""Attributes to read if an optimizer cannot return its configuration."""


def variables_of(optimizer: Any) -> list[Any]:
    """Return the optimizer's variables, which are a property in Keras 3 and a method in the legacy optimizers."""
    found = getattr(optimizer, "variables", ())
    return list(found() if callable(found) else found)


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


def record_of(optimizer: Any) -> OptimizerRecord:
    """Return the settings of an optimizer from its configuration."""
    try:
        config = dict(optimizer.get_config())
    except (AttributeError, NotImplementedError):
        # A learning rate schedule without get_config makes get_config of the whole optimizer fail.
        config = {name: getattr(optimizer, name) for name in _SETTINGS if hasattr(optimizer, name)}
        rate = getattr(optimizer, "_learning_rate", None)
        if callable(rate) and not hasattr(rate, "numpy"):
            config["learning_rate"] = rate
    settings = {key: plain(value) for key, value in config.items() if key != "inner_optimizer"}
    rate = config.get("learning_rate")
    if isinstance(rate, dict) and "config" in rate:
        settings["learning_rate"] = _initial_rate(optimizer)
        settings["schedule"] = {"schedule": rate.get("class_name"), **plain(rate["config"])}
    elif callable(rate):
        settings["learning_rate"] = _initial_rate(optimizer)
        settings["schedule"] = settings_of_schedule(rate)
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is not None:
        settings["inner"] = {"type": type(inner).__name__, **record_of(inner).settings}
    return OptimizerRecord(type=type(optimizer).__name__, settings=settings)


def _initial_rate(optimizer: Any) -> float | None:
    try:
        return float(learning_rate(optimizer))
    except (TypeError, ValueError, AttributeError):
        return None
