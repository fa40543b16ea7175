"""Compare operations on values that are sharded over a mesh, and their gradients, with those on the whole values."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from suites.properties.test_dtensor_layouts import layouts, numbers

pytestmark = pytest.mark.ddl(strategies="model_parallel", timeout=120)
COMBINATIONS = 6
"""Number of layouts of the arguments that each operation is tried with."""
Shapes = tuple[tuple[int, ...], ...]


def quarter(shape: tuple[int, ...], number: int = 0) -> np.ndarray[Any, Any]:
    """Return values between -3 and 3, which differ from their neighbours; those of each argument are others."""
    return (numbers(shape) * (number + 3) % 23 - 11) / 4 + number


def operations() -> dict[str, tuple[Callable[..., Any], Shapes]]:
    """Return the operations that layers of Keras are made of, with the shapes of their arguments."""
    import tensorflow as tf

    def normalized(value: Any, scale: Any) -> Any:
        centred = value - tf.reduce_mean(value, -1, keepdims=True)
        return centred * tf.math.rsqrt(tf.reduce_mean(centred * centred, -1, keepdims=True) + 0.5) * scale

    table, wide, picture = (4, 6), (6, 8), (4, 4, 4, 2)
    labels = tf.constant([0, 5, 2, 1])
    return {
        "matmul": (tf.matmul, (table, wide)),
        "matmul_transposed": (lambda a, b: tf.matmul(a, b, transpose_b=True), (table, (8, 6))),
        "matmul_in_batches": (tf.matmul, ((4, 2, 6), (4, 6, 2))),
        "einsum": (lambda a, b: tf.einsum("bij,jk->bik", a, b), ((4, 2, 6), (6, 4))),
        "add_row": (lambda a, b: a + b, (table, (6,))),
        "multiply_column": (lambda a, b: a * b, (table, (4, 1))),
        "sum": (lambda a: tf.reduce_sum(a, 0), (table,)),
        "mean": (lambda a: tf.reduce_mean(a, 1), (table,)),
        "maximum": (lambda a: tf.reduce_max(a, 0), (table,)),
        "minimum_of_all": (tf.reduce_min, (table,)),
        "softmax": (tf.nn.softmax, (table,)),
        "log_softmax": (tf.nn.log_softmax, (table,)),
        "layer_norm": (normalized, (table, (6,))),
        "moments": (lambda a: tf.stack(tf.nn.moments(a, [0])), (table,)),
        "gather_rows": (lambda a: tf.gather(a, tf.constant([3, 0, 5, 3])), ((6, 4),)),
        "segments": (lambda a: tf.math.unsorted_segment_sum(a, tf.constant([0, 1, 0, 1]), 3), (table,)),
        "relu": (tf.nn.relu, (table,)),
        "tanh": (tf.tanh, (table,)),
        "gelu": (tf.nn.gelu, (table,)),
        "transpose": (lambda a: tf.transpose(a, [1, 0]), (table,)),
        "reshape": (lambda a: tf.reshape(a, [4, 6]), ((4, 2, 3),)),
        "concatenate": (lambda a, b: tf.concat([a, b], 1), (table, (4, 2))),
        "stack": (lambda a, b: tf.stack([a, b]), (table, table)),
        "split": (lambda a: tf.split(a, 2, axis=1)[1], ((4, 8),)),
        "slice": (lambda a: a[1:3, 2:5], (table,)),
        "pad": (lambda a: tf.pad(a, [[1, 1], [0, 2]]), (table,)),
        "tile": (lambda a: tf.tile(a, [2, 1]), (table,)),
        "where": (lambda a, b: tf.where(a > 0, a, b), (table, table)),
        "cumulative_sum": (lambda a: tf.cumsum(a, axis=1), (table,)),
        "largest_two": (lambda a: tf.math.top_k(a, 2)[0], (table,)),
        "bias": (tf.nn.bias_add, (picture, (2,))),
        "convolution": (lambda a, b: tf.nn.conv2d(a, b, 1, "SAME"), (picture, (3, 3, 2, 4))),
        "largest_of_windows": (lambda a: tf.nn.max_pool2d(a, 2, 2, "VALID"), (picture,)),
        "cross_entropy": (lambda a, b: tf.nn.softmax_cross_entropy_with_logits(tf.nn.softmax(b), a), (table, table)),
        "cross_entropy_of_labels": (
            lambda a: tf.nn.sparse_softmax_cross_entropy_with_logits(tf.identity(labels), a),
            (table,),
        ),
    }


NAMES = (
    *("matmul", "matmul_transposed", "matmul_in_batches", "einsum", "add_row", "multiply_column"),
    *("sum", "mean", "maximum", "minimum_of_all", "softmax", "log_softmax", "layer_norm", "moments"),
    *("gather_rows", "segments", "relu", "tanh", "gelu", "transpose", "reshape", "concatenate", "stack"),
    *("split", "slice", "pad", "tile", "where", "cumulative_sum", "largest_two", "bias", "convolution"),
    *("largest_of_windows", "cross_entropy", "cross_entropy_of_labels"),
)
SOMETIMES_REFUSED = {
    *("matmul", "layer_norm", "moments", "split", "pad", "tile", "convolution", "largest_of_windows", "einsum"),
    *("matmul_in_batches", "matmul_transposed"),
}
"""Operations for which DTensor documents, or says in its error, that it has no rule for some layouts."""


def chosen(mesh: Any, shapes: Shapes, name: str) -> list[tuple[Any, ...]]:
    """Return layouts of the arguments: those without shards, and a fixed draw from all others."""
    possible = [layouts(mesh, shape) for shape in shapes]
    draw = random.Random(name)
    found = [tuple(each[0] for each in possible)]
    while len(found) < COMBINATIONS:
        found.append(tuple(draw.choice(each) for each in possible))
    return found


def whole(value: Any) -> np.ndarray[Any, Any]:
    from tensorflow.experimental import dtensor

    replicated = dtensor.Layout.replicated(dtensor.fetch_layout(value).mesh, value.shape.rank)
    return np.asarray(dtensor.unpack(dtensor.relayout(value, replicated))[0].numpy())


def with_gradients(function: Callable[..., Any], weights: Any, *arguments: Any) -> Any:
    """Return the value, and the gradients of its sum with weights that differ by position."""
    import tensorflow as tf

    with tf.GradientTape() as tape:
        for argument in arguments:
            tape.watch(argument)
        found = function(*arguments)
        loss = tf.reduce_sum(found * weights)
    gradients = tape.gradient(loss, list(arguments), unconnected_gradients="zero")
    return found, [tf.convert_to_tensor(gradient) for gradient in gradients]


@pytest.mark.ddl_item("dtensor.spmd_ops", "dtensor.spmd_grad", shows="parity")
@pytest.mark.parametrize("name", NAMES)
def test_an_operation_on_shards_is_that_on_the_whole(name, ddl_strategy):
    """DTensor may refuse a layout for which it has no rule, but never returns another value."""
    import tensorflow as tf
    from tensorflow.experimental import dtensor

    mesh = ddl_strategy.mesh
    function, shapes = operations()[name]
    arguments = [quarter(shape, number) for number, shape in enumerate(shapes)]
    plain = [tf.constant(argument) for argument in arguments]
    weights = quarter(tuple(function(*plain).shape), 5)
    expected, gradients = with_gradients(function, tf.constant(weights), *plain)
    for combination in chosen(mesh, shapes, name):
        sharded = [dtensor.relayout(argument, layout) for argument, layout in zip(plain, combination, strict=True)]
        weight = dtensor.copy_to_mesh(tf.constant(weights), dtensor.Layout.replicated(mesh, weights.ndim))
        replicated = all(layout.is_fully_replicated() for layout in combination)
        told = [layout.sharding_specs for layout in combination]
        for part in (function, lambda *given: with_gradients(function, *given)):
            given = sharded if part is function else [weight, *sharded]
            try:
                with dtensor.default_mesh(mesh):
                    found = tf.function(part, autograph=False)(*given)
            except (tf.errors.UnknownError, tf.errors.InvalidArgumentError, tf.errors.UnimplementedError) as error:
                assert name in SOMETIMES_REFUSED, told
                assert not replicated
                assert re.search("error:|DTensor|layout", str(error))  # noqa: PT017
                continue
            pairs = [(found, expected)] if part is function else zip(found[1], gradients, strict=True)
            for value, wanted in pairs:
                # At most 8 terms of size 100, in another order, and a few functions of them.
                np.testing.assert_allclose(
                    whole(value),
                    wanted,
                    rtol=1e3 * np.finfo("float64").eps,
                    atol=1e3 * np.finfo("float64").eps,
                    err_msg=f"{name} of {told}",
                )


REDUCTIONS = {
    "sum": ("int8", "int32", "int64", "bfloat16", "float16", "complex64"),
    "max": ("int8", "int32", "int64", "bfloat16", "float16"),
    "min": ("int8", "int32", "int64", "bfloat16", "float16"),
    "prod": ("int32", "int64", "complex64"),
    "mean": ("int8", "int32", "int64", "bfloat16", "float16", "complex64"),
    "any": ("bool",),
    "all": ("bool",),
}


@pytest.mark.ddl_item("dtensor.reduce_dtypes")
@pytest.mark.parametrize(("name", "dtype"), [(name, dtype) for name, dtypes in REDUCTIONS.items() for dtype in dtypes])
def test_reductions_of_other_dtypes(name, dtype, ddl_strategy):
    """Compare with NumPy. The values are small whole numbers, and powers of two divide all but the integers' sums."""
    import tensorflow as tf
    from tensorflow.experimental import dtensor

    mesh = ddl_strategy.mesh
    values = np.array([[1, 2, 0, 3], [2, 2, 5, 1], [4, 1, 3, 2], [1, 3, 2, 6]])
    values = values > 1 if dtype == "bool" else values
    for layout in layouts(mesh, values.shape):
        sharded = dtensor.relayout(tf.cast(tf.constant(values), dtype), layout)
        for axis in (0, 1, None):
            with dtensor.default_mesh(mesh):
                found = getattr(tf, f"reduce_{name}")(sharded, axis)
            assert found.dtype == dtype
            expected = getattr(np, name)(values, axis=axis)
            if name == "mean" and dtype.startswith("int"):
                expected = values.sum(axis=axis) // (values.size if axis is None else 4)
            result = whole(found)
            result = result if dtype == "bool" else result.astype("complex128" if dtype == "complex64" else "float64")
            np.testing.assert_array_equal(result, expected, err_msg=f"axis {axis} of {layout.sharding_specs}")


@pytest.mark.ddl_item("dtensor.rng", shows="parity")
@pytest.mark.parametrize("name", ["uniform", "normal", "truncated_normal"])
def test_random_numbers_on_a_mesh(name, ddl_strategy):
    """A replicated value is that of one device. Shards draw numbers of their own, the same ones again for a seed."""
    import tensorflow as tf
    from tensorflow.experimental import dtensor

    mesh, shape = ddl_strategy.mesh, (4, 8)
    draw = getattr(tf.random, f"stateless_{name}")
    expected = draw(shape, seed=[3, 5]).numpy()
    assert len(np.unique(expected)) == expected.size
    for layout in layouts(mesh, shape):

        @tf.function(autograph=False)
        def function(seed: Any, layout: Any = layout) -> Any:
            return dtensor.relayout(draw(shape, seed=seed), layout)

        found = []
        for numbers_of_seed in ([3, 5], [3, 5], [3, 6]):
            seed = dtensor.copy_to_mesh(tf.constant(numbers_of_seed), dtensor.Layout.replicated(mesh, 1))
            with dtensor.default_mesh(mesh):
                found.append(function(seed))
        assert dtensor.fetch_layout(found[0]) == layout
        first, again, other = map(whole, found)
        np.testing.assert_array_equal(first, again)
        assert not np.array_equal(first, other)
        assert len(np.unique(first)) == first.size
        if layout.is_fully_replicated():
            # The functions of a normal distribution may differ in the last bits.
            np.testing.assert_allclose(first, expected, rtol=8 * np.finfo("float32").eps)


@pytest.mark.ddl_item("dtensor.rnn_ops")
@pytest.mark.parametrize("axis", ["unsharded", "batch", "model"])
def test_a_recurrence_over_a_list_of_tensors(axis, ddl_cluster):
    ddl_cluster.run(check_a_recurrence, axis)


def check_a_recurrence(axis: str) -> None:
    """Run a loop that keeps each state in a list, as the layer LSTM does, on a batch in shards."""
    import tensorflow as tf
    from tensorflow.experimental import dtensor

    from pytest_ddl import current_strategy

    mesh = current_strategy().mesh
    inputs = quarter((4, 3))

    @tf.function
    def recurrence(value: Any) -> Any:
        states = tf.TensorArray(value.dtype, size=3, element_shape=value.shape)
        state = value
        for step in tf.range(3):
            state = state * 0.5 + value
            states = states.write(step, state)
        return states.stack()

    expected, state = [], inputs
    for _ in range(3):
        state = state * 0.5 + inputs
        expected.append(state)
    with dtensor.default_mesh(mesh):
        found = recurrence(dtensor.relayout(tf.constant(inputs), dtensor.Layout([axis, "unsharded"], mesh)))
    np.testing.assert_array_equal(whole(found), np.stack(expected))
