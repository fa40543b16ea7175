"""Let layers change images with objects in them: bounding boxes, segmentation masks and labels follow the objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest

from suites.parameters.spaces import Wrong, find
from suites.properties.images import image_layers, takes

pytestmark = [
    pytest.mark.ddl(strategies=["one_device"], keras="keras"),
    pytest.mark.ddl_item("layer.Augmentation_layers"),
]

HEIGHT, WIDTH = 32, 48
OBJECTS = np.array([[[12, 9, 20, 15], [20, 14, 34, 22]], [[15, 8, 27, 12], [10, 12, 16, 25]]], "float32")
"""Boxes of two objects in two images: left, top, right, bottom."""
CLASSES = np.array([[3, 1], [2, 5]], "float32")
LABELS = np.array([[0, 1, 0], [0, 0, 1]], "float32")
FORMATS = (
    *("xyxy", "yxyx", "xywh", "center_xywh", "center_yxhw", "rel_xyxy", "rel_yxyx", "rel_xywh", "rel_center_xywh"),
)
BOUND = 1.6
"""Pixels by which a box may be off: a border between two pixels belongs to one of them, and corners are cut off."""
SMALLER: Mapping[str, Any] = {"height": 30, "width": 40}
SIZES = ((20, 20), (40, 60), (16, 40))
MOVING: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "RandomTranslation": [
        {"height_factor": (rows, rows), "width_factor": (columns, columns), "fill_mode": "constant"}
        for rows, columns in ((0.125, 0.125), (-0.125, 0.25), (0.0, -0.125))
    ],
    "RandomFlip": [{"mode": mode} for mode in ("horizontal", "vertical", "horizontal_and_vertical")],
    "RandomZoom": [
        {"height_factor": (rows, rows), "width_factor": columns, "fill_mode": "constant"}
        for rows, columns in ((0.5, None), (-0.2, (0.2, 0.2)), (0.3, (-0.1, -0.1)))
    ],
    "RandomRotation": [{"factor": (turn, turn), "fill_mode": "constant"} for turn in (0.02, -0.03, 0.5)],
    "RandomShear": [
        {"x_factor": (0.3, 0.3), "fill_mode": "constant"},
        {"y_factor": (0.2, 0.2), "fill_mode": "constant"},
    ],
    "RandomPerspective": [{"factor": (1.0, 1.0), "scale": 0.1}],
    "RandomCrop": [SMALLER],
    "CenterCrop": [SMALLER],
    "Resizing": [
        {"height": height, "width": width, **more}
        for height, width in SIZES
        for more in ({}, {"crop_to_aspect_ratio": True}, {"pad_to_aspect_ratio": True})
    ],
}
"""Layer -> options with which it moves or resizes what is in an image."""
IN_UNIT: Mapping[str, Any] = {"value_range": (0, 1)}
STAYING: Mapping[str, Mapping[str, Any]] = {
    **{
        name: {"factor": 0.5, **IN_UNIT}
        for name in (
            *("RandomBrightness", "RandomContrast", "RandomHue", "RandomSaturation", "RandomSharpness"),
            *("RandomColorDegeneration", "RandomGaussianBlur", "RandomInvert", "RandomGrayscale"),
        )
    },
    "RandomColorJitter": {"brightness_factor": 0.5, **IN_UNIT},
    "RandomPosterization": {"factor": 4, **IN_UNIT},
    "RandomErasing": IN_UNIT,
    "Solarization": IN_UNIT,
    "AutoContrast": IN_UNIT,
    "Equalization": IN_UNIT,
}
"""Layer that changes colors -> its options."""
OTHERS = {"RandAugment", "AugMix", "MixUp", "CutMix", "MaxNumBoundingBoxes", "RandomElasticTransform"}
OTHERS |= {"ContrastLimitedAdaptiveHistogramEqualization"}
"""Layers that chain others, mix images, or draw where they move each pixel."""


def scene() -> Any:
    """Return images in which each object has a channel of its own."""
    images = np.zeros((2, HEIGHT, WIDTH, 3), "float32")
    for image, boxes in enumerate(OBJECTS.astype(int)):
        for channel, (left, top, right, bottom) in enumerate(boxes):
            images[image, top:bottom, left:right, channel] = 1.0
    return images


def masks() -> Any:
    """Return the class of each pixel: 1 and 2 for the objects, of which the second one is in front."""
    images = scene()
    return np.where(images[..., 1:2] > 0, 2, images[..., :1])


def written(boxes: Any, kind: str, height: int, width: int) -> Any:
    """Return boxes in another format."""
    left, top, right, bottom = np.moveaxis(np.asarray(boxes, "float64"), -1, 0)
    if kind.startswith("rel_"):
        left, top, right, bottom = left / width, top / height, right / width, bottom / height
    wide, high, shape = right - left, bottom - top, kind.removeprefix("rel_")
    parts = {
        "xyxy": (left, top, right, bottom),
        "yxyx": (top, left, bottom, right),
        "xywh": (left, top, wide, high),
        "center_xywh": (left + wide / 2, top + high / 2, wide, high),
        "center_yxhw": (top + high / 2, left + wide / 2, high, wide),
    }
    return np.stack(parts[shape], -1)


def read(boxes: Any, kind: str, height: int, width: int) -> Any:
    """Return boxes of a format as left, top, right and bottom in pixels."""
    one, two, three, four = np.moveaxis(np.asarray(boxes, "float64"), -1, 0)
    shape = kind.removeprefix("rel_")
    if shape in ("yxyx", "center_yxhw"):
        one, two, three, four = two, one, four, three
    if shape.startswith("center"):
        one, two = one - three / 2, two - four / 2
    if shape not in ("xyxy", "yxyx"):
        three, four = one + three, two + four
    sizes = (width, height, width, height) if kind.startswith("rel_") else (1, 1, 1, 1)
    return np.stack([one, two, three, four], -1) * sizes


def seen(images: Any) -> Any:
    """Return the boxes of what is in the channels of images."""
    found = []
    for image in np.asarray(images):
        for channel in (0, 1):
            rows, columns = np.nonzero(image[..., channel] > 0.5)
            found.append([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])
    return np.array(found, "float64").reshape(OBJECTS.shape)


def given(kind: str) -> dict[str, Any]:
    """Return images with everything that a layer may change beside them."""
    boxes = written(OBJECTS, kind, HEIGHT, WIDTH).astype("float32")
    return {
        "images": scene(),
        "bounding_boxes": {"boxes": boxes, "labels": CLASSES.copy()},
        "labels": LABELS.copy(),
        "segmentation_masks": masks(),
    }


def made(name: str, **options: Any) -> Any:
    given_options = {"seed": 3, **options}
    return find(f"layers.{name}")(**{option: value for option, value in given_options.items() if takes(name, option)})


def turned(data: Any, source: int, target: int) -> Any:
    """Return data whose images and masks have their channels at another place."""
    found = dict(data)
    for key in ("images", "segmentation_masks"):
        found[key] = np.moveaxis(np.asarray(data[key]), source, target)
    return found


def follows(found: Any, kind: str) -> None:
    """Check that boxes are around what is in the images, up to the pixels that they touch."""
    images = np.asarray(found["images"])
    boxes = read(found["bounding_boxes"]["boxes"], kind, *images.shape[1:3])
    np.testing.assert_allclose(boxes, seen(images), rtol=0, atol=BOUND)
    np.testing.assert_array_equal(found["bounding_boxes"]["labels"], CLASSES)
    np.testing.assert_array_equal(found["labels"], LABELS)


@pytest.fixture(autouse=True)
def boxes_are_moved():
    if not find("layers.MixUp"):
        pytest.skip("in this version, most layers for images know nothing of boxes")


def exists(name: str) -> None:
    if not find(f"layers.{name}"):
        pytest.skip(f"this version has no {name}")


def test_each_layer_for_images_moves_objects_or_does_not(ddl_strategy):
    assert image_layers() <= {*MOVING, *STAYING, *OTHERS}


@pytest.mark.parametrize("name", MOVING)
def test_boxes_follow_in_each_format(name, ddl_strategy):
    exists(name)
    wrong = Wrong()
    for kind, options in product(FORMATS[1:], MOVING[name]):
        with wrong.of(kind, options):
            layer = made(name, **options, bounding_box_format=kind)
            follows(layer(given(kind), training=True), kind)
    wrong.check()


def one_by_one(layer: Any, data: Any) -> Any:
    """Return what a layer makes of each image without a batch."""
    import tensorflow as tf

    parts = [layer(tf.nest.map_structure(lambda one, n=n: one[n], data), training=True) for n in range(len(OBJECTS))]
    return tf.nest.map_structure(lambda *each: np.stack(each), *parts)


def in_a_pipeline(layer: Any, data: Any) -> Any:
    import tensorflow as tf

    return next(iter(tf.data.Dataset.from_tensors(data).map(lambda one: layer(one, training=True))))


FORMS: Mapping[str, Callable[[Any, Any], Any]] = {
    "a batch": lambda layer, data: layer(data, training=True),
    "one by one": one_by_one,
    "in a pipeline": in_a_pipeline,
}


@pytest.mark.parametrize("name", MOVING)
def test_boxes_follow_in_each_form(name, ddl_strategy):
    exists(name)
    wrong = Wrong()
    for (form, call), options in product(FORMS.items(), MOVING[name]):
        with wrong.of(form, options):
            follows(call(made(name, **options, bounding_box_format="xyxy"), given("xyxy")), "xyxy")
    for options in MOVING[name] if takes(name, "data_format") else ():
        with wrong.of("channels first", options):
            layer = made(name, **options, bounding_box_format="xyxy", data_format="channels_first")
            follows(turned(layer(turned(given("xyxy"), -1, 1), training=True), 1, -1), "xyxy")
    wrong.check()


@pytest.mark.parametrize("name", MOVING)
def test_masks_follow_their_objects(name, ddl_strategy):
    """Each pixel of a mask is that of the image, if both take the nearest one."""
    exists(name)
    wrong = Wrong()
    for options in MOVING[name]:
        for keys in (("segmentation_masks",), ("segmentation_masks", "labels")):
            with wrong.of(options, keys):
                nearest = {"interpolation": "nearest"} if takes(name, "interpolation") else {}
                data = {key: value for key, value in given("xyxy").items() if key in ("images", *keys)}
                found = made(name, **options, **nearest)(data, training=True)
                images = np.asarray(found["images"])
                expected = np.where(images[..., 1:2] > 0.5, 2, images[..., :1] > 0.5)
                np.testing.assert_array_equal(found["segmentation_masks"], expected)
    wrong.check()


@pytest.mark.parametrize("name", STAYING)
def test_colors_leave_objects_where_they_are(name, ddl_strategy):
    exists(name)
    layer = made(name, **STAYING[name], bounding_box_format="xywh")
    stays(layer(given("xywh"), training=True), given("xywh"))


def stays(found: Any, data: Any) -> None:
    np.testing.assert_array_equal(found["bounding_boxes"]["boxes"], data["bounding_boxes"]["boxes"])
    np.testing.assert_array_equal(found["bounding_boxes"]["labels"], CLASSES)
    np.testing.assert_array_equal(found["labels"], LABELS)
    np.testing.assert_array_equal(found["segmentation_masks"], masks())


ALWAYS = ("RandomCrop", "CenterCrop", "Resizing", "AutoContrast", "Equalization")
"""Layers that change images in inference too."""


@pytest.mark.parametrize("name", [name for name in (*MOVING, *STAYING) if name not in ALWAYS])
def test_inference_leaves_everything_as_it_is(name, ddl_strategy):
    exists(name)
    options = MOVING[name][0] if name in MOVING else STAYING[name]
    found = made(name, **options, bounding_box_format="yxyx")(given("yxyx"), training=False)
    np.testing.assert_array_equal(found["images"], scene())
    stays(found, given("yxyx"))


@pytest.mark.parametrize("name", [*MOVING, *STAYING])
def test_what_is_given_stays_as_it_is(name, ddl_strategy):
    """A layer returns new data. What the caller holds is not changed."""
    exists(name)
    options = MOVING[name][0] if name in MOVING else STAYING[name]
    data = given("xyxy")
    made(name, **options, bounding_box_format="xyxy")(data, training=True)
    np.testing.assert_array_equal(data["images"], scene())
    stays(data, given("xyxy"))


def test_boxes_are_mixed_as_images_are(ddl_strategy):
    """A mixed image has the boxes of both images, each with its class."""
    found = made("MixUp", alpha=1.0, bounding_box_format="xyxy")(given("xyxy"), training=True)
    boxes, classes = (np.asarray(found["bounding_boxes"][key]) for key in ("boxes", "labels"))
    assert boxes.shape[:2] == classes.shape == (2, 4)
    for image in range(2):
        pairs = {(*map(float, box), float(label)) for box, label in zip(boxes[image], classes[image], strict=True)}
        own = {(*map(float, box), float(label)) for box, label in zip(OBJECTS[image], CLASSES[image], strict=True)}
        assert own <= pairs


@pytest.mark.parametrize("most", [1, 2, 4])
def test_boxes_are_cut_off_and_filled_up(most, ddl_strategy):
    exists("MaxNumBoundingBoxes")
    wrong = Wrong()
    for fill in (-1, 7):
        boxes, classes = np.full((2, most, 4), fill, "float32"), np.full((2, most), fill, "float32")
        boxes[:, :2], classes[:, :2] = OBJECTS[:, :most], CLASSES[:, :most]
        with wrong.of(fill, "batch"):
            layer = made("MaxNumBoundingBoxes", max_number=most, fill_value=fill, bounding_box_format="xyxy")
            found = layer(given("xyxy"))["bounding_boxes"]
            np.testing.assert_array_equal(found["boxes"], boxes)
            np.testing.assert_array_equal(found["labels"], classes)
    wrong.check()


def test_formats_of_boxes_are_converted(ddl_strategy):
    """As an array and as a dictionary, with and without a batch."""
    convert: Any = find("utils.bounding_boxes.convert_format")
    wrong = Wrong()
    for source, target, several in product(FORMATS, FORMATS, (True, False)):
        with wrong.of(source, target, several):
            boxes, expected = (written(OBJECTS, kind, HEIGHT, WIDTH).astype("float32") for kind in (source, target))
            given_boxes, wanted = (boxes, expected) if several else (boxes[0], expected[0])
            found = convert(given_boxes, source, target, height=HEIGHT, width=WIDTH)
            np.testing.assert_allclose(found, wanted, rtol=1e-5)
            labels = CLASSES if several else CLASSES[0]
            data = convert({"boxes": given_boxes, "labels": labels}, source, target, height=HEIGHT, width=WIDTH)
            np.testing.assert_allclose(data["boxes"], wanted, rtol=1e-5)
            np.testing.assert_array_equal(data["labels"], labels)
    wrong.check()
