"""Measure the coverage of ranks, if coverage.py measures the pytest process: with pytest-cov or ``coverage run``."""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Mapping
from typing import Any

_CONFIGURATION = "COVERAGE_PROCESS_CONFIG"
"""Variable from which ``coverage.process_startup`` reads its configuration."""


def of_ranks(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of ranks, with the configuration of the coverage that is measured in this process.

    Each rank gets a file of its own beside that of this process. pytest-cov and ``coverage combine`` find it there.
    """
    measured = _current()
    if not hasattr(getattr(measured, "config", None), "serialize"):  # coverage.py before 7.10
        return dict(environ)
    configuration = copy.copy(measured.config)
    configuration.parallel = True
    return {**environ, _CONFIGURATION: configuration.serialize()}


def begin() -> None:
    """Begin to measure in a rank, if its environment asks for that."""
    if _CONFIGURATION in os.environ:
        import coverage  # type: ignore[import-not-found,unused-ignore]

        coverage.process_startup(force=True)


def save() -> None:
    """Write what was measured so far, because a rank may be killed at any time. The rest goes into another file."""
    measured = _current()
    if measured is not None and _CONFIGURATION in os.environ:
        measured.stop()
        measured.save()
        begin()


def _current() -> Any:
    coverage = sys.modules.get("coverage")
    return None if coverage is None else coverage.Coverage.current()
