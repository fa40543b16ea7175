"""Kinds of objects of Keras 3 and tf_keras, found from the object's class."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

KINDS = ("layer", "metric", "loss", "optimizer", "callback")
_CLASSES = (
    # In tf_keras, a metric is a layer too, so layers come last.
    ("metric", "metrics", "Metric"),
    ("loss", "losses", "Loss"),
    ("optimizer", "optimizers", "Optimizer"),
    ("optimizer", "optimizers.legacy", "Optimizer"),
    ("callback", "callbacks", "Callback"),
    ("layer", "layers", "Layer"),
)


def flavor_of(value: Any) -> str:
    """Return the package that an object's class comes from; for a plain function the one that ``tf.keras`` is."""
    roots = {base.__module__.partition(".")[0] for base in type(value).__mro__}
    if "tf_keras" in roots or ("keras" not in roots and os.environ.get("TF_USE_LEGACY_KERAS") == "1"):
        return "tf_keras"
    return "keras"


def kind_of(value: Any) -> str | None:
    """Return the kind of an object, or ``None`` if it is none that is known."""
    if flavor_of(value) not in {base.__module__.partition(".")[0] for base in type(value).__mro__}:
        return None
    package = importlib.import_module(flavor_of(value))
    for kind, place, name in _CLASSES:
        home: Any = package
        for part in place.split("."):
            home = getattr(home, part, None)
        found = getattr(home, name, None)
        if isinstance(found, type) and isinstance(value, found):
            return kind
    return None


@contextmanager
def prepared(flavor: str, precision: str, seed: int = 7) -> Iterator[Any]:
    """Yield a package of Keras whose objects compute in a precision, with seeded generators. Restore it afterwards."""
    package = importlib.import_module(flavor)
    is_three = hasattr(package, "config")
    floatx = package.backend.floatx()
    policy = package.config.dtype_policy() if is_three else package.mixed_precision.global_policy()
    set_policy = package.config.set_dtype_policy if is_three else package.mixed_precision.set_global_policy
    package.backend.set_floatx(precision)
    set_policy(precision)
    package.utils.set_random_seed(seed)
    try:
        yield package
    finally:
        package.backend.set_floatx(floatx)
        set_policy(policy)


def package_of(flavor: str) -> Any:
    """Return a package of Keras by name."""
    return importlib.import_module(flavor)
