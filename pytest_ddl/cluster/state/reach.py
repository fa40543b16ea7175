"""Find the names and modules to which a call refers, through its functions, closures, arguments and globals."""

from __future__ import annotations

import functools
import sys
import types
from types import ModuleType
from typing import Any

from pytest_ddl.cluster.state.libraries import FRAMEWORKS
from pytest_ddl.cluster.state.user_files import is_user_file

_TOOLS = ("pytest", "_pytest", "py", "pluggy", "hypothesis", "pytest_ddl", "cloudpickle", "__main__")


def is_package(module: str) -> bool:
    """Return whether a module belongs neither to Python nor to a framework or tool, and so may be the user's."""
    top = module.partition(".")[0]
    return not (top in sys.stdlib_module_names or top in FRAMEWORKS or top in _TOOLS or top.startswith("pytest_"))


def is_tool(module: str) -> bool:
    """Return whether a module belongs to this package or to a tool such as pytest. They change their attributes."""
    return module.partition(".")[0] in _TOOLS or module.startswith("pytest_")


class Reach:
    """Names in the code of a call, and names of the modules to which this code refers."""

    def __init__(self, call: Any) -> None:
        self.names: set[str] = set()
        self.modules: set[str] = set()
        # By identity. The objects are kept, so that no new object can get the same identity.
        self._seen: dict[int, Any] = {}
        self._followed: set[tuple[int, str]] = set()
        # Not by recursion: a long linked list would be too deep for it.
        self._waiting = [call]
        while self._waiting:
            value = self._waiting.pop()
            if id(value) not in self._seen:
                self._seen[id(value)] = value
                self._look_into(value)

    def _visit(self, value: Any) -> None:
        self._waiting.append(value)

    def _look_into(self, value: Any) -> None:
        if isinstance(value, (tuple, list)):
            self._waiting += value
        elif isinstance(value, dict):
            self._visit(list(value.values()))
        elif isinstance(value, types.FunctionType):
            self._visit_function(value)
        elif isinstance(value, types.MethodType):
            self._visit([value.__func__, value.__self__])
        elif isinstance(value, (classmethod, staticmethod)):
            self._visit(value.__func__)
        elif isinstance(value, property):
            self._visit([value.fget, value.fset])
        elif isinstance(value, functools.partial):
            self._visit([value.func, value.args, value.keywords])
        elif isinstance(value, type):
            self._visit_class(value)
        elif isinstance(value, ModuleType):
            # getattr would import a module that is imported lazily.
            self.modules.add(str(vars(value).get("__name__")))
            if is_user_file(vars(value).get("__file__")):
                self._visit(list(vars(value).values()))
        elif isinstance(value, types.BuiltinFunctionType):
            self.modules.add(str(value.__module__))
        elif is_user_file(_file(type(value).__module__)):
            self._visit([type(value), getattr(value, "__dict__", {})])
        else:
            # tf.function and functools.cache return objects that have the wrapped function in this attribute.
            self._visit(getattr(value, "__dict__", {}).get("__wrapped__"))

    def _visit_function(self, value: types.FunctionType) -> None:
        module = str(value.__module__)
        self.modules.add(module)
        inside = [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
        if not (is_package(module) or module == "__main__" or is_user_file(_file(module))):
            if is_tool(module):
                self._visit(inside)
            return
        names = _names(value.__code__)
        self.names |= names
        inside += [value.__globals__[name] for name in names if name in value.__globals__]
        # An import statement inside the function has the name of the module in the code.
        inside += [sys.modules[name] for name in names if name in sys.modules and name not in value.__globals__]
        for item in inside:
            self._follow(item, names)
        self._visit(getattr(value, "__wrapped__", None))
        self._visit([value.__defaults__, value.__kwdefaults__])

    def _follow(self, value: Any, names: set[str]) -> None:
        """Visit a value. If it is a module, also visit its attributes that the code names."""
        self._visit(value)
        if isinstance(value, ModuleType):
            for name in names & vars(value).keys():
                if (id(value), name) not in self._followed:
                    self._followed.add((id(value), name))
                    self._follow(vars(value)[name], names)

    def _visit_class(self, value: type) -> None:
        self.modules.add(str(value.__module__))
        for kind in value.__mro__[:-1]:
            if is_user_file(_file(kind.__module__)):
                self._visit(list(vars(kind).values()))


def _file(module: str) -> str | None:
    return getattr(sys.modules.get(module), "__file__", None)


def _names(code: types.CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names(constant)
    return names


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False
