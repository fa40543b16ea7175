"""Record the declared and the actual layouts of variables over the mesh of ``model_parallel``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from pytest_ddl.records import LayoutRecord
from pytest_ddl.run_facts import RunFacts
from pytest_ddl.training import values

UNSHARDED = "unsharded"


@contextmanager
def fresh(strategy: Any) -> Iterator[None]:
    """Start with an empty layout map, because workers and their strategy are reused; restore the map at the end."""
    rules = getattr(strategy, "layout_map", None)
    if rules is None:
        yield
        return
    kept, used = dict(rules), set(rules.used)
    rules.clear()
    rules.used.clear()
    try:
        yield
    finally:
        rules.clear()
        rules.update(kept)
        rules.used.clear()
        rules.used.update(used)


def facts(strategy: Any, names: Sequence[str]) -> RunFacts:
    """Return the rules of the layout map that match no created and no watched variable."""
    rules = getattr(strategy, "layout_map", None)
    if rules is None:
        return {}
    unmatched = [
        pattern
        for pattern in rules
        if pattern not in rules.used and not any(rules.matches(pattern, name) for name in names)
    ]
    return {"unmatched_layout_rules": unmatched}


def record_of(strategy: Any, variable: Any, name: str) -> LayoutRecord | None:
    """Return the layout of a variable, or ``None`` if it does not belong to a mesh."""
    if variable is None or not hasattr(strategy, "layout_map") or not values.is_sharded_by_layout(variable):
        return None
    from tensorflow.experimental import dtensor

    layout = variable.layout
    actual = tuple(str(spec) for spec in layout.sharding_specs)
    parts = [np.asarray(part) for part in dtensor.unpack(variable.read_value())]
    return LayoutRecord(
        declared=_declared(strategy, variable, name),
        actual=actual,
        shard_shape=tuple(parts[0].shape),
        mesh={axis: int(layout.mesh.dim_size(axis)) for axis in layout.mesh.dim_names},
        replicas_equal=_copies_agree(parts, layout.mesh.local_device_locations(), actual),
    )


def _declared(strategy: Any, variable: Any, name: str) -> tuple[str, ...] | None:
    """Return the layout in the map; ``None`` if no rule matches, or the rule does not fit the variable's shape."""
    rules = strategy.layout_map
    own = str(getattr(variable, "name", "")).split(":")[0]
    for path in (name, own):
        if any(rules.matches(pattern, path) for pattern in rules):
            try:
                spec = rules.spec_for(path, [int(size) for size in variable.shape])
            except ValueError:
                return None
            return tuple(axis or UNSHARDED for axis in spec)
    return None


def _copies_agree(
    parts: Sequence[np.ndarray[Any, Any]], places: Sequence[Mapping[str, int]], specs: Sequence[str]
) -> bool:
    """Return True if devices at the same position along the sharded axes hold the same bits."""
    held: dict[tuple[int, ...], np.ndarray[Any, Any]] = {}
    for part, place in zip(parts, places, strict=True):
        key = tuple(int(place[axis]) for axis in specs if axis != UNSHARDED)
        known = held.setdefault(key, part)
        if known.shape != part.shape or known.tobytes() != part.tobytes():
            return False
    return True
