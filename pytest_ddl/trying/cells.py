"""Decide from the code of a notebook whether a cell that failed could have changed what is compared."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping

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
    bodies: dict[str, set[str]] = {}
    for node in nodes:
        for part in ast.walk(node):
            if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                bodies.setdefault(part.name, set()).update(_mentioned([part]))
    cells: dict[int, list[ast.stmt]] = {}
    for node in nodes:
        cells.setdefault(cell_of(node.lineno), []).append(node)
    failed = cells.get(cell, [])
    if _reached(failed, bodies) & _COMPARED:
        return False
    made = _bound(failed) | (_changed(failed, bodies) - _imported(nodes))
    later = (_reached(body, bodies) for number, body in cells.items() if number > cell)
    return not any(reached & _COMPARED and reached & made for reached in later)


def _reached(nodes: Iterable[ast.AST], bodies: Mapping[str, set[str]]) -> set[str]:
    """Return all names in the code, and in the functions and classes of the notebook that it mentions."""
    reached, new = set[str](), _mentioned(nodes)
    while new:
        reached |= new
        new = {name for known in new for name in bodies.get(known, ())} - reached
    return reached


def _mentioned(nodes: Iterable[ast.AST]) -> set[str]:
    parts = [part for node in nodes for part in ast.walk(node)]
    names = {part.id for part in parts if isinstance(part, ast.Name)}
    return names | {part.attr for part in parts if isinstance(part, ast.Attribute)}


def _bound(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the names that the code assigns or defines, and the objects whose attributes or items it sets."""
    names = _imported(nodes)
    for part in (part for node in nodes for part in ast.walk(node)):
        if isinstance(part, ast.Name | ast.Attribute | ast.Subscript) and not isinstance(part.ctx, ast.Load):
            names |= _mentioned([part])
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
            names |= _mentioned([part.func.value])
        if _mentioned([part.func]) & bodies.keys():
            names |= _mentioned([*part.args, *(keyword.value for keyword in part.keywords)])
    return names
