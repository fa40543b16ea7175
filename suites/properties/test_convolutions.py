"""Convolve series, images and volumes with every kind of kernel, and compare with NumPy window by window."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from suites.parameters.spaces import Wrong

pytestmark = [pytest.mark.ddl(strategies=["one_device"]), pytest.mark.ddl_item("layer.Conv", shows="values")]

LENGTHS = (6, 5, 4)
"""Lengths of the axes that are convolved."""
CHANNELS, FILTERS = 4, 6
FIXED = {"filters": FILTERS, "use_bias": False}
NUMBERS = (1, 2, 3)
BOUND = {"rtol": 1e-4, "atol": 1e-4}
"""Some hundred products of numbers of about 1 in float32."""
Options = Mapping[str, Any]


def draw(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).normal(size=shape).astype("float32")


def of_axes(value: Any, number: int) -> Sequence[int]:
    return (value,) * number if isinstance(value, int) else value


def before(length: int, size: int, stride: int, padding: str) -> tuple[int, int]:
    """Return how many zeros stand before the values of an axis, and after them.

    :param size: length of the kernel with the gaps of its dilation.
    """
    if padding == "causal":
        return size - 1, 0
    missing = max((-(-length // stride) - 1) * stride + size - length, 0) if padding == "same" else 0
    return missing // 2, missing - missing // 2


def convolved(x: Any, kernel: Any, given: Options, groups: int = 1) -> Any:
    """Return the sum of products in each window.

    :param x: examples, with the channels last.
    :param kernel: its last two axes are the channels of a group, and the filters of all groups.
    """
    number = kernel.ndim - 2
    strides, gaps = of_axes(given["strides"], number), of_axes(given["dilation_rate"], number)
    sizes = [(size - 1) * gap + 1 for size, gap in zip(kernel.shape, gaps, strict=False)]
    zeros = [before(*one, given["padding"]) for one in zip(x.shape[1:-1], sizes, strides, strict=True)]
    x = np.pad(x.astype(float), [(0, 0), *zeros, (0, 0)])
    counts = [(length - size) // step + 1 for length, size, step in zip(x.shape[1:-1], sizes, strides, strict=True)]
    found = np.zeros((len(x), *counts, kernel.shape[-1]))
    inputs, outputs = x.shape[-1] // groups, kernel.shape[-1] // groups
    for at in np.ndindex(*counts):
        each = zip(at, strides, sizes, gaps, strict=True)
        window = x[(slice(None), *(slice(one * step, one * step + size, gap) for one, step, size, gap in each))]
        for group in range(groups):
            own, to = slice(group * inputs, (group + 1) * inputs), slice(group * outputs, (group + 1) * outputs)
            found[(slice(None), *at, to)] = np.tensordot(window[..., own], kernel[..., to], number + 1)
    return found


def spread(x: Any, kernel: Any, given: Options) -> Any:
    """Return what the transposed convolution makes: each value adds its multiple of the kernel to a window.

    :param kernel: its last two axes are the filters and the channels.
    """
    number = kernel.ndim - 2
    strides, gaps = of_axes(given["strides"], number), of_axes(given["dilation_rate"], number)
    sizes = [(size - 1) * gap + 1 for size, gap in zip(kernel.shape, gaps, strict=False)]
    lengths = x.shape[1:-1]
    whole = [(length - 1) * step + size for length, step, size in zip(lengths, strides, sizes, strict=True)]
    full = np.zeros((len(x), *whole, kernel.shape[-2]))
    for at in np.ndindex(*lengths):
        each = zip(at, strides, sizes, gaps, strict=True)
        window = (slice(None), *(slice(one * step, one * step + size, gap) for one, step, size, gap in each))
        full[window] += np.moveaxis(np.tensordot(kernel, x[(slice(None), *at)].astype(float), (-1, -1)), -1, 0)
    for axis, (length, step, size, extent) in enumerate(zip(lengths, strides, sizes, whole, strict=True), 1):
        wanted = length * step + (max(size - step, 0) if given["padding"] == "valid" else 0)
        left = max(extent - wanted, 0) // 2
        full = np.take(
            np.pad(full, [(0, max(wanted - extent, 0)) if one == axis else (0, 0) for one in range(full.ndim)]),
            range(left, left + wanted),
            axis,
        )
    return full


def options(number: int, paddings: Sequence[str]) -> Iterator[Options]:
    """Yield sizes of kernels with steps or gaps, which do not go together, and kinds of padding."""
    steps: list[Any] = [(1, 1), (2, 1), (3, 1), ((2, 1, 3)[:number], 1), (1, 2), (1, (2, 1, 3)[:number])]
    for size, (step, gap), padding in itertools.product((1, 2, 3, (3, 2, 1)[:number]), steps, paddings):
        if not (padding == "valid" and any((one - 1) * 3 + 1 > min(LENGTHS) for one in of_axes(size, number))):
            yield {"kernel_size": size, "strides": step, "dilation_rate": gap, "padding": padding}


def outputs(layer: Any, x: Any, given: Options) -> Iterator[tuple[Any, Any]]:
    """Yield the layer with weights that are no zeros and its output, for both orders of the axes, channels last."""
    for order in ("channels_last", "channels_first"):
        first = order == "channels_first"
        made, inputs = layer(**given, data_format=order), np.moveaxis(x, -1, 1) if first else x
        made.build(inputs.shape)
        for weights in made.weights:
            weights.assign(draw(*weights.shape))
        output = np.asarray(made(inputs))
        assert tuple(made.compute_output_shape(inputs.shape)) == output.shape
        yield made, np.moveaxis(output, 1, -1) if first else output


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("groups", [1, 2])
def test_a_convolution_adds_the_products_of_each_window(number, groups, ddl_strategy):
    from suites.subject import keras

    layer, x, wrong = getattr(keras.layers, f"Conv{number}D"), draw(2, *LENGTHS[:number], CHANNELS), Wrong()
    for given in options(number, ("valid", "same", "causal") if number == 1 else ("valid", "same")):
        with wrong.of(given):
            for made, found in outputs(layer, x, {**given, **FIXED, "groups": groups}):
                expected = convolved(x, np.asarray(made.kernel), given, groups)
                np.testing.assert_allclose(found, expected, **BOUND)
    wrong.check()


@pytest.mark.parametrize("number", NUMBERS)
def test_a_transposed_convolution_spreads_each_value(number, ddl_strategy):
    from suites.subject import keras

    layer, x, wrong = getattr(keras.layers, f"Conv{number}DTranspose"), draw(2, *LENGTHS[:number], CHANNELS), Wrong()
    for given in options(number, ("valid", "same")):
        with wrong.of(given):
            for made, found in outputs(layer, x, {**given, **FIXED}):
                np.testing.assert_allclose(found, spread(x, np.asarray(made.kernel), given), **BOUND)
    wrong.check()


@pytest.mark.parametrize("number", NUMBERS[:2])
@pytest.mark.parametrize("kind", ["Depthwise", "Separable"])
def test_a_convolution_of_each_channel_has_kernels_of_its_own(kind, number, ddl_strategy):
    from suites.subject import keras

    layer, x, wrong = getattr(keras.layers, f"{kind}Conv{number}D"), draw(2, *LENGTHS[:number], CHANNELS), Wrong()
    fixed = FIXED if kind == "Separable" else {"use_bias": False}
    for given in options(number, ("valid", "same")):
        if len(set(of_axes(given["strides"], number))) > 1:
            continue  # TensorFlow has no kernel for it
        with wrong.of(given):
            for made, found in outputs(layer, x, {**given, **fixed, "depth_multiplier": 2}):
                kernel, *further = (np.asarray(one) for one in made.weights)
                expected = convolved(x, kernel.reshape(*kernel.shape[:-2], 1, 2 * CHANNELS), given, CHANNELS)
                for pointwise in further:
                    expected = expected @ pointwise.reshape(2 * CHANNELS, FILTERS)
                np.testing.assert_allclose(found, expected, **BOUND)
    wrong.check()


@pytest.mark.parametrize("order", ["channels_last", "channels_first"])
@pytest.mark.parametrize("lengths", ["others", "as many as filters"])
@pytest.mark.parametrize("kind", ["Conv{}D", "Conv{}DTranspose", "SeparableConv{}D"])
def test_each_filter_has_its_bias(kind, lengths, order, ddl_strategy):
    from suites.subject import keras

    wrong = Wrong()
    for number in NUMBERS[:2] if kind.startswith("Separable") else NUMBERS:
        with wrong.of(number):
            layer = getattr(keras.layers, kind.format(number))(3, 1, data_format=order, bias_initializer="ones")
            inner = (2, 4, 3)[-number:] if lengths == "as many as filters" else (2, 4, 5)[-number:]
            x = np.zeros((2, *inner, 2) if order == "channels_last" else (2, 2, *inner), "float32")
            layer.build(x.shape)
            layer.bias.assign([1.0, 2.0, 3.0])
            found = np.moveaxis(np.asarray(layer(x)), -1 if order == "channels_last" else 1, -1)
            np.testing.assert_array_equal(found, np.broadcast_to([1.0, 2.0, 3.0], found.shape))
    wrong.check()
