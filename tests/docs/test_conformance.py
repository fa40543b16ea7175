"""The examples of the page on conformance run, one for each kind, and its list of tags is that of the code."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from pytest_ddl.conformance import Tags
from pytest_ddl.conformance.kinds import KINDS
from tests.known_crashes import MAY_DROP_AN_ITERATOR

PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"
_EXAMPLE = re.compile(r"<!-- example: (\w+) -->\n```python\n(.*?)```", re.DOTALL)


def examples() -> dict[str, str]:
    return dict(_EXAMPLE.findall(PAGE.read_text(encoding="utf-8")))


def test_every_kind_has_an_example() -> None:
    assert list(examples()) == list(KINDS)


def test_every_tag_is_described() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [one.name for one in fields(Tags) if f"\n| `{one.name}` |" not in text] == []


def run(pytester: pytest.Pytester, strategy: str, *options: str) -> pytest.RunResult:
    """Run pytest on a file with all examples of the page."""
    first = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[0]
    pytester.makepyfile(test_objects="\n\n".join([first, *examples().values()]))
    pytester.makeini("[pytest]\n")
    given = ["-p", "no:cacheprovider", f"--ddl-strategy={strategy}", *options]
    return pytester.runpytest_subprocess(*given, timeout=900)


def shown(strategy: str) -> list[str]:
    """Return the tests that the page shows as passed under a strategy, as patterns."""
    lines = re.findall(r"^(test_my_metrics\S+) PASSED$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return [line.replace("[", "[[]") for line in lines if f"[{strategy}-" in line]


# Collection builds and describes each object, and refuses what does not apply to it. For each commit,
# tests/conformance/test_stock.py runs all checks, with the same expected failures.
@pytest.mark.slow
def test_the_examples_are_accepted(pytester: pytest.Pytester) -> None:
    result = run(pytester, "mirrored", "--collect-only", "-q")
    assert result.ret == 0, result.stdout.str()
    collected = {line.partition("[")[0].partition("::")[2] for line in result.outlines if "::" in line}
    assert len(collected) == 1 + len(KINDS), result.stdout.str()
    assert shown("mirrored")
    for test in shown("mirrored"):
        result.stdout.fnmatch_lines(f"*::{test}")


@pytest.mark.nightly
@pytest.mark.slow
@MAY_DROP_AN_ITERATOR
@pytest.mark.parametrize(("strategy", "known"), [("mirrored", 1), ("multi_worker_mirrored", 2)])
def test_the_examples_run(pytester: pytest.Pytester, strategy: str, known: int) -> None:
    result = run(pytester, strategy, "-v")
    outcomes = result.parseoutcomes()
    assert set(outcomes) <= {"passed", "skipped", "xfailed", "warnings"}, result.stdout.str()
    # A function as a loss has no reduction of its own.
    assert outcomes["skipped"] == 1
    # The statistics of BatchNormalization, and the file that both workers write.
    assert outcomes["xfailed"] == known
    for test in shown(strategy):
        result.stdout.fnmatch_lines(f"*::{test} PASSED*")
