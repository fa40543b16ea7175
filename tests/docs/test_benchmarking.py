"""The recipe of the page on benchmarking: it is short, it is what ``init`` writes, and its code measures."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from pytest_ddl.cli import main
from tests.docs.test_readme import FIRST_STEPS, blocks

PAGE = Path(__file__).parents[2] / "docs" / "benchmarking.md"
MOST_LINES = 10


def recipe() -> dict[str, str]:
    found = re.finditer(r"<!-- recipe: ([^>]+) -->\n```\w*\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return {match[1]: match[2] for match in found}


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user's repository whose ``train.py`` is the training function of the first steps."""
    train = blocks(FIRST_STEPS)["example: test_train.py"].partition("def test_")[0]
    (tmp_path / "train.py").write_text(train, encoding="utf-8")
    subprocess.run(["git", "init", "-q", "-b", "main", str(tmp_path)], check=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    # This project's benchmarks, which other tests import, have the same name; they are put back afterwards.
    for name in _of_user():
        monkeypatch.delitem(sys.modules, name)
    yield tmp_path
    for name in _of_user():
        del sys.modules[name]


def _of_user() -> list[str]:
    return [name for name in sys.modules if name.partition(".")[0] in ("benchmarks", "train")]


def test_it_is_at_most_ten_lines() -> None:
    lines = "".join(recipe().values()).splitlines()
    assert len([line for line in lines if line.strip()]) <= MOST_LINES


def test_init_writes_the_benchmarks_of_the_page(repository: Path) -> None:
    first = recipe()["commands"].splitlines()[0].split()
    assert first[0] == "pytest-ddl"
    assert main(first[1:]) == 0
    written = (repository / "benchmarks" / "training.py").read_text(encoding="utf-8")
    assert written == recipe()["benchmarks/training.py"]


@pytest.mark.slow
def test_its_code_measures_the_training_function(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDL_BENCH_QUICK", "1")
    assert main(recipe()["commands"].splitlines()[0].split()[1:]) == 0
    suite: Any = import_module("benchmarks.training")
    gate, dash = suite.Gate(), suite.Dash()
    cache = json.loads(json.dumps(gate.setup_cache()))
    for strategy, replicas in (("one_device", 1), ("mirrored", 1), ("mirrored", 2)):
        assert all(seconds > 0 for seconds in gate.track_step_time(cache, strategy, replicas)["samples"])
        assert all(rate > 0 for rate in dash.track_throughput(cache, strategy, replicas)["samples"])
    assert gate.track_collectives(cache, "one_device", 1) == 0
    assert gate.track_collectives(cache, "mirrored", 2) > 0
    assert dash.track_weak_scaling_efficiency(cache, "mirrored", 2)["samples"]
