"""Call functions on the ranks of clusters of several strategies, one after the other, in one test."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from pytest_ddl.cluster.handle import ClusterHandle
from pytest_ddl.harness import process_harness
from pytest_ddl.items.selection import DdlMark


def run_under(variant: str, function: Callable[..., Any], *args: Any) -> list[Any]:
    """Call a function on all ranks of a cluster; it gets the strategy from ``current_strategy()``."""
    harness = process_harness()
    mark = DdlMark()
    with harness.cluster(harness.registry.parse_variant(variant), mark) as cluster:
        return ClusterHandle(cluster, time.monotonic() + harness.timeout(mark)).run(function, *args)
