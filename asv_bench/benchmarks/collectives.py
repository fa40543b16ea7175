"""Collectives without training, over sizes of messages: the least time that a step can spend on its gradients.

Written by hand on :func:`pytest_ddl.bench.collectives.measure_collectives`, as an example of a suite that does not
train.
"""

from __future__ import annotations

import sys
from typing import Any, NoReturn

VARIANTS = ("mirrored[replicas=2]", "multi_worker_mirrored[workers=2]")
SIZES = (2**10, 2**16, 2**22)
KINDS = ("all_reduce", "all_gather")


def setup_cache() -> dict[str, Any]:
    """Launch each variant once for the module; both classes read the results."""
    from pytest_ddl.bench.asv import is_quick
    from pytest_ddl.bench.collectives import measure_collectives
    from pytest_ddl.harness import process_harness
    from pytest_ddl.items.selection import DdlMark

    harness = process_harness()
    found: dict[str, Any] = {"timings": {}, "skipped": {}}
    for variant in VARIANTS:
        reason = harness.unavailable(harness.registry.parse_variant(variant), DdlMark())
        if reason:
            found["skipped"][variant] = reason
            continue
        timings = measure_collectives(variant, SIZES, KINDS, samples=2 if is_quick() else 10)
        found["timings"][variant] = {f"{one.kind} {one.size}": one.as_json() for one in timings}
    return found


def _skip(reason: str) -> NoReturn:
    from asv_runner.benchmarks.mark import SkipNotImplemented

    print(f"skipped: {reason}", file=sys.stderr)
    raise SkipNotImplemented(reason)


class _OfCollectives:
    version = "1"
    timeout = 60
    params = (VARIANTS, KINDS, SIZES)
    param_names = ("strategy", "kind", "bytes")

    def timing(self, cache: dict[str, Any], variant: str, kind: str, size: int) -> Any:
        from pytest_ddl.bench.collectives import CollectiveTiming

        if variant in cache["skipped"]:
            _skip(cache["skipped"][variant])
        return CollectiveTiming.from_json(cache["timings"][variant][f"{kind} {size}"])


class GateCollectives(_OfCollectives):
    """Seconds of a collective, better when lower: for the gate."""

    def track_seconds(self, cache: dict[str, Any], variant: str, kind: str, size: int) -> dict[str, Any]:
        return {"samples": list(self.timing(cache, variant, kind, size).samples), "number": 1}

    track_seconds.unit = "seconds"  # type: ignore[attr-defined]


class DashCollectives(_OfCollectives):
    """Bandwidth of a collective, for people."""

    def track_bus_bandwidth(self, cache: dict[str, Any], variant: str, kind: str, size: int) -> float:
        return float(self.timing(cache, variant, kind, size).bus_bandwidth / 1e9)

    track_bus_bandwidth.unit = "GB/s"  # type: ignore[attr-defined]
    track_bus_bandwidth.higher_is_better = True  # type: ignore[attr-defined]
