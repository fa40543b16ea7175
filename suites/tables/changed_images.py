"""Define what layers make of images, for options that leave nothing to chance, in NumPy."""

from __future__ import annotations

import colorsys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from suites.tables.image_definitions import Array, affine, blur, gray, resize

RANGES = ((0, 1), (0, 255), (-1, 1))
HEIGHT, WIDTH = 6, 8
_DRAW = np.random.default_rng(5)
UNIT = _DRAW.integers(8, 56, (3, HEIGHT, WIDTH, 3)).astype("float32") / 64
"""Images in the range from 0 to 1. Each has other pixels, and none is black or white."""
Model = Callable[[Array], Array]


@dataclass(frozen=True)
class Changed:
    """Options of a layer, and what it then makes of a batch of images whose channels come last."""

    layer: str
    options: Mapping[str, Any]
    model: Model
    images: Array
    atol: float = 1e-4
    inside: int = 0
    """Number of pixels at each side that the definition says nothing about."""


def images_in(low: float, high: float) -> Array:
    return (UNIT * (high - low) + low).astype("float32")


def _fixed(value: float) -> tuple[float, float]:
    return value, value


def _in_hsv(change: Callable[[float, float, float], tuple[float, float, float]], low: float, high: float) -> Model:
    def pixel(one: Array) -> Any:
        return colorsys.hsv_to_rgb(*change(*colorsys.rgb_to_hsv(*map(float, one))))

    return lambda x: np.apply_along_axis(pixel, -1, (x - low) / (high - low)) * (high - low) + low


def _saturated(factor: float) -> Callable[[float, float, float], tuple[float, float, float]]:
    share = factor / (1 - factor) if factor < 1 else np.inf
    return lambda hue, saturation, value: (hue, min(saturation * share, 1.0), value)


def _sharpened(factor: float) -> Model:
    """The Pillow library: a sharp image goes away from the mean of 3 times 3 pixels, whose middle counts 5 times."""

    def model(x: Array) -> Array:
        windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(1, 2))
        smooth = x.copy()
        smooth[:, 1:-1, 1:-1] = (windows.sum(axis=(-2, -1)) + 4 * x[:, 1:-1, 1:-1]) / 13
        return smooth + 2 * factor * (x - smooth)

    return model


def _posterized(bits: int, low: float, high: float) -> Model:
    step = 2 ** (8 - bits)

    def model(x: Array) -> Array:
        pixels = np.floor(np.round((x - low) / (high - low) * 255, 3))
        return np.asarray(pixels // step * step / 255 * (high - low) + low)

    return model


def _solarized(addition: float, threshold: float, low: float, high: float) -> Model:
    def model(x: Array) -> Array:
        more = np.clip(x + addition * (high - low), low, high)
        return np.where(more < low + threshold * (high - low), more, high + low - more)

    return model


def _stretched(low: float, high: float) -> Model:
    def model(x: Array) -> Array:
        least, most = x.min(axis=(1, 2), keepdims=True), x.max(axis=(1, 2), keepdims=True)
        return (x - least) / (most - least) * (high - low) + low

    return model


def equalized(x: Array) -> Array:
    """Each channel of an image gets as many dark as bright pixels, in the range from 0 to 255."""
    found = np.empty_like(x)
    for image, channel in product(range(len(x)), range(x.shape[-1])):
        pixels = x[image, ..., channel].astype(int)
        below = np.cumsum(np.bincount(pixels.ravel(), minlength=256))
        first = below[below > 0][0]
        found[image, ..., channel] = np.round((below - first) * 255 / (below[-1] - first))[pixels]
    return found


def _colors() -> list[Changed]:
    found = []
    for low, high in RANGES:
        x, ranged = images_in(low, high), {"value_range": (low, high)}
        atol = 1e-4 * (high - low)

        def add(layer: str, model: Model, x: Array = x, ranged: Any = ranged, atol: float = atol, **given: Any) -> None:
            inside = given.pop("inside", 0)
            found.append(Changed(layer, {**ranged, **given}, model, x, atol, inside))

        def clipped(model: Model, low: float = low, high: float = high) -> Model:
            return lambda images: np.clip(model(images), low, high)

        for value in (-1.0, -0.3, 0.0, 0.4):
            model = clipped(lambda x, more=value * (high - low): x + more)
            add("RandomBrightness", model, factor=_fixed(value))
            add("RandomColorJitter", model, brightness_factor=_fixed(value))
        add("RandomContrast", lambda x: x, factor=(0.0, 0.0))
        for value in (0.0, 0.3, 0.5, 0.75):
            add("RandomSaturation", _in_hsv(_saturated(value), low, high), factor=_fixed(value))
        for value in (0.0, 1.0):
            hue = _in_hsv(lambda hue, *others, value=value: ((hue + value / 2) % 1, *others), low, high)
            add("RandomHue", hue, factor=_fixed(value))
        for value in (0.0, 0.25, 0.5, 1.0):
            add("RandomSharpness", clipped(_sharpened(value)), factor=_fixed(value), inside=1)
            share = clipped(lambda x, value=value: x + value * (gray(x) - x))
            add("RandomColorDegeneration", share, factor=_fixed(value))
        for value in (0.0, 1.0):
            inverted = clipped(lambda x, value=value, ends=low + high: ends - x if value else x)
            add("RandomInvert", inverted, factor=_fixed(value))
            blurred = clipped(lambda x, value=value: blur(x, (3, 3), (0.8, 0.8)) if value else x)
            add("RandomGaussianBlur", blurred, factor=_fixed(value), sigma=_fixed(0.8), inside=1)
        for bits in (1, 3, 8):
            add("RandomPosterization", _posterized(bits, low, high), factor=(bits, bits))
        for addition, threshold in ((0.0, 0.0), (0.0, 0.5), (0.25, 0.0), (0.25, 0.5)):
            solarized = _solarized(addition, threshold, low, high)
            given = {"addition_factor": _fixed(addition), "threshold_factor": _fixed(threshold)}
            add("Solarization", solarized, **given)
        add("AutoContrast", _stretched(low, high))
        add("RandomErasing", lambda x: x, factor=(0.0, 0.0))
    found.append(Changed("RandomGrayscale", {"factor": 0.0}, lambda x: x, UNIT))
    found.append(Changed("RandomGrayscale", {"factor": 1.0}, lambda x: np.repeat(gray(x), 3, -1), UNIT))
    found.append(Changed("Equalization", {}, equalized, np.round(images_in(0, 255))))
    return found


def _moved(matrix: Sequence[float], **options: Any) -> Model:
    return lambda x: affine(x, np.array([*matrix, 0, 0]), **options)


def turn(factor: float) -> tuple[float, ...]:
    """Return the affine map from new to old places of pixels, for a turn around the middle, counterclockwise."""
    cos, sin = np.cos(2 * np.pi * factor), np.sin(2 * np.pi * factor)
    x, y = (WIDTH - 1) / 2, (HEIGHT - 1) / 2
    return cos, -sin, x - x * cos + y * sin, sin, cos, y - x * sin - y * cos


def _moves() -> list[Changed]:
    found = []
    filled = [{"fill_mode": mode} for mode in ("nearest", "reflect", "wrap")]
    for given in ({"fill_mode": "constant"}, {"fill_mode": "constant", "fill_value": 0.5}, *filled):
        # How the other modes go on between two pixels, the documentation does not say.
        between = given["fill_mode"] in ("constant", "nearest")
        for rows, columns in ((0.5, -0.25), (0.25, 0.125), (0.0, 0.0))[:: 1 if between else 2]:
            model = _moved((1, 0, -columns * WIDTH, 0, 1, -rows * HEIGHT), **given)
            options = {"height_factor": _fixed(rows), "width_factor": _fixed(columns), **given}
            found.append(Changed("RandomTranslation", options, model, UNIT))
        for rows, columns in ((0.5, None), (-0.25, 0.3)) if between else ():
            wide, high = 1 + (rows if columns is None else columns), 1 + rows
            model = _moved((wide, 0, (WIDTH - 1) / 2 * (1 - wide), 0, high, (HEIGHT - 1) / 2 * (1 - high)), **given)
            width_factor = None if columns is None else _fixed(columns)
            options = {"height_factor": _fixed(rows), "width_factor": width_factor, **given}
            found.append(Changed("RandomZoom", options, model, UNIT, 1e-3))
        for value in (0.07, -0.2) if between else ():
            found.append(
                Changed("RandomRotation", {"factor": _fixed(value), **given}, _moved(turn(value), **given), UNIT, 1e-3)
            )
        found.append(Changed("RandomShear", {**given}, lambda x: x, UNIT))
    found.append(Changed("RandomPerspective", {"factor": 0.0}, lambda x: x, UNIT))
    found.append(Changed("RandomPerspective", {"factor": (1.0, 1.0), "scale": 0.0}, lambda x: x, UNIT))
    found.append(Changed("RandomElasticTransform", {"factor": 0.0}, lambda x: x, UNIT))
    for height, width in ((6, 8), (4, 4), (3, 5), (2, 8)):
        top, left = (HEIGHT - height) // 2, (WIDTH - width) // 2
        middle = np.s_[:, top : top + height, left : left + width]
        found.append(Changed("CenterCrop", {"height": height, "width": width}, lambda x, at=middle: x[at], UNIT))
    for height, width in ((12, 12), (9, 4), (3, 12)):
        size = {"height": height, "width": width}
        found.append(Changed("CenterCrop", size, _cropped(height, width), UNIT, 1e-3))
    for (height, width), kind in product(
        ((3, 4), (12, 10)), ("bilinear", "nearest", "bicubic", "lanczos3", "lanczos5")
    ):
        for more in ({}, {"antialias": True}, {"crop_to_aspect_ratio": True}, {"pad_to_aspect_ratio": True}):
            options = {"height": height, "width": width, "interpolation": kind, **more}
            found.append(Changed("Resizing", options, _resized(height, width, kind, more), UNIT, 3e-3))
    return found


def _cropped(height: int, width: int) -> Model:
    return _resized(height, width, "bilinear", {"crop_to_aspect_ratio": True})


def _resized(height: int, width: int, kind: str, more: Mapping[str, Any]) -> Model:
    return lambda x: resize(x, (height, width), interpolation=kind, **more)


CHANGED = (*_colors(), *_moves())
