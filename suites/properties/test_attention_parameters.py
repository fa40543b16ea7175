"""Attend with every parameter to fewer and more sources than targets, and compare with NumPy."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest

from suites import subject
from suites.parameters.spaces import Wrong

pytestmark = [
    pytest.mark.usefixtures("float64"),
    pytest.mark.ddl(strategies=["one_device"], keras="keras"),
    pytest.mark.ddl_item("layer.MultiHeadAttention"),
]

ROWS, TARGETS, SOURCES, HEADS, SIZE = 2, 3, 5, 2, 4
"""The root of the size is a whole number: Keras rounds it to float32, as every constant of Python that it casts."""
FEATURES = {"query": 3, "key": 4, "value": 6}
BOUND = {"rtol": 1e-9, "atol": 1e-10}
"""Some hundred operations in float64."""
BOTH = (False, True)


def draw(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).normal(size=shape)


def tensors(between: Sequence[int] = (), same: bool = False, alike: bool = False) -> dict[str, Any]:
    """Return queries, keys and values; each has features of its own, unless the keys are the values.

    :param between: lengths of further axes between the examples and the times.
    :param alike: let all have the features of the queries.
    """
    times = {"query": TARGETS, "value": SOURCES, **({} if same else {"key": SOURCES})}
    return {name: draw(ROWS, *between, many, 3 if alike else FEATURES[name]) for name, many in times.items()}


def drawn(layer: Any) -> dict[str, Any]:
    """Give all weights of a layer other numbers, and return these by the names of their parts."""
    generator = np.random.default_rng(3)
    layer.set_weights([generator.normal(size=weights.shape) for weights in layer.get_weights()])
    paths = [getattr(one, "path", one.name).partition(":")[0].split("/")[-2:] for one in layer.weights]
    return {"/".join(path): values for path, values in zip(paths, layer.get_weights(), strict=True)}


def softmax(scores: Any, mask: Any) -> Any:
    scores = np.where(mask, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def projected(weights: Mapping[str, Any], part: str, x: Any, axes: int = 1) -> Any:
    return np.tensordot(x, weights[f"{part}/kernel"], axes) + weights.get(f"{part}/bias", 0.0)


def headed(weights: Mapping[str, Any], given: Mapping[str, Any], axes: Sequence[int], mask: Any) -> tuple[Any, Any]:
    """Return what heads make of their inputs, and their scores.

    :param axes: those that are attended over.
    :param mask: what may attend to what, if the axes are one after the other.
    """
    query, value = given["query"], given["value"]
    parts = {"query": query, "key": given.get("key", value), "value": value}
    others = [axis for axis in range(1, query.ndim - 1) if axis not in axes]
    order = [0, *others, query.ndim - 1, *axes, query.ndim]  # the last two are the heads and their sizes
    flat, lengths = {}, {}
    for name, x in parts.items():
        x = projected(weights, name, x).transpose(order)
        lengths[name] = x.shape[len(others) + 2 : -1]
        x = x.reshape(*x.shape[: len(others) + 2], -1, x.shape[-1])
        flat[name] = np.repeat(x, HEADS // x.shape[-3], axis=-3)
    scores = softmax(flat["query"] @ flat["key"].swapaxes(-1, -2) / np.sqrt(SIZE), mask)
    found = scores @ flat["value"]
    found = found.reshape(*found.shape[:-2], *lengths["query"], found.shape[-1]).transpose(np.argsort(order))
    if "gate/kernel" in weights:
        found = found / (1 + np.exp(-projected(weights, "gate", query)))
    scores = scores.reshape(*scores.shape[:-2], *lengths["query"], *lengths["key"])
    return projected(weights, "attention_output", found, 2), scores


def check(layer: Any, given: Mapping[str, Any], expected: Sequence[Any], **options: Any) -> None:
    """Compare a layer that is built with NumPy, with and without its scores."""
    import tensorflow as tf

    for scores in BOTH:
        found = tf.nest.flatten(layer(**given, **options, return_attention_scores=scores))
        for one, other in zip(found, expected[: 1 + scores], strict=True):
            np.testing.assert_allclose(one, other, **BOUND, err_msg="with scores" * scores)


def band(causal: bool, window: int | None) -> Any:
    """Return what may attend to what."""
    away = np.arange(TARGETS)[:, None] - np.arange(SOURCES)
    found = away >= 0 if causal else np.ones_like(away, bool)
    return found if window is None else found & (abs(away) < window)


HEADED: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Sequence[Any]]]] = {
    "MultiHeadAttention": (
        {"num_heads": HEADS, "key_dim": SIZE},
        {"value_dim": (None, 3), "output_shape": (None, 5, (2, 3)), "sliding_window": (None, 2), "use_gate": BOTH},
    ),
    "GroupQueryAttention": (
        {"head_dim": SIZE, "num_query_heads": HEADS},
        {"num_key_value_heads": (1, 2), "sliding_window": (None, 2), "use_gate": BOTH},
    ),
}
"""Layer -> parameters that are the same in all cases, and choices of others."""
BY_OTHERS = {
    *("self", "dropout", "seed", "flash_attention", "kwargs", "attention_axes"),
    *(f"{name}_{what}" for name in ("kernel", "bias") for what in ("initializer", "regularizer", "constraint")),
    "activity_regularizer",
}
"""Parameters with other tests."""


def cases(kind: Any, choices: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Yield choices of the parameters that this version of a layer has."""
    known = inspect.signature(kind.__init__).parameters
    own = {**{name: values for name, values in choices.items() if name in known}, "use_bias": BOTH}
    for values in product(*own.values()):
        yield dict(zip(own, values, strict=True))


@pytest.mark.parametrize("name", HEADED)
def test_heads_attend_as_their_parameters_say(name, ddl_strategy):
    from suites.subject import keras

    kind, (fixed, choices), wrong = getattr(keras.layers, name, None), HEADED[name], Wrong()
    if kind is None:
        pytest.skip(f"this version has no {name}")
    assert {*inspect.signature(kind.__init__).parameters} <= {*fixed, *choices, "use_bias", *BY_OTHERS}
    for number, case in enumerate(cases(kind, choices)):
        # Heads in groups share the features of the queries and values.
        given, causal = tensors(same=number % 3 == 0, alike=name != "MultiHeadAttention"), number % 4 in (1, 2)
        with wrong.of(case, f"causal={causal}", *given):
            layer = kind(**fixed, **case)
            layer(**given)
            expected = headed(drawn(layer), given, [1], band(causal, case.get("sliding_window")))
            check(layer, given, expected, use_causal_mask=causal)
    wrong.check()


def test_heads_attend_over_axes(ddl_strategy):
    """Axes that are not attended over are like that of the examples. A query may be longer than a value."""
    from suites.subject import keras

    wrong = Wrong()
    for between, axes in (
        ((), None),
        ((2,), None),
        ((2,), 2),
        ((2,), (1,)),
        ((2,), (1, 2)),
        ((2, 3), (2, 3)),
        ((2, 3), (1, 3)),
    ):
        given, listed = tensors(between), [axes] if isinstance(axes, int) else axes
        if listed is not None and 1 + len(between) not in listed:
            given["query"] = np.concatenate([given["query"], given["query"]], axis=1)
            given = {name: x[:, :, :TARGETS] for name, x in given.items()}
        with wrong.of(between, f"axes={axes}"):
            layer = keras.layers.MultiHeadAttention(HEADS, SIZE, attention_axes=axes)
            layer(**given)
            expected = headed(drawn(layer), given, listed or [*range(1, len(between) + 2)], True)
            check(layer, given, expected)
    wrong.check()


@pytest.mark.parametrize("scores", [False, True], ids=["output", "scores"])
@pytest.mark.parametrize("name", HEADED)
def test_symbols_have_the_shapes_of_heads(name, scores, ddl_strategy):
    """There are more sources than targets, and perhaps more than one axis of both."""
    from suites.subject import keras

    kind, wrong = getattr(keras.layers, name, None), Wrong()
    if kind is None or subject.name() != subject.KERAS_3:
        pytest.skip(f"this version has no {name}, or no symbols")
    for between in ((), (2,)) if name == "MultiHeadAttention" else ((),):
        given = tensors(between, alike=True)
        options = {**HEADED[name][0], **({} if name == "MultiHeadAttention" else {"num_key_value_heads": 1})}
        found = keras.tree.flatten(kind(**options)(**given, return_attention_scores=scores))
        for rows in (ROWS, None):
            with wrong.of(between, f"{rows} rows"):
                known = {one: keras.KerasTensor((rows, *x.shape[1:]), dtype="float64") for one, x in given.items()}
                told = keras.tree.flatten(kind(**options)(**known, return_attention_scores=scores))
                stated = [tuple(one.shape) for one in told]
                assert stated == [(rows, *one.shape[1:]) for one in found], f"states {stated}"
    wrong.check()


LISTED: Mapping[str, Mapping[str, Sequence[Any]]] = {
    "Attention": {"use_scale": BOTH, "score_mode": ("dot", "concat")},
    "AdditiveAttention": {"use_scale": BOTH},
}


@pytest.mark.parametrize("name", LISTED)
def test_a_list_attends_as_its_parameters_say(name, ddl_strategy):
    import tensorflow as tf

    from suites.subject import keras

    kind, wrong = getattr(keras.layers, name), Wrong()
    hidden = np.arange(SOURCES) < np.array([5, 2])[:, None]
    for values in product(*LISTED[name].values()):
        case = dict(zip(LISTED[name], values, strict=True))
        for same, causal, masked, scores in product(BOTH, BOTH, BOTH, BOTH):
            query, key, value = draw(ROWS, TARGETS, 4), draw(ROWS, SOURCES, 4), draw(ROWS, SOURCES, 4 if same else 6)
            inputs, key = ([query, value], value) if same else ([query, value, key], key)
            with wrong.of(case, f"causal={causal}, masked={masked}, scores={scores}, {len(inputs)} inputs"):
                layer = kind(**case)
                layer([tf.constant(one) for one in inputs])
                weights = [*drawn(layer).values(), 1.0, 1.0]
                if name == "AdditiveAttention":
                    expected = (np.tanh(query[:, :, None] + key[:, None]) * weights[0]).sum(axis=-1)
                elif case["score_mode"] == "concat":
                    scale, weight = weights[:2] if case["use_scale"] else (1.0, weights[0])
                    expected = np.tanh(scale * (query[:, :, None] + key[:, None])).sum(axis=-1) * weight
                else:
                    expected = weights[0] * query @ key.swapaxes(1, 2)
                mask = band(causal, None) & (hidden[:, None] if masked else True)
                shares = softmax(expected, mask)
                told = [None, tf.constant(hidden), *[None] * (len(inputs) - 2)] if masked else None
                options = {"use_causal_mask": causal, "return_attention_scores": scores}
                found = tf.nest.flatten(layer([tf.constant(one) for one in inputs], mask=told, **options))
                for one, other in zip(found, [shares @ value, shares][: 1 + scores], strict=True):
                    np.testing.assert_allclose(one, other, **BOUND)
                if subject.name() == subject.KERAS_3:
                    known = [keras.KerasTensor((None, *one.shape[1:]), dtype="float64") for one in inputs]
                    stated = [tuple(one.shape) for one in keras.tree.flatten(kind(**case)(known, **options))]
                    assert stated == [(None, *one.shape[1:]) for one in found], f"states {stated}"
    wrong.check()
