"""Apply operations to variables of a strategy, and compare every step with the model in NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from suites.models.variables import Array, Kind, Operation, Variable, common, number, payload

STRATEGIES = ["mirrored", "mirrored[replicas=3]", "multi_worker_mirrored", "central_storage"]
"""Variants for tests of variables."""
Step = tuple[list[Array], "Array | None"]
"""Components on this rank, and the value in cross-replica context if it can be read."""


def has_one_copy(strategy: Any) -> bool:
    """Return whether the strategy keeps one copy of each variable for all replicas."""
    import tensorflow as tf

    return isinstance(strategy, tf.distribute.experimental.CentralStorageStrategy)


def local_replicas(strategy: Any) -> list[int]:
    """Return the global ids of the replicas of this rank."""
    resolver = strategy.cluster_resolver
    here = len(strategy.extended.worker_devices)
    task = 0 if resolver is None or resolver.task_id in (None, -1) else resolver.task_id
    first = task * here if here < strategy.num_replicas_in_sync else 0
    return list(range(first, first + here))


def local_components(strategy: Any, components: Sequence[Any]) -> list[Any]:
    """Return those of a variable's components that this rank holds."""
    return list(components) if has_one_copy(strategy) else [components[r] for r in local_replicas(strategy)]


def kind_of(strategy: Any, synchronization: str, aggregation: str, dtype: str, shape: tuple[int, ...] = ()) -> Kind:
    return Kind(synchronization, aggregation, dtype, strategy.num_replicas_in_sync, shape, has_one_copy(strategy))


def create(strategy: Any, kind: Kind) -> Any:
    """Create a variable in the strategy's scope."""
    import tensorflow as tf

    with strategy.scope():
        return tf.Variable(
            tf.constant(kind.initial, kind.dtype),
            trainable=False,
            synchronization=tf.VariableSynchronization[kind.synchronization],
            aggregation=tf.VariableAggregation[kind.aggregation],
        )


def perform(strategy: Any, variable: Any, operation: Operation) -> None:
    """Apply an operation to a variable. Inside a ``tf.function`` this adds it to the graph."""
    import tensorflow as tf

    shape = tuple(variable.shape)

    def assign(value: Any) -> None:
        # A read of the new value is an operation of its own, and fails for some variables.
        getattr(variable, operation.name)(value, read_value=False)

    def payload_of(replica: Any) -> Any:
        payloads = np.stack([payload(operation.step, one, shape) for one in range(strategy.num_replicas_in_sync)])
        return tf.gather(tf.constant(payloads, variable.dtype), replica)

    # TensorFlow treats one Python object of all replicas in another way than equal objects.
    one_object = number(operation.step)
    if operation.context == "replica":

        def replica_function() -> None:
            context = tf.distribute.get_replica_context()
            by_tensor = operation.given == "tensor"
            assign(payload_of(context.replica_id_in_sync_group) if by_tensor else one_object)

        strategy.run(replica_function)
        return
    with strategy.scope():
        if operation.given == "per_replica":
            assign(
                strategy.experimental_distribute_values_from_function(lambda c: payload_of(c.replica_id_in_sync_group))
            )
        elif operation.given == "python":
            assign(one_object)
        else:
            assign(tf.constant(common(operation.step, shape), variable.dtype))


def observe(strategy: Any, variable: Any, kind: Kind) -> tuple[Any, Any, Any]:
    """Return the components of this rank, what its replicas read, and the value in cross-replica context."""
    import tensorflow as tf

    components = [part.read_value() for part in strategy.experimental_local_results(variable)]
    by_replica = strategy.experimental_local_results(strategy.run(lambda: tf.identity(variable.read_value())))
    if kind.read_error is not None:
        return components, by_replica, ()
    with strategy.scope():
        return components, by_replica, tf.identity(variable.read_value())


def check(strategy: Any, kind: Kind, operations: Sequence[Operation], how: str) -> None:
    """Apply operations that must work to a new variable, and compare it with the model after each of them."""
    import tensorflow as tf

    variable = create(strategy, kind)
    model = Variable(kind)

    def all_steps() -> Any:
        found = [observe(strategy, variable, kind)]
        for operation in operations:
            perform(strategy, variable, operation)
            found.append(observe(strategy, variable, kind))
        return found

    found = (tf.function(all_steps, autograph=False) if how == "function" else all_steps)()
    compare(strategy, model, found[0], "the initial value")
    for operation, step in zip(operations, found[1:], strict=True):
        model.apply(operation)
        compare(strategy, model, step, str(operation))


def compare(strategy: Any, model: Variable, found: tuple[Any, Any, Any], when: str) -> None:
    components, by_replica, value = found
    expected = local_components(strategy, model.components)
    np.testing.assert_array_equal([part.numpy() for part in components], expected, err_msg=f"components after {when}")
    reads = [model.read_by(replica) for replica in local_replicas(strategy)]
    np.testing.assert_array_equal([part.numpy() for part in by_replica], reads, err_msg=f"replicas after {when}")
    if model.kind.read_error is None:
        expected = model.read(local_replicas(strategy)[0])
        np.testing.assert_array_equal(value.numpy(), expected, err_msg=f"cross-replica value after {when}")


def check_errors(strategy: Any, kind: Kind, operations: Sequence[Operation], how: str) -> None:
    """Check that operations raise what the table says, and that the variable can be used afterwards."""
    import tensorflow as tf

    variable = create(strategy, kind)
    for operation in operations:

        def attempt(operation: Operation = operation) -> None:
            perform(strategy, variable, operation)

        with pytest.raises(kind.error(operation)):
            (tf.function(attempt, autograph=False) if how == "function" else attempt)()
    if kind.read_error is not None:
        with strategy.scope(), pytest.raises(kind.read_error):
            (tf.function(variable.read_value) if how == "function" else variable.read_value)()
    found = observe(strategy, variable, kind)
    compare(strategy, Variable(kind), found, "the refused operations")
