"""Register planted defects, and plant the one that an environment variable names, in each process of a run."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any

VARIABLE = "DDL_SUITE_DEFECT"
"""Environment variable with the name of the defect."""


@dataclass(frozen=True)
class Defect:
    """One defect: which tests may see it, and the function that plants it."""

    name: str
    what: str
    tests: str
    """Expression that is searched for in the id of a test: only these tests run with the defect."""
    plant: Callable[[], None]


DEFECTS: dict[str, Defect] = {}
_ABSENT = object()
_changed: list[tuple[Any, str, Any]] = []
"""Owner, name and earlier value of each attribute that has been replaced."""


def defect(tests: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register a function that plants the defect of its name; its docstring says what is wrong."""

    def register(plant: Callable[[], None]) -> Callable[[], None]:
        name = plant.__name__
        DEFECTS[name] = Defect(name, " ".join((plant.__doc__ or "").split()), tests, plant)
        return plant

    return register


def put(owner: Any, name: str, value: Any) -> None:
    """Set an attribute of a class or module until the defect is removed."""
    # The code of a function is no entry of its dictionary.
    known = getattr(owner, name) if isinstance(owner, FunctionType) else vars(owner).get(name, _ABSENT)
    _changed.append((owner, name, known))
    setattr(owner, name, value)


def replace(owner: Any, name: str, make: Callable[[Any], Callable[..., Any]]) -> None:
    """Replace a method or function by ``make(original)`` until the defect is removed."""
    original = getattr(owner, name)
    put(owner, name, functools.wraps(original)(make(original)))


def twice(owner: Any, name: str) -> None:
    """Let each call of a method or function do its work two times."""

    def make(original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            original(*args, **kwargs)
            return original(*args, **kwargs)

        return call

    replace(owner, name, make)


def silence(owner: Any, *names: str) -> None:
    """Let methods or functions return nothing when they would raise, so that wrong use is not refused."""

    def make(original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return original(*args, **kwargs)
            except Exception:
                return None

        return call

    for name in names:
        replace(owner, name, make)


def skip(owner: Any, *names: str) -> None:
    """Let methods or functions do nothing."""
    for name in names:
        replace(owner, name, lambda original: lambda *args, **kwargs: None)


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Plant a defect, and remove it at the end.

    :raises KeyError: if there is no such defect.
    """
    try:
        _plant(name)
        yield
    finally:
        while _changed:
            owner, attribute, earlier = _changed.pop()
            if earlier is _ABSENT:
                delattr(owner, attribute)
            else:
                setattr(owner, attribute, earlier)


def plant_from_environment() -> None:
    """Plant the defect that the environment names, if any, for the rest of this process.

    :raises KeyError: if there is no such defect.
    """
    name = os.environ.get(VARIABLE)
    if name:
        _plant(name)


def _plant(name: str) -> None:
    """Plant a defect, or the mutant of :mod:`suites.mutants` that begins with the path of its file."""
    if ".py:" in name:
        from suites.mutants import planting

        planting.plant(name)
    else:
        DEFECTS[name].plant()
