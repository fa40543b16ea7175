"""Optimizers of Keras, with a NumPy model of one update of each from the paper or the docstring."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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


def sgd(momentum: float = 0, nesterov: bool = False) -> Model:
    def model(w: Array, g: Array, s: State, t: int, lr: float) -> Array:
        if not momentum:
            return w - lr * g
        s["momentum"] = momentum * s["momentum"] - lr * g
        return w + (momentum * s["momentum"] - lr * g if nesterov else s["momentum"])

    return model


def rmsprop(rho: float = 0.875, momentum: float = 0, centered: bool = False, epsilon: float = EPS) -> Model:
    """Hinton's lecture, with the mean of the gradient taken off the mean square if centered."""

    def model(w: Array, g: Array, s: State, t: int, lr: float) -> Array:
        s["velocity"] = rho * s["velocity"] + (1 - rho) * g**2
        spread = s["velocity"]
        if centered:
            s["average_gradient"] = rho * s["average_gradient"] + (1 - rho) * g
            spread = spread - s["average_gradient"] ** 2
        step = lr * g / np.sqrt(spread + epsilon)
        if not momentum:
            return w - step
        s["momentum"] = momentum * s["momentum"] + step
        return w - s["momentum"]

    return model


def moments(g: Array, s: State, beta_1: float, beta_2: float) -> None:
    """Move both moments of Kingma and Ba (2015)."""
    s["momentum"] = beta_1 * s["momentum"] + (1 - beta_1) * g
    s["velocity"] = beta_2 * s["velocity"] + (1 - beta_2) * g**2


def adam(
    beta_1: float = B1,
    beta_2: float = B2,
    epsilon: float = EPS,
    amsgrad: bool = False,
    adaptive_epsilon: bool = False,
) -> Model:
    """Section 2 of Kingma and Ba (2015), with their second form of epsilon, or with the first one if it is adaptive.

    ``amsgrad`` is that of Reddi et al. (2018).
    """

    def model(w: Array, g: Array, s: State, t: int, lr: float) -> Array:
        moments(g, s, beta_1, beta_2)
        velocity = s["velocity"]
        if amsgrad:
            velocity = s["velocity_hat"] = np.maximum(s["velocity_hat"], velocity)
        unbiased = np.sqrt(1 - beta_2**t)
        added = epsilon * unbiased if adaptive_epsilon else epsilon
        return w - lr * unbiased / (1 - beta_1**t) * s["momentum"] / (np.sqrt(velocity) + added)

    return model


def adamw(w: Array, g: Array, s: State, t: int, lr: float) -> Array:
    """Loshchilov and Hutter (2019): decay apart from the gradient."""
    return adam()(w * (1 - lr * 0.25), g, s, t, lr)


def adagrad(epsilon: float = EPS) -> Model:
    def model(w: Array, g: Array, s: State, t: int, lr: float) -> Array:
        s["accumulator"] = s["accumulator"] + g**2
        return w - lr * g / np.sqrt(s["accumulator"] + epsilon)

    return model


def adadelta(rho: float = B2, epsilon: float = EPS) -> Model:
    """Algorithm 1 of Zeiler (2012)."""

    def model(w: Array, g: Array, s: State, t: int, lr: float) -> Array:
        s["accumulated_grad"] = rho * s["accumulated_grad"] + (1 - rho) * g**2
        move = -np.sqrt(s["accumulated_delta_var"] + epsilon) / np.sqrt(s["accumulated_grad"] + epsilon) * g
        s["accumulated_delta_var"] = rho * s["accumulated_delta_var"] + (1 - rho) * move**2
        return w + lr * move

    return model


def adamax(beta_1: float = B1, beta_2: float = B2, epsilon: float = EPS) -> Model:
    """Algorithm 2 of Kingma and Ba (2015)."""

    def model(w: Array, g: Array, s: State, t: int, lr: float) -> Array:
        s["momentum"] = beta_1 * s["momentum"] + (1 - beta_1) * g
        s["norm"] = np.maximum(beta_2 * s["norm"], np.abs(g))
        return w - lr / (1 - beta_1**t) * s["momentum"] / (s["norm"] + epsilon)

    return model


def nadam(beta_1: float = B1, beta_2: float = B2, epsilon: float = EPS) -> Model:
    """Dozat (2015), with his schedule of the momentum, whose 0.96 Keras rounds to float32."""

    def model(w: Array, g: Array, s: State, t: int, lr: float) -> Array:
        decay = float(np.float32(0.96))
        rates = [beta_1 * (1 - 0.5 * decay**step) for step in range(1, t + 2)]
        moments(g, s, beta_1, beta_2)
        ahead = rates[t] * s["momentum"] / (1 - np.prod(rates)) + (1 - rates[t - 1]) * g / (1 - np.prod(rates[:t]))
        return w - lr * ahead / (np.sqrt(s["velocity"] / (1 - beta_2**t)) + epsilon)

    return model


def ftrl(
    learning_rate_power: float = -0.5,
    l1_regularization_strength: float = 0.25,
    l2_regularization_strength: float = 0.375,
    l2_shrinkage_regularization_strength: float = 0,
    beta: float = 0.5,
) -> Model:
    """McMahan et al. (2013), with Keras' beta, which is added to the second penalty as beta / (2 lr)."""
    one, two, shrinkage = (
        l1_regularization_strength,
        l2_regularization_strength,
        l2_shrinkage_regularization_strength,
    )

    def model(w: Array, g: Array, s: State, t: int, lr: float) -> Array:
        shrunk = g + 2 * shrinkage * w
        total, power = s["accumulator"] + g**2, -learning_rate_power
        s["linear"] = s["linear"] + shrunk - (total**power - s["accumulator"] ** power) / lr * w
        s["accumulator"] = total
        quadratic = total**power / lr + 2 * (two + beta / (2 * lr))
        return np.where(np.abs(s["linear"]) > one, (np.sign(s["linear"]) * one - s["linear"]) / quadratic, 0.0)

    return model


def lion(beta_1: float = B1, beta_2: float = B2) -> Model:
    """Chen et al. (2023)."""

    def model(w: Array, g: Array, s: State, t: int, lr: float) -> Array:
        step = np.sign(beta_1 * s["momentum"] + (1 - beta_1) * g)
        s["momentum"] = beta_2 * s["momentum"] + (1 - beta_2) * g
        return w - lr * step

    return model


def lamb(beta_1: float = B1, beta_2: float = B2, epsilon: float = EPS) -> Model:
    """You et al. (2020), without their decay."""

    def model(w: Array, g: Array, s: State, t: int, lr: float) -> Array:
        moments(g, s, beta_1, beta_2)
        step = s["momentum"] / (1 - beta_1**t) / (np.sqrt(s["velocity"] / (1 - beta_2**t)) + epsilon)
        return w - lr * np.linalg.norm(w) / np.linalg.norm(step) * step

    return model


def adafactor(
    beta_2_decay: float = -0.8,
    epsilon_1: float = 1e-30,
    epsilon_2: float = 1e-3,
    clip_threshold: float = 1.0,
    relative_step: bool = True,
) -> Model:
    """Algorithms 4 and 5 of Shazeer and Stern (2018)."""

    def model(w: Array, g: Array, s: State, t: int, lr: float) -> Array:
        beta = 1 - t**beta_2_decay
        square = g**2 + epsilon_1
        if w.ndim < 2:
            s["velocity"] = beta * s["velocity"] + (1 - beta) * square
        else:
            rows, columns = s.get("rows", 0.0), s.get("columns", 0.0)
            s["rows"] = beta * rows + (1 - beta) * square.mean(axis=-1)
            s["columns"] = beta * columns + (1 - beta) * square.mean(axis=-2)
            s["velocity"] = np.outer(s["rows"], s["columns"]) / s["rows"].mean()
        step = g / np.sqrt(s["velocity"])
        step = step / max(1.0, float(np.sqrt((step**2).mean())) / clip_threshold)
        rate = min(lr, 1 / np.sqrt(t)) if relative_step else lr
        return w - max(epsilon_2, float(np.sqrt((w**2).mean()))) * rate * step

    return model


def muon(
    adam_beta_1: float = B1,
    adam_beta_2: float = B2,
    epsilon: float = EPS,
    muon_a: float = 3.5,
    muon_b: float = -4.75,
    muon_c: float = 2.0,
    adam_lr_ratio: float = 1.0,
    momentum: float = 0.75,
    ns_steps: int = 5,
    nesterov: bool = True,
    rms_rate: float | None = 0.25,
    exclude_layers: Sequence[str] | None = None,
    **_others: Any,
) -> Model:
    """Jordan (2024), with the scale of Liu et al. (2025). Adam trains vectors, and layers that are excluded."""

    def model(w: Array, g: Array, s: State, t: int, lr: float) -> Array:
        if w.ndim < 2 or exclude_layers:
            return adam(adam_beta_1, adam_beta_2, epsilon)(w, g, s, t, lr * adam_lr_ratio)
        s["momentum"] = momentum * s["momentum"] + g
        x = g + momentum * s["momentum"] if nesterov else s["momentum"]
        if tall := x.shape[0] > x.shape[1]:
            x = x.T
        x = x / (np.linalg.norm(x) + 1e-7)
        for _ in range(ns_steps):
            a = x @ x.T
            x = muon_a * x + (muon_b * a + muon_c * a @ a) @ x
        scale = 1.0 if rms_rate is None else np.sqrt(max(w.shape)) * rms_rate
        return w - lr * (x.T if tall else x) * scale

    return model


def muon_with_decay(w: Array, g: Array, s: State, t: int, lr: float) -> Array:
    """Both kinds of variables decay by a quarter."""
    return muon()(w * (1 - lr * 0.25), g, s, t, lr)


def schedule_free(beta_1: float = B1, beta_2: float = B2, epsilon: float = EPS, warmup_steps: int = 0) -> Model:
    """Algorithm 1 of Defazio et al. (2024): weights are between an average and the point that gradients move."""

    def model(w: Array, g: Array, s: State, t: int, lr: float) -> Array:
        z = s.setdefault("point", w)
        average = (w - (1 - beta_1) * z) / beta_1
        s["velocity"] = beta_2 * s["velocity"] + (1 - beta_2) * g**2
        rate = lr * min(t / warmup_steps, 1.0) if warmup_steps else lr
        s["point"] = z - rate * g / (np.sqrt(s["velocity"] / (1 - beta_2**t)) + epsilon)
        average = average + (s["point"] - average) / t
        return (1 - beta_1) * s["point"] + beta_1 * average

    return model


_ADAM = {"beta_1": B1, "beta_2": B2, "epsilon": EPS}
MOMENTS = {"momentum": 0.0, "velocity": 0.0}

CASES = (
    Case("SGD", "optimizer.SGD", sgd()),
    Case("SGD", "optimizer.momentum", sgd(0.75), {"momentum": 0.75}, {"momentum": 0}),
    Case(
        "SGD",
        "optimizer.Nesterov",
        sgd(0.625, nesterov=True),
        {"momentum": 0.625, "nesterov": True},
        {"momentum": 0},
    ),
    Case(
        "RMSprop",
        "optimizer.RMSprop",
        rmsprop(),
        {"rho": 0.875, "epsilon": EPS},
        start={"velocity": 0},
    ),
    Case(
        "RMSprop",
        "optimizer.RMSprop",
        rmsprop(0.75, 0.5, centered=True),
        {"rho": 0.75, "momentum": 0.5, "centered": True, "epsilon": EPS},
        {"average_gradient": 0, **MOMENTS},
    ),
    Case("Adam", "optimizer.Adam", adam(), _ADAM, MOMENTS),
    Case("Adam", "optimizer.Adam", adam(amsgrad=True), {"amsgrad": True, **_ADAM}, {"velocity_hat": 0, **MOMENTS}),
    Case("AdamW", "optimizer.AdamW", adamw, {"weight_decay": 0.25, **_ADAM}, MOMENTS),
    Case(
        "Adagrad",
        "optimizer.Adagrad",
        adagrad(),
        {"initial_accumulator_value": 0.5, "epsilon": EPS},
        {"accumulator": 0.5},
    ),
    Case(
        "Adadelta",
        "optimizer.Adadelta",
        adadelta(),
        {"rho": B2, "epsilon": EPS},
        {"accumulated_grad": 0, "accumulated_delta_var": 0},
    ),
    Case("Adamax", "optimizer.Adamax", adamax(), _ADAM, {"momentum": 0, "norm": 0}),
    Case("Nadam", "optimizer.Nadam", nadam(), _ADAM, MOMENTS, rtol=1e-6),
    Case(
        "Ftrl",
        "optimizer.Ftrl",
        ftrl(),
        {
            "l1_regularization_strength": 0.25,
            "l2_regularization_strength": 0.375,
            "beta": 0.5,
            "initial_accumulator_value": 0.5,
        },
        {"accumulator": 0.5, "linear": 0},
    ),
    Case("Lion", "optimizer.Lion", lion(), {"beta_1": B1, "beta_2": B2}, {"momentum": 0}),
    Case("Lamb", "optimizer.Lamb", lamb(), _ADAM, MOMENTS),
    Case("Adafactor", "optimizer.Adafactor", adafactor(), start={"velocity": 0}),
    Case(
        "Muon",
        "optimizer.Muon",
        muon_with_decay,
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
        MOMENTS,
    ),
)
"""All cases."""
