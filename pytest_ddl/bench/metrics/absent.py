"""What is raised where a metric has no number, or no statistics: the reason, in words for a user."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class NoNumberError(ValueError):
    """A metric that cannot be had from what was measured; the message says why, and what would give it."""


class MissingPackageError(ImportError):
    """A package for statistics that is not installed; the message says how to install it."""


def statistics_package(name: str) -> Any:
    """A module of the packages that statistics are taken from.

    :raises MissingPackageError: where it is not installed.
    """
    try:
        return import_module(name)
    except ImportError:
        package = name.partition(".")[0]
        raise MissingPackageError(f"{package} is not installed: pip install 'pytest-ddl[bench]'") from None
