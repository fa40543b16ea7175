"""Register planted defects, and plant the one that an environment variable names, in each process of a run."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

VARIABLE = "DDL_SUITE_DEFECT"
"""Environment variable with the name of the defect."""


@dataclass(frozen=True)
class Defect:
    """One defect: which tests may see it, and the function that plants it."""

    name: str
    what: str
    tests: str
    """Pattern for ``-k``: only these tests run with the defect."""
    plant: Callable[[], None]


DEFECTS: dict[str, Defect] = {}


def defect(tests: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register a function that plants the defect of its name; its docstring says what is wrong."""

    def register(plant: Callable[[], None]) -> Callable[[], None]:
        name = plant.__name__
        DEFECTS[name] = Defect(name, " ".join((plant.__doc__ or "").split()), tests, plant)
        return plant

    return register


def replace(owner: Any, name: str, make: Callable[[Any], Callable[..., Any]]) -> None:
    """Replace a method or function by ``make(original)``."""
    original = getattr(owner, name)
    changed = functools.wraps(original)(make(original))
    setattr(owner, name, changed)


def plant_from_environment() -> None:
    """Plant the defect that the environment names, if any.

    :raises KeyError: if there is no such defect.
    """
    name = os.environ.get(VARIABLE)
    if name:
        DEFECTS[name].plant()
