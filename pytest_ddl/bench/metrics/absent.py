"""Errors for metrics and statistics that cannot be computed; each gives the reason in words for a user."""

from __future__ import annotations

from importlib import import_module
from typing import Any


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
        raise MissingPackageError(f"{package} is not installed: pip install 'pytest-ddl[bench]'") from None
