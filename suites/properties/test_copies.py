"""Copy a trained model in every way: the copy gives the same numbers, and trains on as the model does."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from suites import subject
from suites.pairwise import pairwise
from suites.parameters.spaces import Wrong

pytestmark = [
    pytest.mark.usefixtures("float64"),
    pytest.mark.filterwarnings("ignore:.*HDF5"),
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

ROWS, FEATURES, RATE = 4, 3, 0.125
PLACES = ("attribute", "list", "tuple", "dict", "list of lists", "dict of lists", "list of dicts", "layer of a layer")
"""Containers in which a layer of a user keeps its two inner layers."""
MODELS = ("functional", "sequential", "subclass", "model in a model", "three models in each other", "shared layer")
OF_USERS = "checkpoint of a user's model"
WAYS = (
    "keras file",
    "weights file",
    "set_weights",
    "clone",
    "clone in depth",
    "checkpoint",
    OF_USERS,
    "configuration",
    "shards",
    "pickle",
    "deepcopy",
)
NESTED = ("list of lists", "dict of lists", "list of dicts")
OF_FILES = ("keras file", "weights file", "pickle", "deepcopy")
DIMENSIONS: Mapping[str, tuple[str, ...]] = {"place": PLACES, "model": MODELS, "way": WAYS}


def allowed(case: Mapping[str, str]) -> bool:
    """Return whether choices go together: a model of a user has no configuration of layers, which a clone needs."""
    if case.get("way") == OF_USERS:  # has an entry
        return case.get("model", "subclass") == "subclass"
    if subject.name() == subject.TF_KERAS and case.get("place") in NESTED and case.get("way") in OF_FILES:
        return False  # has an entry
    # A file that pickle writes names classes of modules, and those of users are made in the test.
    return case.get("model") != "subclass" or case.get("way") not in (
        *("clone", "clone in depth", "configuration", "checkpoint", "pickle"),
    )


def classes(keras: Any) -> tuple[Any, Any]:
    """Return a layer that keeps others, and a model, which files name."""

    @keras.saving.register_keras_serializable("ddl")
    class Keeping(keras.layers.Layer):  # type: ignore[misc]
        """Two layers, and a count of its calls in training."""

        def __init__(self, place: str, **options: Any) -> None:
            super().__init__(**options)
            self.place = place
            first, second = keras.layers.Dense(2, "tanh"), keras.layers.Dense(FEATURES)
            self.kept: Any = {
                "attribute": lambda: first,
                "list": lambda: [first, second],
                "tuple": lambda: (first, second),
                "dict": lambda: {"zebra": first, "ant": second},
                "list of lists": lambda: [[first], [second]],
                "dict of lists": lambda: {"both": [first, second]},
                "list of dicts": lambda: [{"one": first}, {"one": second}],
                "layer of a layer": lambda: [keras.Sequential([first, second])],
            }[place]()
            if place == "attribute":
                self.other = second

        def inner(self) -> list[Any]:
            """Return the layers in the order in which they are called."""
            found, kept = [], self.kept
            if self.place == "layer of a layer":
                return list(kept[0].layers)

            def collect(one: Any) -> None:
                if isinstance(one, dict):
                    one = list(one.values())
                if isinstance(one, (list, tuple)):
                    for part in one:
                        collect(part)
                else:
                    found.append(one)

            collect(kept)
            return [*found, self.other] if self.place == "attribute" else found

        def build(self, shape: Any) -> None:
            for layer in self.kept if self.place == "layer of a layer" else self.inner():
                layer.build(shape)
                shape = (*tuple(shape)[:-1], getattr(layer, "units", FEATURES))
            self.count = self.add_weight(shape=(), initializer="zeros", trainable=False, name="count")
            super().build(shape)

        def call(self, inputs: Any, training: bool = False) -> Any:
            values = inputs
            for layer in self.inner():
                values = layer(values)
            if training:
                self.count.assign_add(1.0)
            return inputs + values

        def get_config(self) -> dict[str, Any]:
            return {**super().get_config(), "place": self.place}

    @keras.saving.register_keras_serializable("ddl")
    class Own(keras.Model):  # type: ignore[misc]
        def __init__(self, place: str, **options: Any) -> None:
            super().__init__(**options)
            self.place = place
            self.parts = [Keeping(place), keras.layers.BatchNormalization(), keras.layers.Dense(1)]

        def call(self, inputs: Any, training: bool = False) -> Any:
            values = self.parts[1](self.parts[0](inputs, training=training), training=training)
            return self.parts[2](values)

        def get_config(self) -> dict[str, Any]:
            return {**super().get_config(), "place": self.place}

    return Keeping, Own


def built(keras: Any, case: Mapping[str, str]) -> Any:
    """Return the model of a case."""
    keeping, own = classes(keras)
    place, kind = case["place"], case["model"]
    if kind == "subclass":
        model = own(place)
        model(np.zeros((ROWS, FEATURES)))
        return model
    layers = [keeping(place), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
    if kind == "sequential":
        return keras.Sequential([keras.Input((FEATURES,)), *layers])
    inputs = keras.Input((FEATURES,))
    values = layers[0](inputs)
    if kind == "shared layer":
        return keras.Model(inputs, layers[2](layers[1](layers[0](values))))
    if kind == "functional":
        return keras.Model(inputs, layers[2](layers[1](values)))
    inner = keras.Model(inputs, layers[1](values), name="inner")
    if kind == "three models in each other":
        middle = keras.Input((FEATURES,))
        inner = keras.Model(middle, inner(middle), name="middle")
    outer = keras.Input((FEATURES,))
    return keras.Model(outer, layers[2](inner(outer)))


def layers_of(keras: Any, model: Any) -> list[Any]:
    """Return the layers of a model, and of the models in it, but for those that stand for its inputs."""
    found = []
    for layer in model.layers:
        inner = layers_of(keras, layer) if isinstance(layer, keras.Model) else [layer]
        found += [one for one in inner if not isinstance(one, keras.layers.InputLayer)]
    return found


def compiled(keras: Any, model: Any) -> Any:
    model.compile(keras.optimizers.SGD(RATE, momentum=0.5), "mse", run_eagerly=True, jit_compile=False)
    return model


def copied(keras: Any, model: Any, case: Mapping[str, str], folder: Path) -> tuple[Any, bool]:
    """Return a copy, and whether it has the state of the optimizer too."""
    import tensorflow as tf

    def as_new() -> Any:
        """Return the model before its training, with other weights."""
        keras.utils.set_random_seed(99)
        new = compiled(keras, built(keras, case))
        new.optimizer.build(new.trainable_variables)
        return new

    def of_file() -> Any:
        model.save(folder / "model.keras")
        return keras.saving.load_model(folder / "model.keras")

    def of_weights(**options: Any) -> Any:
        name = "model.weights.json" if options else "model.weights.h5"
        model.save_weights(str(folder / name), **options)
        new = as_new()
        new.load_weights(str(folder / name))
        return new

    def of_checkpoint() -> Any:
        path = tf.train.Checkpoint(model=model).save(str(folder / "checkpoint"))
        new = as_new()
        tf.train.Checkpoint(model=new).restore(path).assert_consumed()
        return new

    def cloned() -> Any:
        new = keras.models.clone_model(model)
        if subject.compiles_clones():
            assert new.compiled
            assert new.optimizer.get_config() == model.optimizer.get_config()
        return with_weights(new)

    def cloned_in_depth() -> Any:
        """Make each layer of all models by a function, which must get it."""
        seen = []

        def remade(layer: Any) -> Any:
            seen.append(layer.name)
            return type(layer).from_config(layer.get_config())

        new = keras.models.clone_model(model, clone_function=remade, recursive=True)
        assert {one.name for one in layers_of(keras, model)} <= set(seen)
        return with_weights(new)

    def with_weights(new: Any) -> Any:
        new.set_weights(model.get_weights())
        return compiled(keras, new)

    ways: Mapping[str, tuple[Callable[[], Any], bool]] = {
        "keras file": (of_file, True),
        "weights file": (of_weights, True),
        "shards": (lambda: of_weights(max_shard_size=2e-7), True),
        "set_weights": (lambda: with_weights(as_new()), False),
        "clone": (cloned, False),
        "clone in depth": (cloned_in_depth, False),
        "checkpoint": (of_checkpoint, True),
        OF_USERS: (of_checkpoint, True),
        "configuration": (lambda: with_weights(type(model).from_config(model.get_config())), False),
        "pickle": (lambda: pickle.loads(pickle.dumps(model)), True),
        "deepcopy": (lambda: copy.deepcopy(model), True),
    }
    make, whole = ways[case["way"]]
    return make(), whole


def examples(seed: int) -> tuple[Any, Any]:
    draw = np.random.default_rng(seed)
    return draw.normal(size=(ROWS, FEATURES)), draw.normal(size=(ROWS, 1))


@pytest.mark.ddl(strategies=["one_device"])
@pytest.mark.ddl_item("saving.keras_file", "saving.weights_h5", "saving.tf_checkpoint", shows="behavior")
@pytest.mark.parametrize("way", WAYS)
def test_a_copy_of_a_model_trains_on_as_the_model_does(way, ddl_strategy, tmp_path):
    """Its weights are those of the model and its own: what one trains does not change the other."""
    wrong = Wrong()
    for number, case in enumerate(pairwise(DIMENSIONS, allowed)):
        if case["way"] == way:
            with wrong.of(case), ddl_strategy.scope():
                trains_on(case, number, tmp_path)
    wrong.check()


@pytest.mark.ddl(strategies=["one_device"])
@pytest.mark.ddl_item("saving.keras_file", "saving.weights_h5", shows="behavior")
@pytest.mark.parametrize("way", OF_FILES)
def test_a_file_has_the_layers_in_containers_of_containers(way, ddl_strategy, tmp_path):
    wrong = Wrong()
    for number, place in enumerate(NESTED):
        case = {"place": place, "model": "functional", "way": way}
        with wrong.of(case), ddl_strategy.scope():
            trains_on(case, number, tmp_path)
    wrong.check()


def trains_on(case: Mapping[str, str], number: int, path: Path) -> None:
    """Train a model and its copy, and compare them."""
    from suites.subject import keras

    folder = path / str(number)
    folder.mkdir()
    keras.utils.set_random_seed(number)
    model = compiled(keras, built(keras, case))
    for seed in (1, 2):
        model.train_on_batch(*examples(seed))
    new, whole = copied(keras, model, case, folder)
    before = model.get_weights()
    same(new.get_weights(), before)
    x = examples(3)[0]
    np.testing.assert_array_equal(new.predict_on_batch(x), model.predict_on_batch(x))
    new.train_on_batch(*examples(4))
    same(model.get_weights(), before)
    if whole:
        model.train_on_batch(*examples(4))
        same(new.get_weights(), model.get_weights())


INPUTS: Mapping[str, Any] = {"optional": True, "dtype": "int32", "batch_size": ROWS, "sparse": True, "name": "own"}
"""Option of an input -> a value that is not the default."""


def told(keras: Any, model: Any) -> list[dict[str, Any]]:
    """Return what the inputs of a model are. A clone may name them anew, unless the user has named them."""
    found = [one for one in model.layers if isinstance(one, keras.layers.InputLayer)]
    names = ("optional", "dtype", "batch_shape", "sparse")
    own = [{"name": one.name} if one.name == INPUTS["name"] else {} for one in found]
    return [name | {key: getattr(one, key) for key in names} for one, name in zip(found, own, strict=True)]


# tf_keras keeps what its inputs are elsewhere: nobody has written that yet.
@pytest.mark.ddl(strategies=["one_device"], keras="keras")
@pytest.mark.ddl_item("saving.keras_file", shows="behavior")
@pytest.mark.parametrize("way", ["keras file", "clone", "configuration", "pickle"])
@pytest.mark.parametrize("option", INPUTS)
def test_a_copy_takes_the_same_inputs(option, way, ddl_strategy, tmp_path):
    """An input may be left out, sparse, of a type, or of a number of rows."""
    from suites.subject import keras

    @keras.saving.register_keras_serializable("ddl")
    class Left(keras.layers.Layer):  # type: ignore[misc]
        """Return the sum of an input, or ones without it."""

        def call(self, own: Any) -> Any:
            return keras.ops.ones((ROWS, 1)) if own is None else keras.ops.sum(own, axis=-1, keepdims=True)

        def compute_output_shape(self, shape: Any) -> Any:
            return (*shape[:-1], 1)

    def of_file() -> Any:
        model.save(tmp_path / "model.keras")
        return keras.saving.load_model(tmp_path / "model.keras")

    own = keras.Input((FEATURES,), **{option: INPUTS[option]})
    model = keras.Model(own, Left()(own))
    new = {
        "keras file": of_file,
        "clone": lambda: keras.models.clone_model(model),
        "configuration": lambda: keras.Model.from_config(model.get_config()),
        "pickle": lambda: pickle.loads(pickle.dumps(model)),
    }[way]()
    assert told(keras, new) == told(keras, model)
    if option == "optional":
        np.testing.assert_array_equal(new(None), model(None))


def same(found: Any, expected: Any) -> None:
    assert [one.shape for one in found] == [one.shape for one in expected]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
