"""All planted bugs, and why the rest of the visible corpus cannot be shown."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from tests.planted.planted import Planted

__all__ = ["NOT_SHOWABLE", "PLANTED", "Planted"]

TOPICS = ("loss_scaling", "aggregation", "clipping", "accumulation", "sparse", "state", "schedules")

PLANTED: tuple[Planted, ...] = tuple(
    entry for topic in TOPICS for entry in importlib.import_module(f"tests.planted.{topic}").PLANTED
)

NOT_SHOWABLE: Mapping[str, str] = {}
