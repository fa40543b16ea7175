"""Cost of running a test on a cluster. ``asv_bench/harness.py`` compares the same costs with targets, in one run.

``version`` pins the meaning of a benchmark: results stay comparable until somebody changes it on purpose. This module
does not use ``pytest_ddl.bench``, so that commits from before that package can be measured.
"""

from __future__ import annotations

import os
import statistics

from benchmarks import clusters, comparisons, sessions
from pytest_ddl.harness import Harness

QUICK = os.environ.get("DDL_BENCH_QUICK", "0") not in ("", "0")
"""Few repetitions, which show that everything works: ``pytest-ddl asv run --quick``."""


class FreshCluster:
    """A cluster of this many workers, up to its first all-reduce."""

    version = "1"
    unit = "s"
    params = (2, 4)
    param_names = ("workers",)
    starts = 3 if QUICK else 20
    timeout = 300

    def setup(self, workers: int) -> None:
        self.harness: Harness = clusters.warm_harness()

    def track_median(self, workers: int) -> float:
        starts = (clusters.start_seconds(self.harness, f"mwms[workers={workers}]")[0] for _ in range(self.starts))
        return statistics.median(starts)


class Rank:
    """A rank that waits for its first test."""

    version = "1"
    unit = "MB"
    params = ("mirrored", "multi_worker_mirrored")
    param_names = ("strategy",)
    timeout = 120

    def setup(self, strategy: str) -> None:
        self.harness: Harness = clusters.warm_harness()

    def track_proportional_memory(self, strategy: str) -> float:
        return max(rank.proportional for rank in clusters.memory(self.harness, strategy))

    def track_private_memory(self, strategy: str) -> float:
        return max(rank.private for rank in clusters.memory(self.harness, strategy))


class NextTest:
    """Time of one more empty test; ``plain`` is its time in pytest without a cluster."""

    version = "1"
    unit = "ms"
    params = tuple(sessions.FIXTURES)
    param_names = ("kind",)
    timeout = 300

    def track_median(self, kind: str) -> float:
        return sessions.steady(sessions.per_test_seconds(kind, 20 if QUICK else 200)) * 1e3


class Equivalence:
    """The comparison of a small model with one device, the reference included."""

    version = "1"
    params = ("mirrored", "multi_worker_mirrored")
    param_names = ("strategy",)
    timeout = 300
    number = 1
    rounds = 1
    repeat = 1 if QUICK else (3, 10, 60.0)

    def setup(self, strategy: str) -> None:
        self.harness: Harness = clusters.warm_harness()
        comparisons.equivalence_seconds(self.harness, strategy)

    def time_warm(self, strategy: str) -> None:
        comparisons.equivalence_seconds(self.harness, strategy)


class Recording:
    """A step of a small model with everything recorded, against the bare loop in turns with it."""

    version = "1"
    unit = "x"
    timeout = 300

    def setup(self) -> None:
        self.harness: Harness = clusters.warm_harness()

    def track_ratio(self) -> float:
        seconds = comparisons.recording_seconds(self.harness, rounds=1 if QUICK else 5)
        return seconds["recorded"] / seconds["bare"]


class FailingRank:
    """Time from a rank's exception to the verdict, while its peer waits in a collective."""

    version = "1"
    unit = "s"
    timeout = 120

    def setup(self) -> None:
        self.harness: Harness = clusters.warm_harness()

    def track_verdict(self) -> float:
        return statistics.median(clusters.verdict_seconds(self.harness)[0] for _ in range(1 if QUICK else 5))


class Unused:
    """A pytest run of one plain test, with the plugin installed and with it blocked, in turns."""

    version = "1"
    unit = "ms"
    pairs = 2 if QUICK else 10
    timeout = 300

    def track_start_up_cost(self) -> float:
        costs = [sessions.unused_seconds(True)[0] - sessions.unused_seconds(False)[0] for _ in range(self.pairs)]
        return statistics.median(costs) * 1e3
