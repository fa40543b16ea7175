"""Find for each example the masks with which arithmetic gives what a recurrent layer gives with dropout."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

import numpy as np
import pytest

from suites.pairwise import pairwise
from suites.parameters.spaces import Arguments, Wrong

pytestmark = pytest.mark.usefixtures("float64")

ROWS, TIMES, FEATURES, RATE = 256, 3, 2, 0.25
"""One unit. Each gate may have a mask of its own for each feature and for the unit: 4096 pairs of masks of LSTM."""
BOUND = 1e-9
"""Some dozen operations in float64. Outputs with other masks differ by more than 1e-4 for nearly all examples."""
DEVIATIONS = 5
"""Bound of the number of elements that are kept, in standard deviations."""
DIMENSIONS: Mapping[str, tuple[str, ...]] = {
    "dropout": ("0", "1"),
    "recurrent_dropout": ("0", "1"),
    "unroll": ("False", "True"),
    "how": ("eager", "function"),
}
"""Choices of a call; each pair of them occurs."""


def logistic(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def simple(x: Any, h: Any, u: Any, bias: Any, _carry: Any) -> tuple[Any, Any]:
    return np.tanh(x[0] + bias[0] + h[0] * u[0]), None


def lstm(x: Any, h: Any, u: Any, bias: Any, carry: Any) -> tuple[Any, Any]:
    enter, forget, candidate, out = (x[n] + bias[n] + h[n] * u[n] for n in range(4))
    carry = logistic(forget) * carry + logistic(enter) * np.tanh(candidate)
    return logistic(out) * np.tanh(carry), carry


def gru(x: Any, h: Any, u: Any, bias: Any, before: Any) -> tuple[Any, Any]:
    """Only what the gates read is dropped, and not the last state. ``bias`` has two rows if it resets after."""
    own, inner = bias if np.ndim(bias[0]) else (bias, None)
    keep, reset = (logistic(x[n] + own[n] + h[n] * u[n] + (0 if inner is None else inner[n])) for n in (0, 1))
    recurrent = h[2] * u[2] if inner is None else h[2] * u[2] + inner[2]
    state = keep * before + (1 - keep) * np.tanh(x[2] + own[2] + reset * recurrent)
    return state, state


CELLS: Mapping[str, tuple[str, Arguments, int, Callable[..., Any]]] = {
    "SimpleRNN": ("SimpleRNN", {}, 1, simple),
    "GRU": ("GRU", {}, 3, gru),
    "GRU that resets before": ("GRU", {"reset_after": False}, 3, gru),
    "LSTM": ("LSTM", {}, 4, lstm),
}
"""Cell -> its layer, the arguments, the number of gates, and a step in arithmetic."""


def all_masks(gates: int, size: int, rate: float) -> Any:
    """Return all masks: mask, gate, element. What is kept is divided by the probability."""
    if not rate:
        return np.ones((1, gates, size))
    return np.array([*product((0.0, 1 / (1 - rate)), repeat=gates * size)]).reshape(-1, gates, size)


def outputs(cell: str, weights: list[Any], x: Any, masks: tuple[Any, Any]) -> Any:
    """Return the outputs of all examples with all pairs of masks: example, mask of the input, of the state, time."""
    _, _, gates, step = CELLS[cell]
    kernel, recurrent, bias = weights
    own, of_state = masks
    state = np.zeros((len(x), len(own), len(of_state)))
    carry, found = state, []
    for time in range(TIMES):
        parts = np.einsum("rf,mgf,fg->grm", x[:, time], own, kernel)[..., None]
        read = [state * of_state[:, gate, 0] for gate in range(gates)]
        state, carry = step(parts, read, recurrent[0], bias, carry)
        found.append(state)
    return np.stack(found, axis=-1)


def chosen(cell: str, weights: list[Any], x: Any, got: Any, rates: tuple[float, float]) -> list[Any]:
    """Return which elements of the input and of the state each example has kept; those without an effect are masked.

    :raises AssertionError: if no masks give the output of an example.
    """
    gates = CELLS[cell][2]
    masks = all_masks(gates, FEATURES, rates[0]), all_masks(gates, 1, rates[1])
    fits = np.abs(outputs(cell, weights, x, masks) - got[:, None, None, :]).max(axis=-1) < BOUND
    assert fits.any(axis=(1, 2)).all(), f"{(~fits.any(axis=(1, 2))).sum()} examples have no masks"
    found = []
    for of_kind, own in zip(masks, (fits.any(axis=2), fits.any(axis=1)), strict=True):
        kept, dropped = (np.einsum("rm,mge->rge", own * 1, which * 1) > 0 for which in (of_kind > 0, of_kind == 0))
        found.append(np.ma.array(kept, mask=kept & dropped))
    return found


@pytest.mark.ddl(strategies=["one_device"])
@pytest.mark.ddl_item("layer.LSTM_GRU", "layer.Dropout_family")
@pytest.mark.parametrize("cell", CELLS)
def test_dropout_masks_what_the_gates_read(cell, ddl_strategy):
    """An example has one mask for all times. Other examples and calls have other ones, with as many zeros as told."""
    import tensorflow as tf

    from suites.subject import keras

    wrong, (kind, arguments, gates, _) = Wrong(), CELLS[cell]
    x = np.random.default_rng(2).normal(size=(ROWS, TIMES, FEATURES))
    for case in pairwise(DIMENSIONS, lambda case: (case.get("dropout"), case.get("recurrent_dropout")) != ("0", "0")):
        rates = tuple(RATE * int(case[name]) for name in ("dropout", "recurrent_dropout"))
        with wrong.of(case):
            keras.utils.set_random_seed(5)
            given = {"dropout": rates[0], "recurrent_dropout": rates[1], "unroll": case["unroll"] == "True"}
            layer = getattr(keras.layers, kind)(1, return_sequences=True, **arguments, **given)
            layer(x)
            draw = np.random.default_rng(gates)
            weights = [draw.normal(size=one.shape) for one in layer.get_weights()]
            layer.set_weights(weights)

            def call(training, layer=layer):
                return layer(tf.constant(x), training=training)

            call = tf.function(call) if case["how"] == "function" else call
            first, second, without = (np.asarray(call(training))[..., 0] for training in (True, True, False))
            plain = outputs(cell, weights, x, (all_masks(gates, FEATURES, 0), all_masks(gates, 1, 0)))[:, 0, 0]
            np.testing.assert_allclose(without, plain, rtol=0, atol=BOUND)
            drawn = [chosen(cell, weights, x, got, rates) for got in (first, second)]
            for one, other, rate in zip(*drawn, rates, strict=True):
                if rate:
                    bound = DEVIATIONS * np.sqrt(rate * (1 - rate) / one.count(axis=0))
                    assert (np.abs(one.mean(axis=0) - (1 - rate)) < bound).all(), f"kept {one.mean(axis=0)}"
                    assert (one != other).any(), "two calls have the same masks"
                    assert len(np.unique(one, axis=0)) > 1, "all examples have the same masks"
    wrong.check()
