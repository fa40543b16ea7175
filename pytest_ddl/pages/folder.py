"""Write a page for each failed comparison into a folder, with its facts as JSON beside it, and an index."""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ddl.pages.facts import Facts

if TYPE_CHECKING:
    from pytest_ddl.equivalence.verdict.report import Report

INDEX = "index.html"
_WRITER = "pytest-ddl --ddl-report"
"""Mark of the JSON files that this module wrote. Only these, and the pages beside them, are ever removed."""

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def prepare(folder: Path) -> None:
    """Create the folder, check that it can be written, and remove the pages of an earlier run.

    :raises OSError: if it cannot be created or written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass
    for path in _written(folder):
        path.unlink()
        path.with_suffix(".html").unlink(missing_ok=True)


def write_page(report: Report, folder: Path, test: str, number: int = 1) -> Facts:
    """Write the page of a comparison and its facts, and return the facts with the name of the page.

    :param test: name of the test.
    :param number: 1 for the first comparison of the test.
    :raises OSError: if a file cannot be written.
    """
    from pytest_ddl.pages.page import render

    name = _file_name(test, number)
    facts = replace(Facts.of(report, test, number), failed=True, page=f"{name}.html")
    _write(folder / facts.page, render(report, test, index=INDEX))
    _write(folder / f"{name}.json", json.dumps({"written_by": _WRITER, **facts.as_json()}, indent=1))
    return facts


def write_index(folder: Path, passed: Sequence[Facts]) -> tuple[Path, int]:
    """Write the index of the pages in a folder. Return its path, and the number of pages.

    :param passed: comparisons without a page.
    :raises OSError: if the file cannot be written.
    """
    from pytest_ddl.pages.index import render_index

    failed = [Facts.from_json(json.loads(path.read_text(encoding="utf-8"))) for path in _written(folder)]
    path = folder / INDEX
    _write(path, render_index(failed, passed))
    return path, len(failed)


def _write(path: Path, text: str) -> None:
    """Write a file. What a program prints may hold characters that no HTML page may contain."""
    path.write_text(_CONTROL.sub("\N{REPLACEMENT CHARACTER}", text), encoding="utf-8", errors="backslashreplace")


def _written(folder: Path) -> list[Path]:
    """Return the JSON files in a folder that :func:`write_page` wrote."""
    found = []
    for path in sorted(folder.glob("*.json")):
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(value, dict) and value.get("written_by") == _WRITER:
            found.append(path)
    return found


def _file_name(test: str, number: int) -> str:
    """Return a name without special characters that differs for different tests on any file system."""
    whole = f"{test}#{number}"
    words = re.sub(r"[^A-Za-z0-9]+", "-", test).strip("-")[-80:].strip("-").lower()
    return f"{words or 'test'}-{hashlib.sha256(whole.encode(errors='replace')).hexdigest()[:8]}"
