"""Find training that a script would have run after the place at which it was ended."""

from __future__ import annotations

import ast
import sys
import traceback
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from pytest_ddl.cluster.state.user_files import is_user_file
from pytest_ddl.trying.source import bodies_of, reached

_TRAINS = frozenset({"fit", "train_on_batch", "apply_gradients", "minimize"})
_WITH_TAPE = frozenset({"GradientTape", "apply"})
"""Names that train if code has both. Datasets have a method ``apply``, too, and a tape may only show gradients."""


class ActiveLine(NamedTuple):
    """Line of the script or of a module of the user that runs."""

    file: str
    line: int


def active_lines(trace: TracebackType | None = None) -> list[ActiveLine]:
    """Return the lines that are active now, or were when an exception was raised, the outermost first."""
    found = traceback.walk_stack(sys._getframe(1)) if trace is None else traceback.walk_tb(trace)
    lines = [ActiveLine(frame.f_code.co_filename, line) for frame, line in found]
    return [one for one in (lines if trace else lines[::-1]) if is_user_file(one.file)]


def unrun_training(active: Sequence[ActiveLine], ran: Collection[ActiveLine]) -> ActiveLine | None:
    """Return the first statement with training after the active lines in which no step has run.

    :param active: lines of all active functions, the outermost first.
    :param ran: lines of all functions that were active in a step.
    """
    for place in reversed(active):
        tree = _parsed(place.file)
        if tree is None:
            continue
        bodies = bodies_of(tree.body)
        for node in _after(_scope(tree, place.line), place.line):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            names = reached([node], bodies)
            is_training = bool(names & _TRAINS) or names >= _WITH_TAPE
            if is_training and not any(one.file == place.file and _has(node, one.line) for one in ran):
                return ActiveLine(place.file, node.lineno)
    return None


def _parsed(file: str) -> ast.Module | None:
    try:
        return ast.parse(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):  # code that was made at run time
        return None


def _scope(tree: ast.Module, line: int) -> list[ast.stmt]:
    """Return the body of the innermost function that has a line."""
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    inside = [node for node in functions if node.body[0].lineno <= line <= (node.end_lineno or 0)]
    return max(inside, key=lambda node: node.lineno).body if inside else tree.body


def _after(body: Sequence[ast.stmt], line: int) -> Iterator[ast.stmt]:
    """Yield the statements that may run after a line, in its block and in the blocks around it."""
    for at, node in enumerate(body):
        if _has(node, line):
            for block in _blocks(node):
                if any(_has(part, line) for part in block):
                    yield from _after(block, line)
            yield from body[at + 1 :]
            return


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, None)
        if isinstance(block, list):
            yield block
    for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        yield part.body


def _has(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)
