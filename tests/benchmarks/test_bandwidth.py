"""The measurement of efficiency against bandwidth: what it computes from its samples, and its tables in the docs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "experiment" / "bandwidth.json"


@pytest.fixture
def bandwidth(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "asv_bench")
    import bandwidth

    return bandwidth


def test_a_ring_sends_each_byte_twice_but_the_own_part(bandwidth: Any) -> None:
    assert bandwidth.transfer_seconds(1_000_000, 2, 8) == pytest.approx(1.0)
    assert bandwidth.transfer_seconds(1_000_000, 4, 8) == pytest.approx(1.5)
    assert bandwidth.transfer_seconds(1_000_000, 4, None) == 0.0


def test_launches_have_as_many_steps_as_their_bytes_allow(bandwidth: Any) -> None:
    model = bandwidth.MODELS[-1]
    free, slow = (bandwidth.steps_of(model, 4, mbit, 2) for mbit in (None, 25))
    assert free.blocks * free.steps_per_block > slow.blocks * slow.steps_per_block
    # The first version had 200 steps at each bandwidth.
    assert (slow.blocks, slow.steps_per_block) == (4, 1)


def test_the_efficiency_compares_launches_of_one_round(bandwidth: Any) -> None:
    one = [[0.1, 0.1, 0.9], [0.2, 0.2, 0.2]]
    cell = bandwidth.Cell("mlp", 2, 100.0, step_seconds=[[0.2], [0.4]], one_replica_step_seconds=one)
    assert cell.efficiencies == pytest.approx([0.5, 0.5])
    computing = bandwidth.Cell("mlp", 2, None, False, step_seconds=[[0.3]], one_replica_step_seconds=one)
    cell.gradient_bytes = 2_500_000
    # 0.15 s on one replica; over the hosts, 0.3 s of computing and 0.2 s for the bytes.
    assert bandwidth.ideal(cell, [cell, computing], 100.0) == pytest.approx(0.15 / 0.5)


def test_the_docs_show_what_was_measured(bandwidth: Any, tmp_path: Path) -> None:
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    cells = bandwidth.cells_of(results)
    assert bandwidth.table(cells) in (ROOT / "docs" / "hosts.md").read_text(encoding="utf-8")
    assert {len(cell.step_seconds) for cell in cells} == {results["rounds"]}
    bandwidth.draw(results, tmp_path / "drawn.svg")
    assert (tmp_path / "drawn.svg").read_text().count("<path") > len(cells)
