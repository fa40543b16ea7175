"""Model of a distributed variable in NumPy: the table of synchronization, aggregation, context and operation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

SYNCHRONIZATIONS = ("ON_WRITE", "ON_READ")
AGGREGATIONS = ("NONE", "SUM", "MEAN", "ONLY_FIRST_REPLICA")
CONTEXTS = ("replica", "cross")
NAMES = ("assign", "assign_add", "assign_sub")
GIVEN = ("tensor", "python", "per_replica")
"""Kinds of assigned value: a tensor, a Python number, or (only in cross-replica context) the values of all replicas."""


def payload(step: int, replica: int, shape: tuple[int, ...]) -> Array:
    """Return numbers that depend on step, replica and position.

    They are multiples of 12, so that the quotient of 2, 3 or 4 replicas is a whole number and every dtype is exact.
    """
    return 12 * ((positions(shape) * 3 + replica * 5 + step * 7) % 17 - 8)


def common(step: int, shape: tuple[int, ...]) -> Array:
    """Return what is assigned in cross-replica context. No replica's payload is equal to it."""
    return 12 * (20 + step + positions(shape))


def positions(shape: tuple[int, ...]) -> Array:
    return np.arange(np.prod(shape, dtype=int)).reshape(shape)


def number(step: int) -> int:
    """Return the Python number that is assigned to a scalar."""
    return 12 * (30 + step)


@dataclass(frozen=True)
class Operation:
    """One assignment. ``step`` makes its payload different from that of other assignments."""

    context: str
    name: str
    given: str
    step: int


@dataclass(frozen=True)
class Kind:
    """Properties that decide how a variable behaves."""

    synchronization: str
    aggregation: str
    dtype: str
    number: int
    """Number of replicas."""
    shape: tuple[int, ...] = ()
    one_copy: bool = False
    """True under CentralStorageStrategy, which has one component, and always reduces what replicas assign."""

    @property
    def initial(self) -> Array:
        """Initial value."""
        return 24 + 36 * positions(self.shape)

    @property
    def creation_error(self) -> type[Exception] | None:
        """Error of the variable's creation."""
        mean_of_integers = self.aggregation == "MEAN" and np.issubdtype(np.dtype(self.dtype), np.integer)
        return ValueError if mean_of_integers and not self.one_copy else None

    @property
    def own(self) -> bool:
        """Return whether an assignment in replica context changes only the replica's own component."""
        return not self.one_copy and (self.synchronization == "ON_READ" or self.aggregation == "NONE")

    @property
    def read_error(self) -> type[Exception] | None:
        """Error of a read in cross-replica context."""
        on_read = self.synchronization == "ON_READ" and not self.one_copy
        return ValueError if on_read and self.aggregation == "NONE" else None

    def has(self, operation: Operation) -> bool:
        """Return whether such an operation exists for this kind of variable."""
        if operation.given == "python":
            return self.shape == ()
        return operation.context == "cross" or operation.given == "tensor"

    def error(self, operation: Operation) -> tuple[type[Exception], ...]:
        """Return the errors that an operation may raise; empty if it must work."""
        if operation.context == "replica":
            if self.one_copy and self.aggregation == "NONE":
                return (ValueError,)
            if operation.given == "python" and self.aggregation == "SUM" and not self.own:
                return (ValueError,)
            mean_of_integers = self.aggregation == "MEAN" and np.issubdtype(np.dtype(self.dtype), np.integer)
            return (ValueError,) if mean_of_integers and operation.given == "tensor" else ()
        if self.synchronization == "ON_WRITE" or self.one_copy:
            return ()
        if operation.name != "assign" and self.aggregation == "SUM":
            return (ValueError,)
        # TensorFlow refuses the values of all replicas here, but only because an attribute is missing.
        return (AttributeError, TypeError, ValueError) if operation.given == "per_replica" else ()


class Variable:
    """The components of one variable."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.components = np.stack([kind.initial.astype(kind.dtype)] * (1 if kind.one_copy else kind.number))

    def apply(self, operation: Operation) -> None:
        """Change the components as an operation that raises no error must."""
        if operation.context == "replica":
            values = self._assigned_by_replicas(operation)
        else:
            values = self._assigned_to_all(operation)
        if operation.name == "assign":
            self.components = values.astype(self.kind.dtype)
        else:
            sign = 1 if operation.name == "assign_add" else -1
            self.components = (self.components + sign * values).astype(self.kind.dtype)

    def _assigned_by_replicas(self, operation: Operation) -> Array:
        replicas = range(self.kind.number)
        if operation.given == "python":
            return np.stack([np.array(number(operation.step))] * len(self.components))
        payloads = np.stack([payload(operation.step, replica, self.kind.shape) for replica in replicas])
        if self.kind.own:
            return payloads
        return np.stack([aggregate(payloads, self.kind.aggregation)] * len(self.components))

    def _assigned_to_all(self, operation: Operation) -> Array:
        if operation.given == "per_replica":
            return np.stack(
                [payload(operation.step, replica, self.kind.shape) for replica in range(len(self.components))]
            )
        value = (
            np.array(number(operation.step)) if operation.given == "python" else common(operation.step, self.kind.shape)
        )
        if self.kind.aggregation == "SUM" and self.kind.synchronization == "ON_READ" and not self.kind.one_copy:
            value = value // self.kind.number
        return np.stack([value] * len(self.components))

    def read_by(self, replica: int) -> Array:
        """Return what a read by one replica gives."""
        return self.components[0 if self.kind.one_copy else replica]

    def read(self, first: int = 0) -> Array:
        """Return what a read in cross-replica context gives, in the process with this first replica."""
        if self.kind.synchronization == "ON_WRITE" or self.kind.one_copy:
            return self.components[0 if self.kind.one_copy else first]
        return aggregate(self.components, self.kind.aggregation)


def aggregate(values: Array, aggregation: str) -> Array:
    """Reduce the first dimension."""
    if aggregation == "ONLY_FIRST_REPLICA":
        return values[0]
    return values.sum(axis=0) if aggregation == "SUM" else values.mean(axis=0)
