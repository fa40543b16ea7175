"""Shipping a function with its arguments to a worker, and its result back.

A function is found by name where its module can be imported; a test module is made importable in
the worker under the name it has here, whatever pytest's import mode. Closures, lambdas and functions
of ``__main__`` travel by value (cloudpickle).
"""

from __future__ import annotations

import importlib.util
import itertools
import pickle
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import cloudpickle


class ShippingError(TypeError):
    """A function, argument or result cannot be pickled; the message says which and what to do."""


@dataclass(frozen=True)
class Shipped:
    """The result of a call."""

    data: bytes
    failed: bool = False
    """The result has a true attribute ``failed``: the other ranks need not be waited for long."""


@dataclass(frozen=True)
class Job:
    """A call that can be made in another process."""

    payload: bytes
    modules: Mapping[str, str]
    """Name -> file of the user's modules that are loaded in the controller."""

    def call(self) -> Shipped:
        """Make the call in this process and return its result.

        Modules of the user that the call imports are forgotten afterwards, so that the next call
        finds their globals as they were written, whatever ran before.
        """
        before = set(sys.modules)
        try:
            with importable(self.modules):
                function, args, kwargs = pickle.loads(self.payload)
                result = function(*args, **kwargs)
                data = _dumps(result, f"the result of {_name(function)} (a {type(result).__name__})")
                return Shipped(data, bool(getattr(result, "failed", False)))
        finally:
            for name in set(sys.modules) - before:
                if name in self.modules:
                    del sys.modules[name]


def pack(function: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Job:
    """Make a job of a call.

    :raises ShippingError: naming the function or argument that cannot be pickled.
    """
    what = f"{_name(function)} with its arguments"
    return Job(_dumps((function, tuple(args), dict(kwargs or {})), what), user_modules())


def unpack(result: Shipped) -> Any:
    """Return what the worker's function returned.

    :raises ShippingError: if the result cannot be unpickled in this process.
    """
    try:
        return pickle.loads(result.data)
    except Exception as error:
        raise ShippingError(
            f"the result of a rank cannot be read in this process: {type(error).__name__}: {error}. "
            "Return plain values (numbers, strings, NumPy arrays)."
        ) from error


@contextmanager
def importable(modules: Mapping[str, str]) -> Iterator[None]:
    """Let modules be imported under the names that they have in the controller, given as name -> file."""
    finder, parents = _UserModules(modules), _Parents(modules)
    sys.meta_path.insert(0, finder)
    sys.meta_path.append(parents)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        sys.meta_path.remove(parents)


def user_modules() -> dict[str, str]:
    """The modules loaded here that belong to neither Python nor an installed package."""
    paths = sysconfig.get_paths()
    installed = tuple({paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")})
    found = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and name != "__main__" and not file.startswith(installed) and not name.startswith("pytest_ddl"):
            found[name] = file
    return found


class _UserModules:
    """Finds modules by the files that they have in the controller."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self._files = files

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        file = self._files.get(name)
        if file is None:
            return None
        package = [file.rpartition("/")[0]] if file.endswith("__init__.py") else None
        return importlib.util.spec_from_file_location(name, file, submodule_search_locations=package)


class _Parents:
    """Stands in for packages that nobody else finds: folders without ``__init__.py`` of ``--import-mode=importlib``."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self._names = {
            parent for name in files for parent in itertools.accumulate(name.split(".")[:-1], "{}.{}".format)
        }

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(name, None, is_package=True) if name in self._names else None


def _dumps(value: Any, what: str) -> bytes:
    try:
        return bytes(cloudpickle.dumps(value, protocol=5))
    except Exception as error:
        raise ShippingError(
            f"{what} cannot be sent between processes: {type(error).__name__}: {error}. "
            "Send plain values (numbers, strings, NumPy arrays), and make TensorFlow objects inside the function."
        ) from error


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__qualname__", repr(function)))
