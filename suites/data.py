"""Real data that ships with scikit-learn, cut small: what matters is that replicas see different examples."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np


class Examples(NamedTuple):
    """Inputs and labels, one row per example."""

    inputs: np.ndarray[Any, Any]
    labels: np.ndarray[Any, Any]

    def first(self, number: int) -> Examples:
        """The first examples, so that a run has a known number of steps."""
        return Examples(self.inputs[:number], self.labels[:number])


@cache
def digits() -> Examples:
    """Images of 8 by 8 pixels in [0, 1], and which digit each shows."""
    # Imported here: scikit-learn takes a second, and ranks get the examples as arrays.
    from sklearn.datasets import load_digits

    found = load_digits()
    return Examples((found.images / 16).astype("float32"), found.target.astype("int64"))


@cache
def tumours() -> Examples:
    """30 standardised measurements of tumours (breast cancer), and whether each is benign."""
    from sklearn.datasets import load_breast_cancer

    found = load_breast_cancer()
    scaled = (found.data - found.data.mean(axis=0)) / found.data.std(axis=0)
    return Examples(scaled.astype("float32"), found.target.astype("int64"))


NUM_BINS = 4


@cache
def tumour_tokens() -> Examples:
    """The first ten measurements as ids of an own vocabulary each, cut at the quartiles."""
    inputs, labels = tumours()
    chosen = inputs[:, :10]
    edges = np.quantile(chosen, np.arange(1, NUM_BINS) / NUM_BINS, axis=0)
    bins = (chosen[None] > edges[:, None]).sum(axis=0)
    return Examples((bins + NUM_BINS * np.arange(chosen.shape[1])).astype("int64"), labels)
