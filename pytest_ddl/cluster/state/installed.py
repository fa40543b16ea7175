"""Find replaced attributes of installed modules: those of Python itself, of the frameworks and of other packages."""

from __future__ import annotations

import dis
import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import is_
from types import ModuleType
from typing import Any

from pytest_ddl.cluster.state.libraries import is_code, is_public
from pytest_ddl.cluster.state.reach import Reach, is_package, is_tool
from pytest_ddl.cluster.state.remembered import Remembered
from pytest_ddl.cluster.state.user_files import is_user_file
from pytest_ddl.cluster.state.user_modules import MISSING, loaded

_PLAIN = (int, float, complex, str, bytes, bool, type(None), tuple)
_MAX_ITEMS = 100
"""Maximum number of items of a container whose content is remembered. Larger ones are usually constant tables, and
comparing them takes time."""
_SKIPPED = ("sys", "logging", "warnings", "gc")
"""Modules that are not watched, because pytest and its plugins change them or they change by themselves."""


@dataclass(frozen=True)
class _Space:
    """Remembered attributes of a module or class. ``contents`` has the remembered content of its containers."""

    module: str
    prefix: str
    namespace: Mapping[str, Any]
    before: Mapping[str, Any]
    contents: Mapping[str, Remembered]

    def replaced(self) -> Iterator[tuple[str, Any, Any]]:
        """Yield names of replaced attributes, with the old and the new value."""
        for name, memo in self.contents.items():
            if self.namespace.get(name) is memo.value and not memo.holds(memo.value):
                yield name, memo.value, memo.value
        # A package may have thousands of attributes, so compare them in C first. New attributes come last.
        if len(self.namespace) >= len(self.before) and all(map(is_, self.before.values(), self.namespace.values())):
            return
        for name, old in self.before.items():
            new = self.namespace.get(name, MISSING)
            if new is old:
                continue
            # A package that imports a module at first use keeps a proxy in its place (importlib_metadata 10).
            imported = isinstance(old, ModuleType) or _is_module(new)
            if not name.startswith("__") and not imported and not _is_same(old, new):
                yield name, old, new


class InstalledModules:
    """Loaded modules outside the user's folders, with their attributes at the time when this object was made."""

    def __init__(self) -> None:
        self._spaces: dict[str, list[_Space]] = {}
        self._referred = {name for module in loaded().values() for name in _referred(module)}
        packages = {name.partition(".")[0] for name in self._referred if is_package(name)}
        for name, module in list(sys.modules.items()):
            if isinstance(module, ModuleType) and _is_watched(name, module):
                self._add(name, module, own=name.partition(".")[0] in packages)

    def imported(self, module: ModuleType) -> None:
        """Remember the attributes of a module directly after it was imported."""
        if _is_watched(module.__name__, module):
            self._add(module.__name__, module, own=is_package(module.__name__))

    def _add(self, name: str, module: ModuleType, *, own: bool) -> None:
        self._spaces[name] = spaces = [_space(name, "", vars(module), own)]
        if own or (name in self._referred and name.partition(".")[0] in sys.stdlib_module_names):
            for value in list(vars(module).values()):
                if isinstance(value, type) and value.__module__ == name:
                    spaces.append(_space(name, f"{value.__name__}.", vars(value), own))

    def traveling(self, reach: Reach) -> dict[tuple[str, str], tuple[Remembered, bool]]:
        """Return the changed attributes of the packages that a call refers to, by module and name.

        The second value says whether the ranks need the change. They do if the call uses the name or if a function
        was replaced, unless the module itself assigns the name.
        """
        packages = {name.partition(".")[0] for name in reach.modules if is_package(name)}
        packed = {}
        # Another thread may import a module meanwhile.
        for module, spaces in list(self._spaces.items()):
            if module.partition(".")[0] not in packages:
                continue
            for space in spaces:
                for name, old, new in space.replaced():
                    stored = _is_stored(module, name)
                    if stored and old is None and not isinstance(new, _PLAIN):
                        continue  # the package made this value at first use, and a rank makes its own
                    needed = name in reach.names or is_code(old)
                    memo = MISSING if new is MISSING else Remembered(new, None)
                    packed[module, space.prefix + name] = memo, needed and not stored
        return packed

    def refused(self, reach: Reach) -> str | None:
        """Return the full name of a replaced attribute of Python or a framework that a call uses, or ``None``."""
        for module in sorted({*reach.modules, "builtins"}):
            if is_package(module):
                continue
            # A module in C does not look up its own functions by name, so only names in the call's code matter.
            # Libraries change the import system for themselves; importlib_metadata removes a method of its finder.
            by_name = module == "builtins" or module.startswith("_frozen_importlib")
            by_name = by_name or not str(getattr(sys.modules.get(module), "__file__", "")).endswith(".py")
            for space in self._spaces.get(module, ()):
                for name, old, _new in space.replaced():
                    if (name in reach.names or not by_name) and _counts(module, name, old):
                        return f"{module}.{space.prefix}{name}"
        return None


def _counts(module: str, name: str, old: Any) -> bool:
    if name.endswith("excepthook") or not (is_code(old) or type(old) in _PLAIN):
        return False
    if name.startswith("_"):
        return is_code(old) and not _is_stored(module, name)
    return not ((old is None or isinstance(old, (int, float))) and _is_stored(module, name))


def _is_stored(module: str, name: str) -> bool:
    """Return whether a function of the module assigns this global, such as a counter or a value made at first use."""
    values = list(vars(sys.modules[module]).values())
    members = [item for value in values if isinstance(value, type) for item in list(vars(value).values())]
    return any(
        one.opname == "STORE_GLOBAL" and one.argval == name
        for function in (*values, *members)
        if isinstance(function, types.FunctionType)
        and function.__module__ == module
        and name in function.__code__.co_names
        for one in dis.get_instructions(function)
    )


def _is_module(value: Any) -> bool:
    # A package may put another object in the place of a module (zipp.compat.overlay.zipfile).
    return isinstance(value, ModuleType) or any(value is module for module in list(sys.modules.values()))


def _is_same(old: Any, new: Any) -> bool:
    return type(old) is type(new) and isinstance(old, _PLAIN) and bool(repr(old) == repr(new))


def _is_watched(name: str, module: ModuleType) -> bool:
    if name in _SKIPPED or is_tool(name) or is_user_file(vars(module).get("__file__")):
        return False
    return is_package(name) or name.partition(".")[0] in sys.stdlib_module_names or is_public(name, module)


def _space(module: str, prefix: str, namespace: Mapping[str, Any], own: bool) -> _Space:
    before = dict(namespace)
    own = own and "._" not in module
    contents = {
        name: Remembered.of(value)
        for name, value in before.items()
        if own and not name.startswith("_") and type(value) in (dict, list, set) and len(value) <= _MAX_ITEMS
    }
    return _Space(module, prefix, namespace, before, contents)


def _referred(module: ModuleType) -> Iterator[str]:
    for value in list(vars(module).values()):
        name = (
            vars(value).get("__name__") if isinstance(value, ModuleType) else getattr(type(value), "__module__", None)
        )
        if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
            name = value.__module__
        if isinstance(name, str):
            yield name
