"""Find functions and classes of Python, NumPy, TensorFlow and Keras that were replaced after their import.

Public modules are watched, together with the modules that define their functions, and their classes with all bases.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_ddl.cluster.state import dict_versions

_PYTHON = frozenset(
    (
        *("builtins", "collections", "copy", "datetime", "functools", "glob", "inspect", "io", "itertools", "json"),
        *("logging", "math", "os", "pathlib", "pickle", "posixpath", "random", "shutil", "signal", "socket"),
        *("statistics", "subprocess", "sys", "tempfile", "threading", "time"),
    )
)
FRAMEWORKS = ("numpy", "tensorflow", "keras")
_CODE = (types.FunctionType, types.BuiltinFunctionType, type, property, classmethod, staticmethod)


@dataclass
class _Owner:
    """Module or class with its remembered attributes."""

    name: str
    namespace: Mapping[str, Any]
    names: tuple[str, ...]
    values: tuple[Any, ...]
    bases: tuple[type, ...] = ()
    """Base classes of a class; empty for a module.

    New attributes are reported only for classes, because a module gets one whenever a submodule is imported.
    """
    version: dict_versions.Version = field(init=False)
    """Number that changes with the namespace."""
    unchanged: int = field(init=False)
    """Version in which the namespace had the remembered attributes."""

    def __post_init__(self) -> None:
        self.version = dict_versions.version_of(self.namespace)
        self.unchanged = self.version.value if dict_versions.EXIST else -1

    def changes(self) -> Iterator[tuple[str, Any]]:
        """Yield the name and the present value of each function and class that was replaced, removed or overridden."""
        version = self.version.value
        try:
            # Tuples are compared in C and by identity first. A loop over the attributes would take ten times as long.
            present = tuple(self.namespace.values())
            if (present if self.bases else present[: len(self.values)]) == self.values:
                self.unchanged = version if dict_versions.EXIST else -1
                return
        except Exception:
            # The comparison of a replaced value has no truth value if the value is an array.
            pass
        for name, value in zip(self.names, self.values, strict=True):
            now = self.namespace.get(name)
            if now is not value and is_code(value):
                yield name, now
        for name in self.namespace.keys() - set(self.names) if self.bases else ():
            if any(is_code(vars(base).get(name)) for base in self.bases):
                yield name, self.namespace[name]


class Libraries:
    """Watched modules and classes of the libraries, with the changes that are expected."""

    def __init__(self) -> None:
        self._owners = list(_watched())
        self._known: dict[str, Any] = {}

    def changes(self) -> dict[str, Any]:
        """Return the present values of attributes that were replaced, by full name."""
        changed = {}
        for owner in self._owners:
            if owner.version.value == owner.unchanged:
                continue
            for name, value in owner.changes():
                key = f"{owner.name}.{name}"
                if self._known.get(key, owner) is not value:
                    changed[key] = value
        return changed

    def expect(self, key: str, value: Any) -> Any:
        """Expect another value of an attribute from now on. Return the value that was expected before.

        If ``value`` is this object, the original value is expected.
        """
        before = self._known.get(key, self)
        if value is self:
            self._known.pop(key, None)
        else:
            self._known[key] = value
        return before


def _watched() -> Iterator[_Owner]:
    """Yield public modules, the modules that define their functions, and their classes with all bases."""
    modules = {name: module for name, module in list(sys.modules.items()) if is_public(name, module)}
    classes: set[type] = set()
    written: set[str] = set()
    for name, module in modules.items():
        if name.split(".")[0] not in FRAMEWORKS:
            continue
        for value in list(vars(module).values()):
            if isinstance(value, types.FunctionType):
                written.add(value.__module__)
            elif isinstance(value, type):
                classes.update(kind for kind in value.__mro__ if str(kind.__module__).split(".")[0] in FRAMEWORKS)
    modules.update((name, sys.modules[name]) for name in written if name in sys.modules)
    for name, module in modules.items():
        space = vars(module)
        yield _Owner(name, space, tuple(space), tuple(space.values()))
    for kind in classes:
        body = vars(kind)
        yield _Owner(
            f"{kind.__module__}.{kind.__qualname__}", body, tuple(body), tuple(body.values()), kind.__mro__[1:]
        )


def is_public(name: str, module: object) -> bool:
    """Return whether a module is one of Python's listed modules or a public module of a framework."""
    if not isinstance(module, types.ModuleType):
        return False
    if name in _PYTHON:
        return True
    top, *rest = name.split(".")
    if top not in FRAMEWORKS or (top == "keras" and rest[:1] == ["src"]):
        return False
    # TensorFlow's public modules are in tensorflow._api.v2. Those of version 1 are left out.
    private = any(part.startswith("_") for part in rest) and not name.startswith("tensorflow._api.v2")
    return not private and rest[:1] not in (["python"], ["core"], ["lite"], ["tests"]) and "compat" not in rest


def is_code(value: object) -> bool:
    """Return whether a value is a function, a class or another object that can be called."""
    # NumPy's functions are instances of its own classes.
    return isinstance(value, _CODE) or (callable(value) and not isinstance(value, types.ModuleType))
