"""The tables in the documentation are those that the code generates."""

from __future__ import annotations

import html
import re
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from docs import tables
from pytest_ddl.equivalence.causes import CAUSES
from pytest_ddl.equivalence.causes.cause import Cause
from pytest_ddl.equivalence.checks.registry import CHECKS

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_tables_are_up_to_date(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert tables.with_tables(text) == text, "run python -m pytest_ddl.docs"


def test_every_table_is_on_a_page() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in DOCS.glob("*.md"))
    assert [name for name in tables.TABLES if f"<!-- table: {name} -->" not in text] == []


def test_check_fails_on_a_page_that_is_out_of_date(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "options.md"
    page.write_text("<!-- table: options -->\n| old |\n<!-- end -->\n", encoding="utf-8")
    assert tables.main(["--check", str(tmp_path)]) == 1
    assert "options.md: a table is out of date" in capsys.readouterr().out
    assert "| old |" in page.read_text(encoding="utf-8")
    assert tables.main([str(tmp_path)]) == 0
    assert "--ddl-strategy" in page.read_text(encoding="utf-8")
    assert tables.main(["--check", str(tmp_path)]) == 0


def test_cells_cannot_break_a_table() -> None:
    assert "auto\\|cpu" in tables.options_table()
    for table in tables.TABLES.values():
        lines = table().splitlines()
        assert len(lines) > 2
        widths = {line.replace("\\|", "").count("|") for line in lines}
        assert len(widths) == 1


@pytest.mark.parametrize(
    "package", ["pytest_ddl", "pytest_ddl.bench", "pytest_ddl.conformance", "pytest_ddl.generators"]
)
def test_every_public_name_is_in_the_reference(package: str) -> None:
    rows = re.findall(r"^\| `([\w.]+)` \| (.+) \|$", tables.api_table(package), re.MULTILINE)
    assert [name for name, _line in rows] == [f"{package}.{name}" for name in import_module(package).__all__]
    assert [line for _name, line in rows if "``" in line or ":class:" in line] == []


def test_a_public_name_without_documentation_is_refused() -> None:
    module = ModuleType("package")
    module.name = lambda: None  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=r"package\.name is public and has no docstring"):
        tables._first_line(module, "name")


@pytest.mark.parametrize("name", ["writing-tests.md"])
def test_every_fixture_is_described(name: str) -> None:
    from pytest_ddl.items.selection import CONTROLLER_FIXTURES, SINGLE_STRATEGY_FIXTURES

    text = (DOCS / name).read_text(encoding="utf-8")
    fixtures = ["ddl_strategy", "virtual_gpus", *CONTROLLER_FIXTURES, *SINGLE_STRATEGY_FIXTURES]
    assert [fixture for fixture in fixtures if f"`{fixture}`" not in text] == []


def test_checks_that_a_gpu_may_change_exist() -> None:
    text = (DOCS / "gpus.md").read_text(encoding="utf-8").partition("| comparison |")[2].partition("\n\n")[0]
    named = {name for row in re.findall(r"^\| [^|]*\(([A-Z, -]+)\)", text, re.MULTILINE) for name in row.split(", ")}
    assert named
    assert named <= {check.name for check in CHECKS}


@pytest.mark.parametrize("cause", [one for one in CAUSES.values() if "\n " in one.fix.code], ids=lambda one: one.id)
def test_code_that_a_page_shows_keeps_its_indentation(cause: Cause) -> None:
    row = next(line for line in tables.causes_table().splitlines() if line.startswith(f"| `{cause.id}` |"))
    markdown = pytest.importorskip("markdown")
    site = markdown.markdown(f"| cause | what happened | what to do |\n| - | - | - |\n{row}\n", extensions=["tables"])
    (shown,) = re.findall(r"<pre>(.*?)</pre>", site)
    text = re.sub(r"<.*?>", "", shown.replace("<br>", "\n"))
    assert html.unescape(text).splitlines() == cause.fix.code.splitlines()
