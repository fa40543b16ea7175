"""Defects of TensorFlow."""

from __future__ import annotations

import inspect
import subprocess
import sys

import numpy as np
import pytest

from suites.properties.test_resolvers import PODS, Pods, install
from suites.running import distributed

pytestmark = pytest.mark.filterwarnings("ignore")
"""Old versions warn about what newer packages changed, which is not what a test here is about."""


def devices_of(strategy):
    """Return the devices of the last two replicas, by the names that a program uses."""
    import tensorflow as tf

    devices = [tf.DeviceSpec.from_string(name) for name in strategy.extended.worker_devices]
    return [f"{device.device_type}:{device.device_index}" for device in devices[-2:]]


def packed(strategy):
    """Return a packed variable with the values 3 and 5, of two devices of one kind that are not their host."""
    import tensorflow as tf

    # Private, because no public function makes one out of a TPU (seen in TensorFlow 2.16 to 2.21).
    from tensorflow.python.distribute.packed_distributed_variable import PackedDistributedVariable

    parts = []
    for device, value in zip(devices_of(strategy), (3.0, 5.0), strict=True):
        with tf.device(device):
            parts.append(tf.Variable(value))
    return PackedDistributedVariable(parts)


@pytest.mark.ddl_regression("40")
@pytest.mark.ddl_item("variables.packed")
@pytest.mark.ddl(strategies="mirrored[replicas=3]")
def test_40_a_packed_variable_is_read_from_its_host(ddl_strategy):
    import tensorflow as tf

    variable = packed(ddl_strategy)
    with tf.device(devices_of(ddl_strategy)[1]):
        assert float(variable.value()) == 5
    with tf.device("CPU:0"):
        assert float(variable.get_var_on_current_device()) == 3, "that of the first device"


@pytest.mark.ddl_regression("40b")
@pytest.mark.ddl_item("variables.packed")
@pytest.mark.ddl(strategies="mirrored[replicas=3]")
def test_40b_a_packed_variable_is_read_without_a_copy(ddl_strategy):
    import tensorflow as tf

    with tf.device(devices_of(ddl_strategy)[1]):
        assert float(packed(ddl_strategy).read_value_no_copy()) == 5


@pytest.mark.ddl_regression("42")
@pytest.mark.ddl_item("resolver.TPU", shows="behavior")
@pytest.mark.ddl(strategies="one_device")
def test_42_a_resolver_of_tpus_connects(ddl_strategy, monkeypatch):
    """Replace what talks to the TPU by functions that take the same arguments."""
    import tensorflow as tf
    from tensorflow.python.distribute.cluster_resolver.tpu import tpu_cluster_resolver

    taken = inspect.signature(tpu_cluster_resolver.tpu_strategy_util.initialize_tpu_system_impl)
    given = []
    monkeypatch.setattr(tpu_cluster_resolver.remote, "connect_to_cluster", given.append)
    monkeypatch.setattr(
        tpu_cluster_resolver.tpu_strategy_util,
        "initialize_tpu_system_impl",
        lambda *args: given.append(taken.bind(*args)),
    )
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver.connect("grpc://10.0.0.1:8470")
    assert given[0] is resolver
    assert given[1].args[0] is resolver
    assert resolver.master() == "grpc://10.0.0.1:8470"


@pytest.mark.ddl_regression("44")
@pytest.mark.ddl_item("resolver.Kubernetes", shows="behavior")
@pytest.mark.ddl(strategies="one_device")
def test_44_kubernetes_is_asked_from_a_pod(ddl_strategy, monkeypatch):
    import tensorflow as tf

    calls = install(monkeypatch, within=True)
    try:
        tf.distribute.cluster_resolver.KubernetesClusterResolver()
    finally:
        assert calls == ["incluster"], "configuration that the resolver loads"


@pytest.mark.ddl_regression("44b")
@pytest.mark.ddl_item("resolver.Kubernetes", shows="behavior")
@pytest.mark.ddl(strategies="one_device")
def test_44b_a_client_of_the_user_needs_no_configuration(ddl_strategy, monkeypatch):
    import tensorflow as tf

    calls = install(monkeypatch, within=True)
    client = Pods({"job-name=tensorflow": PODS["role=w"]})
    tf.distribute.cluster_resolver.KubernetesClusterResolver(override_client=client)
    assert calls == []


def run_in_python(program, *options):
    """Run a program in a new process, and return its result."""
    return subprocess.run([sys.executable, *options, "-c", program], capture_output=True, text=True, check=False)


@pytest.mark.ddl_regression("47")
@pytest.mark.ddl_item("strategy.scope.enter", shows="behavior")
def test_47_tensorflow_is_imported_without_docstrings():
    found = run_in_python("import tensorflow as tf; print(tf.distribute.OneDeviceStrategy)", "-OO")
    assert found.returncode == 0, found.stderr


@pytest.mark.ddl_regression("48")
@pytest.mark.ddl_item("cross_device.collective.batch", shows="behavior")
def test_48_a_scalar_that_cannot_be_gathered_gives_an_error():
    program = """
import tensorflow as tf
try:
    tf.raw_ops.CollectiveGatherV2(
        input=tf.constant(3.0), group_size=1, group_key=1, instance_key=1, ordering_token=[], timeout_seconds=5
    )
except tf.errors.InvalidArgumentError:
    print("refused")
"""
    found = run_in_python(program)
    assert found.returncode == 0, f"exit code {found.returncode}: {found.stderr}"
    assert found.stdout == "refused\n"


@pytest.mark.ddl_regression("50")
@pytest.mark.ddl_item("strategy.extended.reduce_to")
@pytest.mark.ddl(strategies=["mirrored", "multi_worker_mirrored"])
def test_50_slices_are_averaged(ddl_strategy):
    import tensorflow as tf

    replicas = ddl_strategy.num_replicas_in_sync
    values = [np.float32([[1, 2], [3, 4]]) * (number + 1) for number in range(replicas)]
    rows = [np.int64([0, 2]), np.int64([1, 2])]
    parts = [distributed(ddl_strategy, one) for one in (values, rows)]
    slices = ddl_strategy.run(lambda value, row: tf.IndexedSlices(value, row, tf.constant([4, 2])), args=tuple(parts))
    (found,) = ddl_strategy.extended.batch_reduce_to("MEAN", [(slices, slices)])
    expected = np.zeros((4, 2), np.float32)
    for value, row in zip(values, rows, strict=True):
        expected[row] += value / replicas
    for part in ddl_strategy.experimental_local_results(found):
        np.testing.assert_allclose(tf.convert_to_tensor(part), expected, rtol=1e-6, err_msg="mean of the slices")


@pytest.mark.ddl_regression("54")
@pytest.mark.ddl_item("variables.savedmodel.serve")
@pytest.mark.ddl(strategies="mirrored")
def test_54_a_loaded_function_runs_on_replicas(ddl_strategy, tmp_path):
    import tensorflow as tf

    class Scale(tf.Module):
        def __init__(self):
            super().__init__()
            self.factor = tf.Variable([2.0, 3.0])

        @tf.function(input_signature=[tf.TensorSpec([None, 2])])
        def __call__(self, inputs):
            return inputs * self.factor

    with ddl_strategy.scope():
        tf.saved_model.save(Scale(), str(tmp_path))
        loaded = tf.saved_model.load(str(tmp_path))
    values = [np.float32([[1, 2], [3, 4]]), np.float32([[5, 6]])]
    inputs = distributed(ddl_strategy, values)
    for run in (ddl_strategy.run, tf.function(ddl_strategy.run)):
        found = ddl_strategy.experimental_local_results(run(loaded, args=(inputs,)))
        for part, value in zip(found, values, strict=True):
            np.testing.assert_array_equal(part, value * [2, 3], err_msg="result of each replica")


@pytest.mark.ddl_regression("56")
@pytest.mark.ddl_item("variables.ON_READ.SUM.cross")
@pytest.mark.ddl(strategies="mirrored")
def test_56_an_on_read_variable_takes_a_value_for_each_replica(ddl_strategy):
    import tensorflow as tf

    options = {"synchronization": tf.VariableSynchronization.ON_READ, "aggregation": tf.VariableAggregation.SUM}
    with ddl_strategy.scope():
        variable = tf.Variable(0.0, **options)
    variable.assign(distributed(ddl_strategy, [np.float32(3), np.float32(5)]))
    assert float(variable) == 8, "sum of the replicas"


@pytest.mark.ddl_regression("56b")
@pytest.mark.ddl_item("variables.scatter.on_write")
@pytest.mark.ddl(strategies="central_storage")
@pytest.mark.parametrize("operation", ["gather_nd", "scatter_nd_update", "scatter_nd_add", "scatter_nd_sub"])
def test_56b_a_central_variable_has_operations_of_slices(operation, ddl_strategy):
    import tensorflow as tf

    with ddl_strategy.scope():
        variable = tf.Variable([1.0, 2.0, 4.0])
    if operation == "gather_nd":
        np.testing.assert_array_equal(variable.gather_nd([[2], [0]]), [4, 1])
        return
    getattr(variable, operation)([[1]], [8.0])
    expected = {"scatter_nd_update": 8, "scatter_nd_add": 2 + 8, "scatter_nd_sub": 2 - 8}[operation]
    np.testing.assert_array_equal(tf.convert_to_tensor(variable), [1, expected, 4])
