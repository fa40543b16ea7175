"""Copy models, layers and other objects in every way, and compare every public attribute that they have.

What a copy computes has other files. Here is all that Python can ask of it, without a list of names: losses, paths,
policies, regularizers, what it was built and compiled with, and what a later version of Keras adds.
"""

from __future__ import annotations

import copy
import inspect
import pickle
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from suites.linear import COPY_WARNING
from suites.parameters.classes import classes
from suites.parameters.spaces import Wrong
from suites.properties.test_every_configuration import ELSEWHERE, WRONG, objects
from suites.properties.test_every_use import MORE
from suites.tables.every_layer import LAYERS, Layer

pytestmark = [
    pytest.mark.ddl(strategies=["one_device"], keras="keras"),
    pytest.mark.ddl_item("saving.keras_file", shows="behavior"),
    pytest.mark.filterwarnings(COPY_WARNING, "ignore:.*HDF5"),
]

EACH = {layer.name: layer for layer in reversed((*LAYERS, *MORE))}
"""Name -> the first layer of the name."""
MODELS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "functional": ("float32", {"trainable": False}),
    "sequential": ("mixed_bfloat16", {}),
    "nested": ("mixed_float16", {}),
    "subclass": ("float64", {}),
}
"""Kind of model -> policy of its layer, and further options. Each layer is in one of them."""
WAYS = ("file", "configuration", "clone", "pickle", "deepcopy")
OF_TRAINING = (
    "stop_training",
    "train_function",
    "test_function",
    "predict_function",
    "iterations",
    "metrics_variables",
)
OF_COMPILE = ("compiled", "loss", "metrics", "metrics_names", "optimizer", "run_eagerly", "steps_per_execution")
OF_COMPILE += ("get_compile_config()", "jit_compile")
"""Attributes that begin anew, and those that a configuration does not have."""
LATER = re.compile(r"is_\w+_calibrated|get_metrics_result|get_state_tree")
"""Attributes that a layer gets with a use of it, and methods that need a training."""
PLACED = ("sequential", "subclass", "RNN", "Bidirectional", "TimeDistributed", "SpectralNormalization")
"""Kinds of models, and layers with others in them, whose paths a test below asks for."""
NUMBERED = re.compile(r"_\d+(?=[/\"'\s]|$)")
"""Number of an object whose name was not given."""


def plain(value: Any, depth: int = 0) -> Any:
    """Return what can be compared of a value. An object is its class and configuration, and a list is a tuple."""
    from suites.subject import keras

    if depth > 12 or value is None or isinstance(value, (bool, int, float, bytes)):
        return value if depth <= 12 else "…"
    if isinstance(value, str):
        return NUMBERED.sub("", value)
    if isinstance(value, keras.Variable):
        own = (value.name, value.trainable, getattr(value, "regularizer", None), str(value.dtype))
        return [type(value).__name__, tuple(value.shape), *(plain(one, depth + 1) for one in own)]
    if isinstance(value, keras.KerasTensor):
        return [value.shape, str(value.dtype), value.sparse]
    if isinstance(value, Mapping):
        return {str(name): plain(one, depth + 1) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one, depth + 1) for one in value]
    if isinstance(value, keras.layers.Layer):
        return type(value).__name__  # a layer of a model is compared itself
    if hasattr(value, "get_config"):
        return [type(value).__name__, plain(value.get_config(), depth + 1)]
    return np.asarray(value).tolist() if hasattr(value, "dtype") else type(value).__name__


def attributes(one: Any) -> dict[str, Any]:
    """Return the public attributes of an object, and what its methods return that need no argument."""
    found = {}
    for name in dir(one):
        if name.startswith("_") or name in OF_TRAINING or LATER.fullmatch(name):
            continue
        try:
            value = getattr(one, name)
            if inspect.ismethod(value):
                if not name.startswith("get_") or any(
                    each.default is each.empty for each in inspect.signature(value).parameters.values()
                ):
                    continue
                name, value = f"{name}()", value()
            found[name] = plain(value)
        except Exception as error:
            found[name] = f"raises {type(error).__name__}"
    return found


def differences(old: Any, new: Any, allowed: tuple[str, ...] = ()) -> list[str]:
    """Return what differs; an attribute that only one of them has differs, too."""
    before, after = attributes(old), attributes(new)
    return [
        f"{type(old).__name__}.{name} was {str(before.get(name, '—'))[:90]}, is {str(after.get(name, '—'))[:90]}"
        for name in sorted({*before, *after} - {*allowed})
        if before.get(name, "—") != after.get(name, "—")
    ]


def holding(keras: Any) -> Any:
    """Return the class of a model of a user, which has one layer."""

    @keras.saving.register_keras_serializable("ddl")
    class Holding(keras.Model):  # type: ignore[misc]
        def __init__(self, layer: Any, several: int = 1, together: bool = False, **options: Any) -> None:
            super().__init__(**options)
            self.layer, self.several, self.together = layer, several, together
            self.flat = keras.layers.Flatten(dtype=layer.dtype_policy)

        def call(self, inputs: Any) -> Any:
            same = [inputs] * self.several
            outputs = self.layer(same) if self.together else self.layer(*same)
            self.add_loss(keras.ops.sum(keras.ops.cast(inputs, "float64")))
            return self.flat(outputs)

        def get_config(self) -> dict[str, Any]:
            own = {"several": self.several, "together": self.together}
            return {**super().get_config(), **own, "layer": keras.saving.serialize_keras_object(self.layer)}

        @classmethod
        def from_config(cls, config: dict[str, Any]) -> Any:
            return cls(keras.saving.deserialize_keras_object(config.pop("layer")), **config)

    return Holding


def built(keras: Any, layer: Layer, kind: str) -> Any:
    """Return a compiled model with a layer that has a name, a policy, and a regularizer of its output."""
    policy, options = MODELS[kind]
    inside = layer.wrapped(keras, policy) if layer.wrapped else {}
    own = (
        {"l2": 0.25}
        if layer.name == "ActivityRegularization"
        else {"activity_regularizer": keras.regularizers.L2(0.25)}
    )
    made = type(layer.make(keras, policy))(**layer.options, **inside, **own, **options, dtype=policy, name="mine")
    flat, given = keras.layers.Flatten(name="flat", dtype=policy), keras.Input(layer.shape, name="given")
    if kind == "subclass":
        model = holding(keras)(made, layer.inputs, layer.together, name="own")
    elif kind == "sequential" and layer.inputs == 1:
        model = keras.Sequential([given, made, flat], name="sequence")
    else:
        model = keras.Model(given, flat(layer.call(made, given)), name="inner")
    if kind == "nested":
        outer = keras.Input(layer.shape, name="outside")
        last = keras.layers.Dense(2, name="last", activity_regularizer="l2", dtype=policy)
        model = keras.Model(outer, last(model(outer)), name="outer")
    model.compile(
        keras.optimizers.Adam(0.25, clipnorm=1.0),
        keras.losses.LogCosh(reduction="sum"),
        metrics=["mae"],
        weighted_metrics=[keras.metrics.MeanSquaredError()],
        run_eagerly=True,
        steps_per_execution=2,
    )
    return model


def every(model: Any) -> list[Any]:
    """Return the model and all layers in it, in the order in which they are found."""
    return [model, *model._flatten_layers(include_self=False)]


def copied(keras: Any, model: Any, way: str, folder: Path) -> Any:
    if way == "file":
        model.save(folder / "model.keras")
        return keras.saving.load_model(folder / "model.keras")
    if way in ("pickle", "deepcopy"):
        return pickle.loads(pickle.dumps(model)) if way == "pickle" else copy.deepcopy(model)
    new = keras.models.clone_model(model) if way == "clone" else type(model).from_config(model.get_config())
    new.build(model.get_build_config()["input_shape"])
    new.set_weights(model.get_weights())
    return new


def cases(name: str) -> Iterator[tuple[str, str]]:
    """Yield a kind of model, and the ways to copy it. Pickle and deepcopy write a file, so few layers need them."""
    number = [*EACH].index(name)
    kind = [*MODELS][number % len(MODELS)]
    for way in WAYS[: 5 if number % 8 < 4 else 3]:
        if kind != "subclass" or way in ("file", "deepcopy"):  # a clone needs layers, and pickle a class in a module
            yield kind, way


def compared(name: str, kind: str, way: str, folder: Path) -> list[str]:
    """Return what differs between a model and its copy, and between their layers."""
    from suites.subject import keras

    layer = EACH[name]
    x = np.random.default_rng(0).integers(1, 4, (2, *layer.shape)).astype("float32")
    model = built(keras, layer, kind)
    model(x)
    model.optimizer.build(model.trainable_variables)
    new = copied(keras, model, way, folder)
    new(x)
    compiles = way not in ("configuration", "clone") or new.compiled  # test_copies.py asks clones for it
    allowed, old_parts, new_parts = () if compiles else OF_COMPILE, every(model), every(new)
    assert [type(one) for one in new_parts] == [type(one) for one in old_parts]
    if kind == "functional" and compiles:  # a penalty of another precision has an entry
        logs = [one.test_on_batch(x, np.zeros(one(x).shape), return_dict=True) for one in (model, new)]
        assert logs[0] == logs[1]
    return [one for pair in zip(old_parts, new_parts, strict=True) for one in differences(*pair, allowed)]


@pytest.mark.parametrize("name", EACH)
def test_a_copy_of_a_model_has_all_attributes(name, ddl_strategy, tmp_path):
    wrong = Wrong()
    for kind, way in cases(name):
        with wrong.of(kind, way):
            elsewhere = {kind, name} & {*PLACED}
            found = [one for one in compared(name, kind, way, tmp_path) if not (elsewhere and ".path was" in one)]
            assert not found, found
    wrong.check()


@pytest.mark.parametrize(("kind", "name"), [("functional", "RNN"), ("sequential", "Dense"), ("subclass", "Dense")])
def test_a_copy_of_a_model_has_the_paths(kind, name, ddl_strategy, tmp_path):
    """Layouts, and rules of quantization, choose layers by their paths."""
    found = [one for one in compared(name, kind, "file", tmp_path) if ".path was" in one]
    assert not found, found


KINDS = ("initializers", "losses", "metrics", "optimizers", "optimizers.schedules", "regularizers", "constraints")


@pytest.mark.filterwarnings("ignore:You passed `rms_scaling:UserWarning")
@pytest.mark.parametrize("kind", [*KINDS, "layers"])
def test_a_copy_of_an_object_has_all_attributes(kind, ddl_strategy):
    """Each parameter is changed once. A layer is not built. A seed that is not given is drawn."""
    wrong, asked, left_out = Wrong(), 0, (*WRONG.get(kind, ()), *ELSEWHERE.get(kind, ()))
    for name, one in classes(kind).items():
        for parameter, value, made in objects(one) if name not in left_out else ():
            with wrong.of(name, f"{parameter}={value!r}"):
                drawn = ("seed", "generator", "seed_generator") if parameter != "seed" else ()
                found = differences(made, type(made).from_config(made.get_config()), drawn)
                asked += 1
                assert not found, found
    wrong.check()
    assert asked
