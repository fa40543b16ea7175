"""Load small data sets that are included in scikit-learn. Real data gives the replicas different examples."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np


class Examples(NamedTuple):
    """Inputs and labels, one row per example."""

    inputs: np.ndarray[Any, Any]
    labels: np.ndarray[Any, Any]

    def first(self, number: int) -> Examples:
        """Return the first examples, so that a run has a known number of steps."""
        return Examples(self.inputs[:number], self.labels[:number])


@cache
def digits() -> Examples:
    """Return images of 8 by 8 pixels with values in [0, 1], and the digit that each shows."""
    # Imported here because it takes a second, and the ranks do not need it: they get the examples as arrays.
    from sklearn.datasets import load_digits

    found = load_digits()
    return Examples((found.images / 16).astype("float32"), found.target.astype("int64"))


@cache
def tumours() -> Examples:
    """Return 30 standardized measurements of each tumor (breast cancer), and whether the tumor is benign."""
    from sklearn.datasets import load_breast_cancer

    found = load_breast_cancer()
    scaled = (found.data - found.data.mean(axis=0)) / found.data.std(axis=0)
    return Examples(scaled.astype("float32"), found.target.astype("int64"))


NUM_BINS = 4


@cache
def tumour_tokens() -> Examples:
    """Return the first ten measurements as token ids. Each measurement is cut at its quartiles and has its own ids."""
    inputs, labels = tumours()
    chosen = inputs[:, :10]
    edges = np.quantile(chosen, np.arange(1, NUM_BINS) / NUM_BINS, axis=0)
    bins = (chosen[None] > edges[:, None]).sum(axis=0)
    return Examples((bins + NUM_BINS * np.arange(chosen.shape[1])).astype("int64"), labels)
