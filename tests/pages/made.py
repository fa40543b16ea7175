"""Reports from hand-made records, and what a page says, read with the standard library."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from textwrap import dedent

from pytest_ddl.equivalence.verdict.judge import judge
from pytest_ddl.equivalence.verdict.report import Report
from tests.checks.simulated_training import Program, pair

VOID = {"meta", "link", "br", "img", "hr", "input"}


def report_of(batches: Sequence[int] = (12, 12, 12, 12), **sins: object) -> Report:
    """Judge the simulated training with these sins."""
    program = Program(batches=batches)
    return judge(*pair(program, **{"replicas": 2, **sins}))


class Project:
    """Small project with tests of its own."""

    def __init__(self, folder: Path, files: Mapping[str, str]) -> None:
        self.folder = folder
        for name, text in files.items():
            (folder / name).write_text(dedent(text).lstrip())

    def run(self, *options: str, timeout: float = 300.0, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run pytest in the folder."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "GITHUB"))}
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--tb=line", *options],
            cwd=self.folder,
            env={**kept, "PYTHONPATH": str(Path(__file__).parents[2]), **environ},
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def page(self, name: str) -> Element:
        return parsed((self.folder / name).read_text(encoding="utf-8"))


@dataclass
class Element:
    """Element of a page with its children."""

    tag: str
    attributes: dict[str, str]
    children: list[Element | str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """Text without repeated spaces, with ASCII in place of dashes and multiplication signs."""
        whole = " ".join(one if isinstance(one, str) else one.text for one in self.children)
        return " ".join(whole.split()).translate({ord("\N{EN DASH}"): "-", ord("\N{MULTIPLICATION SIGN}"): "x"})

    def find(self, tag: str, **attributes: str) -> list[Element]:
        """Return the elements below this one, in order; ``kind`` is one of its classes."""
        kind = attributes.pop("kind", None)
        found = []
        for child in self.children:
            if isinstance(child, str):
                continue
            classes = child.attributes.get("class", "").split()
            if (
                child.tag == tag
                and (kind is None or kind in classes)
                and attributes.items() <= child.attributes.items()
            ):
                found.append(child)
            found += child.find(tag, **attributes, **({"kind": kind} if kind else {}))
        return found

    def one(self, tag: str, **attributes: str) -> Element:
        (found,) = self.find(tag, **attributes)
        return found

    def rows(self) -> list[list[str]]:
        """Return the texts of the cells of a table."""
        return [
            [cell.text for cell in row.children if isinstance(cell, Element) and cell.tag in ("th", "td")]
            for row in self.find("tr")
        ]


class _Parser(HTMLParser):
    """Parser that fails if an element is not closed before its parent."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Element("", {})
        self._open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _value in attrs]
        assert len(names) == len(set(names)), f"an attribute of {tag} is there twice: {attrs}"
        element = Element(tag, {name: value or "" for name, value in attrs})
        self._open[-1].children.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open[-1].children.append(Element(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self._open[-1].tag == tag, f"</{tag}> closes <{self._open[-1].tag}>"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        self._open[-1].children.append(data)


def parsed(html: str) -> Element:
    """Parse a page."""
    parser = _Parser()
    parser.feed(html)
    parser.close()
    assert len(parser._open) == 1, f"<{parser._open[-1].tag}> is not closed"
    return parser.root
