"""Messages are output: no module but a renderer searches or compares the text of a note, a finding or a doubt."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "pytest_ddl"
READERS = ("startswith", "endswith", "partition", "rpartition", "removeprefix", "removesuffix", "find", "split")
TEXTS = ("message", "reason", "evidence", "origin", "note", "text", "why", "doubt", "details")
"""Names of values and fields that hold sentences of our own."""
FOREIGN = {
    "faults/damaged.py": "error.message is the text of an exception that names a damaged file",
    "equivalence/checks/write.py": "error.message is the text of an exception of Python or TensorFlow",
    "equivalence/diagnosis/limitations.py": "error.message is the text of an exception of TensorFlow or Keras",
    "equivalence/runs/alignment.py": "TensorFlow carries an exception of the data through its runtime as text",
}
"""Modules that read texts of frameworks, which have no kind, each with the text."""
ROOMS = ("equivalence", "faults")
RENDERERS = ("equivalence/text.py", "faults/page.py")


def texts_read(source: str) -> Iterator[tuple[int, str]]:
    """Yield the places that search or compare a sentence."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in READERS:
            if _is_text(node.func.value):
                yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Compare):
            for operator, right in zip(node.ops, node.comparators, strict=True):
                left = node.left
                if isinstance(operator, ast.In | ast.NotIn) and _is_words(left) and _is_text(right):
                    yield node.lineno, ast.unparse(node)
                if isinstance(operator, ast.Eq | ast.NotEq) and _is_words(right) and _is_text(left):
                    yield node.lineno, ast.unparse(node)


def _is_text(node: ast.expr) -> bool:
    if isinstance(node, ast.BoolOp):  # (finding.origin or "")
        return any(map(_is_text, node.values))
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name in TEXTS


def _is_words(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and bool(node.value)


def modules() -> list[Path]:
    return [path for room in ROOMS for path in sorted((PACKAGE / room).rglob("*.py"))]


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_verdict_depends_on_the_wording_of_a_message(path: Path) -> None:
    name = path.relative_to(PACKAGE).as_posix()
    found = [f"{name}:{line}: {code}" for line, code in texts_read(path.read_text(encoding="utf-8"))]
    if name in RENDERERS or name in FOREIGN:
        return
    assert not found, "give the message a kind, and read that:\n" + "\n".join(found)


@pytest.mark.parametrize(
    "code",
    [
        "any('the weights differ' in text for text in texts)",
        "note.startswith(RUN_AGAIN)",
        "(finding.origin or '').startswith(UNMEASURED)",
        "why.partition(': ')",
        "finding.message == 'differs'",
    ],
)
def test_places_that_read_text_are_seen(code: str) -> None:
    assert len(list(texts_read(code))) == 1


@pytest.mark.parametrize(
    "code", ["note.kind is NoteKind.DRAWS", "name.startswith('x')", "'a' in names", "message == ''"]
)
def test_other_places_are_left_alone(code: str) -> None:
    assert not list(texts_read(code))
