"""Describe a program's gradient calls: which gradient belongs to which variable, and how to read it as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pytest_ddl.records import Array, GradientStage
from pytest_ddl.training import values


@dataclass(frozen=True)
class GradientSource:
    """Variable of a gradient, as the program passed it; it is matched with the watched variables later."""

    variable: Any
    handle: Any

    @property
    def keys(self) -> tuple[int, ...]:
        return (id(self.variable), *([] if self.handle is None else [id(self.handle)]))


@dataclass(frozen=True)
class Part:
    """One gradient of a call, with the number of its arrays: 0 for ``None``, 2 for ``tf.IndexedSlices``, else 1."""

    source: GradientSource
    arrays: int
    shape: tuple[int, ...]


@dataclass
class Site:
    """One gradient call of the program as it was traced; each of its executions gives an :class:`Event`."""

    number: int
    stage: GradientStage
    parts: tuple[Part, ...]
    follows: list[tuple[Site, tuple[int | None, ...]]] = field(default_factory=list)
    """Calls that pass on gradients of this call, with the position here of each of their parts."""


@dataclass(frozen=True)
class Event:
    site: Site
    replica: int
    arrays: tuple[Array | None, ...]


def is_variable(item: Any) -> bool:
    return hasattr(item, "assign") and hasattr(item, "shape")


def source_of(variable: Any) -> GradientSource:
    actual = values.backing(variable)
    return GradientSource(actual, _handle(actual))


def _handle(variable: Any) -> Any:
    """Return the handle that all wrappers of one replica's component share, or ``None`` if there is none."""
    try:
        return variable.handle
    except (AttributeError, ValueError):
        return None


def keys_of(strategy: Any, variable: Any) -> list[int]:
    if variable is None:
        return []
    found = [id(variable)]
    # If a partitioner split a variable over parameter servers, gradients belong to its shards.
    shards = getattr(variable, "variables", None) if not hasattr(variable, "numpy") else None
    for part in shards or strategy.experimental_local_results(variable):
        found += [id(part), *([] if (handle := _handle(part)) is None else [id(handle)])]
    return found


def part_of(variable: Any, gradient: Any) -> Part:
    return Part(source_of(variable), len(tensors_of(gradient)), tuple(int(size) for size in variable.shape))


def tensors_of(gradient: Any) -> list[Any]:
    """Return the tensors that represent a gradient."""
    if gradient is None:
        return []
    if hasattr(gradient, "indices") and hasattr(gradient, "values"):
        return [gradient.values, gradient.indices]
    return [gradient]


def size_of(tensor: Any) -> int:
    """Return the bytes of a tensor, or 0 if its shape is not known while tracing."""
    elements = tensor.shape.num_elements() if tensor.shape.rank is not None else None
    return int((elements or 0) * tensor.dtype.size)


def dense(part: Part, given: Sequence[Any]) -> Array:
    rows = values.copy_of(given[0])
    dense = np.zeros(part.shape, rows.dtype)
    np.add.at(dense, given[1], rows)
    return dense


def follow(event: Event, site: Site, positions: tuple[int | None, ...]) -> Event:
    arrays = tuple(None if position is None else event.arrays[position] for position in positions)
    return Event(site, event.replica, arrays)
