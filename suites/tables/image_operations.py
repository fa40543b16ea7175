"""Operations of ``keras.ops.image``, with the calls that are compared with their definitions."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from suites.tables.defined_operations import Call, Defined, call, each
from suites.tables.image_definitions import (
    Array,
    affine,
    blur,
    by_pixel,
    crop,
    edges,
    formats,
    gray,
    mapped,
    pad,
    patches,
    perspective,
    resize,
    scaled,
    similarity,
)

_DRAW = np.random.default_rng(3)
IMAGES = _DRAW.uniform(0, 1, (2, 5, 7, 3)).astype("float32")
"""Images whose axes all have different lengths."""
BYTES = _DRAW.integers(0, 256, IMAGES.shape).astype("uint8")
VOLUMES = _DRAW.uniform(0, 1, (2, 4, 5, 3, 2)).astype("float32")
FORMATS = ("channels_last", "channels_first")


def images_of(values: Array, *given: Any, axis: int = -3, **options: Sequence[Any]) -> list[Call]:
    """Return calls for both orders of axes, with a batch and with one image."""
    found = []
    for name in FORMATS:
        moved = np.ascontiguousarray(np.moveaxis(values, -1, axis)) if name == "channels_first" else values
        for images in (moved, moved[0]):
            found += each(images, *given, **options, data_format=(name,))
    return found


def _two_of(*names: str) -> list[dict[str, int]]:
    """Return the choices of two of three arguments, of which the last is the length that is left."""
    first, last, target = names
    return [{first: 1, last: 2}, {first: 1, target: 0}, {last: 2, target: 0}]


def _sized(kind: str, height: int, width: int) -> list[Call]:
    found = []
    for rows, columns in product(
        _two_of(f"top_{kind}", f"bottom_{kind}", "target_height"),
        _two_of(f"left_{kind}", f"right_{kind}", "target_width"),
    ):
        given = {**rows, **columns}
        given.update({"target_height": height} if "target_height" in given else {})
        given.update({"target_width": width} if "target_width" in given else {})
        found += images_of(IMAGES, **{name: (value,) for name, value in given.items()})
    return found


MOVED = np.array([1, 0, 2, 0, 1, -3, 0, 0], "float32")
TURNED = np.array([0.9, 0.3, -0.4, -0.2, 1.1, 0.7, 0.02, 0.01], "float32")
CORNERS = np.array([[0, 0], [0, 5], [7, 0], [7, 5]], "float32")
ENDS = CORNERS + np.array([[0.4, 0.7], [0.3, -0.6], [-0.8, 0.2], [0.9, 0.8]], "float32")
PLACES = _DRAW.uniform(-14, 18, (2, 3, 8)).astype("float32")
PLANE = _DRAW.uniform(0, 1, (5, 7)).astype("float32")
SIZES = ((3, 4), (10, 13), (7, 7), (3, 7), (4, 2))
ALL = ("nearest", "bilinear", "bicubic", "lanczos3", "lanczos5", "area")

IMAGE_OPERATIONS = (
    Defined(
        "image.resize",
        resize,
        [
            *(one for size in SIZES for one in images_of(IMAGES, size, interpolation=ALL, antialias=(False, True))),
            *(
                one
                for size, more in product(((7, 7), (3, 7), (4, 2)), ("crop", "pad"))
                for one in images_of(IMAGES, size, **{f"{more}_to_aspect_ratio": (True,)})
            ),
            *images_of(IMAGES, (7, 7), pad_to_aspect_ratio=(True,), fill_value=(0.5,), fill_mode=("constant",)),
        ],
        batched=1,
        atol=2e-3,  # TensorFlow reads weights of bicubic from a table
    ),
    Defined("image.resize", resize, images_of(BYTES, (3, 4), interpolation=ALL), batched=1, atol=1.0, case="of bytes"),
    Defined(
        "image.resize",
        resize,
        images_of(BYTES, (7, 7), pad_to_aspect_ratio=(True,), fill_value=(0.0, 3.0)),
        batched=1,
        atol=1.0,
        case="of bytes, padded",
    ),
    Defined("image.rgb_to_grayscale", gray, images_of(IMAGES), batched=1),
    Defined("image.rgb_to_hsv", by_pixel(colorsys.rgb_to_hsv), images_of(IMAGES), batched=1),
    Defined("image.hsv_to_rgb", by_pixel(colorsys.hsv_to_rgb), images_of(IMAGES), batched=1),
    Defined(
        "image.affine_transform",
        affine,
        [
            *images_of(IMAGES, MOVED, fill_mode=("constant", "nearest", "wrap", "reflect"), fill_value=(0.0, 0.5)),
            *images_of(IMAGES, TURNED, fill_mode=("constant", "nearest"), interpolation=("nearest", "bilinear")),
            *(one for one in images_of(IMAGES, np.stack([TURNED, MOVED])) if one[0][0].ndim == 4),
        ],
        batched=1,
    ),
    Defined(
        "image.perspective_transform",
        perspective,
        [
            *images_of(IMAGES, CORNERS, ENDS, interpolation=("nearest", "bilinear"), fill_value=(0.0, 0.5)),
            *(
                one
                for one in images_of(IMAGES, np.stack([CORNERS] * 2), np.stack([ENDS, CORNERS]))
                if one[0][0].ndim == 4
            ),
        ],
        batched=1,
        atol=1e-4,
    ),
    Defined(
        "image.extract_patches",
        formats(patches),
        [
            *images_of(IMAGES, size=(2, (2, 3)), strides=(None, 1, (2, 1)), padding=("valid", "same")),
            *images_of(IMAGES, size=(2,), strides=(1,), dilation_rate=(2,), padding=("valid", "same")),
        ],
        batched=1,
    ),
    Defined(
        "image.extract_patches",
        formats(patches, -4),
        images_of(VOLUMES, axis=-4, size=((2, 3, 1),), strides=(None, 1), padding=("valid", "same")),
        batched=1,
        case="of volumes",
        needs="image.extract_patches_3d",
    ),
    Defined(
        "image.extract_patches_3d",
        formats(patches, -4),
        images_of(VOLUMES, axis=-4, size=((2, 3, 1),), strides=(None, 1, (2, 1, 3)), padding=("valid", "same"))
        + images_of(VOLUMES, axis=-4, size=((2, 2, 1),), strides=(1,), dilation_rate=(2,)),
        batched=1,
    ),
    *(
        Defined(
            "image.map_coordinates",
            mapped,
            [
                *each(PLANE, PLACES, order=(0, 1), fill_mode=modes, fill_value=(0.0, 2.0)),
                *each(BYTES[0, ..., 0], PLACES, order=(0, 1), fill_mode=modes),
                *each(IMAGES[0], PLACES[:1].repeat(3, 0), order=(1,), fill_mode=modes),
            ],
            case=case,
        )
        for case, modes in (("", ("constant", "nearest", "wrap")), ("mirror", ("mirror",)), ("reflect", ("reflect",)))
    ),
    Defined("image.gaussian_blur", blur, images_of(IMAGES, kernel_size=((3, 3), (5, 5))), batched=1),
    Defined("image.gaussian_blur", blur, images_of(IMAGES, sigma=((0.5, 2.0),)), batched=1, case="of two widths"),
    Defined("image.gaussian_blur", blur, images_of(IMAGES, kernel_size=((3, 5), (5, 3))), batched=1, case="oblong"),
    Defined(
        "image.scale_and_translate",
        scaled,
        [
            call(IMAGES[0], shape, *map(np.array, moves), dims, method, antialias=antialias)
            for shape, dims, moves in (
                ((4, 9, 3), (0, 1), (np.float32([0.8, 1.3]), np.float32([0.5, -0.25]))),
                ((5, 9, 3), (1,), (np.float32([0.6]), np.float32([1.5]))),
            )
            for method in ("linear", "bilinear", "cubic", "bicubic", "lanczos3", "lanczos5")
            for antialias in (False, True)
        ],
    ),
    Defined("image.sobel_edges", edges, [one for one in images_of(IMAGES) if one[0][0].ndim == 4], batched=1),
    Defined(
        "image.ssim",
        similarity,
        [
            call(one[0][0], one[0][0] ** 2, **one[1])
            for one in [
                *images_of(IMAGES, filter_size=(3, 5), filter_sigma=(1.5, 0.5), max_val=(1.0, 2.0)),
                *images_of(IMAGES, filter_size=(3,), k1=(0.1,), k2=(0.2,)),
            ]
        ],
        batched=2,
        rtol=1e-3,
    ),
    Defined("image.pad_images", pad, _sized("padding", 9, 12), batched=1),
    Defined("image.crop_images", crop, _sized("cropping", 2, 3), batched=1),
    Defined(
        "image.elastic_transform",
        lambda images, **_given: images,
        images_of(IMAGES, alpha=(0.0,), sigma=(1.0,), interpolation=("nearest", "bilinear"), seed=(1,))
        + images_of(IMAGES, alpha=(0.0,), fill_mode=("constant", "nearest", "wrap", "reflect"), fill_value=(0.0, 0.5)),
        batched=1,
    ),
)
"""Operations of images. The random one moves nothing."""
