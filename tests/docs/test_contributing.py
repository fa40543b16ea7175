"""The page for contributors names files and registries that exist, and its example of a check works."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from pytest_ddl.equivalence.checks.registry import Check
from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.evidence.tolerance import Tolerance
from pytest_ddl.equivalence.findings import Outcome
from pytest_ddl.equivalence.roles import Role
from pytest_ddl.records import RankRecord, StepRecord, TrainingRecord

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/contributing.md").read_text(encoding="utf-8")
_ROW = re.compile(
    r"^\| (?:\[(?P<linked>[^]]+)\]\(#(?P<anchor>[\w-]+)\)|(?P<plain>[^|[]+)) "
    r"\| (?P<write>[^|]+) \| (?P<into>[^|]+) \|$"
)
_REGISTERED = re.compile(r"`(?P<name>\w+)` in `(?P<path>[\w/]+\.py)`")
_PATH = re.compile(r"`((?:pytest_ddl|suites|tests)/[\w/.]*)`")


def rows() -> dict[str, re.Match[str]]:
    table = TEXT.partition("## Where things go")[2].partition("\n\n| ")[2].partition("\n\n")[0]
    found = [_ROW.match(line) for line in table.splitlines()[2:]]
    assert None not in found
    return {match["linked"] or match["plain"]: match for match in found if match}


@pytest.mark.parametrize("kind", ["strategy", "check", "cause", "fault", "launcher", "metric", "workload"])
def test_every_kind_of_addition_has_a_row_and_a_section(kind: str) -> None:
    assert rows()[f"a {kind}"]["anchor"] == f"a-{kind}"
    assert f"\n## A {kind}\n" in TEXT


def registry_of(kind: str) -> Any:
    """Load the registry that the last cell of a row names."""
    registered = _REGISTERED.search(rows()[kind]["into"])
    assert registered, "the last cell names no registry"
    module = import_module(registered["path"].removesuffix(".py").replace("/", ".").removesuffix(".__init__"))
    return getattr(module, registered["name"])


@pytest.mark.parametrize("kind", rows())
def test_the_registry_of_a_row_exists(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The suites are not installed. At the end of the path, so that an installed pytest_ddl is still found first.
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT)])
    assert registry_of(kind)


@pytest.mark.parametrize("path", sorted(set(_PATH.findall(TEXT)) - {"pytest_ddl/equivalence/checks/finite_loss.py"}))
def test_paths_exist(path: str) -> None:
    assert (ROOT / path).is_dir() if path.endswith("/") else (ROOT / path).is_file()


def homes(registry: Any) -> Iterator[str]:
    """Modules of the functions and classes in a registry."""
    for entry in registry.values() if isinstance(registry, Mapping) else registry:
        written = getattr(entry, "function", None) if isinstance(entry, Check) else getattr(entry, "compute", entry)
        yield str(written.__module__)


@pytest.mark.parametrize(
    "kind",
    [
        "a strategy",
        "a check",
        "a recomputation of a cause",
        "a metric",
        "an observer, which records something new in each step",
    ],
)
def test_what_is_registered_lies_in_the_folder_that_the_page_names(kind: str) -> None:
    (folder,) = _PATH.findall(rows()[kind]["write"])
    package = folder.rstrip("/").replace("/", ".")
    found = list(homes(registry_of(kind)))
    assert found
    assert [home for home in found if not home.startswith(f"{package}.")] == []


def example(name: str) -> str:
    (text,) = re.findall(rf"<!-- example: {name} -->\n```python\n(.*?)```", TEXT, re.DOTALL)
    return str(text)


def record_of(loss: float) -> TrainingRecord:
    rank = RankRecord(0, "local", (0, 1), steps=(StepRecord(1, loss),))
    return TrainingRecord("mirrored", 2, (rank,), 8, "float64", 0)


def test_the_example_of_a_check_works() -> None:
    names: dict[str, Any] = {"Check": Check, "Role": Role}
    exec(example("check"), names)
    check: Check = eval(example("entry"), names)
    good, bad = record_of(0.5), record_of(math.nan)
    tolerance = Tolerance(good)
    assert check.function(Comparison(good, good, tolerance)).outcome is Outcome.PASS
    result = check.function(Comparison(good, bad, tolerance))
    assert result.outcome is Outcome.FAIL
    assert result.findings[0].step == 1
    assert {result.check, result.findings[0].check} == {check.name}
