"""Test meshes and layouts of DTensor, and that values keep every element when their layout changes."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddl import current_strategy
from suites.properties.test_values import called

pytestmark = pytest.mark.ddl(strategies=["model_parallel", "model_parallel[mesh=batch:2;model:3]"], timeout=60)
HOW = pytest.mark.parametrize("how", ["eager", "function"])


def layouts(mesh: Any, shape: tuple[int, ...]) -> list[Any]:
    """Return every layout of a shape on a mesh whose axes divide it."""
    from tensorflow.experimental import dtensor

    found = []
    for specs in itertools.product([dtensor.UNSHARDED, *mesh.dim_names], repeat=len(shape)):
        used = [name for name in specs if name != dtensor.UNSHARDED]
        fits = all(
            name == dtensor.UNSHARDED or not size % mesh.dim_size(name) for name, size in zip(specs, shape, strict=True)
        )
        if len(set(used)) == len(used) and fits:
            found.append(dtensor.Layout(list(specs), mesh))
    return found


def numbers(shape: tuple[int, ...], dtype: str = "float64") -> np.ndarray[Any, Any]:
    return (np.arange(math.prod(shape)).reshape(shape) * 7 % 101 - 11).astype(dtype)


def pieces(whole: np.ndarray[Any, Any], layout: Any) -> list[np.ndarray[Any, Any]]:
    """Return what each device of the mesh holds, in the order of the devices."""
    found = []
    for location in layout.mesh.local_device_locations():
        piece = whole
        for axis, name in enumerate(layout.sharding_specs):
            if name in location:
                piece = np.split(piece, layout.mesh.dim_size(name), axis)[location[name]]
        found.append(piece)
    return found


def check_pieces(value: Any, whole: np.ndarray[Any, Any], layout: Any) -> None:
    from tensorflow.experimental import dtensor

    assert dtensor.fetch_layout(value) == layout
    for found, expected in zip(dtensor.unpack(value), pieces(whole, layout), strict=True):
        np.testing.assert_array_equal(found, expected)
        assert layout.local_shape_from_global_shape(whole.shape) == tuple(found.shape)
        assert tuple(layout.global_shape_from_local_shape(tuple(found.shape))) == whole.shape


@pytest.mark.ddl_item("dtensor.mesh")
def test_a_mesh_numbers_its_devices(ddl_strategy):
    """The last axis runs fastest, in the order of the given devices."""
    from tensorflow.experimental import dtensor

    mesh = ddl_strategy.mesh
    sizes = [mesh.dim_size(name) for name in mesh.dim_names]
    assert mesh.shape() == sizes
    assert mesh.size == math.prod(sizes) == len(mesh.local_devices()) == mesh.num_local_devices()
    assert mesh.device_type() == "CPU"
    expected = [
        dict(zip(mesh.dim_names, place, strict=True)) for place in itertools.product(*(range(size) for size in sizes))
    ]
    assert mesh.local_device_locations() == expected
    for device, location in enumerate(expected):
        assert mesh.coords(device).numpy().tolist() == [location[name] for name in mesh.dim_names]
    assert dtensor.Mesh.from_string(mesh.to_string()) == mesh
    devices = [f"CPU:{index}" for index in range(mesh.size)]
    other = dtensor.create_mesh([("one", 1), ("rest", mesh.size)], devices=devices[::-1])
    assert other != mesh
    indices = [int(device.rpartition(":")[2]) for device in other.local_devices()]
    assert indices == list(range(mesh.size))[::-1]
    layout = dtensor.Layout(["rest"], other)
    whole = numbers((mesh.size * 2,))
    check_pieces(dtensor.relayout(called("eager", lambda: whole.copy()), layout), whole, layout)


@pytest.mark.ddl_item("dtensor.mesh", shows="behavior")
@pytest.mark.parametrize("case", ["too_many", "too_few", "no_gpu", "two_kinds"])
def test_a_mesh_that_the_devices_do_not_fill_is_refused(case, ddl_strategy):
    from tensorflow.experimental import dtensor

    size = ddl_strategy.mesh.size
    arguments = {
        "too_many": ([("x", size + 1)], {"device_type": "CPU"}),
        "too_few": ([("x", size - 1)], {"device_type": "CPU"}),
        "no_gpu": ([("x", size)], {"device_type": "GPU"}),
        "two_kinds": ([("x", 2)], {"devices": ["CPU:0", "GPU:0"]}),
    }[case]
    with pytest.raises(ValueError, match=r"[Dd]evice"):
        dtensor.create_mesh(arguments[0], **arguments[1])


@pytest.mark.ddl_item("dtensor.mesh", shows="behavior")
def test_axes_have_names_of_their_own(ddl_strategy):
    """Two axes of one name are refused, because a layout names its axes."""
    from tensorflow.experimental import dtensor

    try:
        mesh = dtensor.create_mesh([("x", 1), ("x", ddl_strategy.mesh.size)], device_type="CPU")
    except ValueError:
        return
    assert len(set(mesh.dim_names)) == len(mesh.dim_names)


@pytest.mark.ddl(strategies="model_parallel", isolation="fresh")
@pytest.mark.ddl_item("dtensor.mesh", shows="behavior")
def test_devices_that_do_not_exist_are_refused(ddl_strategy):
    """The mesh, or at the latest the first value on it, ends in an error of Python."""
    import tensorflow as tf
    from tensorflow.experimental import dtensor

    def use() -> Any:
        mesh = dtensor.create_mesh([("x", 2)], devices=["CPU:98", "CPU:99"])
        return dtensor.unpack(dtensor.copy_to_mesh(tf.ones([2]), dtensor.Layout.replicated(mesh, 1)))

    with pytest.raises((ValueError, tf.errors.OpError)):
        use()


@pytest.mark.ddl_item("dtensor.layout")
def test_layouts_and_their_texts(ddl_strategy):
    from tensorflow.experimental import dtensor

    mesh = ddl_strategy.mesh
    first, second = mesh.dim_names
    for layout in layouts(mesh, (12, 6, 12)):
        assert dtensor.Layout.from_string(layout.to_string()) == layout
        assert dtensor.Layout.from_proto(layout.as_proto()) == layout
        assert layout.rank == 3
        assert layout.shape == mesh.shape()
        assert layout.num_shards(0) == (
            1 if layout.sharding_specs[0] == "unsharded" else mesh.dim_size(layout.sharding_specs[0])
        )
        assert layout.is_fully_replicated() == (set(layout.sharding_specs) == {"unsharded"})
        assert layout.delete([1]).sharding_specs == [layout.sharding_specs[0], layout.sharding_specs[2]]
        assert len(layout.offset_to_shard()) == mesh.size
    assert dtensor.Layout.batch_sharded(mesh, first, 3).sharding_specs == [first, "unsharded", "unsharded"]
    assert dtensor.Layout.inner_sharded(mesh, second, 3).sharding_specs == ["unsharded", "unsharded", second]
    assert dtensor.Layout.replicated(mesh, 2).sharding_specs == ["unsharded"] * 2


@pytest.mark.ddl_item("dtensor.layout", shows="behavior")
def test_layouts_that_are_refused(ddl_strategy):
    import tensorflow as tf
    from tensorflow.experimental import dtensor

    mesh = ddl_strategy.mesh
    first, second = mesh.dim_names
    with pytest.raises(ValueError, match="nowhere"):
        dtensor.Layout(["nowhere"], mesh)
    with pytest.raises(ValueError, match=first):
        dtensor.Layout([first, first], mesh)
    value = dtensor.relayout(tf.ones([6, 6]), dtensor.Layout([first, second], mesh))
    with pytest.raises(ValueError, match=r"[Ll]ayout"):
        dtensor.check_layout(value, dtensor.Layout.replicated(mesh, 2))
    for function in (dtensor.fetch_layout, dtensor.unpack):
        with pytest.raises(tf.errors.InvalidArgumentError):
            function(tf.ones([2]))
    assert not dtensor.is_dtensor(tf.ones([2]))
    assert dtensor.is_dtensor(value)


@pytest.mark.ddl_item("dtensor.relayout")
@given(
    shape=st.lists(st.sampled_from([1, 6, 12]), max_size=3).map(tuple),
    dtype=st.sampled_from(["float64", "float32", "int32", "int64"]),
    indices=st.lists(st.integers(0, 30), min_size=3, max_size=5),
)
def test_relayout_there_and_back(shape, dtype, indices, ddl_strategy):
    import tensorflow as tf
    from tensorflow.experimental import dtensor

    possible = layouts(ddl_strategy.mesh, shape)
    last, *chosen = (possible[index % len(possible)] for index in indices)
    whole, value = numbers(shape, dtype), None
    for layout in chosen:
        value = dtensor.relayout(tf.constant(whole) if value is None else value, layout)
        check_pieces(value, whole, layout)
    other = dtensor.relayout(tf.constant(whole + 1), last)
    check_pieces(dtensor.relayout_like(value, other), whole, last)


@pytest.mark.ddl_item("dtensor.relayout")
@pytest.mark.parametrize("index", range(3))
def test_gradient_through_relayout(index, ddl_strategy):
    """The gradient is that of the identity, and has the layout of the value."""
    import tensorflow as tf
    from tensorflow.experimental import dtensor

    whole, weights = numbers((6, 6)), numbers((6, 6)) * 3 + 1
    all_layouts = layouts(ddl_strategy.mesh, (6, 6))
    before, after = all_layouts[index], all_layouts[-1 - index]

    @tf.function(autograph=False)
    def gradient(value, weight):
        with tf.GradientTape() as tape:
            tape.watch(value)
            loss = tf.reduce_sum(dtensor.relayout(value, after) * weight)
        return tape.gradient(loss, value)

    value, weight = dtensor.relayout(tf.constant(whole), before), dtensor.relayout(tf.constant(weights), after)
    check_pieces(gradient(value, weight), weights, before)


@pytest.mark.ddl_item("dtensor.pack_unpack")
@given(shape=st.lists(st.integers(1, 3), max_size=3).map(tuple), index=st.integers(0, 30))
def test_pack_and_unpack(shape, index, ddl_strategy):
    """Unpacking returns the part of each device, and the parts form the whole that the layout describes."""
    import tensorflow as tf
    from tensorflow.experimental import dtensor

    mesh = ddl_strategy.mesh
    possible = layouts(mesh, tuple(6 for _ in shape))
    layout = possible[index % len(possible)]
    replicated = dtensor.Layout.replicated(mesh, len(shape))
    whole = numbers(tuple(layout.global_shape_from_local_shape(shape)))
    parts = [tf.constant(piece) for piece in pieces(whole, layout)]
    value = dtensor.pack(parts, layout)
    assert tuple(value.shape) == whole.shape
    check_pieces(value, whole, layout)
    check_pieces(dtensor.pack(dtensor.unpack(value), layout), whole, layout)
    check_pieces(dtensor.relayout(value, replicated), whole, replicated)


@pytest.mark.ddl_item("dtensor.pack_unpack", shows="behavior")
@pytest.mark.parametrize("case", ["too_few", "shapes", "dtypes"])
def test_parts_that_do_not_fit_are_refused(case, ddl_strategy):
    import tensorflow as tf
    from tensorflow.experimental import dtensor

    mesh = ddl_strategy.mesh
    parts = [tf.ones([2, 2])] * (mesh.size - 1)
    last = {"too_few": [], "shapes": [tf.ones([2, 3])], "dtypes": [tf.ones([2, 2], tf.int32)]}[case]
    with pytest.raises((ValueError, tf.errors.OpError)):
        dtensor.pack([*parts, *last], dtensor.Layout(list(mesh.dim_names), mesh))


@pytest.mark.ddl_item("dtensor.call_with_layout")
@HOW
def test_functions_that_place_their_results(how, ddl_strategy):
    """All elements differ, so that a piece that is on another device shows."""
    import tensorflow as tf
    from tensorflow.experimental import dtensor

    mesh = ddl_strategy.mesh
    whole = np.arange(72.0).reshape(6, 12)

    # Eagerly, the layout is that of each operation, so that the operations must be one function.
    @tf.function
    def count():
        return tf.reshape(tf.range(whole.size, dtype=whole.dtype), whole.shape)

    for layout in layouts(mesh, whole.shape):
        # A tf.function without arguments runs on the mesh only if it is the default.
        with dtensor.default_mesh(mesh):
            value = called(how, lambda layout=layout: dtensor.call_with_layout(count, layout))
        check_pieces(value, whole, layout)
    assert dtensor.get_default_mesh() is None
    for place in (dtensor.default_mesh, dtensor.run_on):
        with place(mesh):
            value = called(how, lambda: tf.range(6.0) * 3.0 + 1.0)
        check_pieces(value, np.arange(6) * 3.0 + 1.0, dtensor.Layout.replicated(mesh, 1))
    with dtensor.default_mesh(mesh):
        assert dtensor.get_default_mesh() == mesh
    assert dtensor.device_name().rpartition("/")[2].startswith("device:CUSTOM")


@pytest.mark.ddl_item("dtensor.undivisible", shows="behavior")
@pytest.mark.parametrize("way", ["relayout", "call_with_layout", "function"])
def test_a_size_that_the_mesh_does_not_divide(way, ddl_cluster):
    ddl_cluster.run(check_a_size_that_the_mesh_does_not_divide, way)


def check_a_size_that_the_mesh_does_not_divide(way: str) -> None:
    """The error names the dimension, and is that of an invalid argument. The mesh stays usable."""
    import tensorflow as tf
    from tensorflow.experimental import dtensor

    mesh = current_strategy().mesh
    layout = dtensor.Layout(["unsharded", "model"], mesh)
    size = 2 * mesh.dim_size("model") + 1

    def attempt() -> Any:
        if way == "relayout":
            return dtensor.relayout(tf.ones([2, size]), layout)
        if way == "call_with_layout":
            return dtensor.call_with_layout(tf.ones, layout, shape=(2, size))
        replicated = dtensor.relayout(tf.ones([2, size]), dtensor.Layout.replicated(mesh, 2))
        return tf.function(lambda value: dtensor.relayout(value, layout), autograph=False)(replicated)

    found = None
    try:
        attempt()
    except (ValueError, tf.errors.OpError) as error:
        found = error
    check_pieces(dtensor.relayout(tf.ones([2, size - 1]), layout), np.ones([2, size - 1]), layout)
    assert found is not None
    assert f"dimension size={size}" in str(found) or "divi" in str(found)
    assert isinstance(found, (ValueError, tf.errors.InvalidArgumentError)), type(found)


@pytest.mark.ddl_item("dtensor.barrier", shows="behavior")
def test_barriers_and_the_only_client(ddl_strategy):
    """A barrier of one process returns, any number of times, and says which mesh it is of."""
    from tensorflow.experimental import dtensor

    mesh = ddl_strategy.mesh
    for name in ("first", "second", "first"):
        assert dtensor.barrier(mesh, barrier_name=name, timeout_in_ms=60_000) is None
    assert (dtensor.num_clients(), dtensor.client_id(), dtensor.job_name()) == (1, 0, "localhost")
    assert dtensor.num_local_devices("CPU") == dtensor.num_global_devices("CPU") == mesh.size
    assert dtensor.preferred_device_type() == "CPU"
    assert dtensor.jobs() == []


@pytest.mark.ddl(strategies="model_parallel", isolation="fresh")
@pytest.mark.ddl_item("dtensor.barrier")
def test_values_after_a_shutdown(ddl_strategy):
    """Shut the accelerators down and initialize them again: a mesh works as before."""
    import tensorflow as tf
    from tensorflow.experimental import dtensor

    size = ddl_strategy.mesh.size
    with pytest.raises(ValueError, match=r"[Ii]nitial"):
        dtensor.shutdown_accelerator_system()
    assert dtensor.initialize_accelerator_system("CPU") == "CPU"
    for _ in range(2):
        mesh = dtensor.create_distributed_mesh([("x", size)], device_type="CPU")
        layout = dtensor.Layout(["x"], mesh)
        whole = numbers((2 * size,))
        check_pieces(dtensor.relayout(tf.constant(whole), layout), whole, layout)
        dtensor.barrier(mesh)
    with pytest.raises(ValueError, match=r"[Ii]nitial"):
        dtensor.initialize_accelerator_system("CPU")
