"""Call each layer of Keras as the tables of the properties have it, in the backend of this process."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from suites.backends.objects import TYPE, Call
from suites.parameters.classes import needed
from suites.parameters.spaces import find
from suites.tables import data_layers
from suites.tables.changed_images import CHANGED
from suites.tables.every_layer import LAYERS, NONE, SERIES, VIDEO

ROWS, COLORED = 4, (6, 6, 3)
LENGTHS = (5, 2, 3, 4)
"""Times of the examples of a series, before the padding."""


def of_table(number: int) -> list[Any]:
    """Return the output of a layer of the table, and its weights afterwards."""
    from suites.subject import keras

    layer = LAYERS[number]
    draw, made = np.random.default_rng(3), layer.make(keras, "float32")
    x = (draw.integers(-15, 16, (ROWS, *layer.shape)) / 8 * layer.scale).astype("float32")
    options: dict[str, Any] = {"training": True} if layer.over_batch else {}
    if layer.mask != NONE and layer.inputs == 1 and "mask" in inspect.signature(made.call).parameters:
        mask = np.arange(layer.shape[0]) < np.array(LENGTHS)[:, None]
        options["mask"] = np.broadcast_to(mask.reshape(*mask.shape, *[1] * (x.ndim - 3)), x.shape[:-1])
    tensor = keras.ops.convert_to_tensor(x)
    layer.call(made, tensor)
    return _answered(made, draw, lambda: layer.call(made, tensor, **options))


def _answered(made: Any, draw: Any, call: Any) -> list[Any]:
    """Give the weights the same numbers in both processes, and return what a call gives, and the weights after it."""
    held = [one for one in made.weights if "float" in str(one.dtype)]
    for one in held:
        one.assign(draw.integers(-15, 16, one.shape) / 16)
    return [call(), *(one.value for one in held)]


def alone(api: str, options: Mapping[str, Any], x: Any, training: bool) -> list[Any]:
    """Return the output of a layer for an array or several, and its weights afterwards."""
    made = find(api)(**options)
    given = {"training": training} if "training" in inspect.signature(made.call).parameters else {}
    made(x, **given)
    return _answered(made, np.random.default_rng(3), lambda: made(x, **given))


def layers(api: str) -> Iterator[Call]:
    """Yield the calls of a layer in the tables, or else those that its parameters suggest."""
    found = [*_listed(api)]
    yield from found
    if found:
        return
    draw = np.random.default_rng(5)
    for shape in (SERIES, COLORED, VIDEO):
        options = {**needed(find(api)), **TYPE}
        x = (draw.integers(0, 2, (ROWS, *shape))).astype("float32")
        yield Call(api, alone, (api, options, x, False), {**options, "rank": len(shape)})


def _listed(api: str) -> Iterator[Call]:
    for number, layer in enumerate(LAYERS):
        if api == f"layers.{layer.name}":
            yield Call(api, of_table, (number,), {**layer.options, "scale of inputs": layer.scale})
    for space in (one for one in data_layers.LAYERS if one.api == api):
        for case in data_layers.cases(space):
            options = {**space.fixed, **{name: case[name] for name in space.varied()}}
            x = data_layers.example(space, case, data_layers.shapes(space)[0])
            yield Call(api, alone, (api, options, x, False), options)
    for changed in (one for one in CHANGED if f"layers.{one.layer}" == api):
        yield Call(api, alone, (api, {**changed.options, **TYPE}, changed.images, True), dict(changed.options))
