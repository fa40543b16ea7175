"""Say which values a property gives to the parameters of a class, and choose few cases that have all pairs of them."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from suites import subject
from suites.pairwise import pairwise

Arguments = dict[str, Any]
SHOWN = 8
"""Number of wrong cases that a failure lists."""


@dataclass(frozen=True, eq=False)
class Space:
    """A class or function of a package, and at least two values for each of its parameters that a property varies."""

    api: str
    """Path in the package, such as ``losses.Huber``. A path in TensorFlow begins with ``tf.``."""
    values: Mapping[str, Sequence[Any]]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Parameters that always have one value. They count as not varied."""
    allowed: Callable[[Arguments], bool] = lambda _arguments: True
    """Says whether values go together. It gets some or all of them."""

    @property
    def name(self) -> str:
        return self.api.rpartition(".")[2]

    def exists(self) -> bool:
        """Return whether the installed version has it."""
        return find(self.api) is not None

    def varied(self) -> dict[str, Sequence[Any]]:
        """Return the values of the parameters that the installed version has."""
        known = parameters(self.api)
        return {name: values for name, values in self.values.items() if name in known}

    def cases(
        self, *, also: Callable[[Arguments], bool] = lambda _case: True, **others: Sequence[Any]
    ) -> list[Arguments]:
        """Return cases in which each pair of values occurs. It is empty if the installed version does not have it.

        :param also: says too whether values go together.
        :param others: further dimensions of the property, which are no parameters.
        """
        if not self.exists():
            return []
        dimensions: dict[str, Sequence[Any]] = {**self.varied(), **others}

        def goes(case: Arguments) -> bool:
            return self.allowed(case) and also(case)

        if len(dimensions) < 2:
            found = [{name: value} for name, values in dimensions.items() for value in values] or [{}]
            return [case for case in found if goes(case)]

        def valued(case: Mapping[str, str]) -> Arguments:
            return {name: dimensions[name][int(index)] for name, index in case.items()}

        labels = {name: [str(index) for index in range(len(values))] for name, values in dimensions.items()}
        return [valued(case) for case in pairwise(labels, lambda case: goes(valued(case)))]

    def make(self, case: Arguments) -> Any:
        """Make an object with the parameters of a case."""
        varied = self.varied()
        return find(self.api)(**self.fixed, **{name: value for name, value in case.items() if name in varied})


def find(api: str) -> Any:
    """Return what has a path in the tested package or in TensorFlow, or ``None``."""
    package, path = ("tensorflow", api[3:]) if api.startswith("tf.") else (subject.name(), api)
    found: Any = importlib.import_module(package)
    for name in path.split("."):
        found = getattr(found, name, None)
    return found


@cache
def parameters(api: str) -> tuple[str, ...]:
    """Return the names of the parameters of a public class or function, without ``self`` and ``**kwargs``."""
    found = find(api)
    if found is None:
        return ()
    try:
        signature = inspect.signature(found)
    except ValueError:  # a class of C++, whose parameters Python does not know
        return ()
    several = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return tuple(name for name, one in signature.parameters.items() if name != "self" and one.kind not in several)


class Wrong:
    """Collection of the wrong cases, so that one test reports all of them."""

    def __init__(self) -> None:
        self._found: list[str] = []

    @contextmanager
    def of(self, *case: Any) -> Iterator[None]:
        """Name the case of what the body raises."""
        try:
            yield
        except Exception as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            told = " ".join(lines[:9])[:300]
            self._found.append(f"{type(error).__name__}: {told}: {', '.join(map(str, case))}")

    def check(self) -> None:
        """Fail with all of them.

        :raises AssertionError: if there are any.
        """
        few = "\n".join(self._found[:SHOWN])
        assert not self._found, f"{len(self._found)} cases are wrong, the first of them:\n{few}"
