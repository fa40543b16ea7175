"""Train layers with all pairs of their parameters through ``fit``, with masks and a smaller last batch."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from suites.linear import COPY_WARNING
from suites.parameters.spaces import Arguments, Wrong
from suites.running import components, replicas_of
from suites.tables.layer_parameters import IDS, LAYERS, WORDS, Made, Trained

pytestmark = [
    pytest.mark.usefixtures("float64"),
    pytest.mark.filterwarnings(COPY_WARNING),
    pytest.mark.filterwarnings("ignore:.*does not support masking:UserWarning"),
]

ROWS, BATCH, RATE = 11, 4, 0.01
"""Two replicas get 2 and 2 examples of the first batches, and 2 and 1 of the last one."""
BOUND = {"rtol": 1e-9, "atol": 1e-10}
"""Some thousand operations in float64. Replicas add gradients up in another order."""
DRAWS = ("dropout", "recurrent_dropout")
BOTH = ("one_device", "mirrored")
SPACES = {one.space: BOTH if one.replicas else BOTH[:1] for one in LAYERS}
"""Spaces of the properties of this file -> their strategies."""


def as_one(case: Arguments) -> bool:
    """Return whether replicas train as one does: they draw numbers of their own.

    A penalty of outputs is not divided by their number (``repros/activity_not_divided.py``), so it depends on it.
    """
    return not any(case.get(name) for name in (*DRAWS, "activity_regularizer"))


def data(layer: Trained) -> Any:
    """Return examples. Those of a series end at different times, with zeros after the end."""
    draw = np.random.default_rng(5)
    if layer.shape == IDS:
        found = draw.integers(1, WORDS, (ROWS, *layer.shape))
    else:
        found = draw.normal(size=(ROWS, *layer.shape)) * np.linspace(0.5, 1.5, ROWS).reshape(
            -1, *[1] * len(layer.shape)
        )
    if len(layer.shape) < 3:
        for row, one in enumerate(found):
            one[1 + row % layer.shape[0] :] = 0
    return found


def branch(keras: Any, layer: Trained, case: Arguments, inputs: Any) -> list[Any]:
    """Return the outputs of a layer with the parameters of a case."""
    given = {**layer.space.fixed, **{name: case[name] for name in layer.space.varied()}}
    made = {name: value.make(keras) if isinstance(value, Made) else value for name, value in given.items()}
    one = getattr(keras.layers, layer.space.name)(**made)
    x = keras.layers.Masking()(inputs) if layer.masked else inputs
    if not one.weights and layer.shape != IDS:
        x = keras.layers.Dense(x.shape[-1], use_bias=False)(x)  # learns through a layer without weights
    outputs = one(*[x] * layer.inputs)
    if layer.then is not None:
        outputs = layer.then.make(keras)(outputs)  # shows whether the mask has arrived
    return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]


def trained(strategy: Any, layer: Trained, cases: list[Arguments], wrong: Wrong) -> list[list[Any]]:
    """Train all cases in one model, and return for each its variables, and for one replica the losses of all.

    One training costs more than a layer. The branches of a model have no weights in common.
    """
    from suites.subject import keras

    keras.utils.set_random_seed(7)
    x, replicas = data(layer), 1 if strategy is None else replicas_of(strategy)
    with nullcontext() if strategy is None else strategy.scope():
        inputs, outputs, models = keras.Input(layer.shape, dtype=x.dtype), [], []
        for number, case in enumerate(cases):
            with wrong.of(case):
                found = branch(keras, layer, case, inputs)
                outputs += found
                models.append((number, keras.Model(inputs, found)))
        model = keras.Model(inputs, outputs)
        losses = [keras.losses.MeanSquaredError(reduction="sum") for _ in outputs]
        # Without a strategy, eager steps are a reference of their own, and cost less than a function for few batches.
        model.compile(keras.optimizers.SGD(RATE), loss=losses, jit_compile=False, run_eagerly=strategy is None)
    labels = [np.zeros((ROWS, *one.shape[1:])) for one in outputs]
    history = model.fit(x, labels, batch_size=BATCH, epochs=2, shuffle=False, verbose=0).history
    results: list[list[Any]] = [[] for _ in cases]
    for number, own in models:
        for variable in own.variables:
            parts = [np.asarray(variable)] if strategy is None else components(strategy, variable)
            results[number].append(parts[0])
            for part in parts[1:]:
                np.testing.assert_array_equal(part, parts[0])
    if replicas == 1:
        results.append(list(history["loss"]))
    return results


@pytest.mark.ddl(strategies=list(BOTH))
@pytest.mark.ddl_item("layer.Dense", "layer.LSTM_GRU", "layer.TimeDistributed_Bidirectional_Masking")
@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.space.name)
def test_a_layer_trains_with_its_options_as_without_a_strategy(layer, ddl_strategy):
    replicas = replicas_of(ddl_strategy)
    if replicas > 1 and not layer.replicas:
        pytest.skip("each replica draws numbers of its own, or normalizes its own part")
    cases = layer.space.cases(also=as_one if replicas > 1 else lambda _case: True)
    wrong = Wrong()
    found, expected = (trained(one, layer, cases, wrong) for one in (ddl_strategy, None)) if cases else ([], [])
    for case, one, other in zip([*cases, "losses of all"], found, expected, strict=False):
        with wrong.of(case):
            for got, wanted in zip(one, other, strict=True):
                np.testing.assert_allclose(got, wanted, **BOUND)
    wrong.check()
