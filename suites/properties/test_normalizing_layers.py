"""Normalize with every layer along every axis, in training and without, and compare with NumPy."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest

from suites import subject
from suites.parameters.spaces import Wrong
from suites.tables.layers import normalized, spectral

pytestmark = [
    pytest.mark.usefixtures("float64"),
    pytest.mark.ddl(strategies=["one_device"], keras="keras"),
    pytest.mark.ddl_item("layer.LayerNorm_GroupNorm_RMSNorm"),
]

SHAPES = ((4, 6), (3, 4, 6), (2, 4, 2, 6))
"""Shapes of inputs, with axes of which nearly all have lengths of their own."""
BOUND = {"rtol": 1e-9, "atol": 1e-10}
"""Some dozen operations in float64."""
MASKED = {"rtol": 1e-6, "atol": 1e-6}
"""Keras adds 1e-7 to the number of elements that count."""
EPSILON, MOMENTUM, RENORM = 0.0625, 0.75, 0.5
BOTH = (False, True)
TESTED = {
    "BatchNormalization",
    "GroupNormalization",
    "LayerNormalization",
    "Normalization",
    "RMSNormalization",
    "SpectralNormalization",
    "UnitNormalization",
}


def draw(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).normal(0.5, 2.0, shape)


def drawn(one: Any) -> dict[str, Any]:
    """Give all weights of a layer positive numbers, and return these by their names."""
    generator = np.random.default_rng(5)
    one.set_weights([generator.uniform(0.5, 1.5, weights.shape) for weights in one.get_weights()])
    names = [variable.name.rpartition("/")[2].partition(":")[0] for variable in one.weights]
    return dict(zip(names, one.get_weights(), strict=True))


def each_axis(rank: int) -> Iterator[int]:
    """Yield all axes but the one of the examples, counted from both ends."""
    yield from (*range(1, rank), *range(1 - rank, 0))


def each_axes(rank: int) -> Iterator[Any]:
    """Yield each axis, and lists of axes in the order of the inputs."""
    yield from each_axis(rank)
    for first in range(1, rank):
        yield from ([*range(first, rank)], [*range(first - rank, 0)])


def along(values: Any, axes: Any, rank: int) -> Any:
    """Return weights of some axes, in a shape that broadcasts over the others."""
    listed = [axes] if isinstance(axes, int) else axes
    shape = [1] * rank
    for axis, length in zip(listed, np.shape(values), strict=True):
        shape[axis] = length
    return np.reshape(values, shape)


def scaled(x: Any, weights: dict[str, Any], axes: Any) -> Any:
    """Multiply by the scale and add the offset, if there are any."""
    for name, combine in (("scale", np.multiply), ("gamma", np.multiply), ("beta", np.add)):
        x = combine(x, along(weights[name], axes, x.ndim)) if name in weights else x
    return x


def built(name: str, shape: Sequence[int], **options: Any) -> tuple[Any, dict[str, Any]]:
    from suites.subject import keras

    if not hasattr(keras.layers, name):
        pytest.skip(f"this version has no {name}")
    layer = getattr(keras.layers, name)(**options)
    layer.build(tuple(shape))
    return layer, drawn(layer)


def listed(axes: Any) -> tuple[int, ...]:
    return (axes,) if isinstance(axes, int) else tuple(axes)


def test_each_layer_that_normalizes_is_tested(ddl_strategy):
    from suites.subject import keras

    kinds = {name for name, one in vars(keras.layers).items() if inspect.isclass(one) and "Normalization" in name}
    own = {"experimental", "SyncBatchNormalization"}
    assert kinds - own <= TESTED | {f"{name}V1" for name in TESTED}


@pytest.mark.filterwarnings("ignore:You passed .rms_scaling=True")
@pytest.mark.parametrize("scaling", ["standard", "rms_scaling"])
def test_each_example_has_mean_0_and_variance_1_along_axes(scaling, ddl_strategy):
    """The scaling that is deprecated divides by the deviation, and keeps the mean."""
    wrong, rms = Wrong(), scaling == "rms_scaling"
    if rms and subject.name() != subject.KERAS_3:
        pytest.skip("tf_keras has no such scaling")
    for shape, center, scale in product(SHAPES, BOTH, BOTH):
        for axes in each_axes(len(shape)):
            given = {"axis": axes, "epsilon": EPSILON, "center": center, "scale": scale}
            with wrong.of(shape, given):
                layer, weights = built("LayerNormalization", shape, **given, **({scaling: True} if rms else {}))
                assert set(weights) == ({"gamma"} if scale or rms else set()) | (
                    {"beta"} if center and not rms else set()
                )
                x = draw(*shape)
                whole = normalized(x, listed(axes), EPSILON)
                if rms:
                    whole = x / np.sqrt(x.var(axis=listed(axes), keepdims=True) + EPSILON)
                np.testing.assert_allclose(layer(x), scaled(whole, weights, axes), **BOUND)
    wrong.check()


def test_each_example_has_squares_with_mean_1_along_axes(ddl_strategy):
    """The axes have the last one: others are in ``test_spellings.py``."""
    wrong = Wrong()
    for shape in SHAPES:
        for axes in [-1, len(shape) - 1, *([*range(first, 0)] for first in range(1 - len(shape), 0))]:
            with wrong.of(shape, f"axis={axes}"):
                layer, weights = built("RMSNormalization", shape, axis=axes, epsilon=EPSILON)
                x = draw(*shape)
                expected = scaled(normalized(x, listed(axes), EPSILON, center=False), weights, axes)
                np.testing.assert_allclose(layer(x), expected, **BOUND)
    wrong.check()


def test_each_example_has_length_1_along_axes(ddl_strategy):
    wrong = Wrong()
    for shape in SHAPES:
        for axes in each_axes(len(shape)):
            with wrong.of(shape, f"axis={axes}"):
                layer, _ = built("UnitNormalization", shape, axis=axes)
                x = draw(*shape)
                x[0] = 0
                length = np.sqrt(np.maximum((x**2).sum(axis=listed(axes), keepdims=True), 1e-24))
                np.testing.assert_allclose(layer(x), x / length, **BOUND)
    wrong.check()


def test_each_group_of_channels_is_normalized(ddl_strategy):
    wrong = Wrong()
    for shape, groups, center, scale in product(SHAPES, (1, 2, 3, -1), BOTH, BOTH):
        for axis in each_axis(len(shape)):
            if shape[axis] % groups:
                continue
            given = {"groups": groups, "axis": axis, "epsilon": EPSILON, "center": center, "scale": scale}
            with wrong.of(shape, given):
                layer, weights = built("GroupNormalization", shape, **given)
                x = draw(*shape)
                last = np.moveaxis(x, axis, -1)
                parts = last.reshape(*last.shape[:-1], shape[axis] if groups == -1 else groups, -1)
                whole = normalized(parts, (*range(1, x.ndim - 1), x.ndim), EPSILON).reshape(last.shape)
                np.testing.assert_allclose(layer(x), scaled(np.moveaxis(whole, -1, axis), weights, axis), **BOUND)
    wrong.check()


def moments(x: Any, axis: int, mask: Any) -> tuple[Any, Any]:
    """Return mean and variance of the elements that count, for each place along an axis."""
    counts = np.broadcast_to(True if mask is None else mask[..., None], x.shape)
    channels = zip(np.moveaxis(x, axis, 0), np.moveaxis(counts, axis, 0), strict=True)
    parts = [channel[which] for channel, which in channels]
    return np.array([part.mean() for part in parts]), np.array([part.var() for part in parts])


def by(x: Any, mean: Any, variance: Any, axis: int) -> Any:
    return (x - along(mean, axis, x.ndim)) / np.sqrt(along(variance, axis, x.ndim) + EPSILON)


@pytest.mark.ddl_item("layer.BatchNormalization_local_statistics")
@pytest.mark.parametrize("masked", [False, True], ids=["all count", "masked"])
def test_each_channel_of_a_batch_is_normalized(masked, ddl_strategy):
    """Two steps change the moving statistics. Without training, or if the layer is frozen, these normalize."""
    wrong = Wrong()
    for shape, center, scale in product(SHAPES, BOTH, BOTH):
        for axis in each_axis(len(shape)):
            given = {"axis": axis, "epsilon": EPSILON, "momentum": MOMENTUM, "center": center, "scale": scale}
            with wrong.of(shape, given):
                layer, weights = built("BatchNormalization", shape, **given)
                mean, variance = weights["moving_mean"], weights["moving_variance"]
                mask = np.arange(np.prod(shape[:-1])).reshape(shape[:-1]) % 3 < 2 if masked else None
                more = {"mask": mask} if masked else {}
                for step in range(2):
                    x = draw(*shape) * (step + 1)
                    own = moments(x, axis, mask)
                    expected = scaled(by(x, *own, axis), weights, axis)
                    np.testing.assert_allclose(layer(x, training=True, **more), expected, **MASKED if masked else BOUND)
                    mean, variance = (
                        MOMENTUM * old + (1 - MOMENTUM) * new for old, new in zip((mean, variance), own, strict=True)
                    )
                expected = scaled(by(x, mean, variance, axis), weights, axis)
                for frozen in BOTH:
                    layer.trainable = not frozen
                    found = layer(x, training=frozen, **more)
                    np.testing.assert_allclose(found, expected, **MASKED if masked else BOUND)
                moved = [layer.moving_mean, layer.moving_variance]
                np.testing.assert_allclose(moved, [mean, variance], **MASKED if masked else BOUND)
    wrong.check()


@pytest.mark.ddl_item("layer.BatchNormalization_renorm")
@pytest.mark.parametrize("clipping", [{}, {"rmax": 1.25, "rmin": 0.75, "dmax": 0.25}, {"dmax": 0.125}], ids=str)
def test_a_batch_is_renormalized_by_what_was_seen(clipping, ddl_strategy):
    """A part that is normalized by itself is moved towards the statistics of the steps before (Ioffe, 2017)."""
    from suites.subject import keras

    if "renorm" not in inspect.signature(keras.layers.BatchNormalization.__init__).parameters:
        pytest.skip("this version does not renormalize, or has a test of its own")
    wrong = Wrong()
    for shape, center, scale in product(SHAPES, BOTH, BOTH):
        for axis in each_axis(len(shape)):
            given = {"axis": axis, "epsilon": EPSILON, "momentum": MOMENTUM, "center": center, "scale": scale}
            with wrong.of(shape, given):
                more = {"renorm": True, "renorm_clipping": clipping, "renorm_momentum": RENORM}
                layer, weights = built("BatchNormalization", shape, **given, **more)
                seen, deviations = weights["renorm_mean"], weights["renorm_stddev"]
                moving = [weights["moving_mean"], weights["moving_stddev"]]
                for step in range(2):
                    x = draw(*shape) * (step + 1)
                    mean, variance = moments(x, axis, None)
                    deviation = np.sqrt(variance + EPSILON)
                    ratio = np.clip(deviation / deviations, clipping.get("rmin"), clipping.get("rmax", np.inf))
                    moved = (mean - seen) / deviations
                    if "dmax" in clipping:
                        moved = np.clip(moved, -clipping["dmax"], clipping["dmax"])
                    expected = by(x, mean, variance, axis) * along(ratio, axis, x.ndim) + along(moved, axis, x.ndim)
                    np.testing.assert_allclose(layer(x, training=True), scaled(expected, weights, axis), **BOUND)
                    seen, deviations = (
                        RENORM * old + (1 - RENORM) * new
                        for old, new in zip((seen, deviations), (mean, deviation), strict=True)
                    )
                    moving = [
                        MOMENTUM * old + (1 - MOMENTUM) * new
                        for old, new in zip(moving, (mean, deviation), strict=True)
                    ]
                expected = scaled(by(x, moving[0], moving[1] ** 2 - EPSILON, axis), weights, axis)
                np.testing.assert_allclose(layer(x), expected, **BOUND)
    wrong.check()


INSIDE: Mapping[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "Dense": ({"units": 3}, (4, 6)),
    "Conv1D": ({"filters": 3, "kernel_size": 2}, (2, 5, 6)),
    "Conv2DTranspose": ({"filters": 3, "kernel_size": 2}, (2, 4, 5, 6)),
    "EinsumDense": ({"equation": "abc,cd->abd", "output_shape": (None, 3)}, (2, 5, 6)),
    "Embedding": ({"input_dim": 6, "output_dim": 3}, (2, 5)),
}
"""Layer with a kernel or a table, its arguments and the shape of an input."""


@pytest.mark.ddl_item("layer.SpectralNormalization")
@pytest.mark.parametrize("name", INSIDE)
def test_a_kernel_is_divided_by_its_largest_singular_value(name, ddl_strategy):
    from suites.subject import keras

    wrong, (given, shape) = Wrong(), INSIDE[name]
    for iterations in (1, 3):
        with wrong.of(f"power_iterations={iterations}"):
            one = getattr(keras.layers, name)(**given)
            layer = keras.layers.SpectralNormalization(one, power_iterations=iterations)
            layer.build(shape)
            drawn(layer)
            x = np.arange(10).reshape(shape) % 6 if name == "Embedding" else draw(*shape)
            kernel = one.embeddings if name == "Embedding" else one.kernel
            values, vector = np.asarray(kernel), np.asarray(layer.vector_u)
            expected, vector = spectral(values.reshape(-1, values.shape[-1]), vector, iterations)
            np.testing.assert_array_equal(layer(x, training=False), one(x))
            found = layer(x, training=True)
            np.testing.assert_allclose(kernel, expected.reshape(values.shape), **BOUND)
            np.testing.assert_allclose(layer.vector_u, vector, **BOUND)
            np.testing.assert_array_equal(found, one(x))
    wrong.check()


@pytest.mark.ddl_item("layer.Normalization_StringLookup_TextVectoriza")
@pytest.mark.parametrize("source", ["array", "tensor", "batches"])
def test_values_are_normalized_by_all_that_was_seen(source, ddl_strategy):
    """The last batch is smaller than the others. Each place along the axes has its own mean and variance."""
    import tensorflow as tf

    from suites.subject import keras

    wrong = Wrong()
    for shape, invert in product(SHAPES, BOTH):
        x = draw(5, *shape[1:])
        for axes in [None, *each_axes(len(shape))]:
            with wrong.of(shape, f"axis={axes}", f"invert={invert}"):
                layer = keras.layers.Normalization(axis=axes, invert=invert)
                data = {"array": lambda x=x: x, "tensor": lambda x=x: tf.constant(x)}
                layer.adapt(data.get(source, lambda x=x: tf.data.Dataset.from_tensor_slices(x).batch(2))())
                kept = {axis % x.ndim for axis in ([] if axes is None else listed(axes))}
                others = tuple(axis for axis in range(x.ndim) if axis not in kept)
                mean, deviation = x.mean(axis=others, keepdims=True), x.std(axis=others, keepdims=True)
                expected = mean + x * deviation if invert else (x - mean) / deviation
                np.testing.assert_allclose(layer(x), expected, rtol=1e-9, atol=1e-9)
    wrong.check()
