"""Map patterns of variable names to sharding specs, and check the specs against shape and mesh."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, MutableMapping, Sequence

Spec = tuple[str | None, ...]


class LayoutMap(MutableMapping[str, Sequence[str | None]]):
    """Map from patterns to sharding specs.

    A pattern is a regular expression for the variable's path. A spec is one mesh axis or ``None`` per dimension.
    ``layout_map["dense.*kernel"] = (None, "model")`` shards the columns of every such kernel over the axis ``model``.
    The first pattern that is found in the path is used. A variable that no pattern matches is replicated.

    ``/`` in a pattern also matches ``_``. Keras names the slot of ``dense/kernel`` in an optimizer
    ``dense_kernel_momentum``, and a slot should have the layout of its variable.
    """

    def __init__(self, axes: Mapping[str, int]) -> None:
        self._axes = dict(axes)
        self._rules: dict[str, Spec] = {}
        self.used: set[str] = set()
        """Patterns that matched a variable so far. A pattern that never appears here is probably misspelled."""

    def __setitem__(self, pattern: str, spec: Sequence[str | None]) -> None:
        if isinstance(spec, str):
            raise ValueError(f"layout_map[{pattern!r}] = {spec!r}: give one entry per dimension, as in (None, 'model')")
        try:
            re.compile(pattern)
        except re.error as problem:
            raise ValueError(f"layout_map[{pattern!r}]: not a regular expression ({problem})") from None
        named = [axis for axis in spec if axis is not None]
        for axis in named:
            if axis not in self._axes:
                raise ValueError(
                    f"layout_map[{pattern!r}] = {tuple(spec)!r}: the mesh has no axis {axis!r}; "
                    f"it has {list(self._axes)}"
                )
        if len(set(named)) != len(named):
            raise ValueError(f"layout_map[{pattern!r}] = {tuple(spec)!r}: an axis can shard only one dimension")
        self._rules[pattern] = tuple(spec)

    def __getitem__(self, pattern: str) -> Sequence[str | None]:
        return self._rules[pattern]

    def __delitem__(self, pattern: str) -> None:
        del self._rules[pattern]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rules)

    def __len__(self) -> int:
        return len(self._rules)

    def matches(self, pattern: str, path: str) -> bool:
        """Return whether a pattern is found in the path of a variable."""
        return re.search(pattern.replace("/", "[/_]"), path) is not None

    def spec_for(self, path: str, shape: Sequence[int]) -> Spec:
        """Return the sharding spec of a variable, one entry per dimension.

        :raises ValueError: if the first matching rule does not fit the shape.
        """
        for pattern, spec in self._rules.items():
            if not self.matches(pattern, path):
                continue
            rule = f"layout_map[{pattern!r}] = {spec!r}"
            if len(spec) != len(shape):
                raise ValueError(
                    f"{rule} has {len(spec)} dimensions, the variable {path!r} has shape {tuple(shape)}; "
                    "narrow the pattern or give one entry per dimension"
                )
            for dimension, (axis, size) in enumerate(zip(spec, shape, strict=True)):
                if axis is not None and size % self._axes[axis]:
                    raise ValueError(
                        f"{rule}: dimension {dimension} of {path!r} has size {size}, which does not divide "
                        f"over the {self._axes[axis]} devices of axis {axis!r}; use None or change the size"
                    )
            self.used.add(pattern)
            return spec
        return (None,) * len(shape)
