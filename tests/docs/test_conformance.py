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


# One run of pytest with all other plugins, and one with pytest-xdist, run for each commit.
@pytest.mark.nightly(each_commit=("mirrored",))
@pytest.mark.slow
@MAY_DROP_AN_ITERATOR
@pytest.mark.parametrize(("strategy", "known"), [("mirrored", 1), ("multi_worker_mirrored", 2)])
def test_the_examples_run(pytester: pytest.Pytester, strategy: str, known: int) -> None:
    first = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[0]
    pytester.makepyfile(test_objects="\n\n".join([first, *examples().values()]))
    pytester.makeini("[pytest]\n")
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", f"--ddl-strategy={strategy}", "-v", timeout=900)
    outcomes = result.parseoutcomes()
    assert set(outcomes) <= {"passed", "skipped", "xfailed", "warnings"}, result.stdout.str()
    # A function as a loss has no reduction of its own.
    assert outcomes["skipped"] == 1
    # The statistics of BatchNormalization, and the file that both workers write.
    assert outcomes["xfailed"] == known
    shown = re.findall(r"^(test_my_metrics\S+) PASSED$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    for line in (line for line in shown if f"[{strategy}-" in line):
        result.stdout.fnmatch_lines(f"*::{line.replace('[', '[[]')} PASSED*")
