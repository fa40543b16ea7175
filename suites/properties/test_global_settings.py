"""Set the defaults of Keras, and compare each object with one that gets the same values as arguments.

What is read again later keeps what it was made with, also when another setting holds then.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from suites.linear import COPY_WARNING
from suites.parameters.classes import classes, needed, parameters
from suites.parameters.spaces import Wrong
from suites.properties.test_every_configuration import WRONG
from suites.properties.test_every_use import MORE
from suites.properties.test_kept_attributes import NUMBERED, differences
from suites.tables.every_layer import LAYERS

pytestmark = [
    pytest.mark.ddl(strategies=["one_device"], keras="keras"),
    pytest.mark.ddl_item("precision.mixed_float16", "precision.mixed_bfloat16", shows="behavior"),
    pytest.mark.filterwarnings(COPY_WARNING),
]

POLICIES = ("mixed_float16", "mixed_bfloat16", "float64", "float16")
TYPES = ("float64", "float16", "bfloat16")
DRAWN = ("seed", "generator", "seed_generator", "name", "path")
"""Attributes that are new for each object."""
LEFT_OUT = ("Lambda", "InputSpec", "InputLayer", "RandomCrop", "MeanMetricWrapper")
"""They hold any function, are no layers, or draw a seed that is written."""
OWN_TYPE = ("IntegerLookup", "StringLookup", "TextVectorization", "Discretization", "Hashing", "HashedCrossing")
OWN_TYPE += ("CategoryEncoding",)
"""Layers whose dtype is that of their result."""
NOT_WRITTEN = ("SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D")
"""Layers that write the dtype of their variables in place of their policy: the tests have an entry for each."""
COUNTING = ("AUC", "Precision", "Recall", "PrecisionAtRecall", "RecallAtPrecision", "SensitivityAtSpecificity")
COUNTING += (
    "SpecificityAtSensitivity",
    "TruePositives",
    "TrueNegatives",
    "FalsePositives",
    "FalseNegatives",
    "R2Score",
)
"""Metrics that count in the type that holds for the program: the tests have an entry for each."""
EACH = {layer.name: layer for layer in reversed((*LAYERS, *MORE))}


@contextmanager
def setting(name: str, value: str) -> Iterator[None]:
    """Set a default of Keras inside the body. What a program sets later does not change what exists."""
    from suites.subject import keras

    read, write = getattr(keras.config, name), getattr(keras.config, f"set_{name}")
    before = read()
    write(value)
    try:
        yield
    finally:
        write(before)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_layer_follows_the_policy(policy, ddl_strategy):
    """A layer made under a policy equals one that gets it as an argument, also when it is read under another policy."""
    wrong, asked = Wrong(), 0
    for name, kind in classes("layers").items():
        if name in (*LEFT_OUT, *OWN_TYPE, *NOT_WRITTEN):
            continue
        with wrong.of(name):
            try:
                told = kind(**needed(kind), dtype=policy)
            except TypeError:
                continue  # it needs other layers: the test of types has it
            with setting("dtype_policy", policy):
                made = kind(**needed(kind))
                read = kind.from_config(made.get_config())
            for other in (made, read, kind.from_config(made.get_config())):
                found = differences(told, other, DRAWN)
                assert not found, found
                asked += 1
    wrong.check()
    assert asked > 250


@pytest.mark.parametrize("name", NOT_WRITTEN)
def test_a_layer_writes_its_policy(name, ddl_strategy):
    from suites.subject import keras

    layer = getattr(keras.layers, name)
    made = layer(0.5, dtype="mixed_float16")
    assert layer.from_config(made.get_config()).dtype_policy.name == made.dtype_policy.name


def test_a_layer_follows_the_format_of_images(ddl_strategy):
    from suites.subject import keras

    wrong, asked = Wrong(), 0
    for name, kind in classes("layers").items():
        if "data_format" not in parameters(kind) or name in LEFT_OUT:
            continue
        for order, other in (("channels_first", "channels_last"), ("channels_last", "channels_first")):
            with wrong.of(name, order):
                told = kind(**needed(kind), data_format=order)
                with setting("image_data_format", order):
                    made = kind(**needed(kind))
                found = differences(told, made, DRAWN)
                if name not in WRONG["layers"]:  # which have an entry
                    with setting("image_data_format", other):
                        found += differences(told, kind.from_config(made.get_config()), DRAWN)
                assert not found, found
                if name in EACH and EACH[name].inputs == 1:
                    shape = (2, *EACH[name].shape)
                    with setting("image_data_format", other):
                        assert made.compute_output_shape(shape) == told.compute_output_shape(shape)
                        assert made(keras.KerasTensor(shape)).shape == told(keras.KerasTensor(shape)).shape
                asked += 1
    wrong.check()
    assert asked


@pytest.mark.parametrize("kind", ["losses", "metrics"])
def test_an_object_follows_the_type_of_numbers(kind, ddl_strategy):
    """Metrics of overlaps count in integers unless an argument says another type."""
    wrong, asked = Wrong(), 0
    for name, one in classes(kind).items():
        if name in LEFT_OUT or name.endswith("IoU") or "dtype" not in parameters(one):
            continue
        for dtype in TYPES:
            with wrong.of(name, dtype):
                told = one(**needed(one), dtype=dtype)
                with setting("floatx", dtype):
                    made = one(**needed(one))
                assert made.dtype == told.dtype == dtype
                if kind == "metrics" and name not in COUNTING:
                    types = {str(each.dtype) for each in (*told.variables, *made.variables)}
                    assert types <= {dtype, "int32"}, types
                    assert one.from_config(made.get_config()).dtype == dtype
                asked += 1
    wrong.check()
    assert asked


def test_a_loss_is_read_with_its_type(ddl_strategy):
    wrong = Wrong()
    for name, one in classes("losses").items():
        if "dtype" in parameters(one) and name != "Loss":
            with wrong.of(name):
                assert one.from_config(one(**needed(one), dtype="float64").get_config()).dtype == "float64"
    wrong.check()


@pytest.mark.parametrize("name", COUNTING)
def test_a_metric_counts_in_its_type(name, ddl_strategy):
    """float32 cannot count beyond 2 ** 24."""
    from suites.subject import keras

    kind = getattr(keras.metrics, name)
    made = kind(**needed(kind), dtype="float64")
    assert {one.dtype for one in made.variables} == {"float64"}


@pytest.mark.parametrize("name", EACH)
def test_a_layer_computes_as_the_policy_says(name, ddl_strategy):
    """Symbols, arrays and variables have the types and names of the layer that gets the policy as an argument."""
    import tensorflow as tf

    from suites.subject import keras

    layer, wrong = EACH[name], Wrong()
    for policy in POLICIES:
        with wrong.of(policy):
            inside = layer.wrapped(keras, policy) if layer.wrapped else {}
            told = layer.make(keras, policy)
            with setting("dtype_policy", policy):
                made = type(told)(**layer.options, **inside)
            x = np.ones((2, *layer.shape), "float32")
            outputs, types, shown = [], [], []
            for one in (told, made):
                shown.append([str(each.dtype) for each in tf.nest.flatten(layer.call(one, keras.KerasTensor(x.shape)))])
                outputs.append([each.dtype.name for each in tf.nest.flatten(layer.call(one, tf.constant(x)))])
                types.append([(NUMBERED.sub("", each.name), str(each.dtype)) for each in one.variables])
            assert outputs[0] == outputs[1] == shown[0] == shown[1]
            assert types[0] == types[1]
    wrong.check()


@pytest.mark.parametrize("name", EACH)
def test_names_say_where_a_layer_is(name, ddl_strategy):
    """The operations of a layer are in its scope, and so are variables that are made in a scope of the program."""
    import tensorflow as tf

    from suites.subject import keras

    layer = EACH[name]
    made = layer.make(keras, "float32")
    made.name = "mine"
    with keras.name_scope("outer"):
        layer.call(made, tf.ones((2, *layer.shape)))
    function = tf.function(lambda x: layer.call(made, x)).get_concrete_function(tf.TensorSpec((2, *layer.shape)))
    plumbing = ("Placeholder", "Identity", "NoOp", "Const")
    names = [one.name for one in function.graph.get_operations() if one.type not in plumbing]
    if not layer.options.get("mask_zero"):  # whose mask is computed beside
        assert not [one for one in names if not one.startswith("mine")], names
    own = [one.path for one in made.weights]
    assert not [path for path in own if "mine" not in path.split("/")], own
