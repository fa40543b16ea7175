"""Remember the globals of the user's modules and the attributes of their classes after import, and find changes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import ModuleType
from typing import Any

from pytest_ddl.cluster.state import dict_versions, user_files
from pytest_ddl.cluster.state.remembered import Remembered, generator_state
from pytest_ddl.cluster.state.user_files import is_user_file

MISSING = Remembered(None, "missing")
"""Placeholder for an attribute that does not exist."""


class UserModules:
    """State of all modules of the user in this process, by ``module`` and ``name`` or ``Class.name``.

    A module that is imported later is remembered directly after its import.

    :param installed: callback for each installed module that is imported later.
    """

    def __init__(self, installed: Callable[[ModuleType], None] | None = None) -> None:
        self._expected: dict[str, dict[str, Remembered]] = {}
        self._rewind: list[Callable[[], None]] = []
        self._finder = _Finder(self._imported, installed)
        self.remember()

    def remember(self) -> None:
        """Remember the present state. Later states are compared with it."""
        self._expected.clear()
        self._rewind.clear()
        for module in loaded().values():
            self._imported(module)
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
        sys.meta_path.insert(0, self._finder)

    def changes(self) -> dict[str, Remembered]:
        """Return the present values that differ from the expected ones, by ``module:name``."""
        changed: dict[str, Remembered] = {}
        for module in loaded().values():
            if module.__name__ not in self._expected:
                # The module was added without an import, so its original state is unknown.
                self._imported(module)
                continue
            expected = self._expected[module.__name__]
            present = dict(_state(module))
            for name, value in present.items():
                known = expected.get(name)
                if known is None or (known.content != _generator(value) and not known.holds(value)):
                    changed[f"{module.__name__}:{name}"] = Remembered.of(value)
            for name in expected.keys() - present.keys():
                changed[f"{module.__name__}:{name}"] = MISSING
        return {key: memo for key, memo in changed.items() if memo != self._get(key)}

    def expect(self, key: str, memo: Remembered) -> Remembered:
        """Expect another value from now on. Return the value that was expected before."""
        module, _, name = key.partition(":")
        before = self._get(key)
        expected = self._expected.setdefault(module, {})
        if memo is MISSING:
            expected.pop(name, None)
        else:
            expected[name] = memo
        return before

    def rewind_generators(self) -> None:
        """Restore the state of the user's random generators after the import of their modules."""
        for rewind in self._rewind:
            rewind()

    def close(self) -> None:
        """Stop watching imports."""
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)

    def _get(self, key: str) -> Remembered:
        module, _, name = key.partition(":")
        return self._expected.get(module, {}).get(name, MISSING)

    def _imported(self, module: ModuleType) -> None:
        # Now, because a module that a call has imported is not loaded any more after it.
        user_files.note([module])
        self._expected[module.__name__] = expected = {}
        for name, value in _state(module):
            generator = generator_state(value)
            if generator is None:
                expected[name] = Remembered.of(value)
            else:
                # Drawing from a generator does not count as a change, because the generator is restored.
                expected[name] = Remembered(value, _generator(value))
                self._rewind.append(generator[1])


def resolve(module: ModuleType, name: str) -> tuple[Any, str]:
    """Return the owner of a name, which is the module or a class in it, and the name of the attribute.

    :raises KeyError: if the module has no such class.
    """
    owner, _, attribute = name.rpartition(".")
    return (vars(module)[owner] if owner else module), attribute


def _generator(value: Any) -> tuple[str, int]:
    return "generator", id(value)


class _Loaded:
    """The loaded modules. There are thousands, so each is judged only once, and all only if one came or went."""

    def __init__(self) -> None:
        self._of_user: dict[str, ModuleType] = {}
        self._others: dict[str, ModuleType | None] = {}
        self._version: int | None = None

    def of_user(self) -> dict[str, ModuleType]:
        # This is asked after each phase of a test, and takes 0.3 ms without the version.
        version = dict_versions.version_of(sys.modules).value if dict_versions.EXIST else None
        if version is None or version != self._version:
            self._version, self._of_user = version, dict(self._judged())
        return dict(self._of_user)

    def _judged(self) -> Iterator[tuple[str, ModuleType]]:
        for name in sorted(sys.modules.keys() - self._others.keys()):
            module = sys.modules.get(name)
            # getattr would import a module that is imported lazily.
            is_script = name in ("__main__", "__mp_main__")
            if isinstance(module, ModuleType) and not is_script and is_user_file(vars(module).get("__file__")):
                yield name, module
            else:
                self._others[name] = module

    def judge_replaced(self) -> None:
        for name, module in list(self._others.items()):
            if sys.modules.get(name) is not module:
                del self._others[name]
                self._version = None


_LOADED = _Loaded()


def loaded() -> dict[str, ModuleType]:
    """Return the modules of the user that are loaded, by the names under which they are loaded."""
    return _LOADED.of_user()


def judge_replaced() -> None:
    """Judge a name again if another module has it than the one that was judged."""
    _LOADED.judge_replaced()


def _state(module: ModuleType) -> Iterator[tuple[str, Any]]:
    for name, value in list(vars(module).items()):
        # Names with @ belong to pytest. A submodule becomes an attribute whenever any code imports it.
        if name.startswith(("__", "@")) or isinstance(value, ModuleType):
            continue
        yield name, value
        if isinstance(value, type) and value.__module__ == module.__name__:
            for attribute, item in list(vars(value).items()):
                if not attribute.startswith(("__", "_abc_")):
                    yield f"{name}.{attribute}", item


class _Finder(MetaPathFinder):
    """Finder that delegates to the other finders and reports a module after it was executed."""

    def __init__(
        self, imported: Callable[[ModuleType], None], installed: Callable[[ModuleType], None] | None = None
    ) -> None:
        self._report = imported
        self._installed = installed

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        # Only those that follow: one before it that delegates, too, would call this one again without end.
        following = sys.meta_path[sys.meta_path.index(self) + 1 :] if self in sys.meta_path else []
        for finder in following:
            if isinstance(finder, _Finder):
                continue  # it would keep this one from seeing the loader of an installed module
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                # Modules that are built in have an origin too, which is no file.
                if spec.loader is not None and spec.has_location and is_user_file(spec.origin):
                    spec.loader = Reporting(spec.loader, self._report)
                elif self._installed is not None and type(spec.loader) is SourceFileLoader:
                    # Only for plain Python files, because other loaders may inspect their caller.
                    spec.loader = Reporting(spec.loader, self._installed)
                return spec
        return None


class Reporting(Loader):
    """Loader that delegates to another loader and then reports the module. The module keeps the other loader."""

    def __init__(self, loader: Any, imported: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._report = imported

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._report(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
