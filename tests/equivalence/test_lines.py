"""A finding names the line of the program that its cause is about."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import programs_with_a_wrong_line as programs

from pytest_ddl import check_training

SOURCE = Path(programs.__file__).read_text().splitlines()


def wrong_line(name: str) -> int:
    """Return the number of the line that is marked with a name, from 1."""
    return next(number for number, line in enumerate(SOURCE, 1) if line.endswith(f"# wrong: {name}"))


@pytest.mark.parametrize(
    ("name", "strategy", "cause"),
    [
        ("loss", "mirrored", "gradient-scaled-by-replica-count"),
        ("eager", "mirrored", "gradient-scaled-by-replica-count"),
        ("update", "mirrored", "gradient-clipped-before-aggregation"),
        ("draw", "mirrored", "random-stream-repeated-across-replicas"),
        ("state", "mirrored", "state-not-aggregated"),
        ("report", "mirrored", "reported-loss-wrong"),
        ("data", "multi_worker_mirrored", "examples-duplicated"),
        ("value", "mirrored", "metric-wrong"),
        ("write", "multi_worker_mirrored", "unsafe-checkpoint-path"),
        ("fit", "mirrored", "gradient-scaled-by-replica-count"),
    ],
)
def test_the_wrong_line_is_named(name: str, strategy: str, cause: str) -> None:
    report = check_training(getattr(programs, name), strategy, global_batch_size=8, steps=2, timeout=100)
    finding = report.findings[0]
    assert finding.cause == cause, str(report)
    assert any(f"{Path(programs.__file__).name}:{wrong_line(name)} " in line for line in finding.lines), finding.lines
    assert finding.lines[0].split()[0] in str(report)


def test_a_reduction_that_repeats_that_of_the_optimizer_is_named_beside_the_loss() -> None:
    report = check_training(programs.twice, "mirrored", global_batch_size=8, steps=2, timeout=100)
    number = wrong_line("twice")
    assert [line for line in report.findings[0].lines if f":{number} (the all-reduce)" in line], str(report)
    assert "the optimizer adds them up once more" in str(report.findings[0].fix)


def test_a_collective_is_named_by_the_line_in_the_replica_function() -> None:
    report = check_training(programs.conditional, "multi_worker_mirrored", global_batch_size=8, steps=2, timeout=60)
    finding = report.findings[0]
    assert finding.cause == "rank-conditional-collective", str(report)
    assert f"{Path(programs.__file__).name}:{wrong_line('conditional')}" in finding.message
