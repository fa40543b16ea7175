"""Optimizers of Keras with values of all their parameters, for the cases that ``Space`` makes in pairs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from suites.parameters.spaces import Arguments, Space
from suites.tables.optimizers import (
    B1,
    B2,
    EPS,
    MOMENTS,
    RATE,
    Array,
    Model,
    State,
    adadelta,
    adafactor,
    adagrad,
    adam,
    adamax,
    ftrl,
    lamb,
    lion,
    muon,
    nadam,
    rmsprop,
    schedule_free,
    sgd,
)


def _at_most_one(case: Arguments) -> bool:
    """Return whether Keras accepts and documents options together: one clipping, and no average of accumulations."""
    chosen = [name for name in ("clipnorm", "clipvalue", "global_clipnorm") if case.get(name) is not None]
    return len(chosen) < 2 and not (case.get("use_ema") and case.get("gradient_accumulation_steps"))


def _goes(case: Arguments) -> bool:
    """Return whether options go together; the model of Muon has one decay for all variables."""
    decays = [case[name] for name in ("weight_decay", "adam_weight_decay") if name in case]
    return _at_most_one(case) and len(set(decays)) < 2


BASE: Mapping[str, Any] = {
    "learning_rate": (RATE, 0.5),
    "weight_decay": (None, 0.25),
    "clipnorm": (None, 1.5),
    "clipvalue": (None, 0.5),
    "global_clipnorm": (None, 1.25),
    "use_ema": (False, True),
    "ema_momentum": (0.75, 0.5),
    "ema_overwrite_frequency": (None, 2),
    "loss_scale_factor": (None, 8.0),
    "gradient_accumulation_steps": (None, 2),
    "jit_compile": (False, True),
    "name": ("one", "another"),
}
"""Options that every optimizer has."""


@dataclass(frozen=True)
class Family:
    """An optimizer with the values of its parameters, and the function that makes its model."""

    space: Space
    model: Callable[..., Model]
    start: Mapping[str, float | str] = field(default_factory=dict)
    """Slot -> first value, or the parameter that gives it."""
    rtol: float = 1e-9
    """Relative bound: hyperparameters that float32 does not hold exactly are not among the values."""

    def own(self, case: Arguments) -> Arguments:
        """Return the parameters of a case that the model takes."""
        given = {value for value in self.start.values() if isinstance(value, str)}
        return {name: case[name] for name in self.space.varied() if name not in BASE and name not in given}

    def initial(self, case: Arguments, variable: Array) -> State:
        """Return the slots before the first step."""
        return {
            slot: np.full_like(variable, case[value] if isinstance(value, str) else value)
            for slot, value in self.start.items()
        }


def _family(name: str, model: Callable[..., Model], start: Mapping[str, Any], rtol: float = 1e-9, **own: Any) -> Family:
    return Family(Space(f"optimizers.{name}", {**BASE, **own}, allowed=_goes), model, start, rtol)


_BETAS = {"beta_1": (B1, 0.5), "beta_2": (B2, 0.75)}
_EPSILON = {"epsilon": (EPS, 0.125)}
_VELOCITY = {"velocity_hat": 0, **MOMENTS}

FAMILIES = (
    _family("SGD", sgd, {"momentum": 0}, momentum=(0.0, 0.75), nesterov=(False, True)),
    _family(
        "RMSprop",
        rmsprop,
        {"average_gradient": 0, **MOMENTS},
        rho=(0.875, 0.5),
        momentum=(0.0, 0.5),
        centered=(False, True),
        **_EPSILON,
    ),
    _family("Adam", adam, _VELOCITY, amsgrad=(False, True), adaptive_epsilon=(False, True), **_BETAS, **_EPSILON),
    _family("AdamW", adam, _VELOCITY, amsgrad=(False, True), **_BETAS, **_EPSILON, weight_decay=(0.125, 0.25)),
    _family(
        "Adagrad",
        adagrad,
        {"accumulator": "initial_accumulator_value"},
        initial_accumulator_value=(0.5, 0.125),
        **_EPSILON,
    ),
    _family("Adadelta", adadelta, {"accumulated_grad": 0, "accumulated_delta_var": 0}, rho=(B2, 0.75), **_EPSILON),
    _family("Adamax", adamax, {"momentum": 0, "norm": 0}, **_BETAS, **_EPSILON),
    _family("Nadam", nadam, MOMENTS, 1e-6, **_BETAS, **_EPSILON),
    _family(
        "Ftrl",
        ftrl,
        {"accumulator": "initial_accumulator_value", "linear": 0},
        learning_rate_power=(-0.5, -0.25),
        initial_accumulator_value=(0.5, 0.125),
        l1_regularization_strength=(0.0, 0.25),
        l2_regularization_strength=(0.0, 0.375),
        l2_shrinkage_regularization_strength=(0.0, 0.125),
        beta=(0.0, 0.5),
    ),
    _family("Lion", lion, {"momentum": 0}, **_BETAS),
    _family("Lamb", lamb, MOMENTS, **_BETAS, **_EPSILON),
    _family(
        "Adafactor",
        adafactor,
        {"velocity": 0},
        1e-6,
        beta_2_decay=(-0.75, -0.5),
        epsilon_1=(1e-30, 0.125),
        epsilon_2=(2.0**-10, 0.5),
        clip_threshold=(1.0, 0.5),
        relative_step=(True, False),
    ),
    _family("ScheduleFreeAdamW", schedule_free, {"velocity": 0}, **_BETAS, **_EPSILON, warmup_steps=(0, 3)),
    _family(
        "Muon",
        muon,
        MOMENTS,
        1e-6,  # Keras takes the root of the size of a matrix in float32.
        adam_weight_decay=(None, 0.25),
        adam_beta_1=(B1, 0.5),
        adam_beta_2=(B2, 0.75),
        **_EPSILON,
        muon_a=(3.5, 3.0),
        muon_b=(-4.75, -4.0),
        muon_c=(2.0, 1.5),
        adam_lr_ratio=(1.0, 0.5),
        momentum=(0.75, 0.5),
        ns_steps=(5, 2),
        nesterov=(True, False),
        rms_rate=(0.25, None),
        exclude_layers=(None, ["."]),
        exclude_embeddings=(True, False),
    ),
)
"""Optimizers whose every parameter is varied."""

WRAPPERS = (
    Space(
        "mixed_precision.LossScaleOptimizer",
        {"initial_scale": (8.0, 2.0), "dynamic_growth_steps": (2, 3), "name": ("w", "x"), "dynamic": (True, False)},
    ),
    Space("optimizers.MultiOptimizer", {"loss_scale_factor": (None, 4.0), "name": ("w", "x")}),
)
"""Classes around an optimizer. The wrapped one has options of its own."""
