"""A finding names the line of the program that its cause is about."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import programs_with_a_wrong_line as programs
import programs_with_a_wrong_update as updates
import pytest

from pytest_ddl import check_training
from pytest_ddl.training.lines import Lines

pytestmark = pytest.mark.slow


def wrong_line(name: str, module: Any = programs) -> int:
    """Return the number of the line that is marked with a name, from 1."""
    marked = re.compile(rf"# wrong: (.*, )?{name}(,|$)")
    source = Path(module.__file__).read_text().splitlines()
    return next(number for number, line in enumerate(source, 1) if marked.search(line))


@pytest.mark.nightly(each_commit=("update", "draw", "value"))
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


@pytest.mark.nightly
def test_a_reduction_that_repeats_that_of_the_optimizer_is_named_beside_the_loss() -> None:
    report = check_training(programs.twice, "mirrored", global_batch_size=8, steps=2, timeout=100)
    number = wrong_line("twice")
    assert [line for line in report.findings[0].lines if f":{number} (the all-reduce)" in line], str(report)
    assert "the optimizer adds them up once more" in str(report.findings[0].fix)


@pytest.mark.nightly
def test_a_collective_is_named_by_the_line_in_the_replica_function() -> None:
    report = check_training(programs.conditional, "multi_worker_mirrored", global_batch_size=8, steps=2, timeout=60)
    finding = report.findings[0]
    assert finding.cause == "rank-conditional-collective", str(report)
    assert f"{Path(programs.__file__).name}:{wrong_line('conditional')}" in finding.message


@pytest.mark.nightly(each_commit=("decay_of_worker", "noise", "ending", "by_hand"))
@pytest.mark.parametrize(
    ("name", "strategy", "cause"),
    [
        ("rate", "mirrored", "learning-rate-differs"),
        ("rate_set", "mirrored", "learning-rate-differs"),
        ("schedule", "mirrored", "replicas-diverged"),
        ("decay_of_worker", "multi_worker_mirrored", "learning-rate-differs"),
        ("count", "mirrored", "iteration-count-wrong"),
        ("restored", "multi_worker_mirrored", "initial-weights-differ"),
        ("started", "mirrored", "initial-weights-differ"),
        ("cut", "multi_worker_mirrored", "workers-diverged"),
        ("value", "mirrored", "metric-wrong"),
        ("loss", "mirrored", "gradient-scaled-by-replica-count"),
        ("exchange", "mirrored", "gradient-scaled-by-replica-count"),
        ("decay", "mirrored", "regularization-scaled-by-replica-count"),
        ("noise", "mirrored", "term-added-by-every-replica"),
        ("ending", "mirrored", "changed-after-last-step"),
        ("scheduled_fit", "mirrored", "learning-rate-differs"),
        ("by_hand", "mirrored", "gradient-scaled-by-inverse-replica-count"),
    ],
)
def test_the_line_that_changes_a_variable_is_named_first(name: str, strategy: str, cause: str) -> None:
    report = check_training(getattr(updates, name), strategy, global_batch_size=8, steps=2, timeout=100)
    finding = report.findings[0]
    assert finding.cause == cause, str(report)
    assert f"{Path(updates.__file__).name}:{wrong_line(name, updates)} " in finding.lines[0], finding.lines


@pytest.mark.parametrize("strategy", ["mirrored", "multi_worker_mirrored"])
def test_a_program_that_changes_its_variables_correctly_passes(strategy: str) -> None:
    report = check_training(updates.nothing, strategy, global_batch_size=8, steps=2, timeout=100)
    assert report.passed, str(report)
    assert not any("could not be observed" in note for rank in report.distributed.ranks for note in rank.notes)


@pytest.mark.nightly
def test_a_value_that_two_reductions_gave_has_no_line_of_a_reduction() -> None:
    lines = Lines()
    for line in ("a.py:1", "a.py:2"):
        lines.receive(line, 1.0)
    lines.receive("a.py:2", 2.0)
    lines.use("either", 1.0)
    lines.use("second", 2.0)
    lines.use("neither", 3.0)
    assert lines.facts() == {"lines": {"reduced second": ("a.py:2",)}}


def test_a_value_that_no_reduction_gave_once_has_no_line_of_a_reduction() -> None:
    lines = Lines()
    lines.receive("a.py:1", 1.0)
    lines.use("sometimes", 1.0)
    lines.use("sometimes", 5.0)
    assert lines.facts() == {}
