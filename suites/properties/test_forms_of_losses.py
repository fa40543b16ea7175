"""Call each loss in all forms: functions, lists, symbols, masks, half precision, columns. Compare it with NumPy."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from suites.parameters.spaces import Arguments, Wrong
from suites.subject import with_mask
from suites.tables.loss_values import (
    FORMS,
    LABELS,
    LOSSES,
    Array,
    Loss,
    broadcast,
    examples,
    is_flat,
    reduced,
    weights_of,
)

pytestmark = [
    pytest.mark.ddl(strategies=["one_device"], keras="keras"),
    pytest.mark.ddl_item("loss.reductions"),
]

ROWS, CASES = 6, 4
BOUND = {"rtol": 1e-3, "atol": 1e-3}
"""Losses are in float32. A wrong row of six changes each of them by more."""
KEPT = np.array([True, False, True, True, False, True])


@dataclass(frozen=True)
class Call:
    """A loss with its parameters, and the labels and predictions that it gets."""

    loss: Loss
    case: Arguments
    truth: Array
    predicted: Array

    @property
    def options(self) -> Arguments:
        """The parameters of the function of the loss."""
        return {name: value for name, value in self.case.items() if name not in ("reduction", "name", "dtype")}

    def function(self) -> Any:
        from suites.subject import keras

        return getattr(keras.losses, function_of(self.loss.space.name))

    def made(self) -> Any:
        return self.loss.space.make(self.case)

    def values(self, predicted: Array | None = None) -> Any:
        """Return the losses of the elements, from their definition in float64."""
        values = self.predicted if predicted is None else predicted
        truth, values = (one.astype("float64") if one.dtype.kind == "f" else one for one in (self.truth, values))
        return self.loss.model(truth, values, **self.options)

    def wanted(self, weights: Array | None = None, mask: Any = True) -> Any:
        """Return the reduced loss of the elements that a mask does not leave out."""
        values, reduction = self.values(), self.case["reduction"]
        counts = self.loss.counts(self.truth, values, self.case)
        kept = np.broadcast_to(mask if counts is None else mask & counts, np.shape(values))
        if reduction in (None, "none", "sum"):
            each = values * broadcast(weights, values) * kept
            return each.sum() if reduction == "sum" else each
        return reduced(values, weights, reduction, kept if np.ndim(values) else None)


def function_of(name: str) -> str:
    """Return the name of the function of a class."""
    names = {"KLDivergence": "kl_divergence"}
    return names.get(name, re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower())


def _calls(loss: Loss, number: int = CASES, *, flat: bool = False) -> Iterator[Call]:
    """Yield some of the cases that have all pairs of parameters."""
    cases = loss.space.cases(labels=["any"])
    for case in cases[:: max(1, -(-len(cases) // number))]:
        case = {**{name: value for name, value in case.items() if name != "labels"}, "dtype": "float32"}
        logits, axis = case.get("from_logits", False), case.get("axis", -1)
        truth, predicted = examples(loss.data, ROWS, logits=logits, axis=axis, flat=flat)
        yield Call(
            loss, case, truth.astype("int32" if truth.dtype.kind == "i" else "float32"), predicted.astype("float32")
        )


Pair = tuple[Any, Any]
"""A result of a loss, and the right one."""


def _function(one: Call) -> Iterator[Pair]:
    yield one.function()(one.truth, one.predicted, **one.options), one.values()


def _lists(one: Call) -> Iterator[Pair]:
    yield one.function()(one.truth.tolist(), one.predicted.tolist(), **one.options), one.values()


def _half(one: Call) -> Iterator[Pair]:
    """The loss has the type of the predictions, whatever type the labels have."""
    import tensorflow as tf

    for dtype, labels in itertools.product(("float16", "bfloat16"), LABELS.get(one.loss.data, ("float32", "float64"))):
        if one.loss.whole or one.options.get("from_logits") or one.loss.data == "positive":
            continue  # sums of many numbers, and functions of large ones, are far from their definition
        predicted = tf.cast(one.predicted, dtype)
        found = one.function()(one.truth.astype(labels), predicted, **one.options)
        assert found.dtype == dtype, f"{found.dtype.name} for {dtype}"
        wanted = one.values(np.asarray(tf.cast(predicted, "float32")))
        yield np.asarray(tf.cast(found, "float32")) / (10 * (1 + np.abs(wanted))), wanted / (10 * (1 + np.abs(wanted)))


def _symbols(one: Call, rows: int | None) -> Iterator[Pair]:
    from suites.subject import keras

    given = [keras.KerasTensor((rows, *array.shape[1:]), array.dtype.name) for array in (one.truth, one.predicted)]
    for told, wanted in (
        (one.function()(*given, **one.options), one.values()),
        (one.made()(*given), one.wanted()),
    ):
        known = zip(told.shape, np.shape(wanted), strict=True)
        yield all(length in (None, real) for length, real in known) and told.dtype == "float32", True


def _in_a_function(one: Call) -> Iterator[Pair]:
    """The sizes of what a step gets may be unknown when it is traced."""
    import tensorflow as tf

    sizes = [tf.TensorSpec([None] * array.ndim, array.dtype) for array in (one.truth, one.predicted)]
    loss = one.made()
    yield tf.function(lambda *given: loss(*given), input_signature=sizes)(one.truth, one.predicted), one.wanted()


def _masked(one: Call) -> Iterator[Pair]:
    """A mask leaves out rows, and a mean is that of the others, with weights in each form."""
    import tensorflow as tf

    if one.loss.whole:
        return
    values = one.values()
    for form in FORMS:
        if is_flat(form) or form in ("none", "one"):
            weights = weights_of(form, np.shape(values))
            masked = with_mask(tf.constant(one.predicted), tf.constant(KEPT))
            found = np.asarray(one.made()(one.truth, masked, sample_weight=weights))
            wanted = one.wanted(weights, KEPT)
            yield found.reshape(np.shape(wanted)) if found.size == np.size(wanted) else found, wanted


ALONG_AN_AXIS = ("CosineSimilarity", "KLDivergence")


def _columns(one: Call, ranks: tuple[int, int]) -> Iterator[Pair]:
    """A column of labels or predictions is as good as a row of them. Each weight is that of its example."""
    sparse = one.loss.data == "sparse"
    if one.loss.data not in ("real", "positive", "signs", "binary", "sparse") or one.predicted.ndim == 3:
        return
    if one.loss.space.name in ALONG_AN_AXIS or (sparse and ranks[1] == 1):
        return
    truth, predicted = one.truth.reshape(ROWS, -1)[:, :1], one.predicted if sparse else one.predicted[:, :1]
    column = Call(one.loss, one.case, truth[:, 0] if sparse else truth, predicted)
    given = truth if ranks[0] == 2 else truth[:, 0], predicted if ranks[1] == 2 else predicted[:, 0]
    for weights in (None, np.arange(1, ROWS + 1) / 2):
        found, wanted = np.asarray(one.made()(*given, sample_weight=weights)), column.wanted(weights)
        yield found.reshape(np.shape(wanted)) if found.size == np.size(wanted) else found, wanted


WAYS: Mapping[str, Callable[[Call], Iterator[Pair]]] = {
    "function": _function,
    "of lists": _lists,
    "half precision": _half,
    "symbols": lambda one: _symbols(one, ROWS),
    "symbols of any rows": lambda one: _symbols(one, None),
    "in a function": _in_a_function,
    "masked": _masked,
    "a column of both": lambda one: _columns(one, (2, 2)),
    "a column of labels": lambda one: _columns(one, (2, 1)),
    "a column of predictions": lambda one: _columns(one, (1, 2)),
    "no column": lambda one: _columns(one, (1, 1)),
}
_GENERALIZED = "CategoricalGeneralizedCrossEntropy"
LEFT: Mapping[str, tuple[str, ...]] = {
    "of lists": ("SparseCategoricalCrossentropy", _GENERALIZED),
    "symbols": ("CategoricalCrossentropy", "Circle"),
    "a column of both": (_GENERALIZED,),
}
"""Losses that Keras gets wrong in a form. Each has a test of its own, with an entry."""


def _agree(way: str, loss: Loss, wrong: Wrong, cases: int) -> None:
    for one in _calls(loss, cases, flat=way == "masked" or "column" in way):
        with wrong.of(loss.space.name, one.case):
            for found, wanted in WAYS[way](one):
                np.testing.assert_allclose(np.asarray(found, "float64"), np.asarray(wanted, "float64"), **BOUND)


@pytest.mark.parametrize("way", WAYS)
def test_a_loss_is_the_same_in_each_form(way, ddl_strategy):
    wrong = Wrong()
    for loss in LOSSES:
        if loss.space.name not in LEFT.get(way, ()):
            _agree(way, loss, wrong, 1 if way == "in a function" else CASES)  # a trace takes long
    wrong.check()


@pytest.mark.parametrize(("way", "name"), [(way, name) for way, names in LEFT.items() for name in names])
def test_a_loss_that_differs_in_a_form(way, name, ddl_strategy):
    wrong = Wrong()
    (loss,) = (one for one in LOSSES if one.space.name == name)
    if not loss.space.exists():
        pytest.skip(f"this version has no {name}")
    _agree(way, loss, wrong, 8 * CASES)
    wrong.check()


def test_each_function_is_that_of_a_loss(ddl_strategy):
    """A new function of keras.losses must have a class in the table."""
    from suites.subject import keras

    functions = {id(one): name for name, one in vars(keras.losses).items() if inspect.isfunction(one)}
    known = {id(getattr(keras.losses, function_of(loss.space.name), None)) for loss in LOSSES}
    assert {name for key, name in functions.items() if key not in known} <= {"ctc", "deserialize", "get", "serialize"}
