"""Read a script or a notebook, and the names that its code mentions, without running it."""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_ddl.definitions import absent


def bodies_of(nodes: Iterable[ast.AST]) -> Mapping[str, set[str]]:
    """Return the names that each function and class in the code mentions, by its own name."""
    bodies: dict[str, set[str]] = {}
    for part in (part for node in nodes for part in ast.walk(node)):
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bodies.setdefault(part.name, set()).update(mentioned([part]))
    return bodies


def reached(nodes: Iterable[ast.AST], bodies: Mapping[str, set[str]]) -> set[str]:
    """Return all names in the code, and in the functions and classes that it mentions."""
    names, new = set[str](), mentioned(nodes)
    while new:
        names |= new
        new = {name for known in new for name in bodies.get(known, ())} - names
    return names


def mentioned(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the names of variables and attributes in the code."""
    parts = [part for node in nodes for part in ast.walk(node)]
    names = {part.id for part in parts if isinstance(part, ast.Name)}
    return names | {part.attr for part in parts if isinstance(part, ast.Attribute)}


_MAGIC = re.compile(r"\s*[%!?]|.*\?$")
_RUNNING = re.compile(r"%%(?:time|capture)\b")
"""Magics of a cell whose other lines are Python, and run."""
_TIMED = re.compile(r"(\s*)%time\s+(?=\S)")
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

    @classmethod
    def read(cls, path: Path) -> Script:
        """Read a Python file, or the code cells of a notebook.

        :raises SourceError: if the file does not exist, is no notebook, or is not valid Python.
        """
        if not path.exists():
            raise ScriptError(absent(path, ".py", ".ipynb"))
        if path.is_dir():
            raise ScriptError(f"{path} is a folder: give a script (.py) or a notebook (.ipynb)")
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
        whole = cell.lstrip().startswith("%%") and not _RUNNING.match(cell.lstrip())
        if whole and (file := _WRITTEN.match(cell.lstrip())):
            text = cell.lstrip().partition("\n")[2]
            kept.append(f"__import__({_WRITER!r}, fromlist=['write_alike']).write_alike({file[1]!r}, {text!r})")
        elif whole:
            left_out.append(f"cell {number}: {cell.lstrip().splitlines()[0]} (the whole cell)")
        for line in cell.splitlines():
            if not whole:
                line = _TIMED.sub(r"\1", line)
            magic = not whole and bool(_MAGIC.fullmatch(line) or _MAGIC.match(line)) and not _is_python(line)
            if magic:
                left_out.append(f"cell {number}: {line.strip()}")
            indent = line[: len(line) - len(line.lstrip())]
            kept.append(f"{indent}pass  # {line.strip()}" if magic and indent else "#" if whole or magic else line)
    return "\n".join(kept) + "\n", tuple(left_out)


def _text(source: str | list[str]) -> str:
    return source if isinstance(source, str) else "".join(source)


def _is_python(line: str) -> bool:
    """Return True for a line that only looks like a magic: a continuation of an expression, or a string."""
    stripped = line.strip()
    if not stripped.startswith(("%", "!", "?")):
        return not re.fullmatch(r"[\w.]+\?{1,2}", stripped)
    # An expression may continue with a percent sign; a magic is followed by a name.
    return stripped.startswith("%") and not re.match(r"%{1,2}[A-Za-z]", stripped)


_COMPARED = {
    "fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch", "train", "train_and_evaluate",
    "run", "experimental_run_v2", "schedule", "apply_gradients", "apply", "minimize", "assign", "assign_add",
    "assign_sub", "set_weights", "load_weights", "restore", "search", "exec", "eval", "getattr", "setattr", "globals",
    "__import__",
}  # fmt: skip
"""Names of calls that train, evaluate or change weights, and of calls that may do it under another name."""
_READING = {"save", "save_weights", "export", "summary", "get_weights", "numpy", "format", "keys", "items", "values"}
"""Names of methods that do not change their object."""


def without_training(code: str, cell_of: Callable[[int], int], cell: int) -> bool:
    """Return whether a cell trains nothing, and makes or changes nothing that a later cell with training uses.

    Names decide, whatever object they belong to: a cell counts as training if it mentions a name of ``_COMPARED``, or
    a function or class of the notebook that mentions one.

    :param code: code of all cells.
    :param cell_of: returns the number of the cell that has a line.
    """
    nodes = ast.parse(code).body
    bodies = bodies_of(nodes)
    cells: dict[int, list[ast.stmt]] = {}
    for node in nodes:
        cells.setdefault(cell_of(node.lineno), []).append(node)
    failed = cells.get(cell, [])
    if reached(failed, bodies) & _COMPARED:
        return False
    made = _bound(failed) | (_changed(failed, bodies) - _imported(nodes))
    later = (reached(body, bodies) for number, body in cells.items() if number > cell)
    return not any(names & _COMPARED and names & made for names in later)


def _bound(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the names that the code assigns or defines, and the objects whose attributes or items it sets."""
    names = _imported(nodes)
    for part in (part for node in nodes for part in ast.walk(node)):
        if isinstance(part, ast.Name | ast.Attribute | ast.Subscript) and not isinstance(part.ctx, ast.Load):
            names |= mentioned([part])
        elif isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(part.name)
    return names


def _imported(nodes: Iterable[ast.AST]) -> set[str]:
    parts = (part for node in nodes for part in ast.walk(node))
    imports = (part for part in parts if isinstance(part, ast.Import | ast.ImportFrom))
    return {(alias.asname or alias.name).partition(".")[0] for part in imports for alias in part.names}


def _changed(nodes: Iterable[ast.AST], bodies: Mapping[str, set[str]]) -> set[str]:
    """Return the objects that the code may change: those whose methods it calls, or that it gives to own functions."""
    names: set[str] = set()
    for part in (part for node in nodes for part in ast.walk(node)):
        if not isinstance(part, ast.Call):
            continue
        if isinstance(part.func, ast.Attribute) and part.func.attr not in _READING:
            names |= mentioned([part.func.value])
        if mentioned([part.func]) & bodies.keys():
            names |= mentioned([*part.args, *(keyword.value for keyword in part.keywords)])
    return names
