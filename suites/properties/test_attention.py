"""Give attention layers masks of every rank, type and origin, and compare with arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from suites.pairwise import pairwise
from suites.parameters.spaces import Arguments, Wrong
from suites.subject import with_mask

pytestmark = [
    pytest.mark.usefixtures("float64"),
    pytest.mark.filterwarnings("ignore:.*does not support masking:UserWarning"),
]

ROWS, TARGETS, SOURCES, FEATURES, HEADS, SIZE = 2, 4, 4, 3, 2, 4
"""As many rows as heads, so that a mask of the one may be taken for a mask of the other; a causal mask is square. The
root of the size is a whole number: Keras rounds it to float32, as every constant of Python that it casts."""
BOUND = {"rtol": 1e-11, "atol": 1e-12}
"""Some hundred operations in float64. What is masked is smaller than the least number."""
FORMS: Mapping[str, tuple[int, ...]] = {
    "no": (),
    "times": (TARGETS, SOURCES),
    "one row": (1, TARGETS, SOURCES),
    "rows": (ROWS, TARGETS, SOURCES),
    "one head": (ROWS, 1, TARGETS, SOURCES),
    "heads": (ROWS, HEADS, TARGETS, SOURCES),
}
"""Forms of an attention mask. Batch and heads may be missing, or be one for all."""
DIMENSIONS: Mapping[str, tuple[str, ...]] = {
    "attention_mask": tuple(FORMS),
    "type": ("bool", "int32", "float32"),
    "query": ("no", "argument", "of the tensor"),
    "value": ("no", "argument", "of the tensor"),
    "key": ("no", "argument"),
    "causal": ("False", "True"),
    "scores": ("False", "True"),
    "how": ("eager", "function"),
}
"""Choices of a call of a layer with heads; each pair of them occurs."""


def allowed(case: Arguments) -> bool:
    """Return whether choices go together but for a defect that has a test of its own."""
    others = any(case.get(name, "no") not in ("no", "False") for name in ("query", "value", "key", "causal"))
    return not (others and case.get("attention_mask") in ("one head", "heads"))


def examples() -> tuple[Any, Any, dict[str, Any]]:
    """Return queries, values that are keys too, and masks. The first source is never masked."""
    draw = np.random.default_rng(6)
    lengths = {"query": (2, 4), "value": (4, 3), "key": (2, 4)}
    masks = {name: np.arange(TARGETS) < np.array(ends)[:, None] for name, ends in lengths.items()}
    return draw.normal(size=(ROWS, TARGETS, FEATURES)), draw.normal(size=(ROWS, SOURCES, FEATURES)), masks


def attention_mask(form: str) -> Any:
    """Return a mask of this form; its pattern depends on all of its axes."""
    shape = FORMS[form]
    found = (np.arange(np.prod(shape)) * 7 % 5 < 3).reshape(shape)
    found[..., 0] = True
    return found


def merged(case: Arguments, masks: Mapping[str, Any]) -> Any:
    """Return what may attend to what: rows, heads, targets, sources."""
    found = np.ones((ROWS, HEADS, TARGETS, SOURCES), bool)
    if case["attention_mask"] != "no":
        given = attention_mask(case["attention_mask"])
        found = found & (given[:, None] if given.ndim == 3 else given)
    for name in ("value", "key"):
        if case[name] != "no":
            found = found & masks[name][:, None, None, :]
    return found & np.tri(TARGETS, SOURCES, dtype=bool) if case["causal"] == "True" else found


def weighted(scores: Any, mask: Any, values: Any) -> tuple[Any, Any]:
    """Return the averages of values, and the weights: the softmax over the sources that the mask has."""
    with_all = np.where(mask, scores, -np.inf)
    weights = np.exp(with_all - with_all.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return weights @ values, weights


def by_heads(weights: list[Any], query: Any, value: Any, mask: Any) -> tuple[Any, Any]:
    """Return what a layer with heads gives, and its scores. Grouped keys count for the heads that follow each other."""
    (q, q0), (k, k0), (v, v0), (out, out0) = zip(weights[::2], weights[1::2], strict=True)
    queries, keys, values = (
        np.repeat(np.einsum("btf,fhs->bhts", x, kernel) + bias[:, None], HEADS // kernel.shape[1], axis=1)
        for x, kernel, bias in ((query, q, q0), (value, k, k0), (value, v, v0))
    )
    found, scores = weighted(queries @ keys.swapaxes(-1, -2) / np.sqrt(SIZE), mask, values)
    return np.einsum("bhts,hsf->btf", found, out) + out0, scores


HEADED = {
    "MultiHeadAttention": {"num_heads": HEADS, "key_dim": SIZE},
    "GroupQueryAttention": {"head_dim": SIZE, "num_query_heads": HEADS, "num_key_value_heads": 1},
}


def called(layer: Any, case: Arguments) -> list[Any]:
    """Call a layer as the case says, and return its output and perhaps its scores."""
    import tensorflow as tf

    query, value, masks = examples()
    given: Arguments = {}
    if case["attention_mask"] != "no":
        given["attention_mask"] = tf.constant(attention_mask(case["attention_mask"]).astype(case["type"]))
    given |= {f"{name}_mask": tf.constant(one) for name, one in masks.items() if case[name] == "argument"}
    if case["causal"] == "True":
        given["use_causal_mask"] = True
    if case["scores"] == "True":
        given["return_attention_scores"] = True

    @tf.autograph.experimental.do_not_convert
    def call(one: Any, other: Any) -> Any:
        tensors = {"query": one, "value": other}
        for name in tensors:
            if case[name] == "of the tensor":
                tensors[name] = with_mask(tensors[name], tf.constant(masks[name]))
        return layer(**tensors, **given)

    if case["how"] == "function":
        unknown = [tf.TensorSpec((None, None, FEATURES), "float64")] * 2
        call = tf.function(call, input_signature=unknown)
    found = call(tf.constant(query), tf.constant(value))
    return [np.asarray(one) for one in (found if case["scores"] == "True" else [found])]


def check(kind: str, case: Arguments) -> None:
    """Compare the output of a layer, and its scores, with arithmetic."""
    from suites.subject import keras

    if not hasattr(keras.layers, kind):
        pytest.skip(f"this version has no {kind}")
    query, value, masks = examples()
    layer = getattr(keras.layers, kind)(**HEADED[kind])
    layer(query, value)
    draw = np.random.default_rng(8)
    layer.set_weights([draw.normal(size=one.shape) for one in layer.get_weights()])
    expected = by_heads(layer.get_weights(), query, value, merged(case, masks))
    counts = np.ones((ROWS, TARGETS), bool) if case["query"] == "no" else masks["query"]
    for found, of_all in zip(called(layer, case), expected, strict=False):
        # A query that does not count attends to nothing that is defined.
        where = counts if of_all.ndim == 3 else np.repeat(counts[:, None], HEADS, axis=1)
        np.testing.assert_allclose(found[where], of_all[where], **BOUND)


@pytest.mark.ddl(strategies=["one_device"])
@pytest.mark.ddl_item("layer.TimeDistributed_Bidirectional_Masking")
@pytest.mark.parametrize("kind", HEADED)
def test_heads_attend_to_what_all_masks_have(kind, ddl_strategy):
    """No strategy changes how a replica calls a layer, so one device stands for all."""
    wrong = Wrong()
    for case in pairwise(DIMENSIONS, allowed):
        with wrong.of(case):
            check(kind, case)
    wrong.check()


@pytest.mark.ddl(strategies=["one_device"])
@pytest.mark.ddl_item("layer.TimeDistributed_Bidirectional_Masking")
@pytest.mark.parametrize("kind", HEADED)
def test_a_mask_of_heads_goes_with_other_masks(kind, ddl_strategy):
    """The masks of queries, values and times have no axis for the heads."""
    wrong = Wrong()
    of_heads = {"attention_mask": ("one head", "heads"), "value": ("no", "argument"), "causal": ("False", "True")}
    rest = {name: values[0] for name, values in DIMENSIONS.items()}
    for case in pairwise(of_heads, lambda case: (case.get("value"), case.get("causal")) != ("no", "False")):
        with wrong.of(case):
            check(kind, rest | case)
    wrong.check()


LISTED: Mapping[str, tuple[str, ...]] = {
    "shape": ("times", "two axes"),
    "masks": ("no", "query", "value", "both"),
    "causal": ("False", "True"),
    "scores": ("False", "True"),
    "how": ("eager", "function"),
}
"""Choices of a call of a layer that gets a list."""
SCORED = {
    "Attention": lambda q, k: np.einsum("...tf,...sf->...ts", q, k),
    "AdditiveAttention": lambda q, k: np.tanh(q[..., :, None, :] + k[..., None, :, :]).sum(axis=-1),
}
"""Layer -> its scores, without a scale."""


@pytest.mark.ddl(strategies=["one_device"])
@pytest.mark.ddl_item("layer.TimeDistributed_Bidirectional_Masking")
@pytest.mark.parametrize("kind", SCORED)
def test_a_list_attends_to_what_both_masks_have(kind, ddl_strategy):
    """Queries and values may have more axes before the times."""
    import tensorflow as tf

    from suites.subject import keras

    wrong = Wrong()
    for case in pairwise(LISTED):
        query, value, masks = examples()
        if case["shape"] == "two axes":
            query, value = (np.stack([one, -one[::-1]], axis=1) for one in (query, value))
            masks = {name: np.stack([one, one[::-1]], axis=1) for name, one in masks.items()}
        given = {name: masks[name] if case["masks"] in (name, "both") else None for name in ("query", "value")}
        mask = np.ones((*query.shape[:-1], SOURCES), bool)
        if given["value"] is not None:
            mask = mask & masks["value"][..., None, :]
        if case["causal"] == "True":
            mask = mask & np.tri(TARGETS, SOURCES, dtype=bool)
        expected, scores = weighted(SCORED[kind](query, value), mask, value)
        if given["query"] is not None:
            expected = expected * masks["query"][..., None]
        with wrong.of(case):
            layer = getattr(keras.layers, kind)(**({"use_scale": False} if kind == "AdditiveAttention" else {}))
            told = (
                None if case["masks"] == "no" else [one if one is None else tf.constant(one) for one in given.values()]
            )
            options = {"return_attention_scores": case["scores"] == "True", "use_causal_mask": case["causal"] == "True"}

            def call(one, other, layer=layer, told=told, options=options):
                return layer([one, other], mask=told, **options)

            if case["how"] == "function":
                call = tf.function(call, input_signature=[tf.TensorSpec((None, *query.shape[1:]), "float64")] * 2)
            found = call(tf.constant(query), tf.constant(value))
            for one, other in zip(found if case["scores"] == "True" else [found], (expected, scores), strict=False):
                np.testing.assert_allclose(one, other, **BOUND)
    wrong.check()
