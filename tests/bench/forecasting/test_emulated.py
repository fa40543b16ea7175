"""Three and four emulated hosts are predicted from two, while the limited bandwidth is the bottleneck.

The hosts share two cores, so the launches in which replicas only compute show how much slower computing gets with more
hosts. Above 200 Mbit/s the cores are the bottleneck and not the link: gRPC needs them too.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from pytest_ddl.bench.forecasting.evidence import ForecastEvidence, Observation, Size, parse_link
from pytest_ddl.bench.forecasting.predicting import forecast

MEASURED = Path(__file__).parents[3] / "docs" / "experiment" / "bandwidth.json"
LINK_BINDS = (200, 100, 50)
"""Megabits per second of the cells in which the link needs most of a step."""


def _seconds(cell: dict[str, Any]) -> float:
    return statistics.median(statistics.median(launch) for launch in cell["step_seconds"])


def _cells() -> dict[tuple[str, int, float | None, bool], dict[str, Any]]:
    found = json.loads(MEASURED.read_text(encoding="utf-8"))["cells"]
    return {(one["model"], one["hosts"], one["mbit"], one["exchange"]): one for one in found}


@pytest.mark.parametrize("model", sorted({model for model, *_ in _cells()}))
@pytest.mark.parametrize("mbit", LINK_BINDS)
def test_more_hosts_are_predicted_from_two(model: str, mbit: int) -> None:
    pytest.importorskip("scipy")
    cells = _cells()
    two = cells[model, 2, mbit, True]
    computing = {hosts: _seconds(cells[model, hosts, None, False]) for hosts in (2, 3, 4)}
    batch = two["batch_per_replica"]
    evidence = ForecastEvidence(
        model,
        (Observation(Size(1, 1, batch), computing[2]), Observation(Size(2, 2, batch), _seconds(two))),
        per_node=1,
        gradient_bytes=two["gradient_bytes"],
        collectives=two["all_reduces"],
        between=parse_link(f"{mbit}Mbit/s"),
    )
    for point in forecast(evidence, [3, 4]).points:
        hosts = point.size.nodes
        slower = computing[hosts] - computing[2]
        measured = _seconds(cells[model, hosts, mbit, True])
        assert point.seconds is not None
        assert point.seconds + slower == pytest.approx(measured, rel=0.1)
        assert point.binding == "between"
