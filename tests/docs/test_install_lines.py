"""Every printed line that installs pytest-ddl has the address of the source, because its name is not on PyPI."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from pytest_ddl.installing import PROJECT, install_line

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "docs/workflows").glob("*.yml")),
    *sorted((ROOT / ".github").rglob("*.yml")),
]
SOURCES = [*sorted((ROOT / "pytest_ddl").rglob("*.py")), *sorted((ROOT / "asv_bench").rglob("*.py"))]
INSTALLED = re.compile(
    r"pip install\b[^\n`]*?(?P<quote>['\"]?)(?P<what>pytest-ddl(?:\[[\w,]*\])?(?:@\S*?)?)(?P=quote)(?=[\s`.,);]|$)"
)


def wrong(text: str) -> list[str]:
    """Requirements of pytest-ddl in commands of pip that do not name the repository."""
    names = [match["what"] for match in INSTALLED.finditer(text)]
    return [name for name in names if re.sub(r"\[[\w,]*\]", "", name) != f"pytest-ddl@git+{PROJECT}"]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_pages_install_from_the_repository(path: Path) -> None:
    assert wrong(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_messages_use_the_one_function(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert path.name == "installing.py" or not INSTALLED.search(text)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("pip install 'pytest-ddl[bench]'", ["pytest-ddl[bench]"]),
        ("run `pip install pytest-ddl`", ["pytest-ddl"]),
        (
            "pip install '.[dev]' 'pytest-ddl[bench]@git+https://example.org/other'",
            ["pytest-ddl[bench]@git+https://example.org/other"],
        ),
        (f"pip install '.[dev]' 'pytest-ddl[bench,cpu]@git+{PROJECT}' -e .", []),
        (install_line(), []),
        (install_line("cpu"), []),
    ],
)
def test_a_line_without_the_repository_is_seen(line: str, found: list[str]) -> None:
    assert wrong(line) == found


def test_the_package_names_the_same_repository() -> None:
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    assert urls["Source"] == PROJECT
    assert all(url.startswith(PROJECT) for url in urls.values())
