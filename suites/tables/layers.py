"""NumPy models of layers that have state, or that normalize, on the parts of the replicas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def normalized(x: Array, axis: Any, epsilon: float, *, center: bool = True) -> Array:
    """Return values with mean 0 (unless ``center`` is false) and variance 1 along axes."""
    middle = x.mean(axis=axis, keepdims=True) if center else 0.0
    return (x - middle) / np.sqrt(((x - middle) ** 2).mean(axis=axis, keepdims=True) + epsilon)


def in_groups(x: Array, groups: int, epsilon: float) -> Array:
    """Return values of which each group of channels of each example is normalized."""
    parts = x.reshape(*x.shape[:-1], groups, -1)
    axes = (*range(1, x.ndim - 1), x.ndim)
    return normalized(parts, axes, epsilon).reshape(x.shape)


@dataclass
class BatchStatistics:
    """Moving statistics of a BatchNormalization, and what it returns in training."""

    features: int
    momentum: float = 0.75
    epsilon: float = 1e-3
    mean: Array = field(init=False)
    variance: Array = field(init=False)

    def __post_init__(self) -> None:
        self.mean, self.variance = np.zeros(self.features), np.ones(self.features)

    def train(self, parts: Sequence[Array]) -> list[Array]:
        """Normalize each part by its own statistics, and update the moving ones with their mean over the parts."""
        means = [part.mean(axis=0) for part in parts]
        variances = [part.var(axis=0) for part in parts]
        self.mean = self.momentum * self.mean + (1 - self.momentum) * np.mean(means, axis=0)
        self.variance = self.momentum * self.variance + (1 - self.momentum) * np.mean(variances, axis=0)
        return [normalized(part, 0, self.epsilon) for part in parts]

    def infer(self, x: Array) -> Array:
        return (x - self.mean) / np.sqrt(self.variance + self.epsilon)


def attention(query: Array, value: Array, weights: Sequence[Array]) -> Array:
    """Return multi-head attention; the weights are those of Keras' layer, in their order."""
    q, bias_q, k, bias_k, v, bias_v, out, bias_out = weights
    queries = np.einsum("bti,ihd->bthd", query, q) + bias_q
    keys = np.einsum("bsi,ihd->bshd", value, k) + bias_k
    values = np.einsum("bsi,ihd->bshd", value, v) + bias_v
    scores = np.einsum("bthd,bshd->bhts", queries, keys) / np.sqrt(q.shape[-1])
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    return np.einsum("bhts,bshd,hdo->bto", shares, values, out) + bias_out


def recurrent(x: Array, weights: Sequence[Array], state: Array, mask: Array | None = None) -> tuple[Array, Array]:
    """Return the outputs of a SimpleRNN for each time, and the last state. A time that the mask hides repeats both."""
    kernel, recurrent_kernel, bias = weights
    outputs = []
    for time in range(x.shape[1]):
        new = np.tanh(x[:, time] @ kernel + state @ recurrent_kernel + bias)
        state = new if mask is None else np.where(mask[:, time, None], new, state)
        outputs.append(state)
    return np.stack(outputs, axis=1), state


def spectral(kernel: Array, vector: Array, steps: int = 1) -> tuple[Array, Array]:
    """Return a kernel divided by its largest singular value, as power iterations find it, and their vector."""
    # Keras divides by the root of the sum of squares, of at least 1e-12.
    for _ in range(steps):
        left = vector @ kernel.T
        left /= np.linalg.norm(left)
        vector = left @ kernel
        vector /= np.linalg.norm(vector)
    return kernel / float((left @ kernel @ vector.T).item()), vector
