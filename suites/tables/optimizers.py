"""Optimizers of Keras, with a NumPy model of one update of each from the paper or the docstring."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
State = dict[str, Array]
"""Slots of one variable, by the last part of their names."""
Model = Callable[[Array, Array, State, int, float], Array]
"""Takes a variable, its gradient, slots, the number of the step from 1 and the learning rate, and returns its value."""

# Keras rounds hyperparameters to float32, so these are numbers that float32 holds exactly.
RATE = 0.125
B1, B2, EPS = 0.875, 0.96875, 2.0**-20
"""Decay of the first and the second moment, and the number that is added to denominators."""


@dataclass(frozen=True)
class Case:
    """An optimizer that is to be compared with its model."""

    optimizer: str
    """Name of the class."""
    item: str
    model: Model
    arguments: Mapping[str, Any] = field(default_factory=dict)
    start: Mapping[str, float] = field(default_factory=dict)
    """Slot -> first value of all its elements."""
    rate: float = RATE
    rtol: float = 1e-12
    """Relative bound in float64: some hundred operations, each with an error of 2e-16."""

    @property
    def id(self) -> str:
        flags = (name for name in ("momentum", "nesterov", "centered", "amsgrad") if self.arguments.get(name))
        return "-".join([self.optimizer, *flags])

    def initial(self, variable: Array) -> State:
        """Return the slots before the first step."""
        return {name: np.full_like(variable, value) for name, value in self.start.items()}


def sgd(w: Array, g: Array, s: State, t: int, lr: float) -> Array:
    return w - lr * g


def momentum(beta: float, *, nesterov: bool) -> Model:
    def model(w: Array, g: Array, s: State, t: int, lr: float) -> Array:
        s["momentum"] = beta * s["momentum"] - lr * g
        return w + (beta * s["momentum"] - lr * g if nesterov else s["momentum"])

    return model


def rmsprop(rho: float, beta: float, *, centered: bool) -> Model:
    """Hinton's lecture, with the mean of the gradient taken off the mean square if centered."""

    def model(w: Array, g: Array, s: State, t: int, lr: float) -> Array:
        s["velocity"] = rho * s["velocity"] + (1 - rho) * g**2
        spread = s["velocity"]
        if centered:
            s["average_gradient"] = rho * s["average_gradient"] + (1 - rho) * g
            spread = spread - s["average_gradient"] ** 2
        step = lr * g / np.sqrt(spread + EPS)
        if not beta:
            return w - step
        s["momentum"] = beta * s["momentum"] + step
        return w - s["momentum"]

    return model


def moments(g: Array, s: State) -> None:
    """Move both moments of Kingma and Ba (2015)."""
    s["momentum"] = B1 * s["momentum"] + (1 - B1) * g
    s["velocity"] = B2 * s["velocity"] + (1 - B2) * g**2


def adam(w: Array, g: Array, s: State, t: int, lr: float) -> Array:
    """Section 2 of Kingma and Ba (2015), with their second form of epsilon."""
    moments(g, s)
    return w - lr * np.sqrt(1 - B2**t) / (1 - B1**t) * s["momentum"] / (np.sqrt(s["velocity"]) + EPS)


def amsgrad(w: Array, g: Array, s: State, t: int, lr: float) -> Array:
    """Reddi et al. (2018): the largest second moment so far."""
    moments(g, s)
    s["velocity_hat"] = np.maximum(s["velocity_hat"], s["velocity"])
    return w - lr * np.sqrt(1 - B2**t) / (1 - B1**t) * s["momentum"] / (np.sqrt(s["velocity_hat"]) + EPS)


def adamw(w: Array, g: Array, s: State, t: int, lr: float) -> Array:
    """Loshchilov and Hutter (2019): decay apart from the gradient."""
    return adam(w * (1 - lr * 0.25), g, s, t, lr)


def adagrad(w: Array, g: Array, s: State, t: int, lr: float) -> Array:
    s["accumulator"] = s["accumulator"] + g**2
    return w - lr * g / np.sqrt(s["accumulator"] + EPS)


def adadelta(w: Array, g: Array, s: State, t: int, lr: float) -> Array:
    """Algorithm 1 of Zeiler (2012)."""
    s["accumulated_grad"] = B2 * s["accumulated_grad"] + (1 - B2) * g**2
    move = -np.sqrt(s["accumulated_delta_var"] + EPS) / np.sqrt(s["accumulated_grad"] + EPS) * g
    s["accumulated_delta_var"] = B2 * s["accumulated_delta_var"] + (1 - B2) * move**2
    return w + lr * move


def adamax(w: Array, g: Array, s: State, t: int, lr: float) -> Array:
    """Algorithm 2 of Kingma and Ba (2015)."""
    s["momentum"] = B1 * s["momentum"] + (1 - B1) * g
    s["norm"] = np.maximum(B2 * s["norm"], np.abs(g))
    return w - lr / (1 - B1**t) * s["momentum"] / (s["norm"] + EPS)


def nadam(w: Array, g: Array, s: State, t: int, lr: float) -> Array:
    """Dozat (2015), with his schedule of the momentum, whose 0.96 Keras rounds to float32."""
    decay = float(np.float32(0.96))
    rates = [B1 * (1 - 0.5 * decay**step) for step in range(1, t + 2)]
    moments(g, s)
    ahead = rates[t] * s["momentum"] / (1 - np.prod(rates)) + (1 - rates[t - 1]) * g / (1 - np.prod(rates[:t]))
    return w - lr * ahead / (np.sqrt(s["velocity"] / (1 - B2**t)) + EPS)


def ftrl(w: Array, g: Array, s: State, t: int, lr: float) -> Array:
    """McMahan et al. (2013), with l1 = 0.25, l2 = 0.375 and Keras' beta = 0.5."""
    total = s["accumulator"] + g**2
    s["linear"] = s["linear"] + g - (np.sqrt(total) - np.sqrt(s["accumulator"])) / lr * w
    s["accumulator"] = total
    quadratic = np.sqrt(total) / lr + 2 * (0.375 + 0.5 / (2 * lr))
    return np.where(np.abs(s["linear"]) > 0.25, (np.sign(s["linear"]) * 0.25 - s["linear"]) / quadratic, 0.0)


def lion(w: Array, g: Array, s: State, t: int, lr: float) -> Array:
    """Chen et al. (2023)."""
    step = np.sign(B1 * s["momentum"] + (1 - B1) * g)
    s["momentum"] = B2 * s["momentum"] + (1 - B2) * g
    return w - lr * step


def lamb(w: Array, g: Array, s: State, t: int, lr: float) -> Array:
    """You et al. (2020), without their decay."""
    moments(g, s)
    step = s["momentum"] / (1 - B1**t) / (np.sqrt(s["velocity"] / (1 - B2**t)) + EPS)
    return w - lr * np.linalg.norm(w) / np.linalg.norm(step) * step


def adafactor(w: Array, g: Array, s: State, t: int, lr: float) -> Array:
    """Algorithms 4 and 5 of Shazeer and Stern (2018)."""
    beta = 1 - t**-0.8
    square = g**2 + 1e-30
    if w.ndim < 2:
        s["velocity"] = beta * s["velocity"] + (1 - beta) * square
    else:
        rows, columns = s.get("rows", 0.0), s.get("columns", 0.0)
        s["rows"] = beta * rows + (1 - beta) * square.mean(axis=-1)
        s["columns"] = beta * columns + (1 - beta) * square.mean(axis=-2)
        s["velocity"] = np.outer(s["rows"], s["columns"]) / s["rows"].mean()
    step = g / np.sqrt(s["velocity"])
    step = step / max(1.0, float(np.sqrt((step**2).mean())))
    return w - max(1e-3, float(np.sqrt((w**2).mean()))) * min(lr, 1 / np.sqrt(t)) * step


def muon(w: Array, g: Array, s: State, t: int, lr: float) -> Array:
    """Jordan (2024), with the scale of Liu et al. (2025); vectors are trained by Adam. Both decay by a quarter."""
    w = w * (1 - lr * 0.25)
    if w.ndim < 2:
        return adam(w, g, s, t, lr)
    s["momentum"] = 0.75 * s["momentum"] + g
    x = g + 0.75 * s["momentum"]
    if tall := x.shape[0] > x.shape[1]:
        x = x.T
    x = x / (np.linalg.norm(x) + 1e-7)
    for _ in range(5):
        a = x @ x.T
        x = 3.5 * x + (-4.75 * a + 2 * a @ a) @ x
    return w - lr * (x.T if tall else x) * np.sqrt(max(w.shape)) * 0.25


_ADAM = {"beta_1": B1, "beta_2": B2, "epsilon": EPS}
_MOMENTS = {"momentum": 0.0, "velocity": 0.0}

CASES = (
    Case("SGD", "optimizer.SGD", sgd),
    Case("SGD", "optimizer.momentum", momentum(0.75, nesterov=False), {"momentum": 0.75}, {"momentum": 0}),
    Case(
        "SGD",
        "optimizer.Nesterov",
        momentum(0.625, nesterov=True),
        {"momentum": 0.625, "nesterov": True},
        {"momentum": 0},
    ),
    Case(
        "RMSprop",
        "optimizer.RMSprop",
        rmsprop(0.875, 0, centered=False),
        {"rho": 0.875, "epsilon": EPS},
        start={"velocity": 0},
    ),
    Case(
        "RMSprop",
        "optimizer.RMSprop",
        rmsprop(0.75, 0.5, centered=True),
        {"rho": 0.75, "momentum": 0.5, "centered": True, "epsilon": EPS},
        {"average_gradient": 0, **_MOMENTS},
    ),
    Case("Adam", "optimizer.Adam", adam, _ADAM, _MOMENTS),
    Case("Adam", "optimizer.Adam", amsgrad, {"amsgrad": True, **_ADAM}, {"velocity_hat": 0, **_MOMENTS}),
    Case("AdamW", "optimizer.AdamW", adamw, {"weight_decay": 0.25, **_ADAM}, _MOMENTS),
    Case(
        "Adagrad",
        "optimizer.Adagrad",
        adagrad,
        {"initial_accumulator_value": 0.5, "epsilon": EPS},
        {"accumulator": 0.5},
    ),
    Case(
        "Adadelta",
        "optimizer.Adadelta",
        adadelta,
        {"rho": B2, "epsilon": EPS},
        {"accumulated_grad": 0, "accumulated_delta_var": 0},
    ),
    Case("Adamax", "optimizer.Adamax", adamax, _ADAM, {"momentum": 0, "norm": 0}),
    Case("Nadam", "optimizer.Nadam", nadam, _ADAM, _MOMENTS, rtol=1e-6),
    Case(
        "Ftrl",
        "optimizer.Ftrl",
        ftrl,
        {
            "l1_regularization_strength": 0.25,
            "l2_regularization_strength": 0.375,
            "beta": 0.5,
            "initial_accumulator_value": 0.5,
        },
        {"accumulator": 0.5, "linear": 0},
    ),
    Case("Lion", "optimizer.Lion", lion, {"beta_1": B1, "beta_2": B2}, {"momentum": 0}),
    Case("Lamb", "optimizer.Lamb", lamb, _ADAM, _MOMENTS),
    Case("Adafactor", "optimizer.Adafactor", adafactor, start={"velocity": 0}),
    Case(
        "Muon",
        "optimizer.Muon",
        muon,
        {
            "weight_decay": 0.25,
            "adam_weight_decay": 0.25,
            "momentum": 0.75,
            "muon_a": 3.5,
            "muon_b": -4.75,
            "muon_c": 2.0,
            "rms_rate": 0.25,
            "adam_beta_1": B1,
            "adam_beta_2": B2,
            "epsilon": EPS,
        },
        _MOMENTS,
    ),
)
"""All cases."""
