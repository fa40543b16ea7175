"""Defer the import of TensorFlow and Keras in the pytest process until code uses an attribute of the module.

A test file imports TensorFlow for functions that run in the ranks, which have imported it already. The pytest process
often needs nothing of it. A deferred module is like one of :class:`importlib.util.LazyLoader`, with one difference:
pytest asks each global of a test file for names such as ``__test__``, and such a question does not import it.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import ModuleType
from typing import Any

DEFERRED = ("tensorflow", "keras", "tf_keras")
_REAL = ("__version__", "__path__", "__all__")
"""Names with underscores for which the module is imported. Python asks for ``__path__`` to import a submodule."""
_ASKED = ("_mock_name", "_pytestfixturefunction", "pytest_mock_example_attribute_that_shouldnt_exist")
"""Other names that pytest 8.2 to 9.2 ask each global of a test file for. No module has them."""
_MADE = "_ddl_deferred"
"""Name of the attribute that marks a deferred module. Python has made the module object, but has not run its code."""
_lock = threading.RLock()
_after: Callable[[ModuleType], None] | None = None


class _Deferred(ModuleType):
    """Module that is imported when an attribute is used."""

    def __getattr__(self, name: str) -> Any:
        # Python asks for some of these names while it makes the module.
        special = name.startswith("__") and name.endswith("__") and (name not in _REAL or _MADE not in vars(self))
        if special or name in _ASKED:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        _load(self)
        return getattr(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        # Import sets the parent's attribute after it has imported a submodule, and Python sets __spec__ and the like.
        if not name.startswith("__"):
            _load(self)  # from here on, it is no object of this class, so super() would fail
        ModuleType.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        _load(self)
        ModuleType.__delattr__(self, name)

    def __reduce__(self) -> tuple[Callable[[str], ModuleType], tuple[str]]:
        # cloudpickle knows modules by their exact type. A function that is sent to the ranks may refer to this one.
        return importlib.import_module, (self.__name__,)

    def __dir__(self) -> list[str]:
        _load(self)
        return dir(self)


def _load(module: ModuleType) -> None:
    with _lock:
        if type(module) is not _Deferred:
            return
        object.__setattr__(module, "__class__", ModuleType)
        del vars(module)[_MADE]
        spec = module.__spec__
        assert spec is not None
        assert isinstance(spec.loader, _Loader)
        spec.loader = module.__loader__ = spec.loader.real
        assert spec.loader is not None
        if spec.submodule_search_locations is not None:
            module.__path__ = spec.submodule_search_locations
        try:
            spec.loader.exec_module(module)
        except BaseException:
            sys.modules.pop(spec.name, None)
            raise
    if _after is not None:
        _after(module)


class _Loader(Loader):
    def __init__(self, real: Loader) -> None:
        self.real = real

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Deferred(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        vars(module).pop("__path__", None)
        vars(module)[_MADE] = True


class _DeferredFinder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in DEFERRED:
            return None
        others = sys.meta_path[sys.meta_path.index(self) + 1 :] if self in sys.meta_path else []
        for finder in others:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                # Another kind of loader may make its own kind of module.
                if isinstance(spec.loader, SourceFileLoader):
                    spec.loader = _Loader(spec.loader)
                return spec
        return None


_finder = _DeferredFinder()


def defer() -> None:
    """Defer the import of the modules that are not imported yet. A second call does nothing."""
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def call_after_import(callback: Callable[[ModuleType], None] | None) -> None:
    """Call a function with each deferred module right after its import; ``None``: call nothing any more."""
    global _after
    _after = callback


def imported(name: str) -> ModuleType | None:
    """Return a module, or ``None`` if it is not imported or if its code has not run yet."""
    module = sys.modules.get(name)
    return None if type(module) is _Deferred else module


def stop() -> None:
    """Import modules at once from now on, as without :func:`defer`."""
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
