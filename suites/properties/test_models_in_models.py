"""Keep a metric anywhere in a model, and models in models, and compare the logs of each epoch with arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from suites.linear import COPY_WARNING
from suites.pairwise import pairwise
from suites.parameters.spaces import Arguments, Wrong

pytestmark = [pytest.mark.usefixtures("float64"), pytest.mark.filterwarnings(COPY_WARNING)]

FEATURES, BATCH, BATCHES, RATE = 3, 4, 2, 0.0625
DIMENSIONS: Mapping[str, tuple[str, ...]] = {
    "place": ("attribute", "list", "tuple", "dict", "list of lists", "layer of a layer", "late"),
    "model": ("functional", "subclass", "model in a model", "subclass in a model"),
    "inner": ("plain", "compiled", "trained"),
    "again": ("no", "before", "between", "other metrics"),
}
"""Place of the metric, kind of model, what its inner model did before, and when the model is compiled again."""


def allowed(case: Arguments) -> bool:
    """Return whether choices mean something together: only a model in a model can be compiled before."""
    return case.get("inner", "plain") == "plain" or " in " in case.get("model", " in ")


def examples(seed: int) -> tuple[Any, Any]:
    draw = np.random.default_rng(seed)
    return draw.normal(seed, 1, (BATCHES * BATCH, FEATURES)), draw.normal(size=(BATCHES * BATCH, 1))


class InNumPy:
    """A linear model that begins with zeros."""

    def __init__(self) -> None:
        self.kernel = np.zeros((FEATURES, 1))

    def logs(self, x: Any, y: Any, *, trains: bool) -> dict[str, float]:
        """Return the logs of an epoch, which may train."""
        losses, errors, seen = [], [], []
        for rows in np.split(np.arange(len(x)), BATCHES):
            difference = x[rows] @ self.kernel - y[rows]
            losses.append(float((difference**2).mean()))
            errors.append(float(np.abs(difference).mean()))
            seen.append(float(np.abs(x[rows]).mean()))
            if trains:
                self.kernel = self.kernel - RATE * 2 * x[rows].T @ difference / len(rows)
        return {"loss": np.mean(losses), "error": np.mean(errors), "seen": np.mean(seen)}


def observing(keras: Any, place: str) -> Any:
    """Return a layer that counts with a metric what it gets."""
    from suites.subject import ops

    class Inside(keras.layers.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.metric = keras.metrics.Mean("seen")

        def call(self, inputs: Any) -> Any:
            self.metric.update_state(ops.mean(ops.abs(inputs)))
            return inputs

    class Observing(keras.layers.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            make = keras.metrics.Mean
            if place == "layer of a layer":
                self.kept: Any = [Inside()]
            elif place != "late":
                self.kept = {
                    "attribute": lambda: make("seen"),
                    "list": lambda: [make("seen")],
                    "tuple": lambda: (make("seen"),),
                    "dict": lambda: {"one": make("seen")},
                    "list of lists": lambda: [[make("seen")]],
                }[place]()

        def build(self, _shape: Any) -> None:
            if place == "late":
                self.kept = keras.metrics.Mean("seen")

        def call(self, inputs: Any) -> Any:
            if place == "layer of a layer":
                return self.kept[0](inputs)
            kept = self.kept["one"] if place == "dict" else self.kept
            while isinstance(kept, (list, tuple)):
                kept = kept[0]
            kept.update_state(ops.mean(ops.abs(inputs)))
            return inputs

    return Observing()


def built(keras: Any, case: Arguments) -> tuple[Any, Any]:
    """Return the model of a case, and the model that is in it."""
    layers = [observing(keras, case["place"]), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")]

    class Own(keras.Model):  # type: ignore[misc]
        def __init__(self, parts: Any) -> None:
            super().__init__()
            self.parts = parts

        def call(self, inputs: Any) -> Any:
            for part in self.parts:
                inputs = part(inputs)
            return inputs

    inputs = keras.Input((FEATURES,))
    kind = case["model"]
    if kind == "subclass":
        return Own(layers), None
    if kind == "subclass in a model":
        inner = Own(layers)
        inner(inputs)
    else:
        inner = keras.Model(inputs, layers[1](layers[0](inputs)))
        if kind == "functional":
            return inner, None
    outer = keras.Input((FEATURES,))
    return keras.Model(outer, inner(outer)), inner


def compiled(keras: Any, model: Any, **others: Any) -> None:
    metrics = [keras.metrics.MeanAbsoluteError(name="error")]
    given = {"metrics": metrics, "run_eagerly": True, "jit_compile": False, **others}
    model.compile(keras.optimizers.SGD(RATE), "mse", **given)


@pytest.mark.ddl(strategies=["one_device"])
@pytest.mark.ddl_item("metric.Mean", "fit.fit.history", "fit.compute_loss")
@pytest.mark.parametrize("kind", DIMENSIONS["model"])
def test_a_metric_anywhere_tells_of_its_epoch(kind, ddl_strategy):
    """Every metric begins anew in each epoch and evaluation, and comes once, whatever was compiled before."""
    from suites.subject import keras

    wrong = Wrong()
    given = {"batch_size": BATCH, "verbose": 0}
    (x, y), other = examples(1), examples(2)
    for case in pairwise(DIMENSIONS, allowed):
        if case["model"] != kind:
            continue
        with wrong.of(case), ddl_strategy.scope():
            follower = InNumPy()
            model, inner = built(keras, case)
            if case["inner"] != "plain":
                compiled(keras, inner, metrics=["mse", "mae"])
            if case["inner"] == "trained":
                inner.train_on_batch(x, y)
                inner.set_weights([follower.kernel])
            for _ in range(1 + (case["again"] == "before")):
                compiled(keras, model)
            logs = model.fit(x, y, epochs=2, shuffle=False, **given).history
            for epoch in range(2):
                expected = follower.logs(x, y, trains=True)
                found = {name: values[epoch] for name, values in logs.items()}
                assert found == {name: pytest.approx(one, rel=1e-6) for name, one in expected.items()}
            expected = follower.logs(*other, trains=False)
            if case["again"] == "between":
                compiled(keras, model)
            elif case["again"] == "other metrics":
                compiled(keras, model, metrics=[])
                del expected["error"]
            found = model.evaluate(*other, return_dict=True, **given)
            assert found == {name: pytest.approx(one, rel=1e-6) for name, one in expected.items()}
            assert len(model.weights) == len(model.trainable_weights) == 1
            assert len({id(one) for one in model.metrics if one.name == "seen"}) == 1
    wrong.check()
