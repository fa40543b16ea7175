"""Use strategies wrongly, and at the edge: every rank gets an error of Python, and the strategy works afterwards."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from pytest_ddl import current_strategy
from suites import subject
from suites.properties.test_strategies import expected_total, total
from suites.properties.test_values import called, distributed, everyone
from suites.properties.variables import has_one_copy, local_replicas

STRATEGIES = ["mirrored[replicas=3]", "multi_worker_mirrored", "central_storage"]
HOW = pytest.mark.parametrize("how", ["eager", "function"])
pytestmark = pytest.mark.ddl(strategies=STRATEGIES, timeout=60)


def still_works(strategy: Any) -> None:
    """Reduce over all replicas, to show that no replica waits, and that none is damaged by the refused call."""
    assert total(strategy) == expected_total(strategy)


@pytest.mark.ddl_item("variables.creation.errors", shows="behavior")
@HOW
@pytest.mark.parametrize("context", ["replica", "cross"])
def test_a_value_of_another_shape(context, how, ddl_strategy):
    """The error has both shapes, and no component has changed."""
    import tensorflow as tf

    strategy = ddl_strategy
    with strategy.scope():
        variable = tf.Variable([1.0, 2.0], aggregation=tf.VariableAggregation.SUM, name="here")

    def attempt() -> None:
        if context == "replica":
            strategy.run(lambda: variable.assign(tf.constant([1.0, 2.0, 3.0])))
        else:
            with strategy.scope():
                variable.assign(tf.constant([1.0, 2.0, 3.0]))

    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=r"\b3\b"):
        called(how, attempt)
    for part in strategy.experimental_local_results(variable):
        np.testing.assert_array_equal(part.read_value(), [1.0, 2.0])
    still_works(strategy)


@pytest.mark.ddl(strategies=["mirrored[replicas=3]", "central_storage"])
@pytest.mark.ddl_item("strategy.reduce.none", shows="behavior")
@HOW
@pytest.mark.parametrize("op", ["SUM", "MEAN"])
def test_replicas_with_values_of_other_shapes(op, how, ddl_strategy):
    """A reduction refuses shapes that differ between replicas, and broadcasts nothing."""
    import tensorflow as tf

    own = distributed(ddl_strategy, lambda replica: [1.0] * (replica + 2))
    with pytest.raises((ValueError, tf.errors.OpError)):
        called(how, lambda: ddl_strategy.reduce(op, own, axis=None))


@pytest.mark.ddl_item("strategy.gather.errors")
@HOW
def test_gathers_that_are_refused(how, ddl_strategy):
    """Axes that the values do not have are refused, and the next gather has the values in order."""
    import tensorflow as tf

    own = distributed(ddl_strategy, lambda replica: [[replica + 1.0]])
    for axis in (2, -3):
        with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
            called(how, lambda axis=axis: ddl_strategy.gather(own, axis=axis))
    gathered = called(how, lambda: ddl_strategy.gather(own, axis=0))
    assert gathered.numpy().tolist() == everyone(ddl_strategy, lambda replica: [replica + 1.0])


@pytest.mark.ddl_item("strategy.scope.enter", shows="behavior")
@pytest.mark.parametrize("call", ["reduce", "gather", "run"])
def test_calls_of_the_wrong_context(call, ddl_strategy):
    """A call for all replicas is refused on one of them, with a message that says so."""
    import tensorflow as tf

    strategy = ddl_strategy
    calls = {
        "reduce": lambda: strategy.reduce("SUM", tf.constant(1.0), axis=None),
        "gather": lambda: strategy.gather(tf.constant([1.0]), axis=0),
        "run": lambda: strategy.run(lambda: tf.constant(1.0)),
    }
    with pytest.raises((RuntimeError, ValueError, AssertionError), match=r"[Cc]ontext|replica|run"):
        strategy.run(calls[call])
    still_works(strategy)


@pytest.mark.ddl_item("variables.creation.function", shows="behavior")
@pytest.mark.ddl(strategies=["mirrored[replicas=3]", "multi_worker_mirrored"])
def test_a_variable_that_each_call_makes(ddl_strategy):
    """A tf.function makes its variables in its first call only; a second set is refused."""
    import tensorflow as tf

    made = []

    @tf.function(autograph=False)
    def step(number: Any) -> Any:
        def replica_function() -> Any:
            made.append(tf.Variable(1.0))
            return made[-1] + tf.cast(number, "float32")

        return ddl_strategy.run(replica_function)

    with pytest.raises(ValueError, match=r"tf\.Variable|variables"):
        step(tf.constant(1))
    still_works(ddl_strategy)


@pytest.mark.ddl(strategies=["mirrored[replicas=3]", "multi_worker_mirrored"])
@pytest.mark.ddl_item("cross_device.options.implementation", "cross_device.options.hints")
@pytest.mark.parametrize("kind", ["AUTO", "RING", "hints"])
def test_options_do_not_change_values(kind, ddl_cluster):
    ddl_cluster.run(check_options, kind)


def check_options(kind: str) -> None:
    import tensorflow as tf

    strategy = current_strategy()
    experimental = tf.distribute.experimental
    if kind == "hints":
        options = experimental.CollectiveHints(bytes_per_pack=16)
    else:
        implementation = experimental.CommunicationImplementation[kind]
        options = experimental.CommunicationOptions(implementation=implementation, bytes_per_pack=16)
    values = [distributed(strategy, lambda replica, n=n: [(replica + 1.0) * n, 7.0 * replica]) for n in (1, 2, 3)]

    def reduce(*own: Any) -> Any:
        context = tf.distribute.get_replica_context()
        return context.all_reduce("SUM", [tf.identity(one) for one in own], options=options)

    step = tf.function(lambda *own: strategy.run(reduce, args=own), autograph=False)
    for number, found in enumerate(step(*values), start=1):
        whole = np.sum(everyone(strategy, lambda replica, n=number: [(replica + 1.0) * n, 7.0 * replica]), axis=0)
        for part in strategy.experimental_local_results(found):
            np.testing.assert_array_equal(part, whole)
    with pytest.raises(ValueError, match="bytes_per_pack"):
        experimental.CommunicationOptions(bytes_per_pack=-1)


def applied_after_a_reduction(strategy: Any, parts: int, **flags: bool) -> None:
    """Reduce gradients on the replicas, apply a part of the sum on each, and compare with one step of SGD."""
    import tensorflow as tf

    from suites.subject import keras

    with strategy.scope():
        weights = subject.variable([8.0, -4.0], "float64")
        optimizer = keras.optimizers.SGD(0.5)
        optimizer.build([weights])
    own = distributed(strategy, lambda replica: [6.0 * replica + 6, 12.0 * replica])

    @tf.function(autograph=False)
    def step(gradients: Any) -> None:
        def replica_function(gradient: Any) -> None:
            context = tf.distribute.get_replica_context()
            whole = context.all_reduce("SUM", tf.identity(gradient))
            optimizer.apply_gradients([(whole / parts, weights)], **flags)

        strategy.run(replica_function, args=(gradients,))

    step(own)
    whole = np.sum(everyone(strategy, lambda replica: [6.0 * replica + 6, 12.0 * replica]), axis=0)
    for part in strategy.experimental_local_results(subject.value_of(weights)):
        np.testing.assert_array_equal(part.read_value(), np.array([8.0, -4.0]) - 0.5 * whole)


@pytest.mark.ddl_item("optimizer.aggregate_flag")
def test_gradients_that_are_reduced_before(ddl_strategy):
    """An optimizer of Keras sums what it gets. A gradient that is reduced before must be divided by the replicas."""
    applied_after_a_reduction(ddl_strategy, ddl_strategy.num_replicas_in_sync)


@pytest.mark.ddl_item("optimizer.aggregate_flag")
@pytest.mark.parametrize(
    ("flag", "value"), [("skip_gradients_aggregation", True), ("experimental_aggregate_gradients", False)]
)
def test_gradients_that_are_not_reduced_again(flag, value, ddl_strategy):
    applied_after_a_reduction(ddl_strategy, 1, **{flag: value})


@pytest.mark.ddl_item("optimizer.aggregate_flag", shows="behavior")
@pytest.mark.parametrize("flag", ["skip_gradients_aggregation", "experimental_aggregate_gradients"])
def test_flags_for_the_reduction_are_refused(flag, ddl_strategy):
    """Keras 3 does not have them, and must not ignore them."""
    from suites.subject import keras

    with ddl_strategy.scope():
        weights = subject.variable([8.0, -4.0], "float64")
        optimizer = keras.optimizers.SGD(0.5)
        optimizer.build([weights])
    with pytest.raises(TypeError, match=flag):
        optimizer.apply_gradients([(np.zeros(2), weights)], **{flag: True})


@pytest.mark.ddl(strategies=["multi_worker_mirrored", "multi_worker_mirrored[workers=3]"])
@pytest.mark.ddl_item("strategy.mwms.init", shows="behavior")
def test_what_a_strategy_of_several_workers_knows_of_itself(ddl_strategy):
    extended, workers = ddl_strategy.extended, ddl_strategy.num_replicas_in_sync
    rank = local_replicas(ddl_strategy)[0]
    assert not has_one_copy(ddl_strategy)
    assert extended.should_save_summary == extended.should_checkpoint == (rank == 0)
    assert [device.split("/")[3] for device in extended.worker_devices] == [f"task:{rank}"]
    spec = ddl_strategy.cluster_resolver.cluster_spec()
    assert spec.num_tasks("worker") == workers


@pytest.mark.ddl(strategies=["one_device"])
@pytest.mark.ddl_item("strategy.mwms.init")
def test_a_strategy_of_several_workers_that_is_alone(ddl_strategy, monkeypatch):
    """It is one worker with one replica if TF_CONFIG is not set. A task that is not in the cluster is refused."""
    import json

    import tensorflow as tf

    monkeypatch.delenv("TF_CONFIG", raising=False)
    alone = tf.distribute.MultiWorkerMirroredStrategy()
    assert alone.num_replicas_in_sync == 1
    assert total(alone, 5.0) == [5.0]
    cluster = {"worker": ["localhost:1", "localhost:2"]}
    for task in ({"type": "worker", "index": 2}, {"type": "ps", "index": 0}):
        monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
        with pytest.raises((ValueError, RuntimeError), match=r"[Tt]ask|task_type|worker|job"):
            tf.distribute.MultiWorkerMirroredStrategy()


@pytest.mark.ddl(strategies=["one_device", *STRATEGIES])
@pytest.mark.ddl_item("strategy.extended.colocate", shows="behavior")
@pytest.mark.parametrize("made_by", ["nobody", "another"])
def test_a_place_beside_a_variable_of_others(made_by, ddl_strategy):
    """Only a variable of this strategy has a place for another one."""
    import tensorflow as tf

    other = tf.distribute.OneDeviceStrategy("CPU:0")
    with other.scope() if made_by == "another" else nullcontext():
        foreign = tf.Variable(1.0)
    with ddl_strategy.scope(), pytest.raises(ValueError, match="colocate_vars_with"):
        ddl_strategy.extended.colocate_vars_with(foreign).__enter__()
    still_works(ddl_strategy)
