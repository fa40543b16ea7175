"""Nightly builds in the version matrix: what happens to each known failure, and the cells of the page that stay."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from suites.matrix import numbers, page, results
from suites.matrix.cells import Cell
from suites.matrix.environments import requirements
from suites.matrix.merging import merged
from suites.matrix.nightly import FIXED, NEW, OTHERWISE, STILL, news
from suites.matrix.results import Outcome

ROOT = Path(__file__).parents[2]
NIGHTLY = Cell("nightly", "nightly")
RELEASE, OLD = Cell("2.21.0", "3.15.1"), Cell("2.18.1", "3.8.0")
BUILDS = {"tensorflow": "2.23.0.dev20261026", "keras": "3.16.0.dev2026102704"}
DEFECT = "worker-died: an empty tensor (https://example.org/1)"


def result(cell: Cell, *outcomes: Outcome, **versions: str) -> results.Result:
    return results.Result(cell, "core", results.PASS, versions=versions, collected=len(outcomes), tests=outcomes)


def outcome(test: str, outcome: str, reason: str = "", **given: object) -> Outcome:
    items = (("layer.Dense", "mirrored"),)
    return Outcome(f"a.py::{test}", outcome, "mirrored", "mirrored", items, reason, **given)


@pytest.mark.parametrize(
    ("test", "release", "expected"),
    [
        (outcome("test", "xfail", DEFECT), outcome("test", "xfail", DEFECT), STILL),
        (outcome("test", "xfail", DEFECT), None, STILL),
        (outcome("test", "xfail", DEFECT), outcome("test", "pass"), NEW),
        (outcome("test", "pass"), outcome("test", "xfail", DEFECT), FIXED),
        (outcome("test", "fail", defect=DEFECT, fixed=True), None, FIXED),
        (outcome("test", "fail", defect=DEFECT), outcome("test", "xfail", DEFECT), OTHERWISE),
        (outcome("test", "fail"), outcome("test", "pass"), NEW),
        (outcome("test", "pass"), outcome("test", "pass"), ""),
        (outcome("test", "skip"), outcome("test", "xfail", DEFECT), ""),
    ],
)
def test_what_a_test_says_about_defects(test, release, expected):
    assert news(test, release) == expected


def sample() -> numbers.Numbers:
    release = result(RELEASE, outcome("a", "xfail", DEFECT), outcome("b", "xfail", "old"), outcome("c", "pass"))
    nightly = result(
        NIGHTLY, outcome("a", "xfail", DEFECT), outcome("b", "pass"), outcome("c", "fail", "1 is not 2"), **BUILDS
    )
    return json.loads(json.dumps(numbers.numbers([release, nightly], (), [RELEASE, NIGHTLY, OLD])))


def test_the_page_begins_with_the_nightly_builds():
    text = page.page(sample())
    assert text.index("## Nightly builds") < text.index("## Cells")
    assert "### TF 2.23.0.dev20261026 + Keras 3.16.0.dev2026102704" in text
    assert "core tier, compared with TF 2.21.0 + Keras 3.15.1: 1 pass, 1 known failures, 1 fail." in text
    assert "Defects: **1 new, 0 fails in another way, 1 fixed, 1 still there**." in text
    assert "| **new** | `a.py::c` | M | 1 | `1 is not 2` |" in text
    assert "| fixed | `a.py::b` | M | 1 | old |" in text


def test_the_line_of_the_page_is_about_the_newest_release():
    assert page.badge(sample()).startswith("TF 2.21.0 + Keras 3.15.1: ")


def test_new_cells_are_put_among_those_of_the_page():
    release = result(RELEASE, outcome("a", "xfail", DEFECT), outcome("b", "fail", "old"))
    before = numbers.numbers([result(OLD, outcome("a", "xfail", DEFECT)), release], (), [OLD, RELEASE, NIGHTLY])
    new = sample()
    found = merged(before, new, [OLD, RELEASE, NIGHTLY])
    assert [(cell["id"], cell["outcome"]) for cell in found["cells"]] == [
        (OLD.id, "pass"),
        (RELEASE.id, "pass"),
        (NIGHTLY.id, "pass"),
    ]
    assert found["items"] == {"layer.Dense": "M:xxF"}
    bad = {(row["test"], row["kind"]): row["bad"] for row in found["failures"]}
    assert bad == {
        ("a.py::a", "xfail"): [OLD.id, RELEASE.id, NIGHTLY.id],
        ("a.py::b", "xfail"): [RELEASE.id],
        ("a.py::c", "fail"): [NIGHTLY.id],
    }
    assert found["nightly"] == new["nightly"]
    kept = merged(found, numbers.numbers([release], (), [OLD, RELEASE, NIGHTLY]), [OLD, RELEASE, NIGHTLY])
    assert kept["nightly"] == new["nightly"]


def test_a_nightly_environment_has_the_builds_of_both():
    assert requirements(NIGHTLY, ())[:3] == ["tf-nightly", "keras-nightly", "tf_keras-nightly"]


SUITE = """
import pytest
from suites.expecting import NoLongerFailsError
@pytest.mark.xfail(reason="known", strict=True)
def test_passes(): pass
@pytest.mark.xfail(reason="known", strict=True)
def test_is_there(): raise ValueError
@pytest.mark.xfail(reason="known", strict=True, raises=KeyError)
def test_is_another(): raise ValueError
@pytest.mark.xfail(reason="known", strict=True)
@pytest.mark.ddl(strategies=["one_device"])
def test_passes_on_a_rank(ddl_strategy): pass
def test_says_so(): raise NoLongerFailsError("passes", pytrace=False)
def test_fails(): raise ValueError
"""


@pytest.mark.slow
def test_a_run_says_which_defects_are_fixed(pytester, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    pytester.makeconftest("from hypothesis import settings\nsettings.register_profile('suite', max_examples=3)\n")
    pytester.makepyfile(test_it=SUITE)
    pytester.runpytest_subprocess("-p", "suites.matrix.recording", "--matrix-results=lines")
    lines = results.lines_of(pytester.path / "lines")
    found = {test.function.partition("::")[2]: test for test in results.merged(one for one in lines if "test" in one)}
    assert {name: (test.outcome, test.defect, test.fixed) for name, test in found.items()} == {
        "test_passes": ("fail", "known", True),
        "test_is_there": ("xfail", "known", False),
        "test_is_another": ("fail", "known", False),
        "test_passes_on_a_rank": ("fail", "known", True),
        "test_says_so": ("fail", "", True),
        "test_fails": ("fail", "", False),
    }
