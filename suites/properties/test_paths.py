"""Ask for the path of every variable of layers in layers: it names all layers around, wherever each one was made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from suites.pairwise import pairwise
from suites.parameters.spaces import Wrong

WHEN = ("init", "build")
"""Methods of a layer in which it makes a variable or an inner layer."""
DIMENSIONS: Mapping[str, tuple[str, ...]] = {
    "inner": WHEN,
    "early": ("no", "yes"),
    "built": ("in build", "by its call"),
    "around": ("no", "model", "model in a model"),
    "place": ("attribute", "list", "dict"),
}
"""Where the inner layer is made, whether it makes a variable at once, and who builds it."""


def layers(keras: Any, case: Mapping[str, str]) -> Any:
    """Return a layer with an inner one, which has three variables and perhaps a fourth."""

    class Inner(keras.layers.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(name="inner")
            if case["early"] == "yes":
                self.early = self.add_weight(shape=(1,), name="early")
            self.dense = keras.layers.Dense(1, name="dense")

        def build(self, shape: Any) -> None:
            self.late = self.add_weight(shape=(1,), name="late")
            self.dense.build(shape)

        def call(self, inputs: Any) -> Any:
            return self.dense(inputs) + self.late

    class Outer(keras.layers.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(name="outer")
            if case["inner"] == "init":
                self.keep()

        def keep(self) -> None:
            one = Inner()
            self.kept = {"attribute": one, "list": [one], "dict": {"one": one}}[case["place"]]

        def one(self) -> Any:
            return {"attribute": lambda: self.kept, "list": lambda: self.kept[0], "dict": lambda: self.kept["one"]}[
                case["place"]
            ]()

        def build(self, shape: Any) -> None:
            if case["inner"] == "build":
                self.keep()
            if case["built"] == "in build":
                self.one().build(shape)

        def call(self, inputs: Any) -> Any:
            return self.one()(inputs)

    return Outer()


@pytest.mark.ddl(strategies=["one_device", "mirrored"], keras="keras")
@pytest.mark.ddl_item("layer.Dense", shows="behavior")
def test_a_path_names_all_layers_around(ddl_strategy):
    """Layouts, and variables without a decay, are chosen by paths. An early variable knows only its own layer."""
    from suites.subject import keras

    wrong = Wrong()
    for case in pairwise(DIMENSIONS, lambda case: True):
        with wrong.of(case), ddl_strategy.scope():
            made, path = layers(keras, case), "outer/inner"
            if case["around"] == "no":
                made(np.ones((1, 2)))
            else:
                model = keras.Sequential([keras.Input((2,)), made], name="model")
                path = f"model/{path}"
                if case["around"] == "model in a model":
                    model = keras.Sequential([keras.Input((2,)), model], name="whole")
            found = {variable.path for variable in made.variables}
            early = {"inner/early" if case["inner"] == "init" else f"{path}/early"} if case["early"] == "yes" else set()
            assert found == {f"{path}/{name}" for name in ("late", "dense/kernel", "dense/bias")} | early
    wrong.check()
