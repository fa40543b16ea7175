"""Compare optimizers that get other gradients on each replica with NumPy models of their updates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from suites import absent, subject
from suites.items import items
from suites.known_failures import versions_of
from suites.running import HOW
from suites.steps import NAMES, WEIGHTS, Steps, follow, total
from suites.tables.optimizers import CASES, RATE, Array, Case

STRATEGIES = ["one_device", "mirrored[replicas=3]", "multi_worker_mirrored", "central_storage"]

pytestmark = pytest.mark.usefixtures("float64")

HERE = tuple(case for case in CASES if items()[case.item].exists(versions_of(subject.name())))
"""The cases that the installed Keras has."""


def parameters(cases: tuple[Case, ...]) -> list[Any]:
    return [pytest.param(case, id=case.id, marks=pytest.mark.ddl_item(case.item)) for case in cases]


def made(case: Case) -> Any:
    from suites.subject import keras

    return getattr(keras.optimizers, case.optimizer)(learning_rate=case.rate, **case.arguments)


class InNumPy:
    """Weights, slots and the number of iterations as the NumPy model of an optimizer has them."""

    def __init__(self, case: Case) -> None:
        self._case, self._weights, self._number = case, list(WEIGHTS), 0
        self._states = [case.initial(weight) for weight in WEIGHTS]

    def update(self, gradients: Sequence[Array]) -> None:
        self._number += 1
        for one, gradient in enumerate(gradients):
            arguments = (self._weights[one], gradient, self._states[one], self._number, self._case.rate)
            self._weights[one] = self._case.model(*arguments)

    def expected(self, steps: Steps) -> Iterator[tuple[Any, Any]]:
        yield from zip(steps.variables, self._weights, strict=True)
        for name, state in zip(NAMES, self._states, strict=True):
            for slot in self._case.start:
                if (self._case.optimizer, name, slot) != ("Muon", "kernel", "velocity"):
                    yield steps.slot(name, slot), state[slot]
        yield steps.optimizer.iterations, self._number


def compare(case: Case, steps: Steps) -> None:
    follow(steps, InNumPy(case), case.rtol)


@pytest.mark.ddl(strategies=STRATEGIES)
@pytest.mark.ddl_item("optimizer.iterations")
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("case", parameters(CASES))
def test_update_is_that_of_the_summed_gradient(case, how, ddl_strategy):
    compare(case, Steps(ddl_strategy, lambda: made(case), how))


@pytest.mark.ddl(strategies=["parameter_server"])
@pytest.mark.ddl_item("optimizer.iterations", *(case.item for case in HERE))
@pytest.mark.parametrize("how", ["function"])
def test_updates_of_a_coordinator_follow_each_other(how, ddl_strategy):
    """Run all optimizers in one test, because a cluster that has servers costs a new start."""
    wrong = []
    for case in (case for case in HERE if absent.has(f"optimizers.{case.optimizer}")):
        try:
            compare(case, Steps(ddl_strategy, lambda case=case: made(case), how))
        except AssertionError as error:
            wrong.append(f"{case.id}: {error}")
    assert not wrong, "\n".join(wrong)


def sgd(**arguments: Any) -> Any:
    """Return a plain SGD with further arguments: Adam would hide a factor of the gradient."""
    from suites.subject import keras

    return keras.optimizers.SGD(learning_rate=RATE, **arguments)


def norm(arrays: Any) -> float:
    return float(np.sqrt(sum((one**2).sum() for one in arrays)))


def by_norm(gradients: Any) -> Any:
    return [one * min(1, 1.5 / norm([one])) for one in gradients]


def by_global_norm(gradients: Any) -> Any:
    return [one * min(1, 1.5 / norm(gradients)) for one in gradients]


def by_value(gradients: Any) -> Any:
    return [np.clip(one, -0.5, 0.5) for one in gradients]


CLIPPINGS = {"clipnorm": (1.5, by_norm), "global_clipnorm": (1.5, by_global_norm), "clipvalue": (0.5, by_value)}


@pytest.mark.ddl(strategies=STRATEGIES)
@pytest.mark.ddl_item("optimizer.clipnorm")
@pytest.mark.parametrize("how", ["function"])
@pytest.mark.parametrize("clipping", CLIPPINGS)
def test_the_summed_gradient_is_clipped(clipping, how, ddl_strategy):
    """Clip after the sum, as one device does. All bounds are active for the gradients of the replicas and the sum."""
    bound, model = CLIPPINGS[clipping]
    steps = Steps(ddl_strategy, lambda: sgd(**{clipping: bound}), how)
    gradients = steps.gradients(0)
    assert any((one != other).any() for one, other in zip(model(total(gradients)), total(gradients), strict=True))
    steps.apply(gradients)
    clipped = model(total(gradients))
    steps.check_weights([weight - RATE * one for weight, one in zip(WEIGHTS, clipped, strict=True)])


@pytest.mark.ddl(strategies=STRATEGIES)
@pytest.mark.ddl_item("optimizer.weight_decay")
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(
    "optimizer", ["SGD", "AdamW", pytest.param("Muon", marks=pytest.mark.ddl_item("optimizer.Muon"))]
)
def test_decay_is_applied_once_and_leaves_out_what_is_excluded(optimizer, how, ddl_strategy):
    """Give gradients of zero: what then changes is the decay."""
    from suites.subject import keras

    def make():
        further = {"adam_weight_decay": 0.25} if optimizer == "Muon" else {}
        made = getattr(keras.optimizers, optimizer)(learning_rate=RATE, weight_decay=0.25, **further)
        made.exclude_from_weight_decay(var_names=["bias"])
        return made

    steps = Steps(ddl_strategy, make, how)
    for step in range(1, 4):
        steps.apply([[0 * one for one in part] for part in steps.gradients(0)])
        steps.check_weights([WEIGHTS[0] * (1 - RATE * 0.25) ** step, WEIGHTS[1]])


@pytest.mark.ddl(strategies=STRATEGIES)
@pytest.mark.ddl_item("optimizer.ema")
@pytest.mark.parametrize("how", HOW)
def test_average_of_weights_replaces_them_at_the_end(how, ddl_strategy):
    steps = Steps(ddl_strategy, lambda: sgd(use_ema=True, ema_momentum=0.75), how)
    weights, averages = list(WEIGHTS), subject.first_average(WEIGHTS)
    for step in range(3):
        steps.apply(steps.gradients(step))
        weights = [one - RATE * gradient for one, gradient in zip(weights, total(steps.gradients(step)), strict=True)]
        averages = [0.75 * a + 0.25 * w for a, w in zip(averages, weights, strict=True)] if averages else weights
        steps.check_weights(weights)
        for name, average in zip(NAMES, averages, strict=True):
            steps.check(steps.slot(name, "average"), average)
    with ddl_strategy.scope():
        steps.optimizer.finalize_variable_values(steps.variables)
    steps.check_weights(averages)


@pytest.mark.ddl(strategies=STRATEGIES)
@pytest.mark.ddl_item("optimizer.ema")
@pytest.mark.parametrize("how", ["function"])
def test_average_of_weights_replaces_them_every_second_step(how, ddl_strategy):
    steps = Steps(ddl_strategy, lambda: sgd(use_ema=True, ema_momentum=0.75, ema_overwrite_frequency=2), how)
    weights, averages = list(WEIGHTS), subject.first_average(WEIGHTS)
    for step in range(4):
        steps.apply(steps.gradients(step))
        weights = [one - RATE * gradient for one, gradient in zip(weights, total(steps.gradients(step)), strict=True)]
        averages = [0.75 * a + 0.25 * w for a, w in zip(averages, weights, strict=True)] if averages else weights
        if step % 2:
            weights = averages
        steps.check_weights(weights)


@pytest.mark.ddl(strategies=STRATEGIES)
@pytest.mark.ddl_item("optimizer.accumulation")
@pytest.mark.parametrize("how", HOW)
def test_accumulated_gradients_are_averaged_over_steps(how, ddl_strategy):
    """Let two steps of accumulation make one update with the mean over steps of the sum over replicas."""
    steps = Steps(ddl_strategy, lambda: sgd(gradient_accumulation_steps=2), how)
    weights = list(WEIGHTS)
    for step in range(4):
        steps.apply(steps.gradients(step))
        if step % 2:
            pair = [total(steps.gradients(step - 1)), total(steps.gradients(step))]
            weights = [one - RATE * (a + b) / 2 for one, a, b in zip(weights, *pair, strict=True)]
        steps.check_weights(weights)
        assert int(steps.optimizer.iterations) == (step + 1) // 2


@pytest.mark.ddl(strategies=STRATEGIES)
@pytest.mark.ddl_item("optimizer.loss_scale_factor")
@pytest.mark.parametrize("how", HOW)
def test_loss_scale_factor_divides_the_gradient(how, ddl_strategy):
    steps = Steps(ddl_strategy, lambda: sgd(loss_scale_factor=8.0), how)
    assert float(steps.optimizer.scale_loss(np.float64(3))) == 24
    steps.apply(steps.gradients(0))
    update = total(steps.gradients(0))
    steps.check_weights([weight - RATE / 8 * one for weight, one in zip(WEIGHTS, update, strict=True)])


@pytest.mark.ddl(strategies=STRATEGIES)
@pytest.mark.ddl_item("optimizer.loss_scale", "optimizer.iterations")
@pytest.mark.parametrize("how", HOW)
def test_dynamic_loss_scale_divides_the_gradient_and_doubles(how, ddl_strategy):

    make = lambda: subject.loss_scaled(sgd(), initial_scale=8.0, dynamic_growth_steps=2)  # noqa: E731
    steps = Steps(ddl_strategy, make, how)
    weights, scales = list(WEIGHTS), [8, 8, 16, 16, 32]
    for step in range(4):
        steps.apply(steps.gradients(step))
        update = total(steps.gradients(step))
        weights = [one - RATE / scales[step] * gradient for one, gradient in zip(weights, update, strict=True)]
        steps.check_weights(weights)
        steps.check(subject.loss_scale_of(steps.optimizer), scales[step + 1])
        steps.check(steps.optimizer.iterations, step + 1)


@pytest.mark.ddl(strategies=["one_device", "mirrored[replicas=3]"])
@pytest.mark.ddl_item("optimizer.loss_scale")
@pytest.mark.parametrize("how", ["function"])
@pytest.mark.parametrize("replica", [0, 1])
def test_infinite_gradient_of_one_replica_stops_all(replica, how, ddl_strategy):
    """No replica updates, and the scale halves once. One device has only the first replica."""

    steps = Steps(ddl_strategy, lambda: subject.loss_scaled(sgd(), initial_scale=8.0), how)
    gradients = steps.gradients(0)
    gradients[replica % len(gradients)][1][0] = np.inf
    steps.apply(gradients)
    steps.check_weights(WEIGHTS)
    steps.check(subject.loss_scale_of(steps.optimizer), 4)
    steps.check(steps.optimizer.iterations, int(subject.counts_steps_without_update()))


@pytest.mark.ddl(strategies=STRATEGIES)
@pytest.mark.ddl_item("optimizer.lr_schedule")
@pytest.mark.parametrize("how", HOW)
def test_schedule_counts_global_steps(how, ddl_strategy):
    """Change the rate in each step, so that a count per replica would show."""
    from suites.subject import keras

    rates = [0.5, 0.25, 0.125, 0.0625]
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay
    steps = Steps(ddl_strategy, lambda: keras.optimizers.SGD(schedule([0, 1, 2], rates)), how)
    weights = list(WEIGHTS)
    for step, rate in enumerate(rates):
        assert subject.next_rate(steps.optimizer) == rate
        steps.apply(steps.gradients(step))
        weights = [one - rate * gradient for one, gradient in zip(weights, total(steps.gradients(step)), strict=True)]
        steps.check_weights(weights)


@pytest.mark.ddl(strategies=["one_device", "mirrored[replicas=3]", "multi_worker_mirrored"])
@pytest.mark.ddl_item("optimizer.build_lazily")
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("case", parameters(tuple(case for case in CASES if case.id in ("SGD", "Adam"))))
def test_optimizer_that_is_built_in_the_first_step(case, how, ddl_strategy):
    compare(case, Steps(ddl_strategy, lambda: made(case), how, build=False))


@pytest.mark.ddl(strategies=["one_device", "mirrored[replicas=3]"])
@pytest.mark.ddl_item("optimizer.multi_optimizer")
@pytest.mark.parametrize("how", HOW)
def test_each_variable_has_the_optimizer_of_the_map(how, ddl_strategy):
    from suites.subject import keras

    def make():
        chosen = keras.optimizers.OptimizerMap(sgd(), {".*kernel": keras.optimizers.SGD(0.5)})
        return keras.optimizers.MultiOptimizer(chosen)

    steps = Steps(ddl_strategy, make, how)
    weights = list(WEIGHTS)
    for step in range(2):
        steps.apply(steps.gradients(step))
        update = total(steps.gradients(step))
        weights = [one - rate * g for one, rate, g in zip(weights, (0.5, RATE), update, strict=True)]
        steps.check_weights(weights)


@pytest.mark.ddl(strategies=STRATEGIES)
@pytest.mark.ddl_item("optimizer.unequal_inputs")
@pytest.mark.parametrize("how", HOW)
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_variable_without_a_gradient_keeps_its_value(how, ddl_strategy):
    """Give the bias no gradient: the update of the other one is the sum over replicas."""
    steps = Steps(ddl_strategy, sgd, how)
    apply = steps.optimizer.apply_gradients
    steps.optimizer.apply_gradients = lambda pairs: apply(
        [(next(iter(pairs))[0], steps.variables[0]), (None, steps.variables[1])]
    )
    for step in range(2):
        steps.apply(steps.gradients(step))
    moved = sum(total(steps.gradients(step))[0] for step in range(2))
    steps.check_weights([WEIGHTS[0] - RATE * moved, WEIGHTS[1]])


@pytest.mark.ddl(strategies=["mirrored[replicas=3]"])
@pytest.mark.ddl_item("optimizer.cross_replica", shows="behavior")
def test_gradients_are_not_applied_out_of_a_replica(ddl_strategy):
    steps = Steps(ddl_strategy, sgd, "eager")
    with ddl_strategy.scope(), pytest.raises((RuntimeError, ValueError), match=r"replica context"):
        steps.optimizer.apply_gradients(zip(steps.gradients(0)[0], steps.variables, strict=True))
    steps.check_weights(WEIGHTS)


AROUND_UPDATES = {
    "average": {"use_ema": True, "ema_momentum": 0.75},
    "average every second step": {"use_ema": True, "ema_momentum": 0.75, "ema_overwrite_frequency": 2},
    "decay": {"weight_decay": 0.25},
    "norms": {"clipnorm": 0.5},
    "norm of all": {"global_clipnorm": 0.5},
    "values": {"clipvalue": 0.25},
}
"""Options that concern the variables as a list, beside the update of each one."""


@pytest.mark.ddl(strategies=["one_device", "mirrored"])
@pytest.mark.ddl_item("optimizer.ema", "optimizer.weight_decay", "optimizer.clipnorm")
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
@pytest.mark.parametrize("options", AROUND_UPDATES)
@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
def test_a_variable_without_a_gradient_changes_no_other(optimizer, options, ddl_strategy):
    """The first of three variables has no gradient. The others are trained as if it were not there."""
    from suites.subject import keras

    def trained(present: Sequence[int]) -> list[Any]:
        starts = [np.array([n + 1.0, -2.0 * n]) for n in range(3)]
        with ddl_strategy.scope():
            variables = [subject.variable(starts[n], "float64") for n in present]
            made = getattr(keras.optimizers, optimizer)(0.125, **AROUND_UPDATES[options])
            made.build(variables)

        def step() -> None:
            slopes = [
                None if n == 0 else subject.value_of(one) * (n + 0.5) for n, one in zip(present, variables, strict=True)
            ]
            made.apply_gradients(zip(slopes, variables, strict=True))

        for _ in range(3):
            ddl_strategy.run(step)
        with ddl_strategy.scope():
            made.finalize_variable_values(variables)
        return [np.asarray(subject.value_of(one).read_value()) for one in variables]

    first, *others = trained([0, 1, 2])
    np.testing.assert_array_equal(first, [1.0, 0.0])
    np.testing.assert_allclose(others, trained([1, 2]), rtol=1e-12)
