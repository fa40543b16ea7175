"""Registry of metrics: the decorator :func:`metric` adds a function, and everything else reads ``METRICS``.

The table of the documentation, the benchmarks that asv tracks, the table of a measurement, and the sections of the
history page follow from the decorator's arguments and from the docstring of the function. A metric that cannot be
computed raises an error of this module, which gives the user the reason.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal, TypeVar

from pytest_ddl.installing import install_line

Suites = Literal["", "always", "weak", "strong", "energy"]
_Function = TypeVar("_Function", bound=Callable[..., Any])


class NoNumberError(ValueError):
    """Error if a metric cannot be computed from the measurement; the message says why, and what would provide it."""


class MissingPackageError(ImportError):
    """Error if a package for statistics is not installed; the message says how to install it."""


def statistics_package(name: str) -> Any:
    """Import a module of an optional statistics package.

    :raises MissingPackageError: if the package is not installed.
    """
    try:
        return import_module(name)
    except ImportError:
        package = name.partition(".")[0]
        raise MissingPackageError(f"{package} is not installed: {install_line('bench')}") from None


@dataclass(frozen=True)
class Column:
    """Column of the table that is printed after a measurement."""

    title: str
    width: int
    text: Callable[[float], str]
    """Function that formats the value."""
    interval: bool = False
    """True if half of the interval is printed after the value."""
    scaling: str = ""
    """Batch rule of the matrices that have the column: ``strong``, or ``weak`` (also without a rule); empty: all."""
    of_baseline: str = "baseline"
    """Text for the variant that others are compared with."""


@dataclass(frozen=True)
class Metric:
    """Function that computes a number, with the properties that :func:`metric` gave it."""

    name: str
    unit: str
    """``seconds``, ``examples/s``, ``MiB`` ...; empty for a ratio."""
    higher_is_better: bool
    summary: str
    formula: str
    source: str
    scope: str
    """Subject of the number: ``launch``; ``pair``, a launch against one on a single replica; ``sizes``, several numbers
    of replicas; ``cluster``; ``profile``; ``training``, runs to a target."""
    dual: str | None
    """Metric that a gate compares in place of this one, because it is positive, lower is better, and it is on a ratio
    scale. ``None`` if this metric has these properties itself, or if there is no such metric."""
    ratio_scale: bool
    """True if the metric is positive and a ratio has the same meaning for small and large values.

    Intervals are then computed from logarithms."""
    tracked: Suites
    """asv suites that track the metric: all, those with a batch rule, or those that read energy; empty: none."""
    by_blocks: bool
    """True if asv stores several samples of a launch, from consecutive blocks; always true for the scope ``pair``."""
    column: Column | None
    """Column of the printed table; ``None`` if the metric is not in it."""
    family: str
    """Section of the history page, as in :data:`pytest_ddl.bench.history.meaning.FAMILIES`; empty: its own section."""
    function: str
    """Location of the function that users call, as ``module:name`` under ``pytest_ddl.bench``."""
    compute: Callable[..., Any] = field(repr=False)
    """Decorated function. It takes the launch (scope ``launch``); or the launch on one replica, and then the launch on
    several (scope ``pair``); or, for other scopes, the parameters that its docstring lists."""

    @property
    def of(self) -> Callable[..., float] | None:
        """Function that computes a metric of one variant (scope ``launch`` or ``pair``); ``None`` for others."""
        return self.compute if self.scope in ("launch", "pair") else None

    @property
    def gated(self) -> bool:
        """True if a gate can compare it: lower is better, on a ratio scale."""
        return not self.higher_is_better and self.ratio_scale


METRICS: dict[str, Metric] = {}
"""All metrics by name."""


def metric(
    unit: str,
    better: Literal["higher", "lower"],
    *,
    scope: str = "launch",
    name: str = "",
    summary: str = "",
    dual: str | None = None,
    ratio_scale: bool = True,
    tracked: Suites = "",
    by_blocks: bool = False,
    column: Column | None = None,
    family: str = "",
    measured_by: str = "",
) -> Callable[[_Function], _Function]:
    """Register a function as a metric. The parameters are the fields of :class:`Metric`, except for those below.

    The docstring of the function is the documentation of the metric. Its first line, without "Return the", is the
    summary. Its fields ``:formula:`` and ``:source:`` are required.

    :param name: name of the metric (default: the name of the function).
    :param summary: summary, if the first line of the docstring is about something else.
    :param measured_by: location of the function that users call, if it is not the decorated one; as ``module:name``
        under ``pytest_ddl.bench``.
    :raises ValueError: if the docstring lacks a field, or there is already a metric of that name.
    """

    def register(function: _Function) -> _Function:
        key = name or function.__name__
        if key in METRICS:
            raise ValueError(f"there is already a metric {key!r}, in {METRICS[key].function}")
        document = inspect.getdoc(function) or ""
        METRICS[key] = Metric(
            name=key,
            unit=unit,
            higher_is_better=better == "higher",
            summary=summary or re.sub(r"^Return (the )?", "", document.partition("\n")[0]).removesuffix("."),
            formula=_field("formula", document, key),
            source=_field("source", document, key),
            scope=scope,
            dual=dual,
            ratio_scale=ratio_scale,
            tracked=tracked,
            by_blocks=by_blocks,
            column=column,
            family=family,
            function=measured_by or f"{function.__module__.removeprefix('pytest_ddl.bench.')}:{function.__name__}",
            compute=function,
        )
        return function

    return register


def _field(name: str, document: str, key: str) -> str:
    match = re.search(rf"^:{name}: (.+(?:\n +.+)*)", document, re.MULTILINE)
    # Python removes all docstrings with -OO.
    if match is None and sys.flags.optimize < 2:
        raise ValueError(f"metric {key!r}: add a line ':{name}: …' to the docstring of its function")
    return " ".join(match[1].split()) if match else ""


def metric_named(name: str) -> Metric:
    """Return a metric by its name.

    :raises ValueError: if there is no such metric; it names those that exist.
    """
    if name not in METRICS:
        raise ValueError(f"no metric {name!r}; valid: {', '.join(METRICS)}")
    return METRICS[name]


def digits(value: float) -> str:
    """Format four significant digits; a whole number from 1000 on; three digits and an exponent from 10 million on."""
    if value >= 1000:
        return f"{value:.0f}" if value < 1e7 else f"{value:.3g}"
    return f"{value:.4g}"
