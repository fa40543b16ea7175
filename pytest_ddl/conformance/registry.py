"""The registry of checks of objects: names, the kinds and tags that they apply to, and their functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from pytest_ddl.conformance.tags import Tags

if TYPE_CHECKING:
    from pytest_ddl.conformance.subjects import Subject

Body = TypeVar("Body", bound=Callable[..., Any])


@dataclass(frozen=True)
class ConformanceCheck:
    """A property that objects of one kind have under every strategy."""

    name: str
    kind: str
    title: str
    """Property that holds if it passes."""
    function: Callable[..., Any]
    """Takes a strategy and a subject, on each rank. It returns what ``together`` compares, and raises an AssertionError
    if the property does not hold. A check that compares training takes a run and a subject."""
    advice: str = ""
    """Advice to the author if the check fails."""
    needs: tuple[str, ...] = ()
    """Tags that an object must have."""
    unless: tuple[str, ...] = ()
    """Tags that an object must not have."""
    coordinator: bool = False
    """True if the check can run under a coordinator, whose workers take no step together."""
    is_training: bool = False
    """True if ``function`` is a training function that is compared with one device."""
    together: Callable[[Sequence[Any]], None] | None = None
    """Compares what the ranks returned, in the pytest process; raises an AssertionError."""

    def applies(self, subject: Subject) -> bool:
        """Return whether the check is meant for an object."""
        return self.kind == subject.kind and self.applies_with(subject.tags)

    def applies_with(self, tags: Tags) -> bool:
        """Return whether the tags of an object allow the check."""
        return all(getattr(tags, tag) for tag in self.needs) and not any(getattr(tags, tag) for tag in self.unless)


REGISTERED: dict[str, ConformanceCheck] = {}
"""Checks of the modules that were imported so far; :mod:`pytest_ddl.conformance.checks` has all."""


def register(kind: str, title: str, **settings: Any) -> Callable[[Body], Body]:
    """Add a function to the registry, under its own name.

    :param settings: further fields of :class:`ConformanceCheck`.
    """

    def decorate(function: Body) -> Body:
        check = ConformanceCheck(function.__name__, kind, title, function, **settings)
        REGISTERED[check.name] = check
        return function

    return decorate
