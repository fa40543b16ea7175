"""Walk over a record: find the place of every value in it, name what kind of quantity it is, and change one value.

The walk follows the dataclasses themselves. A new field of a record is therefore found without a change here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from typing import Any, NamedTuple

import numpy as np

from pytest_ddl.equivalence.evidence.fit_loss import RUNNING_MEAN
from pytest_ddl.records import TrainingRecord, VariableRecord


class Field(NamedTuple):
    """Step of a path into a field of a dataclass."""

    owner: str
    """Name of the class."""
    name: str


class Item(NamedTuple):
    """Step of a path into a position of a tuple or list."""

    position: int


class Key(NamedTuple):
    """Step of a path into a mapping."""

    key: Any


Path = tuple[Field | Item | Key, ...]


@dataclass(frozen=True)
class Place:
    """A value in a record."""

    path: Path
    value: Any
    kind: str
    """Class and field that hold it, for example ``StepRecord.snapshot[slot]``."""

    @property
    def field(self) -> tuple[str, str]:
        """Class and name of the innermost field on the way to the value."""
        return next((step.owner, step.name) for step in reversed(self.path) if isinstance(step, Field))


def places(record: TrainingRecord) -> Iterator[Place]:
    """Yield the place of every value in a record: of leaves, and of all containers around them."""
    yield from _below(record, (), "", record.variables)


def _below(value: Any, path: Path, kind: str, variables: tuple[VariableRecord, ...]) -> Iterator[Place]:
    if path:
        yield Place(path, value, kind)
    if is_dataclass(value) and not isinstance(value, type):
        for f in fields(value):
            owner = type(value).__name__
            yield from _below(getattr(value, f.name), (*path, Field(owner, f.name)), f"{owner}.{f.name}", variables)
    elif isinstance(value, tuple | list):
        for position, item in enumerate(value):
            yield from _below(item, (*path, Item(position)), kind, variables)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            own_meaning = kind == "RankRecord.facts" or key == RUNNING_MEAN
            named = f"{kind}[{key}]" if own_meaning else kind
            if of_variables(value):
                named = f"{kind}[{kind_of(variables, key)}]"
            yield from _below(item, (*path, Key(key)), named, variables)


def of_variables(value: Any) -> bool:
    """Return whether a value maps indices of variables to their values: it is a snapshot, or holds gradients."""
    if not isinstance(value, Mapping) or not value or not all(type(key) is int for key in value):
        return False
    return all(item is None or isinstance(item, np.ndarray) or _components(item) for item in value.values())


def _components(item: Any) -> bool:
    return isinstance(item, tuple) and all(isinstance(part, np.ndarray | np.generic) for part in item)


def kind_of(variables: tuple[VariableRecord, ...], index: int) -> str:
    """Return the kind of a variable by its index."""
    kinds = {variable.index: variable.kind for variable in variables}
    return kinds[index].value if index in kinds else "unknown"


def get(record: Any, path: Path) -> Any:
    """Return the value at a place."""
    for step in path:
        record = getattr(record, step.name) if isinstance(step, Field) else record[step[0]]
    return record


def put(record: Any, path: Path, change: Callable[[Any], Any]) -> Any:
    """Return the record with another value at a place. All that is not on the way to it is shared."""
    if not path:
        return change(record)
    step, rest = path[0], path[1:]
    if isinstance(step, Field):
        return replace(record, **{step.name: put(getattr(record, step.name), rest, change)})
    if isinstance(step, Key):
        return {**record, step.key: put(record[step.key], rest, change)}
    items = list(record)
    items[step.position] = put(items[step.position], rest, change)
    return type(record)(items) if isinstance(record, tuple | list) else items


def drop(record: Any, path: Path) -> Any:
    """Return the record without an item of a tuple or a mapping, or with ``None`` in a field."""
    *way, last = path
    if isinstance(last, Key):
        return put(record, tuple(way), lambda held: {k: v for k, v in held.items() if k != last.key})
    if isinstance(last, Item):
        return put(record, tuple(way), lambda held: (*held[: last.position], *held[last.position + 1 :]))
    return put(record, path, lambda _value: None)


def is_leaf(value: Any) -> bool:
    """Return whether a value holds no further places."""
    return value is not None and (
        isinstance(value, bool | int | float | str | Enum | np.ndarray | np.generic | frozenset)
    )


def siblings(record: TrainingRecord, path: Path) -> list[Path]:
    """Return the paths to the same quantity on all ranks, and in all components of a variable."""
    if len(path) < 2 or path[0] != Field("TrainingRecord", "ranks"):
        return [path]
    found = []
    for rank in range(len(record.ranks)):
        own = (path[0], Item(rank), *path[2:])
        parent = own[:-1]
        try:
            held = get(record, parent)
        except (KeyError, IndexError, AttributeError, TypeError):
            continue
        if len(path) > 4 and isinstance(path[-1], Item) and isinstance(path[-2], Key) and _components(held):
            found += [(*parent, Item(position)) for position in range(len(held))]
        else:
            try:
                get(record, own)
            except (KeyError, IndexError, AttributeError, TypeError):
                continue
            found.append(own)
    return found


def variable_of(record: TrainingRecord, path: Path) -> VariableRecord | None:
    """Return the variable whose value a path leads to, if it leads to one."""
    for position, step in enumerate(path):
        if isinstance(step, Key) and type(step.key) is int and of_variables(get(record, path[:position])):
            return next((v for v in record.variables if v.index == step.key), None)
    return None


def step_of(path: Path) -> int | None:
    """Return the number of the training step that a value belongs to: 0 for initial values."""
    for position, step in enumerate(path):
        if step == Field("RankRecord", "steps") and position + 1 < len(path):
            return int(path[position + 1][0]) + 1
        if step == Field("RankRecord", "initial"):
            return 0
    return None
