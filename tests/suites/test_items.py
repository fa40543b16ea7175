"""Items of the suite: how the file is read, and that every test of the suite names its items."""

from __future__ import annotations

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from suites.items import TRUTHS, items, load
from suites.matrix.cells import NEWEST, NIGHTLY, plan

pytestmark = pytest.mark.slow

ENTRY = """
[[item]]
id = "strategy.reduce.none"
what = "reduce"
strategies = ["mirrored"]
truth = "arithmetic"
keras = ">=3.7"
upstream = { tests = 3, shows = "values", two_replicas = 1, processes = 1 }
"""


def test_an_entry_has_its_area_and_its_versions():
    item = load(ENTRY)["strategy.reduce.none"]
    assert item.area == "strategy"
    assert item.exists({"tensorflow": "2.21.0", "keras": "3.15.1"})
    assert not item.exists({"tensorflow": "2.21.0", "keras": "3.6.0"})


@pytest.mark.parametrize(
    "text",
    [
        ENTRY.replace("truth =", "truths ="),
        ENTRY.replace('"arithmetic"', '"taste"'),
        ENTRY.replace('"mirrored"', ""),
        ENTRY + ENTRY,
    ],
)
def test_a_wrong_entry_is_shown(text):
    with pytest.raises(ValueError, match=r"strategy\.reduce\.none"):
        load(text)


def test_every_item_of_the_file_is_complete():
    from pytest_ddl.strategies.registry import StrategyRegistry

    registry = StrategyRegistry()
    assert len(items()) >= 337
    assert all(registry[name].name == name for item in items().values() for name in item.strategies)
    assert {item.truth for item in items().values()} == set(TRUTHS)


TEST = "import pytest\n\n{marker}def test_it(ddl_strategy):\n    pass\n"
COLLECT = ("--collect-only", "-q")


@pytest.mark.parametrize(
    ("marker", "told"),
    [
        ("", "names no item of items.toml: add @pytest.mark.ddl_item(id)"),
        (
            "@pytest.mark.ddl_item('metric.Meen')\n",
            "'metric.Meen' is no item of items.toml; did you mean 'metric.Mean'?",
        ),
        (
            "@pytest.mark.ddl_item('metric.Mean', shows='all')\n",
            "takes ids, shows=values|parity|behavior, under=variants, and version ranges of tensorflow and keras",
        ),
        (
            "@pytest.mark.ddl_item('metric.Mean', torch='>=2')\n",
            "and version ranges of tensorflow and keras, not {'torch': '>=2'}",
        ),
    ],
)
def test_a_test_without_an_item_ends_the_collection(run_suite, marker, told):
    result = run_suite(TEST.format(marker=marker), *COLLECT)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*test_one.py::test_it*{told.replace('[', '[[]')}*"])


def test_the_table_shows_what_a_test_covers(run_suite):
    text = TEST.format(marker="@pytest.mark.ddl_item('metric.Mean')\n")
    result = run_suite(text, *COLLECT, "--ddl-coverage", "--ddl-strategy=mirrored[replicas=3]")
    number = sum(not item.struck for item in items().values())
    result.stdout.fnmatch_lines(["metric.Mean * M  *M *M *parity*", f"*with a test * 1 of {number}*of {number}"])


@pytest.mark.parametrize(
    ("marker", "told"),
    [
        ("@pytest.mark.ddl_item('metric.Mean', keras='<3')\n", "metric.Mean needs keras<3, and this is 3.*"),
        ("@pytest.mark.ddl_item('metric.Mean', tensorflow='>=9')\n", "metric.Mean needs tensorflow>=9, and*"),
        ("@pytest.mark.ddl_item('optimizer.Muon')\n@pytest.mark.ddl_item('metric.Mean', keras='>=9')\n", "*keras>=9*"),
    ],
)
def test_a_test_of_what_the_installed_versions_do_not_have_is_skipped(run_suite, marker, told):
    body = TEST.format(marker=marker).replace("pass", "raise AssertionError")
    result = run_suite(body, "-rs", "--ddl-strategy=one_device")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines([f"SKIPPED*{told}"])


def test_items_begin_with_versions_that_somebody_ran():
    """A range of an item begins at a version of the matrix, because the suite was seen to work from there on."""
    versions = {version for cell in plan().cells for version in (cell.tensorflow, cell.keras)} - {NEWEST, NIGHTLY}
    series = {Version(version).release[:2] for version in versions}
    for item in items().values():
        for specifier in (*SpecifierSet(item.tensorflow), *SpecifierSet(item.keras)):
            assert specifier.operator in (">=", "<"), item.id
            assert Version(specifier.version).release[:2] in series, item.id
