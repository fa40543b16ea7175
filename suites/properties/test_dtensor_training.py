"""Test variables, checkpoints and datasets of DTensor, and training in shards against the formula of SGD in NumPy."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from suites.properties.test_dtensor_layouts import check_pieces, layouts, numbers
from suites.properties.test_dtensor_operations import quarter, whole

pytestmark = pytest.mark.ddl(strategies=["model_parallel"], timeout=60)


def variable(value: Any, layout: Any) -> Any:
    import tensorflow as tf
    from tensorflow.experimental import dtensor

    return dtensor.DVariable(dtensor.relayout(tf.constant(value), layout))


@pytest.mark.ddl_item("dtensor.variable")
def test_assignments_to_variables_in_shards(ddl_strategy):
    import tensorflow as tf
    from tensorflow.experimental import dtensor

    mesh, values = ddl_strategy.mesh, numbers((4, 6))
    for layout in layouts(mesh, values.shape):
        made = variable(values, layout)
        assert made.layout == layout
        check_pieces(made.read_value(), values, layout)
        delta = dtensor.relayout(tf.constant(values * 3 + 1), layout)
        made.assign_add(delta)
        check_pieces(made.read_value(), values * 4 + 1, layout)
        made.assign_sub(delta)
        made.assign(dtensor.relayout(made.read_value() * 2.0, layout))

        @tf.function(autograph=False)
        def step(own: Any, made: Any = made) -> None:
            made.assign_add(own)

        step(delta)
        check_pieces(made.read_value(), values * 5 + 1, layout)


@pytest.mark.ddl_item("dtensor.variable")
def test_assignments_of_other_layouts_and_shapes(ddl_strategy):
    """A value with another layout gets the variable's. One of another shape, or off the mesh, is refused."""
    import tensorflow as tf
    from tensorflow.experimental import dtensor

    mesh, values = ddl_strategy.mesh, numbers((4, 6))
    layout = dtensor.Layout(["batch", "model"], mesh)
    made = variable(values, layout)
    for wrong in (dtensor.relayout(tf.zeros([4, 4], tf.float64), layout), tf.zeros([4, 6], tf.float64)):
        with pytest.raises((ValueError, tf.errors.UnimplementedError)):
            made.assign(wrong)
        check_pieces(made.read_value(), values, layout)
    for number, other in enumerate(layouts(mesh, values.shape), start=2):
        made.assign(dtensor.relayout(tf.constant(values * number), other))
        made.assign_add(dtensor.relayout(tf.constant(values), other))
        check_pieces(made.read_value(), values * (number + 1), layout)


@pytest.mark.ddl_item("dtensor.variable")
def test_variables_that_are_saved_in_half_the_bytes(ddl_strategy, tmp_path):
    """The file holds bfloat16, and the variable gets back what this rounds to."""
    import tensorflow as tf
    from tensorflow.experimental import dtensor

    mesh = ddl_strategy.mesh
    values = numbers((4, 6), "float32") + np.float32(1 / 3)
    layout = dtensor.Layout(["batch", "model"], mesh)
    made = variable(values, layout)
    made.save_as_bf16 = True
    path = tf.train.Checkpoint(v=made).write(str(tmp_path / "half"))
    stored = tf.train.load_variable(path, "v/.ATTRIBUTES/VARIABLE_VALUE")
    assert stored.dtype == tf.bfloat16.as_numpy_dtype
    rounded = values.astype(tf.bfloat16.as_numpy_dtype).astype("float32")
    other = variable(np.zeros_like(values), layout)
    other.save_as_bf16 = True
    tf.train.Checkpoint(v=other).read(path)
    check_pieces(other.read_value(), rounded, layout)


@pytest.mark.ddl_item("dtensor.checkpoint")
@pytest.mark.parametrize("kind", ["Checkpoint", "DTensorCheckpoint"])
def test_a_checkpoint_goes_to_other_layouts(kind, ddl_strategy, tmp_path):
    """Every other layout and plain TensorFlow load what one layout saved; the layout loads what they saved."""
    import tensorflow as tf
    from tensorflow.experimental import dtensor

    mesh, values = ddl_strategy.mesh, numbers((4, 6))

    def checkpoint(made: Any) -> Any:
        return dtensor.DTensorCheckpoint(mesh, v=made) if kind == "DTensorCheckpoint" else tf.train.Checkpoint(v=made)

    possible = layouts(mesh, values.shape)
    for number, layout in enumerate(possible):
        path = checkpoint(variable(values + number, layout)).save(str(tmp_path / str(number)))
        loaded = variable(np.zeros_like(values), possible[-1 - number])
        checkpoint(loaded).restore(path)
        check_pieces(loaded.read_value(), values + number, possible[-1 - number])
        plain = tf.Variable(np.zeros_like(values))
        tf.train.Checkpoint(v=plain).read(path).assert_existing_objects_matched()
        np.testing.assert_array_equal(plain.numpy(), values + number)
    path = tf.train.Checkpoint(v=tf.Variable(values * 5)).save(str(tmp_path / "plain"))
    for layout in possible:
        loaded = variable(np.zeros_like(values), layout)
        checkpoint(loaded).restore(path)
        check_pieces(loaded.read_value(), values * 5, layout)


@pytest.mark.ddl_item("dtensor.dataset")
@pytest.mark.parametrize("already", [False], ids=["examples"])
@pytest.mark.parametrize("prefetch", [None, 2])
def test_a_dataset_gives_global_batches(already, prefetch, ddl_strategy):
    """Whole batches come in order, each once."""
    import tensorflow as tf
    from tensorflow.experimental import dtensor

    mesh = ddl_strategy.mesh
    inputs, targets = numbers((22, 4)), numbers((22,), "int32")
    layout = {
        "inputs": dtensor.Layout(["batch", "model"], mesh),
        "targets": dtensor.Layout.batch_sharded(mesh, "batch", 1),
    }
    dataset = tf.data.Dataset.from_tensor_slices({"inputs": inputs, "targets": targets})
    if already:
        dataset = dataset.batch(2, drop_remainder=True)
    made = dtensor.DTensorDataset(
        dataset,
        mesh=mesh,
        layouts=layout,
        global_batch_size=4,
        dataset_already_batched=already,
        batch_dim="batch",
        prefetch=prefetch,
    )
    assert tuple(made.element_spec["inputs"].shape) == (4, 4)
    # The end of a dataset disturbs what comes after it: see the next test.
    number = 0
    for number, batch in enumerate(itertools.islice(made, 5), start=1):
        rows = slice(4 * number - 4, 4 * number)
        check_pieces(batch["inputs"], inputs[rows], layout["inputs"])
        check_pieces(batch["targets"], targets[rows], layout["targets"])
    assert number == 5


@pytest.mark.ddl_item("dtensor.dataset", shows="behavior")
def test_datasets_that_are_refused(ddl_strategy):
    import tensorflow as tf
    from tensorflow.experimental import dtensor

    mesh = ddl_strategy.mesh
    dataset = tf.data.Dataset.range(10)

    def make(source: Any, specs: list[str], **options: Any) -> Any:
        given = {"global_batch_size": 4, "batch_dim": "batch", **options}
        return dtensor.DTensorDataset(source, mesh=mesh, layouts=dtensor.Layout(specs, mesh), **given)

    with pytest.raises(ValueError, match="batch"):
        make(dataset, ["unsharded"])
    with pytest.raises(ValueError, match=r"[Rr]ank"):
        make(dataset, ["batch", "unsharded"])
    with pytest.raises(ValueError, match="batch_size"):
        make(dataset.batch(3, drop_remainder=True), ["batch"], dataset_already_batched=True)
    with pytest.raises(ValueError, match=r"shape"):
        make(dataset.batch(2), ["batch"], dataset_already_batched=True)


@pytest.mark.ddl(strategies="model_parallel", isolation="fresh")
@pytest.mark.ddl_item("dtensor.dataset")
def test_a_dataset_that_ends_again_and_again(ddl_strategy):
    """A rest that does not fill a batch is dropped, and a second pass gives the same batches."""
    import tensorflow as tf
    from tensorflow.experimental import dtensor

    layout = dtensor.Layout(["batch"], ddl_strategy.mesh)
    made = dtensor.DTensorDataset(
        tf.data.Dataset.range(10), mesh=ddl_strategy.mesh, layouts=layout, global_batch_size=4, batch_dim="batch"
    )
    for _ in range(3):
        assert [whole(batch).tolist() for batch in made] == [[0, 1, 2, 3], [4, 5, 6, 7]]


LAYOUTS = {
    "data": (("batch", "unsharded"), ("unsharded", "unsharded"), ("unsharded", "unsharded")),
    "tensor": (("unsharded", "unsharded"), ("unsharded", "model"), ("model", "unsharded")),
    "mixed": (("batch", "unsharded"), ("unsharded", "model"), ("model", "unsharded")),
    "inputs": (("batch", "model"), ("model", "unsharded"), ("unsharded", "unsharded")),
}
"""Layouts of the batch and of the two kernels."""


@pytest.mark.ddl_item("dtensor.training")
@pytest.mark.parametrize("name", LAYOUTS)
def test_training_in_shards(name, ddl_strategy):
    """Train a network of two layers with momentum: gradients, velocities and weights follow the formula in NumPy."""
    import tensorflow as tf
    from tensorflow.experimental import dtensor

    mesh = ddl_strategy.mesh
    batch, first, second = (dtensor.Layout(list(specs), mesh) for specs in LAYOUTS[name])
    values = [quarter((6, 4)) / 4, quarter((4, 2), 1) / 4]
    kernels = [variable(value, layout) for value, layout in zip(values, (first, second), strict=True)]
    slots = [variable(np.zeros_like(value), layout) for value, layout in zip(values, (first, second), strict=True)]

    @tf.function(autograph=False)
    def step(inputs: Any, targets: Any) -> Any:
        with tf.GradientTape() as tape:
            hidden = tf.nn.relu(tf.matmul(inputs, kernels[0]))
            loss = tf.reduce_sum(tf.square(tf.matmul(hidden, kernels[1]) - targets)) / 4
        gradients = tape.gradient(loss, kernels)
        for kernel, slot, gradient in zip(kernels, slots, gradients, strict=True):
            velocity = dtensor.relayout(slot.read_value() * 0.5 - gradient * 0.0625, slot.layout)
            slot.assign(velocity)
            kernel.assign_add(velocity)
        return gradients

    velocities = [np.zeros_like(value) for value in values]
    for number in range(3):
        inputs, targets = quarter((4, 6), number) / 4, quarter((4, 2), number + 1) / 4
        hidden = np.maximum(inputs @ values[0], 0)
        errors = (hidden @ values[1] - targets) / 2
        expected = [inputs.T @ (errors @ values[1].T * (hidden > 0)), hidden.T @ errors]
        found = step(
            dtensor.relayout(tf.constant(inputs), batch),
            dtensor.relayout(tf.constant(targets), dtensor.Layout([batch.sharding_specs[0], "unsharded"], mesh)),
        )
        velocities = [0.5 * old - 0.0625 * new for old, new in zip(velocities, expected, strict=True)]
        values = [value + velocity for value, velocity in zip(values, velocities, strict=True)]
        # A step has about 50 operations, and makes earlier errors at most 10 times as large.
        bound = 50 * 10**number * np.finfo("float64").eps
        for parts, wanted in ((found, expected), (slots, velocities), (kernels, values)):
            for part, value in zip(parts, wanted, strict=True):
                tensor = part.read_value() if hasattr(part, "read_value") else part
                np.testing.assert_allclose(whole(tensor), value, rtol=bound, atol=bound * np.abs(value).max())
