"""Train two small factors in place of a kernel: compare with the same layer whose kernel has their product added."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from suites.parameters.spaces import Wrong

pytestmark = [
    pytest.mark.ddl(strategies=["one_device"], keras="keras"),
    pytest.mark.ddl_item("layer.Dense", shows="values", keras=">=3.15"),
]

_DRAW = np.random.default_rng(11)
SERIES = _DRAW.normal(size=(3, 4, 5)).astype("float32")
LAYERS: Mapping[str, tuple[Callable[[Any], Any], Any]] = {
    "Dense": (lambda layers: layers.Dense(6), SERIES),
    "Dense without bias": (lambda layers: layers.Dense(6, use_bias=False, activation="tanh"), SERIES),
    "EinsumDense": (lambda layers: layers.EinsumDense("abc,cde->abde", (4, 2, 6), bias_axes="e"), SERIES),
    "Embedding": (lambda layers: layers.Embedding(7, 6), np.array([[0, 6, 2], [3, 3, 1]])),
    "Conv1D": (lambda layers: layers.Conv1D(6, 2), SERIES),
    "Conv2D": (lambda layers: layers.Conv2D(6, 2, padding="same"), SERIES[..., None] * np.ones(2, "float32")),
    "Conv3D": (lambda layers: layers.Conv3D(6, 2), SERIES[:, :, :, None, None] * np.ones((2, 2), "float32")),
}
"""Name of a case -> function that makes the layer, and its input."""


def kernel_of(layer: Any) -> Any:
    return layer._embeddings if hasattr(layer, "_embeddings") else layer._kernel


def factors(layer: Any) -> tuple[Any, Any]:
    names = ("lora_kernel_a", "lora_kernel_b") if hasattr(layer, "lora_kernel_a") else _EMBEDDINGS
    return getattr(layer, names[0]), getattr(layer, names[1])


_EMBEDDINGS = ("lora_embeddings_a", "lora_embeddings_b")


def twins(name: str, rank: int, alpha: float | None) -> tuple[Any, Any, Any, float]:
    """Return a layer with factors, one whose kernel has their product added, the input, and the scale."""
    import keras

    make, x = LAYERS[name]
    layer, merged = make(keras.layers), make(keras.layers)
    wanted = layer(x)
    merged(x)
    own = layer.get_weights()
    layer.enable_lora(rank) if alpha is None else layer.enable_lora(rank, lora_alpha=alpha)
    np.testing.assert_allclose(layer(x), wanted, rtol=1e-6, err_msg="the output before a step")
    one, other = factors(layer)
    for factor in (one, other):
        factor.assign(_DRAW.normal(size=factor.shape))
    scale = 1.0 if alpha is None else alpha / rank
    own[0] = own[0] + scale * np.matmul(one.numpy(), other.numpy())
    merged.set_weights(own)
    return layer, merged, x, scale


@pytest.mark.parametrize("name", LAYERS)
def test_factors_are_added_to_the_kernel(name, ddl_strategy):
    import tensorflow as tf

    wrong = Wrong()
    for rank, alpha in ((2, None), (2, 3.0), (1, 0.5)):
        layer, merged, x, scale = twins(name, rank, alpha)
        with wrong.of("output", rank, alpha):
            np.testing.assert_allclose(layer(x), merged(x), rtol=1e-4, atol=1e-5)
        with wrong.of("weights", rank, alpha):
            assert [one.trainable for one in (kernel_of(layer), *factors(layer))] == [False, True, True]
            rest = [one for one in layer.trainable_weights if all(one is not each for each in factors(layer))]
            assert len(rest) == len(merged.trainable_weights) - 1
        with wrong.of("gradients", rank, alpha), tf.GradientTape(persistent=True) as tape:
            losses = [tf.reduce_sum(tf.sin(one(x))) for one in (layer, merged)]
        with wrong.of("gradients", rank, alpha):
            slope = tf.convert_to_tensor(tape.gradient(losses[1], kernel_of(merged).value)).numpy()
            one, other = (factor.numpy() for factor in factors(layer))
            found = [tf.convert_to_tensor(tape.gradient(losses[0], factor.value)) for factor in factors(layer)]
            rows = slope.reshape(-1, slope.shape[-1])
            np.testing.assert_allclose(found[0], scale * slope @ other.T, rtol=1e-3, atol=1e-4)
            np.testing.assert_allclose(found[1], scale * one.reshape(-1, rank).T @ rows, rtol=1e-3, atol=1e-4)
    wrong.check()


@pytest.mark.parametrize("name", LAYERS)
def test_a_saved_kernel_has_the_factors(name, ddl_strategy):
    import keras

    layer, merged, x, _scale = twins(name, 2, 3.0)
    store: dict[str, Any] = {}
    layer.save_own_variables(store)
    saved = {key: keras.ops.convert_to_tensor(one).numpy() for key, one in store.items()}
    plain = LAYERS[name][0](keras.layers)
    plain.build(x.shape)
    plain.load_own_variables(saved)
    np.testing.assert_allclose(plain(x), merged(x), rtol=1e-4, atol=1e-5)
    layer.load_own_variables(saved)
    np.testing.assert_allclose(layer(x), merged(x), rtol=1e-4, atol=1e-5, err_msg="the product is counted twice")


@pytest.mark.parametrize("name", LAYERS)
def test_factors_are_refused(name, ddl_strategy):
    import keras

    make, x = LAYERS[name]
    layer = make(keras.layers)
    with pytest.raises(ValueError, match="built"):
        layer.enable_lora(2)
    layer.build(x.shape)
    layer.enable_lora(2)
    with pytest.raises(ValueError, match="already"):
        layer.enable_lora(2)
