"""The one place that touches what TensorFlow and Keras do not publish, and says why.

Everything here degrades: where an attribute is missing in some release, the answer is a
public approximation and not an exception.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def flatten_layers(layer: Any) -> Iterator[Any]:
    """Yield a layer and all layers inside it, each once.

    ``Layer._flatten_layers`` (Keras 2.4 to 3.15 and tf_keras): the public ``Model.layers`` misses
    layers that a subclassed layer keeps in attributes.
    """
    flatten = getattr(layer, "_flatten_layers", None)
    found = list(flatten()) if flatten is not None else [layer, *getattr(layer, "submodules", ())]
    seen: set[int] = set()
    for item in found:
        if id(item) not in seen:
            seen.add(id(item))
            yield item


def created_trainable(layer: Any) -> list[Any] | None:
    """The layer's own weights that were created trainable, whatever ``layer.trainable`` says now.

    ``_trainable_variables`` (Keras 3.0 to 3.15) and ``_trainable_weights`` (tf_keras): publicly, a
    frozen kernel and a moving mean look the same once ``layer.trainable`` is False.
    """
    for name in ("_trainable_variables", "_trainable_weights"):
        found = getattr(layer, name, None)
        if found is not None:
            return list(found)
    return None


def tf_seed() -> int | None:
    """The global seed of TensorFlow; there is a public setter and no getter (TF 2.0 to 2.21)."""
    try:
        from tensorflow.python.eager import context

        seed = context.global_seed()
    except (ImportError, AttributeError):
        return None
    return None if seed is None else int(seed)


def settings_of_schedule(value: Any) -> Any:
    """What a learning rate schedule is made of, in plain values."""
    get_config = getattr(value, "get_config", None)
    if get_config is None:
        return type(value).__name__
    try:
        config = get_config()
    except NotImplementedError:
        return type(value).__name__
    return {"schedule": type(value).__name__, **{key: plain(item) for key, item in config.items()}}


def plain(value: Any) -> Any:
    """A setting as a built-in value, or as text where it is something else."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    try:
        return float(value)
    except (TypeError, ValueError):
        return repr(value)[:200]
