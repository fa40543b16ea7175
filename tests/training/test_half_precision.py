"""Half precision in a run: ulps that casts do not erase, policies replaced in float64, casts that are recorded."""

from __future__ import annotations

from functools import partial

import keras
import numpy as np
import pytest
import tensorflow as tf
import training_programs as programs

from pytest_ddl.training.data import move_by_ulp, prepare, prepare_arrays
from pytest_ddl.training.environment import WidePolicies
from pytest_ddl.training.observers.casts import Casts
from pytest_ddl.training.roundings import longest_chain
from pytest_ddl.training.settings import RunSettings

HALF = [tf.float16, tf.bfloat16]


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("stored", ["float32", "float64"])
def test_every_value_moves_to_a_neighbor_that_a_cast_keeps(dtype, stored):
    values = np.random.default_rng(0).uniform(1, 2, 500) * np.logspace(-3, 3, 500) * (-1) ** np.arange(500)
    values = values.astype(stored)
    moved = move_by_ulp(values, np.random.default_rng(1), dtype.name)
    assert moved.dtype == stored
    before, after = (tf.cast(tf.cast(array, dtype), tf.float64).numpy() for array in (values, moved))
    assert np.all(before != after)
    unit = 2.0**-11 if dtype == tf.float16 else 2.0**-8
    assert np.all(np.abs(moved - values) <= 2 * unit * np.abs(values) * (1 + 1e-6))


@pytest.mark.parametrize("given", [tf.float32, *HALF])
def test_data_moves_by_the_ulp_of_the_half_precision_type(given):
    data = tf.data.Dataset.from_tensors((tf.constant([0.3, 5.7, 2.0], given), tf.constant([1, 2, 3])))
    settings = RunSettings(perturbation=1, ulp_of="bfloat16")
    ((moved, labels),) = prepare(data, settings)
    before = tf.constant([0.3, 5.7, 2.0], given)
    assert moved.dtype == given
    changed = tf.cast(moved, tf.bfloat16) != tf.cast(before, tf.bfloat16)
    assert changed.numpy().tolist() == [True, True, False]  # whole numbers may be labels
    assert labels.numpy().tolist() == [1, 2, 3]


@pytest.mark.parametrize("given", ["dataset", "array"])
def test_data_moves_by_as_many_ulps_as_asked(given):
    before = np.array([0.3, 5.7, 2.0], "float32")
    settings = RunSettings(perturbation=1, ulps=400)
    moved = prepare_arrays(before, settings)
    if given == "dataset":
        ((moved,),) = prepare(tf.data.Dataset.from_tensors((before,)), settings)
    assert (np.abs(moved - before) / np.spacing(before)).tolist() == [400, 400, 0]  # whole numbers may be labels


@pytest.mark.parametrize("flavor", ["keras", "tf_keras"])
@pytest.mark.parametrize("wide", ["float64", "float32"])
def test_policies_keep_their_names_and_compute_in_a_wider_type(flavor, wide):
    module = keras if flavor == "keras" else pytest.importorskip("tf_keras")
    policy = module.mixed_precision.Policy if flavor == "tf_keras" else module.DTypePolicy
    with WidePolicies(wide) as policies:
        policies.widen(module)
        mixed, integer = policy("mixed_float16"), policy("int32")
        assert (mixed.name, mixed.compute_dtype, mixed.variable_dtype) == ("mixed_float16", wide, wide)
        assert policy("float32").compute_dtype == wide
        assert integer.compute_dtype == "int32"
        layer = module.layers.Dense(3, dtype="mixed_bfloat16")
        layer.build((None, 2))
        assert layer(np.ones((1, 2), "float32")).dtype == wide
    assert policies.names == {"mixed_float16", "mixed_bfloat16"}
    assert policy("mixed_float16").compute_dtype == "float16"


@pytest.mark.parametrize("wide", ["native", "float64", "float32"])
def test_casts_to_half_precision_give_the_wider_type(wide):
    with WidePolicies(wide) as policies:
        policies.widen_casts()
        found = [tf.cast([0.1, 1.0], "bfloat16"), tf.saturate_cast([0.1], tf.float16), tf.cast([0.1], tf.float64)]
        expected = ["bfloat16", "float16"] if wide == "native" else [wide, wide]
        assert [one.dtype.name for one in found] == [*expected, "float64"]
        with tf.GradientTape() as tape:
            x = tf.Variable([0.1])
            y = tf.cast(tf.cast(x, tf.float16) * 2, tf.float32)
        assert tape.gradient(y, x).dtype == tf.float32
    assert policies.names == (set() if wide == "native" else {"casts to bfloat16", "casts to float16"})
    assert tf.cast(0.1, tf.float16).dtype == tf.float16


def test_half_precision_operations_in_a_row_are_counted_in_functions_too():
    @tf.function
    def inner(x):
        return tf.exp(x * x)

    @tf.function
    def outer(x):
        half = tf.reshape(tf.cast(x, tf.float16), [4])
        return tf.cast(inner(half) + half, tf.float32) * 2.0

    definition = outer.get_concrete_function(tf.ones([2, 2])).graph.as_graph_def()
    functions = {function.signature.name: function for function in definition.library.function}
    # The cast, the product, the exponential and the sum round to float16; the reshape and what is float32 do not.
    assert longest_chain(definition.node, functions) == 4


@pytest.mark.slow
@pytest.mark.parametrize("eager", [False, True])
def test_casts_in_the_step_are_told_from_those_around_it(ranks, eager):
    (record,) = ranks("one_device", partial(programs.casts, eager=eager), global_batch_size=8, steps=2)
    assert set(record.casts) == {"float16"}
    assert set(record.casts_around) == {"bfloat16"}
    assert bool(record.graphs and record.graphs[0].half) is not eager


def test_casts_that_float32_may_round_are_noted_within_and_after_a_dispatch():
    observer = Casts.__new__(Casts)
    wide = tf.constant([0.1, 0.2], tf.float64)
    with observer.installed():
        tf.cast(wide, tf.float32)  # of the data
        observer.before_dispatch(False)
        for exact in (0.75, 12.0):
            tf.cast(tf.constant(exact), tf.float64)
        assert "facts" not in observer.end_run()
        tf.cast(tf.constant(1 / 3), tf.float64)
        tf.function(lambda: wide * np.float32(1 / 3) * np.float32(0.5) * (1 / 7))()
        casts, (third,) = observer.end_run()["facts"]["single"]
        assert casts == 0
        assert not observer.end_run()["facts"]["narrowed"]
        observer.after_dispatch()
        tf.cast(wide, tf.float32)
        assert observer.end_run()["facts"]["narrowed"]
        list(tf.data.Dataset.from_tensors(wide).map(lambda x: tf.cast(tf.cast(x, tf.float32), tf.float64)))
        assert observer.end_run()["facts"]["single"] == (1, [third])


@pytest.mark.parametrize("eager", [False, True])
def test_a_cast_after_a_failed_replica_function_is_not_in_it(ranks, eager):
    (record,) = ranks("one_device", partial(programs.casts_after_a_failure, eager=eager), global_batch_size=8, steps=2)
    assert set(record.casts) == set()
    assert set(record.casts_around) == {"bfloat16"}
