"""Read a script or a notebook, without running it."""

from __future__ import annotations

import ast
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from pytest_ddl.trying.cells import without_training

_MAGIC = re.compile(r"\s*[%!?]|.*\?$")
_WRITTEN = re.compile(r"%%(?:writefile|file)\s+(\S+)")
_CELL = "# --- code cell "
"""Start of the line above each cell."""
_WRITER = "pytest_ddl.trying.written"
_STRATEGY = re.compile(r"Strategy\b|\.scope\(")


class ScriptError(ValueError):
    """Error for a file that cannot be run. The message is one line and says what to change."""


@dataclass(frozen=True)
class Script:
    """Code of a script, as every rank runs it."""

    file: str
    """Absolute path of the script or notebook."""
    code: str
    left_out: tuple[str, ...] = ()
    """Lines of a notebook that are not Python, as ``cell 3: !pip install x``."""

    @property
    def is_notebook(self) -> bool:
        """True for a notebook, whose code is that of its cells, joined."""
        return self.file.endswith(".ipynb")

    def cell_of(self, line: int) -> int:
        """Return the number of the code cell that has a line."""
        return sum(text.startswith(_CELL) for text in self.code.splitlines()[:line])

    def needs_cell(self, cell: int) -> bool:
        """Return whether the comparison would change if a cell that failed had run to its end."""
        return not without_training(self.code, self.cell_of, cell)

    @property
    def mentions_strategy(self) -> bool:
        """True if the code constructs a strategy, or enters the scope of one.

        A ``train_step`` may ask ``tf.distribute.get_strategy()`` for the number of replicas and leave the rest to
        whoever calls it.
        """
        return any(_STRATEGY.search(line.partition("#")[0]) for line in self.code.splitlines())

    def line_with_copied_count(self) -> int | None:
        """Return the first line of a function that uses a global copy of ``num_replicas_in_sync``."""
        tree = ast.parse(self.code)
        copies = {
            target.id
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and _ends_with(node.value, "num_replicas_in_sync")
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        used = [node for function in functions for node in ast.walk(function) if isinstance(node, ast.Name)]
        lines = [node.lineno for node in used if node.id in copies and isinstance(node.ctx, ast.Load)]
        return min(lines, default=None)

    @classmethod
    def read(cls, path: Path) -> Script:
        """Read a Python file, or the code cells of a notebook.

        :raises SourceError: if the file does not exist, is no notebook, or is not valid Python.
        """
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ScriptError(f"{path} cannot be read: {error}") from None
        left_out: tuple[str, ...] = ()
        if path.suffix == ".ipynb":
            text, left_out = _code_of_notebook(path, text)
        elif path.suffix != ".py":
            raise ScriptError(f"{path} is neither a Python script (.py) nor a notebook (.ipynb)")
        try:
            ast.parse(text)
        except SyntaxError as error:
            raise ScriptError(f"{path}:{error.lineno} is not valid Python: {error.msg}") from None
        # As pytest does it, so that the file is found again: without links being followed.
        return cls(os.path.abspath(path), text, left_out)


def _code_of_notebook(path: Path, text: str) -> tuple[str, tuple[str, ...]]:
    """Join the code cells. A line that is not Python becomes an empty comment, so that the others keep their places."""
    try:
        cells = json.loads(text)["cells"]
        code = [_text(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError):
        raise ScriptError(f"{path} is not a notebook of format 4: it has no list of cells") from None
    kept, left_out = [], []
    for number, cell in enumerate(code, start=1):
        kept.append(f"{_CELL}{number}")
        whole = cell.lstrip().startswith("%%")
        if whole and (file := _WRITTEN.match(cell.lstrip())):
            text = cell.lstrip().partition("\n")[2]
            kept.append(f"__import__({_WRITER!r}, fromlist=['write_alike']).write_alike({file[1]!r}, {text!r})")
        elif whole:
            left_out.append(f"cell {number}: {cell.lstrip().splitlines()[0]} (the whole cell)")
        for line in cell.splitlines():
            magic = not whole and bool(_MAGIC.fullmatch(line) or _MAGIC.match(line)) and not _is_python(line)
            if magic:
                left_out.append(f"cell {number}: {line.strip()}")
            indent = line[: len(line) - len(line.lstrip())]
            kept.append(f"{indent}pass  # {line.strip()}" if magic and indent else "#" if whole or magic else line)
    return "\n".join(kept) + "\n", tuple(left_out)


def _ends_with(node: ast.expr, attribute: str) -> bool:
    """Return True for an attribute of this name, also as an argument of ``int`` or ``float``."""
    if isinstance(node, ast.Call) and len(node.args) == 1:
        node = node.args[0]
    return isinstance(node, ast.Attribute) and node.attr == attribute


def _text(source: str | list[str]) -> str:
    return source if isinstance(source, str) else "".join(source)


def _is_python(line: str) -> bool:
    """Return True for a line that only looks like a magic: a continuation of an expression, or a string."""
    stripped = line.strip()
    if not stripped.startswith(("%", "!", "?")):
        return not re.fullmatch(r"[\w.]+\?{1,2}", stripped)
    # An expression may continue with a percent sign; a magic is followed by a name.
    return stripped.startswith("%") and not re.match(r"%{1,2}[A-Za-z]", stripped)
