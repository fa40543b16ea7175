"""Turn the result of a call into plain data for another process: arrays in their structure, or the exception."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Answer:
    """The result of a call, or what it raised."""

    value: Any = None
    error: str = ""
    """Type of the exception, or nothing."""
    text: str = ""
    """Text of the exception, for messages only."""

    @property
    def lacks(self) -> bool:
        """Return whether the backend does not have what was asked of it."""
        return self.error == "NotImplementedError"


def answer_of(function: Callable[..., Any], *given: Any) -> Answer:
    """Call a function and return what it gives or raises."""
    try:
        with np.errstate(all="ignore"):
            return Answer(plain(function(*given)))
    except Exception as error:
        return Answer(error=type(error).__name__, text=str(error)[:300])


def plain(tree: Any) -> Any:
    """Return a structure of lists and dictionaries with arrays for tensors."""
    if isinstance(tree, Mapping):
        return {name: plain(tree[name]) for name in sorted(tree)}
    if isinstance(tree, (list, tuple)):
        return [plain(one) for one in tree]
    if tree is None or isinstance(tree, (str, bool, int, float, complex)):
        return tree
    if hasattr(tree, "indices") and hasattr(tree, "dense_shape"):
        import tensorflow as tf

        tree = tf.sparse.to_dense(tf.sparse.reorder(tree))
    # NumPy cannot convert a bfloat16 tensor of rank 0.
    return np.asarray(tree.numpy() if hasattr(tree, "numpy") else tree)
