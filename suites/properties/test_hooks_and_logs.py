"""Compare every call of a callback, its index and its logs, and the logs of each output, with arithmetic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from suites.linear import COPY_WARNING, strategy_of_many_fits
from suites.models.linear import START
from suites.pairwise import pairwise
from suites.parameters.spaces import Arguments, Space, Wrong, parameters
from suites.properties.test_callbacks import recorder
from suites.running import replicas_of

pytestmark = [
    pytest.mark.usefixtures("float64"),
    pytest.mark.filterwarnings(COPY_WARNING),
    pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning"),
]

BATCH, RATE, FEATURES = 4, 0.125, 3
LOGS = 1e-6
"""Relative bound: versions before 3.11 add losses up in float32, with fewer than ten roundings of 6e-8."""
DIMENSIONS: Mapping[str, tuple[str, ...]] = {
    "outputs": ("one", "list", "dict"),
    "loss_weights": ("no", "list", "dict"),
    "weights": ("no", "examples", "outputs"),
    "metrics": ("no", "metrics", "weighted_metrics", "both"),
    "steps_per_execution": ("1", "3"),
    "batches": ("3", "5"),
    "rest": ("0", "2"),
    "validation": ("no", "data", "split"),
    "epochs": ("1", "2"),
    "run_eagerly": ("False", "True"),
    "then": ("evaluate", "predict"),
}
"""Choices of a training; each pair of them occurs."""
NAMES = ("linear", "other")
WIDTHS = {"linear": 2, "other": 1}
SHARES = {"linear": 0.5, "other": 2.0}

_OF_COMPILE = ("loss_weights", "metrics", "steps_per_execution", "run_eagerly")
BOTH = ("one_device", "mirrored")
SPACES = {
    Space(
        "Model.compile",
        {
            "loss": DIMENSIONS["outputs"],
            "weighted_metrics": DIMENSIONS["metrics"],
            **{name: DIMENSIONS[name] for name in _OF_COMPILE},
        },
    ): BOTH,
    Space(
        "Model.fit",
        {
            "y": DIMENSIONS["outputs"],
            "sample_weight": DIMENSIONS["weights"],
            "epochs": DIMENSIONS["epochs"],
            "validation_data": ("no", "data"),
            "validation_split": ("no", "split"),
        },
    ): BOTH,
    Space("Model.evaluate", {"y": DIMENSIONS["outputs"], "sample_weight": DIMENSIONS["weights"]}): BOTH,
}
"""The choices by the names of their parameters -> the strategies of the property."""


def allowed(case: Arguments) -> bool:
    """Return whether Keras accepts choices together, and tests with entries do not have them for themselves."""
    one, shares, weights = case.get("outputs"), case.get("loss_weights"), case.get("weights")
    if one == "one" and (shares == "dict" or weights == "outputs"):
        return False
    if {one, shares} == {"list", "dict"}:
        return False
    if weights == "outputs" and case.get("validation") == "split":  # Keras splits arrays, and no structures of them
        return False
    if one in ("list", "dict") and case.get("rest") == "2" and case.get("run_eagerly") != "True":
        return False
    # All executions have three steps.
    uneven = (case.get("batches"), case.get("rest")) in (("3", "2"), ("5", "0")) or case.get("validation") == "split"
    return not (case.get("steps_per_execution") == "3" and uneven)


def allowed_with_replicas(case: Arguments) -> bool:
    """Return whether the logs of each batch are those of all replicas: those of weighted metrics are not."""
    return allowed(case) and (case.get("weights") == "no" or case.get("metrics") in (None, "no", "metrics"))


def examples(rows: int, seed: int) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Return inputs, and labels and weights of each output; later examples, and so later replicas, are larger."""
    draw = np.random.default_rng([rows, seed])
    x = draw.normal(size=(rows, FEATURES)) * np.linspace(0.5, 1.5, rows)[:, None]
    y = {name: draw.integers(-3, 4, (rows, width)) * 1.0 for name, width in WIDTHS.items()}
    return x, y, {name: draw.integers(1, 9, rows) / 4 for name in NAMES}


class InNumPy:
    """A linear model with one or two outputs, and the logs of its training."""

    def __init__(self, case: Arguments, replicas: int) -> None:
        self.names = NAMES[:1] if case["outputs"] == "one" else NAMES
        self._case, self._replicas = case, replicas
        self.kernels = {"linear": START.copy(), "other": np.ones((FEATURES, 1))}
        self.shares = {name: SHARES[name] if case["loss_weights"] != "no" else 1.0 for name in self.names}
        if case["outputs"] == "one" and case["loss_weights"] == "list":
            self.shares = {"linear": SHARES["linear"]}
        self._sums: dict[str, list[float]] = {}

    def begin(self) -> None:
        """Begin an epoch, or a test."""
        self._sums = {}

    def step(self, x: Any, y: Mapping[str, Any], weights: Mapping[str, Any], *, train: bool) -> None:
        """Add what a batch gives to the logs, and train on it."""
        totals = np.zeros(len(x))
        for name in self.names:
            errors = x @ self.kernels[name] - y[name]
            losses = (errors**2).mean(axis=1) * weights[name]
            totals = totals + self.shares[name] * losses
            prefix = "" if len(self.names) == 1 else f"{name}_"
            if prefix:
                self._add(f"{prefix}loss", losses.sum(), len(x))
            if self._case["metrics"] in ("metrics", "both"):
                self._add(f"{prefix}mae", np.abs(errors).mean(axis=1).sum(), len(x))
            if self._case["metrics"] in ("weighted_metrics", "both"):
                self._add(f"{prefix}mape", (np.abs(errors).mean(axis=1) * weights[name]).sum(), weights[name].sum())
            if train:
                self._update(name, x, errors, weights[name])
        self._add("loss", totals.sum(), len(x))

    def _update(self, name: str, x: Any, errors: Any, weights: Any) -> None:
        """Take the mean over replicas of the gradients of their parts."""
        size = -(-len(x) // self._replicas)
        found = np.zeros_like(self.kernels[name])
        for first in range(0, len(x), size):
            rows = slice(first, first + size)
            part = x[rows].T @ (errors[rows] * weights[rows, None]) * 2 / WIDTHS[name]
            found += part / len(x[rows]) / self._replicas
        self.kernels[name] = self.kernels[name] - RATE * self.shares[name] * found

    def _add(self, name: str, value: float, number: float) -> None:
        sums = self._sums.setdefault(name, [0.0, 0.0])
        sums[0] += value
        sums[1] += number

    def logs(self, prefix: str = "") -> dict[str, float]:
        return {prefix + name: total / number for name, (total, number) in self._sums.items()}


def structured(case: Arguments, values: Mapping[str, Any]) -> Any:
    """Return values of outputs as the model has its outputs."""
    if case["outputs"] == "one":
        return values["linear"]
    return [values[name] for name in NAMES] if case["outputs"] == "list" else {name: values[name] for name in NAMES}


def model_of(strategy: Any, case: Arguments) -> Any:
    """Return the compiled model of a case."""
    from suites.subject import keras

    class WeightedError(keras.metrics.MeanAbsoluteError):
        """Has another name than the metric without weights."""

        def __init__(self, name: str = "mape", **arguments: Any) -> None:
            super().__init__(name=name, **arguments)

    def of_outputs(make: Any) -> Any:
        return structured(case, {name: make() for name in NAMES})

    with strategy_of_many_fits(strategy).scope():
        inputs = keras.Input((FEATURES,))
        layers = {name: keras.layers.Dense(WIDTHS[name], use_bias=False, name=name) for name in NAMES}
        outputs = {name: layer(inputs) for name, layer in layers.items()}
        model = keras.Model(inputs, structured(case, outputs))
        model.get_layer("linear").set_weights([START])
        if case["outputs"] != "one":
            model.get_layer("other").set_weights([np.ones((FEATURES, 1))])
        given: Arguments = {"loss": of_outputs(lambda: "mse"), "run_eagerly": case["run_eagerly"] == "True"}
        if case["loss_weights"] != "no":
            given["loss_weights"] = [SHARES["linear"]] if case["outputs"] == "one" else structured(case, SHARES)
        one = case["outputs"] == "one"
        if case["metrics"] in ("metrics", "both"):
            given["metrics"] = ["mae"] if one else of_outputs(lambda: ["mae"])
        if case["metrics"] in ("weighted_metrics", "both"):
            given["weighted_metrics"] = [WeightedError()] if one else of_outputs(lambda: [WeightedError()])
        model.compile(
            keras.optimizers.SGD(RATE),
            steps_per_execution=int(case["steps_per_execution"]),
            jit_compile=False,
            **given,
        )
    return model


def calls(case: Arguments, phase: str, sizes: list[int]) -> Iterator[tuple[str, int, int]]:
    """Yield the hooks of batches with their indices, and the number of steps that are done.

    An execution passes the index of its first step when it begins, and that of its last one when it ends.
    """
    several, first = int(case["steps_per_execution"]), 0
    while first < len(sizes):
        last = min(first + several, len(sizes)) - 1
        yield f"on_{phase}_batch_begin", first, first
        yield f"on_{phase}_batch_end", last, last + 1
        first = last + 1


def expected(case: Arguments, replicas: int, data: Any, held: Any) -> tuple[list[tuple[str, Any, Any]], InNumPy]:
    """Return all calls of ``fit`` with index and logs."""
    model, found = InNumPy(case, replicas), [("on_train_begin", None, {})]
    for epoch in range(int(case["epochs"])):
        found.append(("on_epoch_begin", epoch, {}))
        found += run_of(case, "train", model, data)
        logs = model.logs()
        if held is not None:
            found.append(("on_test_begin", None, {}))
            found += run_of(case, "test", model, held)
            found.append(("on_test_end", None, model.logs()))
            logs |= model.logs("val_")
        found.append(("on_epoch_end", epoch, logs))
    return [*found, ("on_train_end", None, found[-1][2])], model


def run_of(case: Arguments, phase: str, model: InNumPy, data: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the calls of the batches of an epoch or a test, and let the model follow."""
    x, y, weights = data
    batches = [slice(first, first + BATCH) for first in range(0, len(x), BATCH)]
    model.begin()
    done = 0
    for name, index, steps in calls(case, phase, batches):
        for rows in batches[done:steps]:
            of = {key: value[rows] for key, value in y.items()}, {key: value[rows] for key, value in weights.items()}
            model.step(x[rows], *of, train=phase == "train")
        done = steps
        yield name, index, model.logs() if name.endswith("end") else {}


def compared(found: list[tuple[str, Any, Any]], wanted: list[tuple[str, Any, Any]]) -> None:
    """Compare calls, one after the other.

    :raises AssertionError: if one differs.
    """
    assert [call[:2] for call in found] == [call[:2] for call in wanted]
    for (name, index, logs), (_, _, expected_logs) in zip(found, wanted, strict=True):
        got = {key: float(value) for key, value in logs.items()}
        # Begins have no logs, or those of the call before in some versions.
        if not name.endswith("begin"):
            assert got == pytest.approx(expected_logs, rel=LOGS), f"{name}({index})"


def split_of(case: Arguments, rows: int) -> int:
    """Return the number of rows that ``fit`` trains on."""
    return rows - BATCH if case["validation"] == "split" else rows


def one_training(strategy: Any, case: Arguments) -> None:
    """Train, evaluate and predict, and compare all calls."""
    from suites.subject import keras

    replicas = replicas_of(strategy)
    rows = int(case["batches"]) * BATCH + int(case["rest"]) + (BATCH if case["validation"] == "split" else 0)
    x, y, weights = examples(rows, 0)
    if case["weights"] == "no":
        weights = {name: np.ones(rows) for name in NAMES}
    if case["weights"] == "examples":
        weights = dict.fromkeys(NAMES, weights["linear"])
    given = {"batch_size": BATCH, "verbose": 0}
    own: Arguments = {}
    if case["weights"] != "no":
        own["sample_weight"] = weights["linear"] if case["weights"] == "examples" else structured(case, weights)
    whole, end = (x, y, weights), split_of(case, rows)

    def cut(part: slice) -> Any:
        return (x[part], *({name: value[part] for name, value in of.items()} for of in (y, weights)))

    held = None
    if case["validation"] == "split":
        held = cut(slice(end, None))
        own["validation_split"] = BATCH / rows
    if case["validation"] == "data":
        tested = examples(3 * BATCH, 1)
        held = (*tested[:2], {name: np.ones(len(tested[0])) for name in NAMES})
        own["validation_data"] = (tested[0], structured(case, tested[1]))
    model, seen = model_of(strategy, case), recorder(keras)
    history = model.fit(
        x, structured(case, y), epochs=int(case["epochs"]), shuffle=False, callbacks=[seen], **given, **own
    )
    wanted, follower = expected(case, replicas, cut(slice(0, end)), held)
    compared(seen.calls, wanted)
    ends = [logs for name, _, logs in wanted if name == "on_epoch_end"]
    assert history.epoch == list(range(int(case["epochs"])))
    assert {name: list(map(float, values)) for name, values in history.history.items()} == {
        name: pytest.approx([logs[name] for logs in ends], rel=LOGS) for name in ends[-1]
    }
    seen.calls.clear()
    if case["then"] == "predict":
        predicts(model, case, x, follower, seen)
        return
    weighing = {name: value for name, value in own.items() if name == "sample_weight"}
    got = model.evaluate(x, structured(case, y), return_dict=True, callbacks=[seen], **given, **weighing)
    calls_of_test = list(run_of(case, "test", follower, whole))
    logs = follower.logs()
    assert {name: float(value) for name, value in got.items()} == pytest.approx(logs, rel=LOGS)
    compared(seen.calls, [("on_test_begin", None, {}), *calls_of_test, ("on_test_end", None, logs)])


def predicts(model: Any, case: Arguments, x: Any, follower: InNumPy, seen: Any) -> None:
    """Predict, and compare the calls and the rows."""
    found = model.predict(x, callbacks=[seen], batch_size=BATCH, verbose=0)
    batches = [0] * -(-len(x) // BATCH)
    wanted = [call[:2] for call in calls(case, "predict", batches)]
    assert [call[:2] for call in seen.calls] == [("on_predict_begin", None), *wanted, ("on_predict_end", None)]
    outputs = {"linear": found} if case["outputs"] == "one" else found
    by_name = dict(zip(NAMES, outputs, strict=True)) if case["outputs"] == "list" else outputs
    for name in follower.names:
        np.testing.assert_allclose(by_name[name], x @ follower.kernels[name], rtol=1e-9, atol=1e-9)


def cases(replicas: int) -> list[Arguments]:
    """Return few cases that have all pairs of choices, and with replicas those that they can change."""
    if replicas == 1:
        return [dict(case) for case in pairwise(DIMENSIONS, allowed)]
    # A test with an entry has executions of several steps.
    fewer = {name: DIMENSIONS[name][:1] for name in ("steps_per_execution", "batches", "epochs")}
    dimensions = {**DIMENSIONS, **fewer, "validation": ("no", "data"), "then": ("evaluate",)}
    return [dict(case) for case in pairwise(dimensions, allowed_with_replicas)]


@pytest.mark.ddl(strategies=["one_device", "mirrored"])
@pytest.mark.ddl_item(
    "callback.call_counts_and_order_of_all_hooks", "fit.fit.history", "fit.multi_output", "fit.fit.validation"
)
def test_each_call_and_log_is_that_of_arithmetic(ddl_strategy):
    """Pair forms of outputs, weights and metrics with executions of several steps, rests and kinds of validation."""
    wrong = Wrong()
    for case in cases(replicas_of(ddl_strategy)):
        with wrong.of(case):
            one_training(ddl_strategy, case)
    wrong.check()
    assert "steps_per_execution" in parameters("Model.compile")
