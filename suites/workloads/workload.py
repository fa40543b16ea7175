"""The shape that all workloads have: functions by name, so that a workload can be sent to ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from suites.data import Examples


@dataclass(frozen=True)
class Workload:
    """One network with its data. Its model ends in one logit per class."""

    build_model: Callable[[], Any]
    build_optimizer: Callable[[], Any]
    load: Callable[[], Examples]
