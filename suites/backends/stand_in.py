"""Let Keras import its NumPy backend without JAX, which that backend imports for convolutions, pooling and resizing."""

from __future__ import annotations

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import numpy as np

OF_KERAS = "keras.src.backend.jax"
"""The other backend, of which the NumPy backend uses two Fourier transforms."""


class Lacking:
    """A part of JAX that can be named, and that refuses to be called."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Lacking:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return Lacking(f"{self._name}.{attribute}")

    def __call__(self, *_given: Any, **_options: Any) -> Any:
        raise NotImplementedError(f"the NumPy backend needs {self._name}")


def _complex(x: Any) -> Any:
    real, imaginary = x
    return real + 1j * imaginary


def _parts(found: Any) -> Any:
    return found.real, found.imag


class _Modules(MetaPathFinder, Loader):
    """Finds JAX and the backend of Keras that is made of it, whatever is installed."""

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> ModuleSpec | None:
        if name.partition(".")[0] != "jax" and name != OF_KERAS and not name.startswith(f"{OF_KERAS}."):
            return None
        return ModuleSpec(name, self, is_package=True)

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ == f"{OF_KERAS}.math":
            module.fft = lambda x: _parts(np.fft.fft(_complex(x)))  # type: ignore[attr-defined]
            module.fft2 = lambda x: _parts(np.fft.fft2(_complex(x)))  # type: ignore[attr-defined]
            return
        if module.__name__ == "jax":
            module.Array = type("Array", (), {})  # type: ignore[attr-defined]  # SciPy asks whether something is one
        lacking = Lacking(module.__name__)
        module.__getattr__ = lambda name: getattr(lacking, name)  # type: ignore[method-assign]


def install() -> None:
    """Let this process find the stand-in first."""
    sys.meta_path.insert(0, _Modules())
