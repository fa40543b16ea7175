"""The registry of checks of objects, the objects as checks get them, and the tags that decide which checks apply."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from pytest_ddl.conformance.data import Data, cast


@dataclass(frozen=True, kw_only=True)
class Tags:
    """Capabilities of an object. ``None`` stands for what pytest-ddl finds out by itself.

    ``needs_whole_batch`` is only ever declared: an object that needs the whole batch by design does the same as one
    that divides by the wrong number.
    """

    random: bool | None = None
    """A layer draws random numbers in training. Found in the graph of its call."""
    state: bool | None = None
    """A layer has weights that are not trained, or an optimizer has slots. Found from the variables."""
    sparse_gradients: bool | None = None
    """An optimizer takes ``tf.IndexedSlices``. Found by an attempt on one device."""
    sample_weights: bool | None = None
    """A metric or a loss takes ``sample_weight``. Found from its signature."""
    needs_whole_batch: bool = False
    """The value of an example depends on the other examples of the batch, as in batch normalization."""

    def over(self, found: Tags) -> Tags:
        """Return these tags. The found ones fill in those that were not declared."""
        declared = {one.name: getattr(self, one.name) for one in fields(self)}
        return replace(found, **{name: value for name, value in declared.items() if value is not None})


@dataclass(frozen=True)
class Subject:
    """An object under check. It can be sent to ranks."""

    factory: Callable[[], Any]
    name: str
    """Name in ids."""
    kind: str
    flavor: str
    """Package of its class: ``keras`` or ``tf_keras``."""
    precision: str
    """Dtype of real numbers in which it computes: float64 if it can."""
    tags: Tags
    data: Data | None = None

    def make(self) -> Any:
        """Make a new object."""
        return self.factory()

    def arrays(self, rows: int) -> tuple[Any, ...]:
        """Return the arguments for a number of examples, in the precision of the object."""
        return () if self.data is None else cast(self.data(rows), self.precision)


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
