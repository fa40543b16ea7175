"""Compile models with outputs, losses, metrics, weights, labels and masks of any form, and compare with arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from suites.linear import COPY_WARNING
from suites.pairwise import pairwise
from suites.parameters.spaces import Arguments, Wrong
from suites.running import components

pytestmark = [
    pytest.mark.usefixtures("float64"),
    pytest.mark.filterwarnings(COPY_WARNING),
    pytest.mark.filterwarnings("ignore:Gradients do not exist:UserWarning"),
]

ROWS, TIMES, FEATURES, RATE = 4, 3, 2, 0.125
LENGTHS = (3, 1, 2, 3)
"""Times of each example that its mask has."""
WIDTHS = {"first": 2, "another": 1}
"""Layers and their units. The order of the outputs is not that of their names, which Keras sorts in a dictionary."""
INPUTS = ("zoo", "ark")
"""Names of several inputs."""
SHARES = {"first": 0.5, "another": 2.0}
KEYS = {
    "one": ("first",),
    "list": tuple(WIDTHS),
    "dict": tuple(WIDTHS),
    "renamed": ("zebra", "ant"),
    "tuple": tuple(WIDTHS),
}
"""Form of the outputs -> the names that logs and structures have for them. Keras sorts the keys of a dictionary."""
DIMENSIONS: Mapping[str, tuple[str, ...]] = {
    "outputs": tuple(KEYS),
    "loss": ("each", "same", "first", "another", "class", "function", "differ"),
    "loss_weights": ("no", "each"),
    "metrics": ("no", "bare", "each", "first"),
    "weighted_metrics": ("no", "bare", "each", "first"),
    "metric": ("mae", "object", "accuracy", "function"),
    "sample_weight": ("no", "examples", "each", "times"),
    "labels": ("float64", "int32", "bool"),
    "mask": ("no", "yes"),
    "given": ("as outputs", "by name", "by name in reverse"),
    "inputs": ("one", "list", "dict", "list by name in reverse"),
    "method": ("train_on_batch", "test_on_batch", "evaluate", "fit"),
}
"""Choices of a step; each pair of them occurs."""


def allowed(case: Arguments) -> bool:
    """Return whether choices mean something together."""
    if case.get("outputs") == "one":
        return case.get("loss") not in ("first", "another", "differ")
    named = case.get("given", "as outputs") != "as outputs" and case.get("outputs") in ("list", "tuple")
    if named and case.get("sample_weight", "no") != "no" and case.get("method") in ("fit", "evaluate"):
        return False  # a defect with a test of its own
    if case.get("loss") == "another" and (named or case.get("loss_weights") == "each"):
        return False  # where a loss is missing, all names of a list and all weights must be there
    # One loss for several outputs takes no weights of outputs, and no labels by name.
    return case.get("loss") != "same" or not (named or case.get("loss_weights") == "each")


def given(case: Arguments, values: Mapping[str, Any]) -> Any:
    """Return values of the outputs as an argument of Keras, which may name the outputs of a list: but for weights."""
    by_name = case["given"] != "as outputs" and case["outputs"] in ("list", "tuple")
    found = dict(values) if by_name else structure(case["outputs"], values)
    if isinstance(found, dict) and case["given"] == "by name in reverse":
        return dict(reversed(found.items()))
    return found


def inputs_of(case: Arguments, x: Any) -> Any:
    """Return the inputs: of several, each has one feature."""
    if case["inputs"] == "one":
        return x
    parts = dict(zip(INPUTS, np.split(x, FEATURES, axis=-1), strict=True))
    return {
        "list": lambda: [*parts.values()],
        "dict": lambda: parts,
        "list by name in reverse": lambda: dict(reversed(parts.items())),
    }[case["inputs"]]()


def structure(form: str, values: Mapping[str, Any]) -> Any:
    """Return a value for each layer in the form that outputs have."""
    if form == "one":
        return values["first"]
    if form in ("list", "tuple"):
        return {"list": list, "tuple": tuple}[form](values.values())
    return dict(zip(KEYS[form], values.values(), strict=True))


def error() -> Callable[[Any, Any], Any]:
    from suites.subject import ops

    def absolute(truth: Any, predicted: Any) -> Any:
        return ops.mean(ops.abs(ops.cast(truth, predicted.dtype) - predicted), axis=-1)

    return absolute


def examples() -> tuple[Any, dict[str, Any], dict[str, Any], dict[str, Any], Any]:
    """Return inputs, kernels, labels of 0 and 1, weights of elements, and the mask."""
    draw = np.random.default_rng(2)
    mask = np.arange(TIMES) < np.array(LENGTHS)[:, None]
    x = draw.integers(1, 8, (ROWS, TIMES, FEATURES)) / 4.0 * mask[..., None]
    kernels = {name: draw.normal(0.25, 1, (FEATURES, width)) for name, width in WIDTHS.items()}
    labels = {name: draw.integers(0, 2, (ROWS, TIMES, width)) for name, width in WIDTHS.items()}
    return x, kernels, labels, {name: draw.integers(1, 9, (ROWS, TIMES)) / 4 for name in WIDTHS}, mask


def weights_of(case: Arguments, weights: Mapping[str, Any]) -> dict[str, Any]:
    """Return the weights of elements, as they count."""
    if case["sample_weight"] == "no":
        return {name: np.ones((ROWS, TIMES)) for name in WIDTHS}
    if case["sample_weight"] == "times":
        return dict(weights)
    same = case["sample_weight"] == "examples"
    return {name: np.repeat(weights["first" if same else name][:, :1], TIMES, axis=1) for name in WIDTHS}


def given_weights(case: Arguments, weights: Mapping[str, Any]) -> Any:
    """Return the argument for Keras."""
    if case["sample_weight"] == "no":
        return None
    if case["sample_weight"] == "examples":
        return weights["first"][:, :1]
    own = {name: one if case["sample_weight"] == "times" else one[:, :1] for name, one in weights.items()}
    return structure(case["outputs"], own)


def accuracy(truth: Any, predicted: Any) -> Any:
    """Keras takes the largest of several numbers, and the nearer class for one number."""
    if truth.shape[-1] == 1:
        return ((predicted > 0.5) == truth).mean(axis=-1)
    return truth.argmax(axis=-1) == predicted.argmax(axis=-1)


def measured(case: Arguments, truth: Any, predicted: Any) -> Any:
    """Return the values of the metric of a case, by element."""
    if case["metric"] == "accuracy":
        return accuracy(truth, predicted)
    return ((truth - predicted) ** 2 if case["metric"] == "object" else np.abs(truth - predicted)).mean(axis=-1)


def expected(case: Arguments) -> tuple[dict[str, float], dict[str, Any]]:
    """Return the logs before a step, and the kernels after it."""
    x, kernels, labels, weights, mask = examples()
    counts = mask if case["mask"] == "yes" else np.ones_like(mask)
    names = dict(zip(WIDTHS, KEYS[case["outputs"]], strict=False))
    logs, total, after = {}, 0.0, dict(kernels)
    every = weights_of(case, weights)
    for layer, key in names.items():
        predicted, truth, weight = x @ kernels[layer], labels[layer], every[layer] * counts
        prefix = "" if case["outputs"] == "one" else f"{key}_"
        if case["loss"] not in WIDTHS or case["loss"] == layer:
            share = SHARES[layer] if case["loss_weights"] == "each" else 1.0
            difference = predicted - truth
            absolute = case["loss"] == "function" or (case["loss"] == "differ" and layer == "another")
            values = (np.abs(difference) if absolute else difference**2).mean(axis=-1)
            loss = (values * weight).sum() / counts.sum()
            slopes = (np.sign(difference) if absolute else 2 * difference) / WIDTHS[layer] * weight[..., None]
            after[layer] = kernels[layer] - RATE * share * np.einsum("rtf,rtw->fw", x, slopes) / counts.sum()
            total += share * loss
            if prefix and case["loss"] not in WIDTHS:  # one loss is the total
                logs[f"{prefix}loss"] = loss
        values = measured(case, truth, predicted)
        for argument, ones in (("metrics", counts), ("weighted_metrics", weight)):
            if case[argument] in ("bare", "each") or (case[argument] == "first" and layer == "first"):
                name = prefix + ("accuracy" if case["metric"] == "accuracy" else argument)
                # If two metrics have one name, the one with weights gets a prefix.
                logs[f"{prefix}weighted_accuracy" if name in logs else name] = (values * ones).sum() / ones.sum()
    return {"loss": total, **logs}, after


def without_none(losses: Any) -> Any:
    """Return losses by name without those that are none: a name may be missing."""
    return {name: one for name, one in losses.items() if one} if isinstance(losses, dict) else losses


def compiled(keras: Any, strategy: Any, case: Arguments) -> Any:
    """Return the model of a case."""
    _, kernels, *_ = examples()
    form = case["outputs"]

    def of_metrics(argument: str) -> Any:
        """Return metrics that are named after the argument."""

        def one() -> Any:
            kinds = {"mae": keras.metrics.MeanAbsoluteError, "object": keras.metrics.MeanSquaredError}
            if case["metric"] in kinds:
                return kinds[case["metric"]](name=argument)
            if case["metric"] == "function":
                found = error()
                found.__name__ = argument
                return found
            return "accuracy"

        if case[argument] == "no":
            return None
        if case[argument] == "first":
            return given(case, {"first": [one()], "another": []})
        bare = case[argument] == "bare" and form != "one"
        return given(case, {name: one() if bare else [one()] for name in WIDTHS})

    losses = {
        "each": lambda: given(case, dict.fromkeys(WIDTHS, "mse")),
        "same": lambda: "mse",
        "first": lambda: given(case, {"first": "mse", "another": None}),
        "another": lambda: without_none(given(case, {"first": None, "another": "mse"})),
        "differ": lambda: given(case, {"first": "mse", "another": "mae"}),
        "class": lambda: given(case, {name: keras.losses.MeanSquaredError() for name in WIDTHS}),
        "function": lambda: given(case, {name: error() for name in WIDTHS}),
    }
    with strategy.scope():
        if case["inputs"] == "one":
            inputs: Any = keras.Input((TIMES, FEATURES))
            x = inputs
        else:
            named = {name: keras.Input((TIMES, 1), name=name) for name in INPUTS}
            inputs = named if case["inputs"] == "dict" else [*named.values()]
            x = keras.layers.Concatenate()([*named.values()])
        x = keras.layers.Masking()(x) if case["mask"] == "yes" else x
        layers = {name: keras.layers.Dense(width, use_bias=False, name=name) for name, width in WIDTHS.items()}
        model = keras.Model(inputs, structure(form, {name: layer(x) for name, layer in layers.items()}))
        for name, layer in layers.items():
            if layer.built:
                layer.set_weights([kernels[name]])
        shares = None if case["loss_weights"] == "no" else given(case, SHARES)
        model.compile(
            keras.optimizers.SGD(RATE),
            loss=losses[case["loss"]](),
            loss_weights=[shares] if form == "one" and shares is not None else shares,
            metrics=of_metrics("metrics"),
            weighted_metrics=of_metrics("weighted_metrics"),
            run_eagerly=True,
            jit_compile=False,
        )
    return model


def done(model: Any, case: Arguments) -> dict[str, float]:
    """Make the step of a case, and return its logs."""
    x, _, labels, weights, _ = examples()
    x = inputs_of(case, x)
    truth = given(case, {name: one.astype(case["labels"]) for name, one in labels.items()})
    weight = given_weights(case, weights)
    if case["method"] == "fit":
        history = model.fit(x, truth, sample_weight=weight, batch_size=ROWS, shuffle=False, verbose=0).history
        return {name: float(values[0]) for name, values in history.items()}
    further = {"batch_size": ROWS, "verbose": 0} if case["method"] == "evaluate" else {}
    found = getattr(model, case["method"])(x, truth, sample_weight=weight, return_dict=True, **further)
    return {name: float(value) for name, value in found.items()}


@pytest.mark.ddl(strategies=["one_device"])
@pytest.mark.ddl_item("fit.multi_output", "loss.mask", "fit.compute_loss", "fit.on_batch", "fit.evaluate.uneven")
@pytest.mark.parametrize("form", KEYS)
def test_losses_and_metrics_of_any_form_are_those_of_arithmetic(form, ddl_strategy):
    """One step, eagerly: ``test_hooks_and_logs.py`` has what several steps and replicas change."""
    from suites.subject import keras

    wrong = Wrong()
    for case in pairwise(DIMENSIONS, allowed):
        if case["outputs"] != form:
            continue
        with wrong.of(case):
            model = compiled(keras, ddl_strategy, case)
            logs, kernels = expected(case)
            found = done(model, case)
            assert found == {name: pytest.approx(value, rel=1e-6) for name, value in logs.items()}
            for name in WIDTHS if case["outputs"] != "one" else ("first",):
                after = kernels[name] if case["method"] in ("fit", "train_on_batch") else examples()[1][name]
                for part in components(ddl_strategy, model.get_layer(name).kernel):
                    np.testing.assert_allclose(part, after, rtol=1e-12, atol=1e-14)
    wrong.check()


@pytest.mark.ddl(strategies=["one_device"])
@pytest.mark.ddl_item("fit.multi_output", "fit.on_batch", "fit.evaluate.uneven")
@pytest.mark.parametrize("form", ["list", "tuple"])
def test_weights_of_examples_count_for_labels_by_name(form, ddl_strategy):
    """One array of weights counts for every output of a list, also if the labels are a dictionary."""
    from suites.subject import keras

    wrong, plain = Wrong(), {name: values[0] for name, values in DIMENSIONS.items()}
    for method in DIMENSIONS["method"]:
        case = plain | {"outputs": form, "sample_weight": "examples", "given": "by name", "method": method}
        with wrong.of(method):
            logs, _ = expected(case)
            found = done(compiled(keras, ddl_strategy, case), case)
            assert found == {name: pytest.approx(value, rel=1e-6) for name, value in logs.items()}
    wrong.check()
