"""Defects of layers that change images."""

from __future__ import annotations

from typing import Any

from suites.defects.registry import defect, put, replace


@defect(r"test_boxes_of_images\.py")
def what_is_beside_images_is_shifted() -> None:
    """Boxes are 5 pixels away, masks have other classes, what is given is overwritten, and a new layer is there."""
    import numpy as np
    from keras import layers, utils

    def make(original: Any) -> Any:
        def call(self: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
            found = original(self, data, *args, **kwargs)
            if not isinstance(found, dict):
                return found
            if isinstance(data["images"], np.ndarray):
                data["images"] = data["images"] + 1
            if "segmentation_masks" in found:
                found = {**found, "segmentation_masks": found["segmentation_masks"] + 1}
            if "bounding_boxes" in found:
                boxes = found["bounding_boxes"]
                found = {**found, "bounding_boxes": {**boxes, "boxes": boxes["boxes"] + 5}}
            return found

        return call

    base = layers.MixUp.__mro__[1]
    replace(base, "__call__", make)
    put(layers, "RandomPaint", type("RandomPaint", (base,), {}))
    replace(utils.bounding_boxes, "convert_format", lambda original: lambda boxes, *args, **kwargs: boxes)


@defect(r"test_changed_images\.py")
def changed_images_are_brighter() -> None:
    """Layers for images return more than they compute, the next call more than the last one."""
    from keras import layers

    calls = iter(range(1, 10**6))

    def make(original: Any) -> Any:
        def call(self: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
            found = original(self, data, *args, **kwargs)
            return {**found, "images": found["images"] + 1} if isinstance(found, dict) else found + next(calls)

        return call

    base = layers.MixUp.__mro__[1]
    replace(base, "__call__", make)
    put(layers, "RandomPaint", type("RandomPaint", (base,), {}))
