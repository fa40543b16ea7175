"""Say what an operation of ``keras.ops`` is called with, and what NumPy makes of it by the operation's definition."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

Call = tuple[tuple[Any, ...], Mapping[str, Any]]


@dataclass(frozen=True)
class Defined:
    """An operation, its definition, and the calls that are compared."""

    api: str
    """Path in ``keras.ops``, such as ``image.resize``."""
    model: Callable[..., Any] | None
    """The definition in NumPy, or ``None`` if other tests compare the values."""
    calls: Sequence[Call]
    view: Callable[..., Any] = lambda found, *_given, **_options: found
    """Takes the result and the arguments of the call, and returns what is compared with the definition."""
    batched: int = 0
    """How many of the first arguments have the examples of a batch on their first axis."""
    rtol: float = 1e-5
    atol: float = 1e-5
    case: str = ""
    """What is special about the calls, if others of the operation are compared in a test of their own."""
    needs: str = ""
    """An operation that came with what the calls need, if older versions have the first one without it."""

    @property
    def name(self) -> str:
        """Name of the operation and the case, for the id of a test."""
        return " ".join(filter(None, (self.api.rpartition(".")[2], self.case)))


def call(*given: Any, **options: Any) -> Call:
    return given, options


def each(*first: Any, **options: Sequence[Any]) -> list[Call]:
    """Return a call for each choice of the options."""
    return [(first, dict(zip(options, chosen, strict=True))) for chosen in product(*options.values())]


def few(calls: Sequence[Call]) -> list[Call]:
    """Return calls in which each value of an option and each shape of the arguments occurs."""
    seen: set[str] = set()
    found = []
    for given, options in calls:
        shown = {f"{name}={value}" for name, value in options.items()}
        shown.add(str([getattr(one, "shape", one) for one in given]))
        if not shown <= seen:
            seen |= shown
            found.append((given, options))
    return found
