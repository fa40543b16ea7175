"""A rank collects the next files, or few if its cluster was replaced, and makes no items of other variants."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_ddl.items import parametrizing
from pytest_ddl.items.spmd import FEW_FILES, MAX_FILES, SpmdRunner
from pytest_ddl.strategies.registry import StrategyRegistry
from pytest_ddl.strategies.spec import StrategySpec

KEY = ("mirrored", "cpu")
ITEMS = [SimpleNamespace(path=Path(f"test_{number}.py")) for number in range(3 * MAX_FILES)]


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> SpmdRunner:
    """A runner whose items each have a file of their own, and share a cluster."""
    monkeypatch.setattr(SpmdRunner, "_cluster_key", lambda _self, _item: KEY)
    return SpmdRunner(SimpleNamespace(items=ITEMS), SimpleNamespace())  # type: ignore[arg-type]


def collected(runner: SpmdRunner, first: int, *, replaced: bool) -> list[int]:
    """Return the numbers of the files of a session that is opened for an item."""
    item: Any = ITEMS[first]
    return [int(Path(file).stem.removeprefix("test_")) for file in runner._files(item, replaced)]


def test_the_files_that_follow_are_collected(runner: SpmdRunner) -> None:
    # A worker of pytest-xdist asks for them only here, and never says which items have run.
    assert collected(runner, 0, replaced=True) == list(range(MAX_FILES))
    assert collected(runner, MAX_FILES, replaced=False) == list(range(MAX_FILES, 2 * MAX_FILES))


def test_a_replaced_cluster_collects_few_files_and_then_more(runner: SpmdRunner) -> None:
    collected(runner, 0, replaced=True)
    begin = 3
    assert collected(runner, begin, replaced=True) == list(range(begin, begin + FEW_FILES))
    begin += FEW_FILES
    assert collected(runner, begin, replaced=False) == list(range(begin, begin + 2 * FEW_FILES))
    assert len(collected(runner, begin + 1, replaced=True)) == FEW_FILES
    sizes = [len(collected(runner, begin + 2, replaced=False)) for _ in range(5)]
    assert sizes == [2 * FEW_FILES, 4 * FEW_FILES, MAX_FILES, MAX_FILES, MAX_FILES]


def test_an_item_that_runs_again_is_collected_with_those_that_follow(runner: SpmdRunner) -> None:
    collected(runner, 5, replaced=True)
    assert collected(runner, 5, replaced=True) == [5, 6, 7, 8]


def test_a_rank_makes_the_items_of_its_variant_and_one_of_each_other_test() -> None:
    one, mirrored, central = map(StrategyRegistry().parse_variant, ("one_device", "mirrored", "central_storage"))

    def made(own: object) -> list[StrategySpec]:
        config: Any = SimpleNamespace(option=SimpleNamespace(ddl_variant=own))
        return parametrizing._of_rank(config, [one, mirrored])

    assert made(StrategyRegistry().parse_variant("mirrored")) == [mirrored]
    assert made(central) == [one]
    assert made(None) == [one, mirrored]
