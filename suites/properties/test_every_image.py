"""Give images in every form to every layer that changes them: one image, batches of any size, any order of axes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from suites import subject
from suites.parameters.spaces import Wrong, find
from suites.properties.images import image_layers, takes
from suites.properties.test_global_settings import setting

pytestmark = pytest.mark.ddl(strategies=["one_device"])

ROWS, HEIGHT, WIDTH = 16, 8, 6
IN_UNIT: Mapping[str, Any] = {"value_range": (0, 1)}
LAYERS: Mapping[str, Mapping[str, Any]] = {
    "RandomFlip": {},
    "RandomTranslation": {"height_factor": 0.25, "width_factor": 0.25},
    "RandomZoom": {"height_factor": 0.3},
    "RandomRotation": {"factor": 0.2},
    "RandomShear": {"x_factor": 0.3, "y_factor": 0.3},
    "RandomPerspective": {"factor": 1.0, "scale": 0.5},
    "RandomElasticTransform": {"factor": 1.0, **IN_UNIT},
    "RandomCrop": {"height": 4, "width": 5},
    "RandomErasing": {"factor": 1.0, "scale": (0.1, 0.5), "fill_value": 0.5, **IN_UNIT},
    "RandomGaussianBlur": {"factor": 1.0, **IN_UNIT},
    "RandomContrast": {"factor": 0.5, **IN_UNIT},
    "RandomBrightness": {"factor": 0.5, **IN_UNIT},
    "RandomHue": {"factor": 0.5, **IN_UNIT},
    "RandomSaturation": {"factor": 0.7, **IN_UNIT},
    "RandomSharpness": {"factor": 0.7, **IN_UNIT},
    "RandomColorDegeneration": {"factor": 0.7, **IN_UNIT},
    "RandomColorJitter": {
        **dict.fromkeys(("brightness_factor", "contrast_factor", "saturation_factor", "hue_factor"), 0.3),
        **IN_UNIT,
    },
    "RandomGrayscale": {"factor": 0.5},
    "RandomInvert": {"factor": 0.5, **IN_UNIT},
    "RandomPosterization": {"factor": 4, **IN_UNIT},
    "RandAugment": {**IN_UNIT},
    "MixUp": {"alpha": 1.0},
    "CutMix": {"factor": 1.0},
    "Equalization": {**IN_UNIT},
    "AutoContrast": {**IN_UNIT},
    "Solarization": {"addition_factor": 0.2, "threshold_factor": 0.5, **IN_UNIT},
    "CenterCrop": {"height": 4, "width": 5},
    "Resizing": {"height": 4, "width": 5},
    "UpSampling2D": {"interpolation": "bilinear"},
}
"""Layer -> its options. AugMix is not here: it follows no seed."""
MIXES = ("MixUp", "CutMix")
"""Layers that need several images."""
NO_DATA_LAYER = ("UpSampling2D",)
ALWAYS = ("RandomCrop", "CenterCrop", "Resizing", "AutoContrast", *NO_DATA_LAYER)
"""Layers that change images in inference too."""
ONE_CHANGE_FOR_ALL = ("RandomCrop", "RandAugment")
"""Layers that document one random choice for all images of a batch, or that chain others."""
BOTH_WAYS = ("RandomBrightness", "RandomHue")
"""Layers whose change of all pixels is as often in one direction as in the other one."""
WRONG: Mapping[str, tuple[str, ...]] = {
    "an unknown size": (
        "RandomCrop",
        "RandomPerspective",
        "RandomElasticTransform",
        "RandomErasing",
        "RandAugment",
        "CutMix",
        "CenterCrop",
        "UpSampling2D",
    ),
    "channels first": ("RandomRotation", "RandomColorJitter", "RandAugment", "AutoContrast"),
    "one image": ("RandomGrayscale", "RandAugment"),
    "each image by itself": ("RandomContrast",),
    "labels": ("RandomGrayscale", "RandAugment"),
    "a dataset": ("RandAugment",),
    "whole numbers": ("RandomBrightness", "RandomContrast", "RandomSaturation", "RandAugment"),
    "double precision": ("RandomRotation", "RandAugment"),
}
"""Property -> layers that have a test with an entry."""


def images(rows: int = ROWS) -> Any:
    return np.random.default_rng(3).integers(0, 33, (rows, HEIGHT, WIDTH, 3)).astype("float32") / 32


def made(name: str, **given: Any) -> Any:
    """Return a new layer, which draws the same numbers as every other one with this seed."""
    options = {"seed": 7, **LAYERS[name], **given}
    return find(f"layers.{name}")(**{option: value for option, value in options.items() if takes(name, option)})


def changed(layer: Any, x: Any) -> Any:
    return layer(x, **({"training": True} if "training" in inspect.signature(layer.call).parameters else {}))


def same(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


def an_unknown_size(name: str) -> None:
    """A function for images of any number and size gives what a call with known sizes gives."""
    import tensorflow as tf

    x, layer = images(), made(name)
    signature = [tf.TensorSpec((None, None, None, 3))]
    same(tf.function(lambda one: changed(layer, one), signature)(x), changed(made(name), x))


def channels_first(name: str) -> None:
    if not takes(name, "data_format"):
        return
    x, layer = images(), made(name, data_format="channels_first")
    found = np.moveaxis(np.asarray(changed(layer, np.moveaxis(x, -1, 1))), 1, -1)
    same(found, changed(made(name), x))


def one_image(name: str) -> None:
    """An image without an axis for a batch is changed as a batch of this image is."""
    if name not in (*MIXES, *NO_DATA_LAYER):
        same(changed(made(name), images(1)[0]), np.asarray(changed(made(name), images(1)))[0])


def each_image_by_itself(name: str) -> None:
    """Images of a batch that are alike are changed in other ways, and in both directions if the layer has two."""
    if not name.startswith("Random") or name in ONE_CHANGE_FOR_ALL:
        return
    x = np.repeat(images(1), ROWS, axis=0)
    found = np.asarray(changed(made(name), x))
    assert any(not np.array_equal(found[0], one) for one in found[1:]), "all images are changed alike"
    if name in BOTH_WAYS:
        ways = (found - x).reshape(ROWS, -1)
        assert (ways @ ways.T).min() < 0, "all images are changed in one direction"


def in_inference(name: str) -> None:
    """Images stay as they are, out of training."""
    if name not in ALWAYS:
        same(made(name)(images(), training=False), images())


def labels(name: str) -> None:
    """Images beside labels are changed as without them. Labels stay, except those of images that are mixed."""
    if not hasattr(find(f"layers.{name}"), "transform_labels"):
        return
    x, y = images(), np.eye(ROWS, dtype="float32")
    found = changed(made(name), {"images": x, "labels": y})
    same(found["images"], changed(made(name), x))
    if name in MIXES:
        same(np.sum(found["labels"], axis=-1), np.ones(ROWS))
    else:
        same(found["labels"], y)


def a_dataset(name: str) -> None:
    """The layer in a pipeline of data does what it does in the model."""
    import tensorflow as tf

    if name not in NO_DATA_LAYER:
        layer, x = made(name), images()
        dataset = tf.data.Dataset.from_tensors(x).map(lambda one: changed(layer, one))
        same(next(iter(dataset)), changed(made(name), x))


def whole_numbers(name: str) -> None:
    """Images of bytes, as they are read from files, are changed as the same numbers in floating point are."""
    x = np.round(images() * 255).astype("uint8")
    given = {"value_range": (0, 255)} if "value_range" in LAYERS[name] else {}
    found, expected = (np.asarray(changed(made(name, **given), one)) for one in (x, x.astype("float32")))
    # A layer may return bytes, and so cut off what follows the point.
    np.testing.assert_allclose(found.astype("float64"), expected, rtol=0, atol=1.01)


def double_precision(name: str) -> None:
    """In a program that computes in float64, the layer takes and returns images of this type."""
    x = images().astype("float64")
    with setting("floatx", "float64"), setting("dtype_policy", "float64"):
        found = changed(made(name), x)
    assert found.dtype == "float64"
    assert found.shape == changed(made(name), images()).shape


PROPERTIES: Mapping[str, Callable[[str], None]] = {
    "an unknown size": an_unknown_size,
    "channels first": channels_first,
    "one image": one_image,
    "each image by itself": each_image_by_itself,
    "in inference": in_inference,
    "labels": labels,
    "a dataset": a_dataset,
    "whole numbers": whole_numbers,
    "double precision": double_precision,
}


@pytest.fixture(autouse=True)
def keras_3():
    if subject.name() != subject.KERAS_3:
        pytest.skip("nobody has written the entries of tf_keras yet")


@pytest.mark.ddl_item("layer.Augmentation_layers")
@pytest.mark.parametrize("what", PROPERTIES)
def test_a_layer_changes_images_of_any_form_alike(what, ddl_strategy):
    wrong = Wrong()
    for name in LAYERS:
        if name not in WRONG.get(what, ()) and find(f"layers.{name}"):
            with wrong.of(name):
                PROPERTIES[what](name)
    wrong.check()


@pytest.mark.ddl_item("layer.Augmentation_layers")
@pytest.mark.parametrize(("what", "name"), [(what, name) for what, names in WRONG.items() for name in names])
def test_a_form_of_images_that_a_layer_does_not_know(what, name, ddl_strategy):
    if not find(f"layers.{name}"):
        pytest.skip(f"this version has no {name}")
    PROPERTIES[what](name)


@pytest.mark.ddl_item("layer.Augmentation_layers", keras=">=3.8", shows="behavior")
def test_every_layer_for_images_is_in_the_table(ddl_strategy):
    known = {*LAYERS, "AugMix", "MaxNumBoundingBoxes", "ContrastLimitedAdaptiveHistogramEqualization"}
    assert image_layers() <= known
