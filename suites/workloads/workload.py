"""Common type of all workloads. It holds named functions, so that a workload can be sent to ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from suites.data import Examples


@dataclass(frozen=True)
class Workload:
    """Network with its optimizer and its data. The model returns one logit for each class."""

    build_model: Callable[[], Any]
    build_optimizer: Callable[[], Any]
    load: Callable[[], Examples]
