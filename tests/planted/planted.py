"""Describe planted bugs: a program with one sin, its twin without it, and what a check must say about the sin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

REPLICAS = ("mirrored", "multi_worker_mirrored")
"""The strategies under which most sins against several replicas show."""


@dataclass(frozen=True)
class Planted:
    """One bug, and the program in which it was planted."""

    ids: tuple[str, ...]
    """Entries of the corpus that it re-creates; empty for an invariant that the corpus shows rarely."""
    name: str
    """The sin."""
    sin: Callable[[Any], None]
    twin: Callable[[Any], None]
    """The same program without the sin."""
    causes: tuple[str, ...]
    """Ids of causes that name it correctly, the best first."""
    symptom: str = "silent"
    strategies: tuple[str, ...] = REPLICAS
    """Variants under which it shows."""
    batch: int = 8
    steps: int | None = 3
    strict: bool = False
    """True if it is tolerated by default, as a named approximation."""
    expect_of_twin: tuple[str, ...] = ()
    """Legitimate differences of the twin, which the test declares."""
    timeout: float = 180.0
    """Seconds for everything."""
    sin_timeout: float | None = None
    """Seconds for the sin. They are fewer if it makes ranks wait for each other."""
    notes: str = field(default="", compare=False)


def planted(ids: str, program: Callable[..., None], *causes: str, **fields: Any) -> Planted:
    """The bug of a program ``program(run, sin)`` that is named by its sin; ids are separated by spaces."""
    return Planted(
        ids=tuple(ids.split()),
        name=program.__name__,
        sin=partial(program, sin=True),
        twin=partial(program, sin=False),
        causes=causes,
        **fields,
    )
