"""Find lines at which the number of replicas enters the arithmetic of a script, beside the size of its batches."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TypeGuard

from pytest_ddl.trying.source import bodies_of, reached

_COUNT = "num_replicas_in_sync"
_ASSIGNING = ("assign", "assign_add", "assign_sub", "set_weights")
_CALLBACK = re.compile("on_(.+_)?(begin|end)")
_RATE = re.compile("(^|_)(lr|rate)$")
_SIZE = re.compile("batch|size|bs$|buffer|steps|examples|samples", re.IGNORECASE)
_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def line_with_copied_count(code: str, told: Collection[int]) -> int | None:
    """Return the first line of a function that uses a copy of the number of replicas, made outside of it."""
    tree = ast.parse(code)
    copies = _copies(tree, told)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    used = [node for function in functions for node in ast.walk(function) if _is_copy(node, copies)]
    return min((node.lineno for node in used), default=None)


def line_with_bare_count(code: str, told: Collection[int]) -> int | None:
    """Return the first line that uses the number of replicas for something else than the size of a batch.

    A product and a whole quotient are sizes of a batch. A product is none in a replica function, in a callback, and
    in what is assigned to a variable. A number that is only shown or compared does not count.

    :param told: lines that got the number of the strategy on one device. A replica function and a ``train_step`` read
        the true number, so their lines are not among them.
    """
    return min((node.lineno for node, _, bare in _uses(code, told) if bare), default=None)


def line_with_other_count(code: str, told: Collection[int]) -> int | None:
    """Return the first line that uses the number of replicas for what may be no size of a batch: a learning rate."""
    return min(
        (node.lineno for node, around, _ in _uses(code, told) if not any(map(_names_size, around))), default=None
    )


def _uses(code: str, told: Collection[int]) -> Iterator[tuple[ast.expr, list[ast.AST], bool]]:
    """Yield each use of the number, the nodes around it, and True if it is certainly no size of a batch."""
    tree = ast.parse(code)
    copies = _copies(tree, told)
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    bodies = bodies_of(tree.body)
    given = [node.args[0] for node in ast.walk(tree) if isinstance(node, ast.Call) and _is_run(node)]
    replica_functions = reached(given, bodies)
    for node in (node for node in ast.walk(tree) if isinstance(node, ast.expr)):
        around = list(_around(node, parents))
        if not (_is_copy(node, copies) or (_is_read(node) and _is_told([node, *around], told))):
            continue
        if any(map(_is_harmless, around)):
            continue
        inside = any(
            getattr(one, "name", "<lambda>") in replica_functions for one in around if isinstance(one, _Function)
        ) or _may_change_weights(around)
        # What a function of the script does with an argument is unknown, and most compute a size from it.
        given_on = any(isinstance(one, ast.Call) and _name(one) in bodies for one in around)
        yield node, around, inside or not (given_on or any(_is_size(one, node) for one in around))


def _copies(tree: ast.AST, told: Collection[int]) -> set[str]:
    """Return the variables and attributes to which the code assigns the number of replicas itself."""
    assigned = [node for node in ast.walk(tree) if isinstance(node, ast.Assign) and _is_count(node.value)]
    targets = [target for node in assigned if _is_told([node], told) for target in node.targets]
    names = {target.id for target in targets if isinstance(target, ast.Name)}
    return names | {target.attr for target in targets if isinstance(target, ast.Attribute)}


def _is_copy(node: ast.AST, copies: Collection[str]) -> TypeGuard[ast.expr]:
    if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
        return (node.id if isinstance(node, ast.Name) else node.attr) in copies
    return False


def _is_read(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == _COUNT


def _is_told(nodes: Iterable[ast.AST], told: Collection[int]) -> bool:
    """Return whether ``told`` has a line of the innermost statement, or of the expression itself if that has a body."""
    placed = [node for node in nodes if isinstance(node, ast.expr | ast.stmt)]
    simple = next((node for node in placed if isinstance(node, ast.stmt) and not hasattr(node, "body")), placed[0])
    return any(simple.lineno <= line <= (simple.end_lineno or simple.lineno) for line in told)


def _around(node: ast.AST, parents: Mapping[ast.AST, ast.AST]) -> Iterator[ast.AST]:
    while node in parents:
        node = parents[node]
        yield node


def _is_run(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr in ("run", "experimental_run_v2") and bool(call.args)


def _is_count(node: ast.expr) -> bool:
    if isinstance(node, ast.Call) and len(node.args) == 1:  # int(...) or float(...)
        node = node.args[0]
    return _is_read(node)


def _is_harmless(node: ast.AST) -> bool:
    """Return whether a node only shows, compares or copies the number in it."""
    if isinstance(node, ast.Assign):
        return _is_count(node.value)
    if isinstance(node, ast.Call):
        return _name(node) in ("print", "info", "debug", "warning", "format", "log")
    return isinstance(node, ast.Compare | ast.Assert | ast.JoinedStr)


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _may_change_weights(around: Iterable[ast.AST]) -> bool:
    """Return whether a number is in a method of a callback, or in what is assigned to a variable, and in no rate."""
    around = list(around)
    statement = next((one for one in around if isinstance(one, ast.stmt)), None)
    if statement is None or any(_RATE.search(_named(node)) for node in ast.walk(statement)):
        return False
    return any(
        _CALLBACK.fullmatch(one.name) if isinstance(one, ast.FunctionDef) else _name(one) in _ASSIGNING
        for one in around
        if isinstance(one, ast.FunctionDef | ast.Call)
    )


def _named(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _names_size(node: ast.AST) -> bool:
    """Return whether a node gives what is computed in it to something with the name of a size."""
    if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return all(_SIZE.search(_named(target)) for target in targets)
    if isinstance(node, ast.keyword):
        return bool(_SIZE.search(node.arg or ""))
    return isinstance(node, ast.Call) and bool(_SIZE.search(_name(node)))


def _is_size(node: ast.AST, count: ast.AST) -> bool:
    """Return whether a node computes the size of a batch from the number."""
    if isinstance(node, ast.BinOp | ast.AugAssign):
        right = node.right if isinstance(node, ast.BinOp) else node.value
        quotient = isinstance(node.op, ast.FloorDiv) and any(part is count for part in ast.walk(right))
        return isinstance(node.op, ast.Mult) or quotient
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "int":
        return not any(argument is count for argument in node.args)
    return False
