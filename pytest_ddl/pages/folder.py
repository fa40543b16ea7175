"""Write a page for each failed comparison into a folder, with its facts as JSON beside it, and an index."""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from pathlib import Path

from pytest_ddl.equivalence.verdict.report import Report
from pytest_ddl.pages.facts import UNKNOWN, Facts
from pytest_ddl.pages.page import rules
from pytest_ddl.web.look import document

_WORDS = {"pass": "passed", "inconclusive": "inconclusive", "known": "known behavior", "fail": "failed"}


def render_index(failed: Sequence[Facts], others: Sequence[Facts]) -> str:
    """Return the index as HTML.

    :param failed: comparisons with a page.
    :param others: comparisons without one.
    """
    body = (
        f"<header><h1>Comparisons with one device <span>{escape(_tally(failed, others))}</span></h1></header><main>"
        f"{_cards(failed)}{_list(others)}</main><footer><p>Written by pytest-ddl.</p></footer>"
    )
    return document("Comparisons with one device", body, rules())


def _tally(failed: Sequence[Facts], others: Sequence[Facts]) -> str:
    counts = Counter(_WORDS.get(facts.verdict, facts.verdict) for facts in others)
    total = len(failed) + len(others)
    if not total:
        return "no test compared anything"
    if counts["passed"] == total:
        return f"all {total} passed" if total > 1 else "the only one passed"
    parts = [f"{len(failed)} failed"] if failed else []
    return ", ".join([*parts, *(f"{count} {word}" for word, count in sorted(counts.items(), reverse=True))])


def _cards(failed: Sequence[Facts]) -> str:
    ordered = sorted(
        failed, key=lambda facts: (facts.cause is None, facts.cause == UNKNOWN, facts.cause or "", facts.test)
    )
    cards = "".join(map(_card, ordered))
    return f'<ul class="changes">{cards}</ul>' if cards else ""


def _card(facts: Facts) -> str:
    cause = "inconclusive" if facts.cause is None else "cause not known" if facts.cause == UNKNOWN else facts.cause
    where = [
        f"step {facts.step}" if facts.step is not None else "",
        facts.variable or "",
        f"replica {facts.replica}" if facts.replica is not None else "",
        f"{facts.file}:{facts.line}" if facts.file else "",
    ]
    fix = f'<p class="why">{escape(facts.fix)}</p>' if facts.fix else ""
    kind = "candidate" if facts.cause is None else "confirmed"
    nth = f" (comparison {facts.number})" if facts.number > 1 else ""
    return (
        f'<li class="{kind}"><p><a href="{escape(facts.page, quote=True)}"><b>{escape(cause)}</b></a> '
        f"<small>{escape(facts.strategy)}</small></p>"
        f"<p><code>{escape(facts.test)}</code>{nth}</p>"
        f"<p>{escape(', '.join(filter(None, where)) or facts.headline)}</p>{fix}</li>"
    )


def _list(others: Sequence[Facts]) -> str:
    if not others:
        return ""
    rows = "".join(
        f'<tr><th scope="row"><code>{escape(facts.test)}</code></th><td>{escape(facts.strategy)}</td>'
        f"<td>{_WORDS.get(facts.verdict, escape(facts.verdict))}</td></tr>"
        for facts in others
    )
    return (
        '<section aria-labelledby="others-title"><h2 id="others-title">Without a page</h2>'
        f'<details class="table"><summary>{len(others)} comparison{"s" if len(others) > 1 else ""}</summary>'
        '<div class="scroll"><table class="checks"><thead><tr><th scope="col">test</th><th scope="col">strategy</th>'
        f'<th scope="col">verdict</th></tr></thead><tbody>{rows}</tbody></table></div></details></section>'
    )


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
    from pytest_ddl.pages.folder import render_index

    texts = [path.read_text(encoding="utf-8") for path in _written(folder)]
    failed = [Facts.from_json(json.loads(text), other_version=True) for text in texts]
    path = folder / INDEX
    _write(path, render_index(failed, passed))
    return path, len(failed)


def _write(path: Path, text: str) -> None:
    """Write a file. What a program prints may hold characters that no HTML page may contain."""
    path.write_text(_CONTROL.sub("\N{REPLACEMENT CHARACTER}", text), encoding="utf-8", errors="backslashreplace")


def _written(folder: Path) -> list[Path]:
    """Return the JSON files in a folder that :func:`write_page` wrote."""
    files = []
    for path in sorted(folder.glob("*.json")):
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(value, dict) and value.get("written_by") == _WRITER:
            files.append(path)
    return files


def _file_name(test: str, number: int) -> str:
    """Return a name without special characters that differs for different tests on any file system."""
    whole = f"{test}#{number}"
    words = re.sub(r"[^A-Za-z0-9]+", "-", test).strip("-")[-80:].strip("-").lower()
    return f"{words or 'test'}-{hashlib.sha256(whole.encode(errors='replace')).hexdigest()[:8]}"
