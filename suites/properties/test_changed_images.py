"""Compare what layers make of images with definitions in NumPy, with options that leave nothing to chance."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from suites.parameters.spaces import Wrong, find
from suites.properties.images import image_layers, takes
from suites.tables.changed_images import CHANGED, UNIT, Changed

pytestmark = [
    pytest.mark.ddl(strategies=["one_device"], keras="keras"),
    pytest.mark.ddl_item("layer.Augmentation_layers"),
]

LAYERS = dict.fromkeys(one.layer for one in CHANGED)
OTHERS = {"RandomFlip", "RandomCrop", "MixUp", "CutMix", "RandAugment", "AugMix", "MaxNumBoundingBoxes"}
OTHERS |= {"ContrastLimitedAdaptiveHistogramEqualization"}
"""Layers that always draw numbers, chain others, or have tests of their own."""


@pytest.fixture(autouse=True)
def layers_are_known():
    if not find("layers.MixUp"):
        pytest.skip("nobody has compared the layers of this version with definitions")


def cases(name: str) -> list[Changed]:
    """Return the cases of a layer whose options this version has."""
    if find(f"layers.{name}") is None:
        pytest.skip(f"this version has no {name}")
    return [one for one in CHANGED if one.layer == name and all(takes(name, option) for option in one.options)]


def layer_of(one: Changed) -> Any:
    return find(f"layers.{one.layer}")(**one.options, **({"seed": 3} if takes(one.layer, "seed") else {}))


def same(found: Any, one: Changed, rows: slice = np.s_[:]) -> None:
    """Compare images with their definition, without the edges that it leaves open."""
    expected = one.model(one.images)[rows]
    assert np.shape(found) == expected.shape
    inside = np.s_[:, one.inside : expected.shape[1] - one.inside, one.inside : expected.shape[2] - one.inside]
    np.testing.assert_allclose(np.asarray(found)[inside], expected[inside], rtol=0, atol=one.atol)


def test_each_layer_for_images_has_a_definition(ddl_strategy):
    assert image_layers() - {*LAYERS} <= OTHERS


@pytest.mark.parametrize("name", LAYERS)
def test_images_become_what_is_defined(name, ddl_strategy):
    """In a batch, and one by one."""
    wrong = Wrong()
    for one in cases(name):
        with wrong.of(one.options):
            same(layer_of(one)(one.images, training=True), one)
        with wrong.of(one.options, "one image"):
            same(np.asarray(layer_of(one)(one.images[1], training=True))[None], one, np.s_[1:2])
    wrong.check()


@pytest.mark.parametrize("name", LAYERS)
def test_a_configuration_makes_the_same_layer(name, ddl_strategy):
    wrong = Wrong()
    for one in cases(name):
        with wrong.of(one.options):
            layer = layer_of(one)
            again = type(layer).from_config(layer.get_config())
            found, expected = (each(one.images, training=True) for each in (again, layer))
            np.testing.assert_allclose(found, expected, rtol=0, atol=one.atol)
    wrong.check()


@pytest.mark.parametrize("ends", [(0.3, 0.3), (0.5, 0.2), 0.4], ids=str)
def test_contrast_is_drawn_between_both_ends(ends, ddl_strategy):
    """From 1 less the first number to 1 and the second one, as documented. One number is both of them."""
    x = np.repeat(UNIT[:1] * 0.2 + 0.4, 64, axis=0)
    layer = find("layers.RandomContrast")(ends, value_range=(0, 1), seed=3)
    mean = x.mean(axis=(1, 2), keepdims=True)
    factors = ((np.asarray(layer(x, training=True)) - mean) / (x - mean))[:, 0, 0, 0]
    lower, upper = ends if isinstance(ends, tuple) else (ends, ends)
    assert 1 - lower - 1e-3 <= factors.min() < 1 - 0.7 * lower
    assert 1 + 0.7 * upper < factors.max() <= 1 + upper + 1e-3


def test_as_many_bits_are_kept_as_asked_for(ddl_strategy):
    """One number is that of the bits."""
    kind = find("layers.RandomPosterization")
    wrong = Wrong()
    x = np.tile(np.arange(256, dtype="float32").reshape(1, 16, 16, 1), (8, 1, 1, 3))
    for bits in (1, 2, 5, 8):
        with wrong.of(bits):
            found = np.asarray(kind(bits, seed=2)(x, training=True))
            np.testing.assert_array_equal(found, x // 2 ** (8 - bits) * 2 ** (8 - bits))
    wrong.check()


@pytest.mark.parametrize("mode", ["horizontal", "vertical", "horizontal_and_vertical"])
def test_some_images_are_flipped(mode, ddl_strategy):
    x = np.concatenate([UNIT] * 6)
    found = np.asarray(find("layers.RandomFlip")(mode, seed=1)(x, training=True))
    ways = {"horizontal": [x[:, :, ::-1]], "vertical": [x[:, ::-1]]}
    both = [x[:, ::-1, ::-1], *ways["vertical"], *ways["horizontal"]]
    kinds = np.array([(found == one).all(axis=(1, 2, 3)) for one in (x, *ways.get(mode, both))])
    assert kinds.any(axis=0).all()
    assert kinds[0].any()
    assert kinds[1:].any()


@pytest.mark.parametrize("training", [True, False])
def test_a_crop_is_a_part_of_the_image(training, ddl_strategy):
    """In inference, and of smaller images, it is the largest part with this aspect ratio, in the asked for size."""
    from suites.tables.image_definitions import resize

    wrong = Wrong()
    height, width = UNIT.shape[1:3]
    for rows, columns in ((4, 5), (2, 2), (3, 4), (9, 4), (12, 12)):
        with wrong.of(rows, columns):
            found = np.asarray(find("layers.RandomCrop")(rows, columns, seed=4)(UNIT, training=training))
            if training and rows < height and columns < width:
                corners = [(top, left) for top in range(height - rows + 1) for left in range(width - columns + 1)]
                assert any(np.array_equal(found, UNIT[:, a : a + rows, b : b + columns]) for a, b in corners)
            else:
                expected = resize(UNIT, (rows, columns), crop_to_aspect_ratio=True)
                np.testing.assert_allclose(found, expected, rtol=0, atol=1e-3)
    wrong.check()


@pytest.mark.parametrize("name", ["MixUp", "CutMix"])
def test_labels_are_mixed_as_images_are(name, ddl_strategy):
    """The images have one color each, so that the color of a mixed one shows its shares."""
    if find(f"layers.{name}") is None:
        pytest.skip(f"this version has no {name}")
    colors = np.eye(3, dtype="float32")
    x = np.broadcast_to(colors[:, None, None], (3, 64, 64, 3)).copy()
    wrong = Wrong()
    for seed in range(4):
        with wrong.of(seed):
            given = {"alpha": 2.0} if name == "MixUp" else {"factor": 1.0}
            found = find(f"layers.{name}")(**given, seed=seed)({"images": x, "labels": colors}, training=True)
            shares = np.asarray(found["images"]).mean(axis=(1, 2), dtype="float64")
            # CutMix counts whole pixels in the image.
            np.testing.assert_allclose(found["labels"], shares, rtol=0, atol=1e-5 if name == "MixUp" else 0.04)
    wrong.check()


@pytest.mark.parametrize("fill", [0.75, None])
def test_a_rectangle_is_erased(fill, ddl_strategy):
    kind = find("layers.RandomErasing")
    if kind is None:
        pytest.skip("this version has no RandomErasing")
    found = np.asarray(kind((1.0, 1.0), (0.3, 0.5), fill_value=fill, value_range=(0, 1), seed=3)(UNIT, training=True))
    for image, one in zip(found, UNIT, strict=True):
        rows, columns = np.nonzero((image != one).any(axis=-1))
        assert len(rows)
        part = image[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
        assert part.shape[0] * part.shape[1] == len(rows)
        assert fill is None or (part == fill).all()
        assert 0 <= image.min() <= image.max() <= 1
