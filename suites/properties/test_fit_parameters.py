"""Give ``fit``, ``evaluate``, ``predict`` and the methods for one batch all pairs of their parameters."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from suites.linear import COPY_WARNING, strategy_of_many_fits
from suites.models.linear import FEATURES
from suites.parameters.spaces import Arguments, Space, Wrong

pytestmark = [
    pytest.mark.usefixtures("float64"),
    pytest.mark.filterwarnings(COPY_WARNING),
    pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning"),
]

ROWS, RATE = 16, 0.125
HELD = 8
"""Number of examples for validation."""
BOUND = {"rtol": 1e-9, "atol": 1e-12}
"""Some thousand operations in float64."""
BOTH = ("one_device", "mirrored")
_CLASSES = {"class_weight": (None, {0: 0.5, 1: 2.0})}
FIT = Space(
    "Model.fit",
    {
        "batch_size": (4, 8),
        "verbose": (0, 2),
        "initial_epoch": (0, 1),
        "steps_per_epoch": (None, 2),
        "validation_steps": (None, 1),
        "validation_batch_size": (None, 2),
        "validation_freq": (1, 2, [3]),
        "shuffle": (False, True),
        **_CLASSES,
    },
)
EVALUATE = Space(
    "Model.evaluate", {"batch_size": (4, 8), "verbose": (0, 2), "steps": (None, 1), "return_dict": (False, True)}
)
PREDICT = Space("Model.predict", {"batch_size": (4, 8), "verbose": (0, 2), "steps": (None, 1)})
_WEIGHTS = {"sample_weight": (None, "examples"), "return_dict": (False, True)}


def _one_kind(case: Arguments) -> bool:
    return case.get("class_weight") is None or case.get("sample_weight") is None


ON_BATCH = (
    Space("Model.train_on_batch", {**_WEIGHTS, **_CLASSES}, allowed=_one_kind),
    Space("Model.test_on_batch", _WEIGHTS),
)
SPACES = {**dict.fromkeys((FIT, EVALUATE, PREDICT), BOTH), **dict.fromkeys(ON_BATCH, BOTH[:1])}
"""Spaces of the properties of this file -> their strategies."""


def examples(rows: int, seed: int) -> tuple[Any, Any, Any]:
    """Return inputs, labels of two classes, and weights."""
    draw = np.random.default_rng([rows, seed])
    x = draw.normal(size=(rows, FEATURES)) * np.linspace(0.5, 1.5, rows)[:, None]
    return x, draw.integers(0, 2, (rows, 1)) * 1.0, draw.integers(1, 9, rows) / 4


class InNumPy:
    """A linear model with one output and the mean squared error."""

    def __init__(self) -> None:
        self.kernel = np.ones((FEATURES, 1))

    def losses(self, x: Any, y: Any, weights: Any = None) -> Any:
        return ((x @ self.kernel - y) ** 2)[:, 0] * (1.0 if weights is None else weights)

    def train(self, x: Any, y: Any, weights: Any = None) -> float:
        """Make a step, and return the loss before it."""
        scale = np.ones(len(x)) if weights is None else weights
        loss, slopes = float(self.losses(x, y, weights).mean()), 2 * (x @ self.kernel - y) * scale[:, None]
        self.kernel = self.kernel - RATE * x.T @ slopes / len(x)
        return loss


def model_of(strategy: Any) -> Any:
    from suites.subject import keras

    with nullcontext() if strategy is None else strategy_of_many_fits(strategy).scope():
        model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(1, use_bias=False)])
        model.compile(keras.optimizers.SGD(RATE), loss="mse", jit_compile=False)
    return model


def begin(model: Any) -> InNumPy:
    """Give a model its first weights, and return the same model in NumPy."""
    follower = InNumPy()
    model.set_weights([follower.kernel])
    return follower


def of_classes(case: Arguments, y: Any) -> Any:
    """Return the weights of examples by their classes."""
    chosen = case.get("class_weight")
    return None if chosen is None else np.array([chosen[int(one)] for one in y[:, 0]])


def expected_history(case: Arguments, follower: InNumPy, data: Any, held: Any) -> dict[str, list[float]]:
    """Return the history of a training without shuffling."""
    x, y, _ = data
    weights, size = of_classes(case, y), case["batch_size"]
    starts = list(range(0, ROWS, size))
    first, found = 0, {"loss": [], "val_loss": []}  # type: tuple[int, dict[str, list[float]]]
    for epoch in range(case["initial_epoch"], 3):
        losses = []
        for number in range(first, first + (case["steps_per_epoch"] or len(starts))):
            # An epoch of some steps continues after the last batch of the one before, and wraps at the end of the data.
            rows = slice(starts[number % len(starts)], starts[number % len(starts)] + size)
            losses.append(follower.train(x[rows], y[rows], None if weights is None else weights[rows]))
        first = (first + len(losses)) % len(starts) if case["steps_per_epoch"] else 0
        found["loss"].append(float(np.mean(losses)))
        every = case["validation_freq"]
        if epoch + 1 in every if isinstance(every, list) else (epoch + 1) % every == 0:
            tested = (case["validation_batch_size"] or size) * (case["validation_steps"] or HELD)
            found["val_loss"].append(float(follower.losses(held[0][:tested], held[1][:tested]).mean()))
    return {name: values for name, values in found.items() if values}


@pytest.mark.ddl(strategies=list(BOTH))
@pytest.mark.ddl_item("fit.fit.history", "fit.fit.validation", "fit.fit.steps_per_epoch", "fit.fit.class_sample_weight")
def test_fit_does_what_its_parameters_say(ddl_strategy, capsys):
    """The weights and the history are those of arithmetic, and with shuffled examples those of no strategy."""
    from suites.subject import keras

    wrong, data, held = Wrong(), examples(ROWS, 0), examples(HELD, 1)
    model, plain = model_of(ddl_strategy), model_of(None)

    def train(one: Any, case: Arguments) -> Any:
        keras.utils.set_random_seed(5)
        return one.fit(*data[:2], epochs=3, validation_data=held[:2], **case).history

    for case in FIT.cases():
        with wrong.of(case):
            follower = begin(model)
            history = train(model, case)
            if case["shuffle"]:
                begin(plain)
                expected, kernel = train(plain, case), plain.get_weights()[0]
            else:
                expected, kernel = expected_history(case, follower, data, held), follower.kernel
            np.testing.assert_allclose(model.get_weights()[0], kernel, **BOUND)
            assert {name: list(map(float, values)) for name, values in history.items()} == {
                name: pytest.approx(list(values), rel=1e-6) for name, values in expected.items()
            }
            assert ("Epoch" in capsys.readouterr().out) == bool(case["verbose"])
    wrong.check()


@pytest.mark.ddl(strategies=list(BOTH))
@pytest.mark.ddl_item("fit.evaluate.uneven", "fit.predict")
def test_evaluate_and_predict_do_what_their_parameters_say(ddl_strategy):
    wrong, model, (x, y, _) = Wrong(), model_of(ddl_strategy), examples(ROWS, 0)
    follower = begin(model)
    for case in EVALUATE.cases():
        with wrong.of(case):
            tested = case["batch_size"] * (case["steps"] or ROWS)
            found = model.evaluate(x, y, **case)
            loss = found["loss"] if case["return_dict"] else found
            assert float(loss) == pytest.approx(float(follower.losses(x[:tested], y[:tested]).mean()), rel=1e-6)
    for case in PREDICT.cases():
        with wrong.of(case):
            tested = case["batch_size"] * (case["steps"] or ROWS)
            np.testing.assert_allclose(model.predict(x, **case), x[:tested] @ follower.kernel, **BOUND)
    wrong.check()


@pytest.mark.ddl(strategies=["one_device"])
@pytest.mark.ddl_item("fit.on_batch")
@pytest.mark.parametrize("space", ON_BATCH, ids=lambda space: space.name)
def test_a_method_for_one_batch_does_what_its_parameters_say(space, ddl_strategy):
    """A strategy of one device; ``test_steps_of_fit.py`` has what several replicas do with one batch."""
    wrong, model, (x, y, weights) = Wrong(), model_of(ddl_strategy), examples(ROWS, 0)
    for case in space.cases():
        with wrong.of(case):
            follower = begin(model)
            model.reset_metrics()
            given = weights if case["sample_weight"] else None
            found = getattr(model, space.name)(x, y, **{**case, "sample_weight": given})
            chosen = of_classes(case, y) if given is None else given
            loss = float(follower.losses(x, y, chosen).mean())
            if "train" in space.name:
                follower.train(x, y, chosen)
            got = found["loss"] if case["return_dict"] else found
            assert float(got) == pytest.approx(loss, rel=1e-6)
            np.testing.assert_allclose(model.get_weights()[0], follower.kernel, **BOUND)
    wrong.check()


@pytest.mark.ddl(strategies=list(BOTH))
@pytest.mark.ddl_item("fit.fit.shuffle")
def test_each_shuffled_example_trains_once(ddl_strategy):
    """The labels are powers of two, and the loss of an epoch is their mean: another choice has another sum.

    The sum of the first 16 powers is that of no other 16 of them, even if one comes twice.
    """
    model = model_of(ddl_strategy)
    labels = 2.0 ** np.arange(ROWS)
    given = {"batch_size": 4, "epochs": 3, "verbose": 0, "shuffle": True}
    # The predictions are 0, and the squared error is the label; no gradient reaches the weights.
    history = model.fit(np.zeros((ROWS, FEATURES)), np.sqrt(labels)[:, None], **given).history
    np.testing.assert_allclose(np.array(history["loss"]) * ROWS, 2.0**ROWS - 1, rtol=1e-6)
