"""Pool series, images and volumes with every kind of window, and compare with NumPy window by window."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from suites.parameters.spaces import Wrong

pytestmark = [
    pytest.mark.ddl(strategies=["one_device"]),
    pytest.mark.ddl_item("layer.Conv", shows="values"),
]

LENGTHS = (7, 6, 5)
"""Lengths of the axes that are pooled."""
REDUCED: Mapping[str, Callable[..., Any]] = {"Max": np.max, "Average": np.mean}
CASES = [(kind, number) for kind in REDUCED for number in (1, 2, 3)]
Windows = Sequence[slice]


def sliding(length: int, size: int, stride: int, padding: str) -> Windows:
    """Return the windows of TensorFlow, without the padding: a mean is over what is there."""
    if padding == "valid":
        return [slice(start, start + size) for start in range(0, length - size + 1, stride)]
    number = -(-length // stride)
    left = max((number - 1) * stride + size - length, 0) // 2
    starts = [at * stride - left for at in range(number)]
    return [slice(max(start, 0), min(start + size, length)) for start in starts]


def adaptive(length: int, number: int) -> Windows:
    """Return as many windows as asked, each as short as it can be, so that together they have everything."""
    return [slice(at * length // number, -(-(at + 1) * length // number)) for at in range(number)]


def pooled(x: Any, windows: Sequence[Windows], reduced: Callable[..., Any]) -> Any:
    """Reduce each window. The first axis of ``x`` has the examples, the last one the channels."""
    axes = tuple(range(1, 1 + len(windows)))
    parts = [reduced(x[(slice(None), *one)], axis=axes) for one in itertools.product(*windows)]
    return np.stack(parts, axis=1).reshape(len(x), *map(len, windows), x.shape[-1])


def examples(number: int) -> Any:
    return np.random.default_rng(4).normal(size=(2, *LENGTHS[:number], 3)).astype("float32")


def each_format(layer: Callable[..., Any], x: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the layer's output of the examples for both orders of their axes, with the channels last, and its shape."""
    for order in ("channels_last", "channels_first"):
        first = order == "channels_first"
        made, given = layer(data_format=order), np.moveaxis(x, -1, 1) if first else x
        output = np.asarray(made(given))
        assert tuple(made.compute_output_shape(given.shape)) == output.shape
        yield order, np.moveaxis(output, 1, -1) if first else output


def options(number: int) -> Iterator[tuple[Any, Any, str]]:
    """Yield sizes of windows, steps between them and kinds of padding."""
    sizes, steps = [1, 2, 3, (3, 2, 4)[:number]], [None, 1, 2, (2, 3, 1)[:number]]
    yield from itertools.product(sizes, steps, ("valid", "same"))


def of_axes(value: Any, number: int) -> Sequence[int]:
    return (value,) * number if isinstance(value, int) else value


@pytest.mark.parametrize(("kind", "number"), CASES)
def test_sliding_windows_are_reduced(kind, number, ddl_strategy):
    from suites.subject import keras

    layer, x, wrong = getattr(keras.layers, f"{kind}Pooling{number}D"), examples(number), Wrong()
    for size, step, padding in options(number):
        with wrong.of(size, step, padding):
            each = zip(x.shape[1:], of_axes(size, number), of_axes(step or size, number), strict=False)
            expected = pooled(x, [sliding(*one, padding) for one in each], REDUCED[kind])
            given = {"pool_size": size, "strides": step, "padding": padding}
            for order, found in each_format(lambda given=given, **more: layer(**given, **more), x):
                np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6, err_msg=order)
    wrong.check()


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize(("kind", "number"), CASES)
def test_the_whole_is_reduced(kind, number, kept, ddl_strategy):
    from suites.subject import keras

    layer, x = getattr(keras.layers, f"Global{kind}Pooling{number}D"), examples(number)
    expected = REDUCED[kind](x, axis=tuple(range(1, 1 + number)), keepdims=kept)
    for order, found in each_format(lambda **more: layer(keepdims=kept, **more), x):
        found = found if kept or order == "channels_last" else np.moveaxis(found, -1, 1)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6, err_msg=order)


@pytest.mark.parametrize("numbers", ["several", "one"])
@pytest.mark.parametrize(("kind", "number"), CASES)
def test_a_number_of_windows_is_reduced(kind, number, numbers, ddl_strategy):
    from suites.subject import keras

    layer = getattr(keras.layers, f"Adaptive{kind}Pooling{number}D", None)
    if layer is None:
        pytest.skip("this version has no layers that pool to a number of windows")
    x, wrong = examples(number), Wrong()
    for asked in [2, 3, 4, 5, 6, 7, 8, (3, 2, 4)[:number]] if numbers == "several" else [1, (1, 3, 2)[:number]]:
        asked = asked[0] if number == 1 and not isinstance(asked, int) else asked
        with wrong.of(asked):
            windows = [adaptive(*one) for one in zip(x.shape[1:], of_axes(asked, number), strict=False)]
            expected = pooled(x, windows, REDUCED[kind])
            for order, found in each_format(lambda asked=asked, **more: layer(asked, **more), x):
                np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6, err_msg=order)
    wrong.check()
