"""Recurrent cells in NumPy, and what a layer makes of their steps: masks, directions and states."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
States = Sequence[Array]
Step = Callable[[Array, States], tuple[Array, States]]


def logistic(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def simple(weights: States, x: Array, states: States) -> tuple[Array, States]:
    kernel, recurrent, *bias = weights
    new = np.tanh(x @ kernel + states[0] @ recurrent + sum(bias))
    return new, [new]


def gated(parts: Array, states: States) -> tuple[Array, States]:
    """Return the step of an LSTM.

    :param parts: what the input gate, the forget gate, the candidates and the output gate add up, along the last axis.
    """
    enter, forget, candidate, out = np.split(parts, 4, axis=-1)
    carry = logistic(forget) * states[1] + logistic(enter) * np.tanh(candidate)
    return logistic(out) * np.tanh(carry), [logistic(out) * np.tanh(carry), carry]


def lstm(weights: States, x: Array, states: States) -> tuple[Array, States]:
    kernel, recurrent, *bias = weights
    return gated(x @ kernel + states[0] @ recurrent + sum(bias), states)


def gru(weights: States, x: Array, states: States) -> tuple[Array, States]:
    """Return the step of a GRU that resets after the product, with biases of both products."""
    kernel, recurrent, *biases = weights
    own, inner = biases[0] if biases else (0.0, 0.0)
    (keep, reset, new), (h_keep, h_reset, h_new) = (
        np.split(one, 3, axis=-1) for one in (x @ kernel + own, states[0] @ recurrent + inner)
    )
    keep, reset = logistic(keep + h_keep), logistic(reset + h_reset)
    state = keep * states[0] + (1 - keep) * np.tanh(new + reset * h_new)
    return state, [state]


def gru_before(weights: States, x: Array, states: States) -> tuple[Array, States]:
    """Return the step of a GRU that resets the state before the product."""
    kernel, recurrent, *bias = weights
    keep, reset, new = np.split(x @ kernel + sum(bias), 3, axis=-1)
    u_keep, u_reset, u_new = np.split(recurrent, 3, axis=-1)
    keep, reset = logistic(keep + states[0] @ u_keep), logistic(reset + states[0] @ u_reset)
    state = keep * states[0] + (1 - keep) * np.tanh(new + (reset * states[0]) @ u_new)
    return state, [state]


@dataclass(frozen=True)
class Cell:
    """A cell, and its step in NumPy."""

    name: str
    step: Callable[[States, Array, States], tuple[Array, States]]
    states: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return "-".join([self.name, *self.options])


CELLS = (
    Cell("SimpleRNN", simple),
    Cell("LSTM", lstm, states=2),
    Cell("GRU", gru, options={"reset_after": True}),
    Cell("GRU", gru_before, options={"reset_after": False, "implementation": 1}),
)


def stacked(steps: Sequence[tuple[Step, int]]) -> Step:
    """Return the step of cells of which each gets the output of the one before.

    :param steps: steps, each with its number of states.
    """

    def step(x: Array, states: States) -> tuple[Array, States]:
        found: list[Array] = []
        for one, number in steps:
            x, new = one(x, states[len(found) : len(found) + number])
            found += new
        return x, found

    return step


def scanned(
    step: Step, x: Array, states: States, mask: Array | None = None, *, backwards: bool = False, zeros: bool = False
) -> tuple[Array, States]:
    """Return the outputs of all times, in the order of the steps, and the last states.

    A step that the mask hides keeps the states, and repeats the output before it, or gives zeros.
    """
    outputs: list[Array] = []
    for time in reversed(range(x.shape[1])) if backwards else range(x.shape[1]):
        output, new = step(x[:, time], states)
        if mask is not None:
            keep = mask[:, time].reshape(-1, *[1] * (output.ndim - 1))
            output = np.where(keep, output, np.zeros_like(output) if zeros or not outputs else outputs[-1])
            new = [np.where(keep, one, before) for one, before in zip(new, states, strict=True)]
        outputs.append(output)
        states = new
    return np.stack(outputs, axis=1), states
