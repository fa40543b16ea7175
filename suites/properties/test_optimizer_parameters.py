"""Compare optimizers with all of their parameters, wrappers around them and every form of a call with NumPy."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from suites import subject
from suites.parameters.spaces import Arguments, Wrong, find
from suites.running import replicas_of
from suites.steps import WEIGHTS, Steps, total
from suites.tables.optimizer_families import FAMILIES, WRAPPERS, Family
from suites.tables.optimizers import Array

pytestmark = [pytest.mark.usefixtures("float64"), pytest.mark.filterwarnings("ignore:Gradients do not exist")]

FORMS = ("pairs", "apply", "gradients", "reversed pairs", "pairs without build", "apply without build")
"""Ways to give gradients and variables to an optimizer."""
OVERWRITTEN = ("none", "bias", "all")
"""Variables that take their gradient as their value."""
STEPS = 4
ONLY_ONE_DEVICE = ("clipnorm", "clipvalue", "global_clipnorm")
"""Options that other tests show to be wrong with replicas; their entries are in expected_failures.toml."""
BOTH = ("one_device", "mirrored")
WITH_REPLICAS = ("SGD", "Adam")
"""Optimizers whose options are varied with replicas too: what they add up does not depend on the rest."""
SPACES = {
    **{one.space: BOTH if one.space.name in WITH_REPLICAS else BOTH[:1] for one in FAMILIES},
    **dict.fromkeys(WRAPPERS, BOTH),
}
"""Spaces of the properties of this file -> their strategies."""


class Formed(Steps):
    """Steps that call the optimizer in one of the forms, with a gradient of the scaled loss."""

    def __init__(self, strategy: Any, make: Any, form: str, overwritten: str) -> None:
        self._form = form
        self.overwritten = {"none": (), "bias": (1,), "all": (0, 1)}[overwritten]

        def mark_and_make() -> Any:
            for one in self.overwritten:
                self.variables[one].overwrite_with_gradient = True
            return make()

        super().__init__(strategy, mark_and_make, "eager", build="without" not in form)

    def _apply_gradients(self, *gradients: Any) -> None:
        import tensorflow as tf

        scale = subject.scale_of(self.optimizer)
        given = [
            tf.cast(one if number in self.overwritten else one * scale, variable.dtype)
            for number, (one, variable) in enumerate(zip(gradients, self.variables, strict=True))
        ]
        pairs = list(zip(given, self.variables, strict=True))
        if "pairs" in self._form:
            self.optimizer.apply_gradients(pairs[::-1] if "reversed" in self._form else pairs)
        elif self._form == "gradients":
            self.optimizer.apply(given)
        else:
            self.optimizer.apply(given, self.variables)


class InNumPy:
    """Weights, averages and iterations after each step, from the definition of each option."""

    def __init__(self, family: Family, case: Arguments, overwritten: Sequence[int]) -> None:
        self.case, self._model, self.weights = case, family.model(**family.own(case)), [one.copy() for one in WEIGHTS]
        self._states = [family.initial(case, one) for one in WEIGHTS]
        self._waiting: list[list[Array]] = []
        self._overwritten, self._calls, self.iterations = overwritten, 0, 0
        self.averages: list[Array] | None = subject.first_average(WEIGHTS)

    def update(self, gradients: Sequence[Array]) -> None:
        self._calls += 1
        for one in self._overwritten:
            self.weights[one] = gradients[one]
        self._waiting.append(list(gradients))
        if len(self._waiting) == (self.case["gradient_accumulation_steps"] or 1):
            mean = [np.mean(column, axis=0) for column in zip(*self._waiting, strict=True)]
            self._waiting.clear()
            self.iterations += 1
            self._step([one for one in range(len(mean)) if one not in self._overwritten], mean)
        self._average()

    def _step(self, chosen: Sequence[int], gradients: list[Array]) -> None:
        case, rate = self.case, self.case["learning_rate"]
        clipped = self._clipped({one: gradients[one] for one in chosen})
        for one, gradient in clipped.items():
            decayed = self.weights[one] * (1 - rate * (case["weight_decay"] or 0))
            self.weights[one] = self._model(decayed, gradient, self._states[one], self.iterations, rate)

    def _clipped(self, gradients: dict[int, Array]) -> dict[int, Array]:
        value, own, all_of_them = (self.case[name] for name in ("clipvalue", "clipnorm", "global_clipnorm"))

        def shrunk(bound: float, norm: float) -> float:
            return min(1.0, bound / norm)

        if value is not None:
            return {one: np.clip(gradient, -value, value) for one, gradient in gradients.items()}
        if own is not None:
            return {one: g * shrunk(own, float(np.linalg.norm(g))) for one, g in gradients.items()}
        if all_of_them is not None and gradients:
            norm = float(np.sqrt(sum((one**2).sum() for one in gradients.values())))
            return {one: g * shrunk(all_of_them, norm) for one, g in gradients.items()}
        return gradients

    def _average(self) -> None:
        if not self.case["use_ema"]:
            return
        share = self.case["ema_momentum"] if self.averages else 0.0
        before = self.averages or self.weights
        self.averages = [share * a + (1 - share) * w for a, w in zip(before, self.weights, strict=True)]
        every = self.case["ema_overwrite_frequency"]
        if every and self.iterations % every == 0:
            self._take_averages()

    def _take_averages(self) -> None:
        for one, average in enumerate(self.averages or self.weights):
            if one not in self._overwritten:
                self.weights[one] = average

    def finish(self) -> None:
        if self.case["use_ema"]:
            self._take_averages()


def followed(strategy: Any, family: Family, make: Any, case: Arguments) -> None:
    """Make steps in the form of a case, and compare weights and iterations after each one."""
    steps = Formed(strategy, make, case["form"], case["overwritten"])
    model = InNumPy(family, case, steps.overwritten)
    for number in range(STEPS):
        gradients = steps.gradients(number)
        steps.apply(gradients)
        model.update(total(gradients))
        steps.check_weights(model.weights, family.rtol)
        assert updates(steps.optimizer) == model.iterations, "iterations"
    with strategy.scope():
        steps.optimizer.finalize_variable_values(steps.variables)
    model.finish()
    steps.check_weights(model.weights, family.rtol)


def updates(optimizer: Any) -> int:
    """Return the number of updates. A MultiOptimizer itself counts calls, and one inside it counts updates."""
    import tensorflow as tf

    counted = next(iter(getattr(optimizer, "optimizers", [optimizer]))).iterations
    return int(tf.convert_to_tensor(subject.value_of(counted) if hasattr(counted, "value") else counted))


def usable(case: Arguments, replicas: int) -> bool:
    """Return whether the installed version has what a case needs, and whether it means something with replicas."""
    if case.get("overwritten", "none") == "none":
        clipped = any(case.get(one) is not None for one in ONLY_ONE_DEVICE)
        return replicas == 1 or not clipped or subject.clips_sums()
    # An average of a variable that is overwritten has no meaning, nor has a step that waits for others.
    without = ("use_ema", "gradient_accumulation_steps")
    known = hasattr(find("Variable"), "overwrite_with_gradient")
    return known and replicas == 1 and not any(case.get(name) for name in without)


def cases_of(family: Family, strategy: Any, **further: Sequence[Any]) -> list[Arguments]:
    forms = [form for form in FORMS if accepts(form)]
    defaults, replicas = dict.fromkeys(family.space.values), replicas_of(strategy)
    found = family.space.cases(also=lambda case: usable(case, replicas), form=forms, overwritten=OVERWRITTEN, **further)
    return [{**defaults, **case} for case in found]


def accepts(form: str) -> bool:
    """Return whether the package has ``apply``, and whether its signature says that variables may be left out."""
    if "pairs" in form:
        return True
    apply = getattr(find("optimizers.Optimizer"), "apply", None)
    if apply is None or form != "gradients":
        return apply is not None
    return inspect.signature(apply).parameters["trainable_variables"].default is None


def by_name(name: str) -> Family:
    return next(one for one in FAMILIES if one.space.name == name)


@pytest.mark.ddl(strategies=["one_device"])
@pytest.mark.ddl_item("optimizer.iterations", "optimizer.clipnorm", "optimizer.ema", "optimizer.accumulation")
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.space.name)
def test_an_optimizer_with_its_options_is_its_definition(family, ddl_strategy):
    """Pair all parameters with each other, with the form of the call, and with variables that are overwritten."""
    wrong = Wrong()
    for case in cases_of(family, ddl_strategy):
        with wrong.of(case):
            followed(ddl_strategy, family, lambda case=case: family.space.make(case), case)
    wrong.check()


@pytest.mark.ddl(strategies=["mirrored"])
@pytest.mark.ddl_item("optimizer.iterations", "optimizer.ema", "optimizer.accumulation")
@pytest.mark.parametrize("family", [by_name(name) for name in WITH_REPLICAS], ids=lambda family: family.space.name)
def test_an_optimizer_with_its_options_adds_up_the_gradients(family, ddl_strategy):
    wrong = Wrong()
    for case in cases_of(family, ddl_strategy):
        with wrong.of(case):
            followed(ddl_strategy, family, lambda case=case: family.space.make(case), case)
    wrong.check()


def wrappers() -> list[Any]:
    names = {"LossScaleOptimizer": "optimizer.loss_scale", "MultiOptimizer": "optimizer.multi_optimizer"}
    return [pytest.param(one, id=one.name, marks=pytest.mark.ddl_item(names[one.name])) for one in WRAPPERS]


@pytest.mark.ddl(strategies=["one_device", "mirrored"])
@pytest.mark.ddl_item("optimizer.iterations")
@pytest.mark.parametrize("wrapper", wrappers())
def test_a_wrapper_keeps_the_options_of_what_it_wraps(wrapper, ddl_strategy):
    """The wrapper undoes its change of the loss in the gradients, so the update is that of the optimizer inside."""
    wrong, family = Wrong(), by_name("SGD")
    further = {f"wrapper {name}": values for name, values in wrapper.varied().items()}

    def make(case: Arguments) -> Any:
        inner = family.space.make(case)
        given = {name: case[f"wrapper {name}"] for name in wrapper.varied()}
        if not given.get("dynamic", True):
            del given["dynamic_growth_steps"]
        if wrapper.name == "LossScaleOptimizer":
            return subject.loss_scaled(inner, **given)
        return find(wrapper.api)(find("optimizers.OptimizerMap")(inner), **given)

    for case in cases_of(family, ddl_strategy, **further) if wrapper.exists() else []:
        with wrong.of(case):
            followed(ddl_strategy, family, lambda case=case: make(case), case)
    wrong.check()
