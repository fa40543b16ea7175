"""The leak detector of the benchmarks sees what a cluster holds while it runs, and nothing of it afterwards."""

from __future__ import annotations

import gc
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from pytest_ddl.harness import process_harness
from tests import polling

pytestmark = pytest.mark.slow


@pytest.fixture
def clusters(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The measurements, in a folder for temporary files that no other process writes to."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "asv_bench")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    from benchmarks import clusters

    # A cluster that an earlier test has left ends by itself, and its processes would be missing then.
    process_harness().close()
    return clusters


def test_a_running_cluster_is_seen_and_an_ended_one_leaves_nothing(clusters: Any) -> None:
    harness = clusters.warm_harness()
    with clusters.lease(harness, "multi_worker_mirrored"):
        pass
    before = _at_rest(clusters, harness)
    with clusters.lease(harness, "multi_worker_mirrored"):
        during = clusters.traces(harness)
    assert during.processes == before.processes + 2
    assert during.threads > before.threads + 2
    assert during.files > before.files
    # Two leases (UDP) and two of TensorFlow's servers (TCP).
    assert during.ports >= before.ports + 4
    assert clusters.settled(harness, before) == before


def _at_rest(clusters: Any, harness: Any) -> Any:
    """The traces once what an earlier test left to the kernel is gone: several readings in a row are equal."""
    deadline, equal, last = time.monotonic() + 20, 0, clusters.traces(harness)
    while equal < 10 and time.monotonic() < deadline:
        polling.pause()
        now = clusters.traces(harness)
        equal, last = (equal + 1, now) if now == last else (0, now)
    return last


def test_leaks_are_seen(clusters: Any, tmp_path: Path) -> None:
    harness = clusters.warm_harness()
    gc.collect()
    before = _at_rest(clusters, harness)
    stop = threading.Event()
    leaked = threading.Thread(target=stop.wait)
    leaked.start()
    with (tmp_path / "leaked").open("w"):
        after = clusters.settled(harness, before, patience=0.0)
    stop.set()
    leaked.join()
    assert after.threads == before.threads + 1
    assert after.files == before.files + 1
    assert after.temporary == before.temporary + 1
