"""Send a function with its arguments to a worker, and return its result.

A function is sent by name if its module can be imported. A test module is made importable in the worker under the name
that it has here, in every import mode of pytest. Closures, lambdas and functions of ``__main__`` are sent by value
(:mod:`~pytest_ddl.cluster.pickling`).
"""

from __future__ import annotations

import importlib.util
import itertools
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.machinery import ModuleSpec, PathFinder
from types import MappingProxyType, ModuleType
from typing import Any

import cloudpickle

from pytest_ddl.cluster import overrides, pickling
from pytest_ddl.cluster.call_warnings import caught
from pytest_ddl.cluster.overrides import ShippingError as ShippingError
from pytest_ddl.cluster.protocol import RankWarning
from pytest_ddl.cluster.state.user_files import is_user_file
from pytest_ddl.cluster.state.user_modules import Reporting, judge_replaced, loaded


@dataclass(frozen=True)
class Shipped:
    """Result of a call."""

    data: bytes
    failed: bool = False
    """True if the result has a true attribute ``failed``. The controller then waits only briefly for other ranks."""
    warnings: tuple[RankWarning, ...] = ()
    """Warnings of the call, if the job has filters for them."""


@dataclass(frozen=True)
class Job:
    """Call that can be made in another process."""

    payload: bytes
    modules: Mapping[str, str]
    """Name -> file of the user's modules that are loaded in the controller."""
    overrides: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict)
    """Pickled values of globals that have changed in the controller since their import, by module and name."""
    filters: bytes | None = None
    """Pickled filters of warnings to apply; ``None`` for those of the process that makes the call."""

    def call(self) -> Shipped:
        """Make the call in this process and return its result.

        Modules of the user that the call imports are removed from ``sys.modules`` afterwards. The next call imports
        them again and therefore does not see changes of their globals.
        """
        before = set(sys.modules)
        try:
            with importable(self.modules, self.overrides) as put_overrides:
                function, args, kwargs = pickle.loads(self.payload)
                put_overrides()
                with caught(self.filters) as warned:
                    result = function(*args, **kwargs)
                data = _dumps(result, f"the result of {_name(function)} (a {type(result).__name__})")
                return Shipped(data, bool(getattr(result, "failed", False)), tuple(warned))
        finally:
            for name in set(sys.modules) - before:
                if name in self.modules or is_user_file(getattr(sys.modules[name], "__file__", None)):
                    _forget(name)


def _forget(name: str) -> None:
    """Remove a module. A package that stays would keep it alive."""
    module = sys.modules.pop(name)
    package, _, child = name.rpartition(".")
    if getattr(sys.modules.get(package), child, None) is module:
        delattr(sys.modules[package], child)


def pack(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    since: Job | None = None,
) -> Job:
    """Make a job from a call.

    :param since: job that refers to the same code of the user, if no such code has run in this process since it was
        made. Its modules and changed globals are taken over: to search a large project for changes takes long.
    :raises ShippingError: if the function, an argument or a changed global cannot be sent.
    """
    what = f"{_name(function)} with its arguments"
    payload = _dumps((function, tuple(args), dict(kwargs or {})), what)
    if since is not None:
        return replace(since, payload=payload)
    return Job(payload, user_modules(), overrides.collect((function, args, kwargs)))


def by_value(function: Callable[..., Any]) -> bytes:
    """Pickle a function with the globals that it uses, so that a worker can call it without importing its module.

    :raises ShippingError: if the function cannot be sent.
    """
    module = sys.modules.get(getattr(function, "__module__", ""))
    registered = module is not None and is_user_file(getattr(module, "__file__", None))
    if registered:
        cloudpickle.register_pickle_by_value(module)
    try:
        return _dumps(function, _name(function))
    finally:
        if registered:
            cloudpickle.unregister_pickle_by_value(module)


def unpack(result: Shipped) -> Any:
    """Return the value that the worker's function returned.

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
def importable(
    modules: Mapping[str, str], changed: Mapping[str, Mapping[str, bytes]] = MappingProxyType({})
) -> Iterator[Callable[[], None]]:
    """Make modules importable under the names that they have in the controller.

    Yield a function that sets changed globals. It sets them at once in loaded modules, and later in each module that is
    imported. A global that another module has copied at its import is not changed, as in the controller.

    :param modules: name -> file of the modules.
    :param changed: pickled values of changed globals, by module and name.
    """
    finder, parents = _UserModules(modules, changed), _Parents(modules)
    sys.meta_path.insert(0, finder)
    sys.meta_path.append(parents)
    try:
        yield finder.put_overrides
    finally:
        sys.meta_path.remove(finder)
        sys.meta_path.remove(parents)
        finder.put_back()


def user_modules() -> dict[str, str]:
    """Return the loaded modules that belong neither to Python nor to an installed package, as name -> file."""
    judge_replaced()
    return {name: vars(module)["__file__"] for name, module in loaded().items()}


class _UserModules:
    """Finder that loads modules from the files that they have in the controller."""

    def __init__(self, files: Mapping[str, str], changed: Mapping[str, Mapping[str, bytes]]) -> None:
        self._files = files
        self._changed = changed
        self._ready = False
        self._undo: list[Callable[[], None]] = []

    def put_overrides(self) -> None:
        """Set changed globals now, and whenever one of their modules is imported."""
        self._ready = True
        for name in self._changed:
            self._put(sys.modules.get(name))

    def _put(self, module: ModuleType | None) -> None:
        if module is not None and self._ready and module.__name__ in self._changed:
            undo = overrides.put(module, self._changed[module.__name__])
            if module.__name__ not in self._files:
                # An installed module stays loaded after the call, so its globals have to be restored.
                self._undo += undo

    def put_back(self) -> None:
        """Restore the changed globals of installed modules."""
        for undo in reversed(self._undo):
            undo()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        file = self._files.get(name)
        if file is None:
            return self._find_installed(name, path, target) if name in self._changed else None
        package = [file.rpartition("/")[0]] if file.endswith("__init__.py") else None
        spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=package)
        if spec is not None and spec.loader is not None and name in self._changed:
            spec.loader = Reporting(spec.loader, self._put)
        return spec

    def _find_installed(self, name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = Reporting(spec.loader, self._put)
        return spec


class _Parents:
    """Finder for packages that no other finder knows: folders without ``__init__.py`` in the import mode importlib."""

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
        return pickling.dumps(value)
    except Exception as error:
        raise ShippingError(
            f"{what} cannot be sent between processes: {type(error).__name__}: {error}. "
            "Send plain values (numbers, strings, NumPy arrays), and make TensorFlow objects inside the function."
        ) from error


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__qualname__", repr(function)))
