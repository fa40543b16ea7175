"""Number of replicas that the reference tells a script, so that both runs use the same global batch.

A script computes its global batch size from ``strategy.num_replicas_in_sync``. One device has one replica, so its batches
would be smaller than those under the strategy. The reference therefore tells the script the compared number of replicas.
A loss that is divided by this number needs the opposite: one device must not divide it. So the number, and what the script
computes from it, remember both values. A tensor in a replica function takes the one that fits.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

Used = Callable[[], bool]
"""Function called when a pure number of replicas becomes a tensor in a replica function.

Return True to use the number of replicas that the run really has."""


class _Both:
    """Number with two values: the one that the script was told, which is its own value, and the true one."""

    true: float
    used: Used

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> Any:
        """Convert to a tensor, as TensorFlow's ``TensorProtocol`` defines it."""
        import tensorflow as tf

        told = float(self) if isinstance(self, float) else int(self)  # type: ignore[call-overload]
        value = told
        if self.true == 1 and _in_replica() and self.used():
            value = type(told)(self.true)
        if dtype is None and isinstance(value, float):
            dtype = tf.float32
        return tf.constant(value, dtype=dtype, name=name)


class Count(_Both, int):
    """Whole number computed from the number of replicas."""


class Ratio(_Both, float):
    """Number computed from the number of replicas that need not be whole, such as ``1 / replicas``."""


def count(told: int, true: int, used: Used) -> int:
    """Return the number of replicas for a script, ``told``, which remembers the ``true`` number."""
    made: int = _made(told, true, used)
    return made


def _made(told: Any, true: Any, used: Used) -> Any:
    if isinstance(told, bool) or not isinstance(told, int | float):
        return told
    made = Count(told) if isinstance(told, int) else Ratio(told)
    made.true, made.used = true, used
    return made


def _in_replica() -> bool:
    import tensorflow as tf

    return tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context()


def _operation(function: Callable[[Any, Any], Any], reflected: bool) -> Callable[[Any, Any], Any]:
    def operation(self: Any, other: Any) -> Any:
        if not isinstance(other, int | float):
            return NotImplemented
        plain = float if isinstance(self, float) else int
        theirs = float(other) if isinstance(other, float) else int(other)
        pairs = [(plain(self), theirs), (self.true, getattr(other, "true", theirs))]
        told, true = (function(b, a) if reflected else function(a, b) for a, b in pairs)
        return _made(told, true, self.used)

    return operation


for _kind in (Count, Ratio):
    for _name in ("add", "sub", "mul", "truediv", "floordiv", "pow"):
        for _prefix in ("", "r"):
            setattr(_kind, f"__{_prefix}{_name}__", _operation(getattr(operator, _name), bool(_prefix)))
