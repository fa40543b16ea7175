"""Define operations of images in NumPy, for images whose channels come last."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def formats(model: Callable[..., Any], axis: int = -3) -> Callable[..., Any]:
    """Return a definition for both orders of axes, from that of images whose channels come last."""

    @functools.wraps(model)
    def both(images: Array, *given: Any, data_format: str | None = None, **options: Any) -> Any:
        if data_format != "channels_first":
            return model(images, *given, **options)
        return np.moveaxis(model(np.moveaxis(images, axis, -1), *given, **options), -1, axis)

    return both


def _triangle(x: Array) -> Array:
    return np.maximum(0, 1 - x)


def _keys(x: Array) -> Array:
    """Keys (1981), with a slope of -1/2."""
    near, far = ((1.5 * x - 2.5) * x) * x + 1, ((-0.5 * x + 2.5) * x - 4) * x + 2
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))


def _lanczos(radius: int) -> Callable[[Array], Array]:
    return lambda x: np.where(x < radius, np.sinc(x) * np.sinc(x / radius), 0.0)


KERNELS: dict[str, Callable[[Array], Array]] = {
    "bilinear": _triangle,
    "bicubic": _keys,
    "lanczos3": _lanczos(3),
    "lanczos5": _lanczos(5),
}


def _weights(length: int, size: int, scale: float, shift: float, kernel: Any, antialias: bool) -> Array:
    """Return how much of each of ``length`` pixels is in each of ``size`` new ones."""
    at = (np.arange(size) + 0.5 - shift) / scale - 0.5
    width = max(1 / scale, 1.0) if antialias else 1.0
    found = kernel(np.abs(at[:, None] - np.arange(length)) / width)
    found /= found.sum(axis=1, keepdims=True)
    return np.where((at >= -0.5) & (at <= length - 0.5), found.T, 0.0).T


def _areas(length: int, size: int) -> Array:
    ends = np.arange(size + 1) * length / size
    pixels = np.arange(length)
    shared = np.minimum(ends[1:, None], pixels + 1) - np.maximum(ends[:-1, None], pixels)
    return np.maximum(shared, 0) * size / length


def _resampled(length: int, size: int, interpolation: str, antialias: bool) -> Array:
    if interpolation == "nearest":
        return np.eye(length)[((np.arange(size) + 0.5) * length / size).astype(int)]
    if interpolation == "area":
        return _areas(length, size)
    return _weights(length, size, size / length, 0.0, KERNELS[interpolation], antialias)


def _of_kind(values: Array, like: Array) -> Array:
    """Return values as numbers of the images' type: rounded, and no more than it holds."""
    if like.dtype.kind not in "iu":
        return values
    limits = np.iinfo(like.dtype)
    return np.clip(np.round(values), limits.min, limits.max).astype(like.dtype)


@formats
def resize(
    images: Array,
    size: Sequence[int],
    interpolation: str = "bilinear",
    antialias: bool = False,
    crop_to_aspect_ratio: bool = False,
    pad_to_aspect_ratio: bool = False,
    fill_mode: str = "constant",
    fill_value: float = 0.0,
) -> Array:
    values = images.astype(float)
    shape = values.shape[-3:-1]
    scaled = [shape[1] * size[0] // size[1], shape[0] * size[1] // size[0]]
    for axis in (0, 1):
        if crop_to_aspect_ratio:
            kept = min(shape[axis], max(scaled[axis], 1))
            start = (shape[axis] - kept) // 2
            values = np.take(values, range(start, start + kept), axis - 3)
        if pad_to_aspect_ratio:
            more = (max(shape[axis], scaled[axis]) - shape[axis]) // 2
            widths = [(0, 0)] * values.ndim
            widths[axis - 3] = (more, more)
            values = np.pad(values, widths, constant_values=fill_value)
    rows, columns = (_resampled(values.shape[axis - 3], size[axis], interpolation, antialias) for axis in (0, 1))
    return _of_kind(np.einsum("ih,jw,...hwc->...ijc", rows, columns, values), images)


def scaled(
    images: Array,
    output_shape: Sequence[int],
    scale: Array,
    translation: Array,
    spatial_dims: Sequence[int],
    method: str,
    antialias: bool = True,
) -> Array:
    kernel = KERNELS[{"linear": "bilinear", "cubic": "bicubic"}.get(method, method)]
    values = images.astype(float)
    for at, axis in enumerate(spatial_dims):
        weights = _weights(
            images.shape[axis], output_shape[axis], float(scale[at]), float(translation[at]), kernel, antialias
        )
        values = np.moveaxis(np.tensordot(values, weights, axes=(axis, 1)), -1, axis)
    return values


def _reflected(at: Array, length: int) -> Array:
    """Return indices of ``d c b a | a b c d | d c b a``."""
    at = np.mod(at, 2 * length)
    return np.where(at < length, at, 2 * length - 1 - at)


def _mirrored(at: Array, length: int) -> Array:
    """Return indices of ``c d c b | a b c d | c b a b``."""
    at = np.mod(at, max(2 * length - 2, 1))
    return np.where(at < length, at, 2 * length - 2 - at)


FILLED: dict[str, Callable[[Array, int], Array]] = {
    "nearest": lambda at, length: np.clip(at, 0, length - 1),
    "wrap": np.mod,
    "mirror": _mirrored,
    "reflect": _reflected,
}


def mapped(
    inputs: Array, coordinates: Array, order: int, fill_mode: str = "constant", fill_value: float = 0.0
) -> Array:
    """Add up the pixels around each place, as the documentation of ``map_coordinates`` continues the image."""
    found = np.zeros(np.shape(coordinates)[1:])
    low = np.round(coordinates) if order == 0 else np.floor(coordinates)
    for step in product((0,) if order == 0 else (0, 1), repeat=inputs.ndim):
        weight, places, there = np.ones_like(found), [], np.ones(found.shape, bool)
        for axis, (one, start, length) in enumerate(zip(step, low, inputs.shape, strict=True)):
            at = start.astype(int) + one
            if order == 1:
                weight = weight * (1 - np.abs(coordinates[axis] - at))
            there &= (at >= 0) & (at < length)
            places.append(FILLED["nearest" if fill_mode == "constant" else fill_mode](at, length))
        values = inputs[tuple(places)].astype(float)
        found += weight * (np.where(there, values, fill_value) if fill_mode == "constant" else values)
    return _of_kind(found, inputs)


@formats
def affine(
    images: Array,
    transform: Array,
    interpolation: str = "bilinear",
    fill_mode: str = "constant",
    fill_value: float = 0.0,
) -> Array:
    if images.ndim == 4:
        each_image = zip(images, np.broadcast_to(transform, (len(images), 8)), strict=True)
        return np.stack([affine(*one, interpolation, fill_mode, fill_value) for one in each_image])
    a0, a1, a2, b0, b1, b2, c0, c1 = transform.astype(float)
    y, x = np.mgrid[: images.shape[0], : images.shape[1]].astype(float)
    below = c0 * x + c1 * y + 1
    places = np.stack([(b0 * x + b1 * y + b2) / below, (a0 * x + a1 * y + a2) / below])
    order = 1 if interpolation == "bilinear" else 0
    return np.stack([mapped(one, places, order, fill_mode, fill_value) for one in np.moveaxis(images, -1, 0)], -1)


@formats
def perspective(
    images: Array, start: Array, end: Array, interpolation: str = "bilinear", fill_value: float = 0.0
) -> Array:
    """Read each pixel at the place that the map from the ends to the starts gives."""
    if images.ndim == 4:
        given = [np.broadcast_to(one, (len(images), 4, 2)) for one in (start, end)]
        return np.stack([perspective(*one, interpolation, fill_value) for one in zip(images, *given, strict=True)])
    rows, wanted = [], []
    for (u, v), (x, y) in zip(start.astype(float), end.astype(float), strict=True):
        rows += [[x, y, 1, 0, 0, 0, -u * x, -u * y], [0, 0, 0, x, y, 1, -v * x, -v * y]]
        wanted += [u, v]
    return np.asarray(affine(images, np.linalg.solve(rows, wanted), interpolation, "constant", fill_value))


def _starts(length: int, size: int, stride: int, dilation: int, padding: str) -> list[int]:
    """Return where windows begin, also before the first pixel."""
    whole = (size - 1) * dilation + 1
    if padding == "valid":
        return list(range(0, length - whole + 1, stride))
    number = -(-length // stride)
    before = max((number - 1) * stride + whole - length, 0) // 2
    return [at * stride - before for at in range(number)]


def patches(images: Array, size: Any, strides: Any = None, dilation_rate: int = 1, padding: str = "valid") -> Array:
    """Return the pixels of each window, row by row, with zeros for what is outside."""
    axes = 2 if isinstance(size, int) else len(size)
    sizes = (size,) * axes if isinstance(size, int) else size
    strides = strides or sizes
    steps = (strides,) * axes if isinstance(strides, int) else strides
    first = images.ndim - 1 - axes
    lengths = images.shape[first:-1]
    around = [(0, 0)] * first + [(9, 9)] * axes + [(0, 0)]
    padded = np.pad(images, around)
    starts = [_starts(*one, dilation_rate, padding) for one in zip(lengths, sizes, steps, strict=True)]
    found = []
    for corner in product(*starts):
        window = [slice(9 + at, 9 + at + n * dilation_rate, dilation_rate) for at, n in zip(corner, sizes, strict=True)]
        found.append(padded[(slice(None),) * first + tuple(window)].reshape(*images.shape[:first], -1))
    return np.stack(found, axis=first).reshape(*images.shape[:first], *map(len, starts), -1)


def _gaussian(size: int, sigma: float) -> Array:
    found = np.exp(-0.5 * ((np.arange(size) - (size - 1) / 2) / sigma) ** 2)
    return np.asarray(found / found.sum())


def _filtered(images: Array, kernel: Array, before: Sequence[int] = (), mode: str = "constant") -> Array:
    """Return the sum over each window, times a kernel. ``before`` says how many pixels are added on each side."""
    around = [(0, 0)] * (images.ndim - 3) + [(one, one) for one in before or (0, 0)] + [(0, 0)]
    padded = np.pad(images.astype(float), around, mode=mode)  # type: ignore[call-overload]
    windows = np.lib.stride_tricks.sliding_window_view(padded, kernel.shape, axis=(-3, -2))
    return np.asarray(np.einsum("...hwcij,ij->...hwc", windows, kernel))


@formats
def blur(images: Array, kernel_size: Sequence[int] = (3, 3), sigma: Sequence[float] = (1.0, 1.0)) -> Array:
    kernel = np.outer(_gaussian(kernel_size[0], sigma[0]), _gaussian(kernel_size[1], sigma[1]))
    return _filtered(images, kernel, [one // 2 for one in kernel_size])


def edges(images: Array, data_format: str | None = None) -> Array:
    if data_format == "channels_first":
        return np.moveaxis(edges(np.moveaxis(images, 1, -1)), 3, 1)
    down = np.array([[-1, -2, -1], [0, 0, 0], [1, 2, 1]])
    return np.stack([_filtered(images, one, (1, 1), "reflect") for one in (down, down.T)], axis=-1)


def similarity(
    one: Array,
    other: Array,
    max_val: float = 1.0,
    filter_size: int = 11,
    filter_sigma: float = 1.5,
    k1: float = 0.01,
    k2: float = 0.03,
    data_format: str | None = None,
) -> Any:
    """Wang et al. (2004)."""
    if data_format == "channels_first":
        one, other = (np.moveaxis(images, -3, -1) for images in (one, other))
    one, other = one.astype(float), other.astype(float)
    line = _gaussian(filter_size, filter_sigma)
    kernel = np.outer(line, line)
    mean, mean_of_other = _filtered(one, kernel), _filtered(other, kernel)
    variance, variance_of_other = _filtered(one**2, kernel) - mean**2, _filtered(other**2, kernel) - mean_of_other**2
    shared = _filtered(one * other, kernel) - mean * mean_of_other
    small, also = (k1 * max_val) ** 2, (k2 * max_val) ** 2
    above = (2 * mean * mean_of_other + small) * (2 * shared + also)
    found = above / ((mean**2 + mean_of_other**2 + small) * (variance + variance_of_other + also))
    return found.mean(axis=(-3, -2, -1))


def by_pixel(function: Callable[..., Any]) -> Callable[..., Any]:
    return formats(lambda images: np.apply_along_axis(lambda pixel: function(*map(float, pixel)), -1, images))


@formats
def gray(images: Array) -> Array:
    return (images * [0.2989, 0.5870, 0.1140]).sum(axis=-1, keepdims=True)


def _sides(first: int | None, last: int | None, target: int | None, more: int) -> tuple[int, int]:
    """Return how many pixels go to both sides. ``more`` is how many there are beyond the target's number."""
    if first is None:
        first = (target or 0) + more - (last or 0)
    return first, (target or 0) + more - first if last is None else last


@formats
def pad(
    images: Array,
    top_padding: int | None = None,
    left_padding: int | None = None,
    bottom_padding: int | None = None,
    right_padding: int | None = None,
    target_height: int | None = None,
    target_width: int | None = None,
) -> Array:
    height, width = images.shape[-3:-1]
    rows = _sides(top_padding, bottom_padding, target_height, -height)
    columns = _sides(left_padding, right_padding, target_width, -width)
    return np.pad(images, [(0, 0)] * (images.ndim - 3) + [rows, columns, (0, 0)])


@formats
def crop(
    images: Array,
    top_cropping: int | None = None,
    left_cropping: int | None = None,
    bottom_cropping: int | None = None,
    right_cropping: int | None = None,
    target_height: int | None = None,
    target_width: int | None = None,
) -> Array:
    height, width = images.shape[-3:-1]
    top = height - (target_height or 0) - (bottom_cropping or 0) if top_cropping is None else top_cropping
    left = width - (target_width or 0) - (right_cropping or 0) if left_cropping is None else left_cropping
    bottom = top + target_height if target_height is not None else height - (bottom_cropping or 0)
    right = left + target_width if target_width is not None else width - (right_cropping or 0)
    return images[..., top:bottom, left:right, :]
