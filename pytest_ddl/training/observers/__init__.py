"""The observers of a run: one file each, listed here."""

from __future__ import annotations

from pytest_ddl.training.observers.base import Observer as Observer

OBSERVERS: tuple[type[Observer], ...] = ()
"""An observer is added by its file and one entry here."""
