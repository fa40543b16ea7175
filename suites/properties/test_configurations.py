"""Make objects of Keras again from what is written of them: each parameter, name and seed is there again."""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from suites.parameters.spaces import Arguments, Space, Wrong, find
from suites.parameters.table import FILES
from suites.tables.layer_parameters import Made

pytestmark = pytest.mark.usefixtures("float64")

KINDS = ("initializers", "layers", "losses", "metrics", "optimizers", "regularizers", "constraints", "random")
"""Modules whose classes have a configuration."""
OWN = ("metrics.MeanMetricWrapper",)
"""Classes whose parameter is a function of the test, which a reader does not know."""
WITH_GENERATOR = ("RandomNormal", "RandomUniform", "TruncatedNormal", "VarianceScaling", "Orthogonal", "GlorotUniform")
OTHERS = (Space("random.SeedGenerator", {"seed": (3, 11), "name": ("one", "another")}),)


def classes() -> Mapping[str, list[Space]]:
    """Return the classes that properties of other files vary, with their spaces."""
    found: dict[str, list[Space]] = {}
    for one in (*OTHERS, *(one for file in FILES for one in importlib.import_module(f"{__package__}.{file}").SPACES)):
        if one.api.partition(".")[0] in KINDS and one.name[0].isupper() and one.api not in OWN:
            found.setdefault(one.api, []).append(one)
    return found


def again(one: Any) -> Any:
    """Return what a program makes that reads the configuration from a file."""
    from suites.subject import keras

    return keras.saving.deserialize_keras_object(json.loads(json.dumps(keras.saving.serialize_keras_object(one))))


def made(space: Space, case: Arguments) -> Any:
    """Return the object of a case; parts that each object needs for itself, such as cells, are made here."""
    from suites.subject import keras

    given = {**space.fixed, **{name: case[name] for name in space.varied()}}
    given = {name: value.make(keras) if isinstance(value, Made) else value for name, value in given.items()}
    if space.name == "LossScaleOptimizer":
        given["inner_optimizer"] = keras.optimizers.SGD(0.25)
    if space.name == "MultiOptimizer":
        given["optimizer_map"] = keras.optimizers.OptimizerMap(keras.optimizers.SGD(0.25))
    return find(space.api)(**given)


def lost(one: Any, case: Arguments) -> list[str]:
    """Return the parameters that a configuration has with another value, or lacks although they are not the default.

    A value that stands for an object, such as the name of an initializer, is another one there.
    """
    known = inspect.signature(type(one)).parameters
    config = {name: known[name].default for name in case if name in known} | one.get_config()
    told = {name: value for name, value in case.items() if isinstance(value, (int, float)) or name == "name"}
    if case.get("thresholds"):
        told.pop("num_thresholds", None)  # is their number
    # A configuration may hold a number as a list of that number, such as an axis.
    return [name for name, value in told.items() if config[name] is None or not np.all(np.equal(config[name], value))]


def _is_known_to_all(case: Arguments) -> bool:
    """Return whether all versions take the reduction of a case."""
    return case.get("reduction", "sum") in ("sum", "sum_over_batch_size", "none")


CLASSES = classes()


@pytest.mark.ddl(strategies=["one_device"])
@pytest.mark.ddl_item("saving.keras_file", shows="behavior")
@pytest.mark.parametrize("api", CLASSES)
def test_an_object_that_is_read_again_has_the_parameters(api, ddl_strategy):
    """The configuration has each parameter that is a number or a name, and that of the new object is equal."""
    wrong, cases = Wrong(), [(space, case) for space in CLASSES[api] for case in space.cases(also=_is_known_to_all)]
    for space, case in cases:
        if not hasattr(find(api), "from_config"):
            continue
        with wrong.of(case):
            one = made(space, case)
            missing = lost(one, case)
            assert not missing, f"not in the configuration: {missing}"
            other = again(one)
            assert type(other) is type(one)
            assert json.dumps(other.get_config(), default=str) == json.dumps(one.get_config(), default=str)
    wrong.check()


@pytest.mark.ddl(strategies=["one_device"])
@pytest.mark.ddl_item("saving.keras_file", "layer.SeedGenerator_state_per_replica", shows="behavior")
def test_an_initializer_that_is_read_again_has_its_seed(ddl_strategy):
    """The seed may be a number, or a generator, which then begins with its seed again."""
    from suites.subject import keras

    wrong, generator = Wrong(), find("random.SeedGenerator")
    for name in WITH_GENERATOR:
        for seed in (3, generator(3)) if generator else (3,):
            with wrong.of(name, type(seed).__name__):
                one = getattr(keras.initializers, name)(seed=seed)
                copies = [again(one) for _ in range(2)]
                first, second = (np.asarray(copy((4, 4))) for copy in copies)
                np.testing.assert_array_equal(first, second)
                np.testing.assert_array_equal(first, np.asarray(getattr(keras.initializers, name)(seed=3)((4, 4))))
    wrong.check()
