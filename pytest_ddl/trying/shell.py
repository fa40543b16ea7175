"""Give a notebook the names that IPython gives it. They do nothing, because nobody sees what a run displays."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any


class _Silent:
    """Object whose methods take everything and return another one."""

    def __call__(self, *_args: Any, **_kwargs: Any) -> _Silent:
        return self

    def __getattr__(self, name: str) -> _Silent:
        if name.startswith("__"):
            raise AttributeError(name)
        return self


NAMES = {"display": _Silent(), "get_ipython": _Silent()}
"""Names that a notebook uses without an import."""


@contextmanager
def ipython() -> Iterator[None]:
    """Offer the modules ``IPython`` and ``IPython.display`` if the package is not installed."""
    if importlib.util.find_spec("IPython") is not None:
        yield
        return
    package, display = ModuleType("IPython"), ModuleType("IPython.display")
    for module in (package, display):
        module.__dict__["__getattr__"] = _Silent().__getattr__
    # Packages such as Matplotlib ask whether they run in IPython, whose own answer outside it is None.
    package.__dict__.update(display=display, __path__=[], get_ipython=lambda: None)
    sys.modules.update({"IPython": package, "IPython.display": display})
    try:
        yield
    finally:
        for module in (package, display):
            sys.modules.pop(module.__name__, None)
