"""The site of the documentation has all pages, and its links to files outside ``docs/`` lead somewhere."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[2]
CONFIG = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))


def pages_of(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for item in nav.values() if isinstance(nav, dict) else nav:
            yield from pages_of(item)


@pytest.fixture
def hook() -> ModuleType:
    pytest.importorskip("mkdocs", reason="the extra docs is not installed")
    (path,) = CONFIG["hooks"]
    spec = spec_from_file_location("site_links", ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rewritten(hook: ModuleType, uri: str, text: str) -> str:
    page = SimpleNamespace(file=SimpleNamespace(src_uri=uri))
    result: str = hook.on_page_markdown(text, page, SimpleNamespace(config_file_path=str(ROOT / "mkdocs.yml")), None)
    return result


def test_every_page_is_in_the_navigation() -> None:
    written = {page.name for page in (ROOT / "docs").glob("*.md")}
    listed = list(pages_of(CONFIG["nav"]))
    assert written - set(listed) == set()
    assert sorted(set(listed)) == sorted(listed)


def test_pages_load_nothing_from_other_servers() -> None:
    assert CONFIG["theme"]["font"] is False
    assert "analytics" not in CONFIG["extra"]
    assert CONFIG["strict"] is True


@pytest.mark.parametrize(
    ("uri", "written", "shown"),
    [
        ("how-it-works.md", "[Security](../SECURITY.md#ci)", "[Security](security.md#ci)"),
        ("contributing.md", "[workflows](../.github/workflows)", "workflows"),
        ("readme.md", "[Gate](docs/gate.md) [License](LICENSE)", "[Gate](gate.md) License"),
        ("readme.md", "![Page](docs/images/report-page.png)", "![Page](images/report-page.png)"),
        ("history.md", "![List](images/history-charts.png)", "![List](images/history-charts.png)"),
        ("experiment/table.md", "[Page](../experiment.md)", "[Page](../experiment.md)"),
        ("contributing.md", "[gone](../gone.md)", "[gone](../gone.md)"),
        ("contributing.md", "[out](https://keras.io) [here](#links)", "[out](https://keras.io) [here](#links)"),
    ],
)
def test_links_out_of_the_folder(hook: ModuleType, uri: str, written: str, shown: str) -> None:
    assert rewritten(hook, uri, written) == shown


def test_the_reference_shows_the_docstrings_of_its_names(hook: ModuleType) -> None:
    table = (
        "<!-- table: api-tests -->\n| name | what it is |\n| --- | --- |\n| `pytest_ddl.Report` | A. |\n<!-- end -->\n"
    )
    shown = rewritten(hook, "api.md", table)
    assert "| [`pytest_ddl.Report`][pytest_ddl.Report] | A. |\n\n::: pytest_ddl.Report\n" in shown
