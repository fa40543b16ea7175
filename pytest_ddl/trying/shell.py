"""Give a notebook the names that IPython gives it. They do nothing, because nobody sees what a run displays."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_PACKAGE = "IPython"
_VERSION = (9, 0, 0, "")
"""Version that other packages see. With older ones, Matplotlib looks for a running IPython."""


class _Silent:
    """Object whose methods take everything and return another one."""

    def __call__(self, *_args: Any, **_kwargs: Any) -> _Silent:
        return self

    def __getattr__(self, name: str) -> _Silent:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __enter__(self) -> _Silent:
        return self

    def __exit__(self, *_error: object) -> None: ...


NAMES = {"display": _Silent(), "get_ipython": _Silent()}
"""Names that a notebook uses without an import."""


class _SilentPackage(Loader):
    """Finder of ``IPython`` and of all modules in it. They have any name, and do nothing.

    A module exists only after its import, because packages such as Matplotlib look for it in ``sys.modules``.
    """

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] == _PACKAGE else None

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__getattr__"] = _Silent().__getattr__
        if module.__name__ == _PACKAGE:
            version = ".".join(map(str, _VERSION[:3]))
            # Other packages ask whether they run in IPython, whose own answer outside it is None.
            module.__dict__.update(version_info=_VERSION, __version__=version, get_ipython=lambda: None)


@contextmanager
def ipython() -> Iterator[None]:
    """Offer ``IPython`` and its modules if the package is not installed."""
    if importlib.util.find_spec(_PACKAGE) is not None:
        yield
        return
    finder: Any = _SilentPackage()
    sys.meta_path.append(finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.partition(".")[0] == _PACKAGE]:
            del sys.modules[name]
