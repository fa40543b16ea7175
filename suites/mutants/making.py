"""Make mutants of the functions of Keras: one small change of the source of a file each."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

FOLDERS = (
    *("optimizers", "losses", "metrics", "layers", "callbacks", "trainers", "regularizers", "constraints"),
    *("initializers", "random", "ops", "saving", "utils", "activations", "models", "backend/tensorflow"),
)
"""Folders of ``keras/src`` that training uses with TensorFlow."""
_NO_FILE = re.compile(r"_test\.py$|/(legacy|testing)/|jax|torch|openvino|/(gptq|awq|int\d)|quantiz|test_utils")
_NO_FUNCTION = re.compile(r"__(repr|str)__|quantiz|int[48]|gptq|awq|jax|torch|_nnx|openvino|cudnn")
"""Files and functions for other backends, for GPUs, for models that are quantized after training, and for texts."""
_OTHER_BACKEND = re.compile(r"'(jax|openvino|numpy)'|torch|nnx")
_TEXTS = re.compile(r"(warnings|logging|logger|io_utils)\.\w+|print|print_msg|\w*(Error|Warning)")
"""Calls whose arguments are messages."""
_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    one: other
    for pair in ((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn))
    for one, other in (pair, pair[::-1])
}
_COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    one: other
    for pair in ((ast.Add, ast.Sub), (ast.Div, ast.Mult), (ast.Mod, ast.FloorDiv), (ast.BitAnd, ast.BitOr))
    for one, other in (pair, pair[::-1])
}
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Mutant:
    """One change: the bytes of a file from ``start`` to ``end`` become ``text``, on as many lines."""

    file: str
    """Path in ``keras/src``."""
    function: str
    """Qualified name of the function that is a member of the module or of a class."""
    first: int
    """First line of this function, with its decorators, as its code object has it."""
    last: int
    line: int
    kind: str
    start: int
    end: int
    text: str

    @property
    def name(self) -> str:
        """Name that :func:`find` takes."""
        return f"{self.file}:{self.line}:{self.start}:{self.kind}"

    @property
    def folder(self) -> str:
        return next(one for one in FOLDERS if self.file.startswith(one + "/"))

    def shown(self) -> str:
        """Return the changed code and what it becomes."""
        before = source(self.file)[self.start : self.end].decode()
        return f"{' '.join(before.split())}  ->  {' '.join(self.text.split())}"

    def mutated(self) -> str:
        whole = source(self.file)
        return (whole[: self.start] + self.text.encode() + whole[self.end :]).decode()


def root() -> Path:
    """Return the folder ``keras/src`` of the installed Keras, which is not imported."""
    spec = find_spec("keras")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "src"


@cache
def source(file: str) -> bytes:
    return (root() / file).read_bytes()


def files() -> list[str]:
    """Return the files of which mutants are made."""
    every = (path for folder in FOLDERS for path in (root() / folder).rglob("*.py"))
    return sorted(name for path in every if not _NO_FILE.search(name := path.relative_to(root()).as_posix()))


def find(name: str) -> Mutant:
    """Return the mutant with a name.

    :raises KeyError: if the installed Keras has none.
    """
    found = [one for one in of_file(name.partition(":")[0]) if one.name == name]
    if not found:
        raise KeyError(f"{name}: the installed Keras has no such mutant")
    return found[0]


@cache
def of_file(file: str) -> list[Mutant]:
    """Return the mutants of a file, each with a name of its own."""
    found = {one.name: one for one in _Maker(file).made(ast.parse(source(file)))}
    return [*found.values()]


class _Maker:
    """Walk through one file: the place of each change, and the function around it."""

    def __init__(self, file: str) -> None:
        self._file = file
        lines = source(file).splitlines(keepends=True)
        self._begins = [0]
        for line in lines:
            self._begins.append(self._begins[-1] + len(line))

    def made(self, module: ast.Module) -> Iterator[Mutant]:
        yield from self._members(module.body, "")

    def _members(self, body: Sequence[ast.stmt], prefix: str) -> Iterator[Mutant]:
        for node in body:
            if isinstance(node, ast.ClassDef):
                yield from self._members(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, Function) and not _NO_FUNCTION.search(node.name):
                first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
                for kind, (begin, end), text in _of_function(node):
                    start, stop = self._place(begin)[0], self._place(end)[1]
                    lines = source(self._file).count(b"\n", start, stop) - text.count("\n")
                    bracketed = text.endswith(")")
                    text = text[:-1] + "\n" * lines + ")" if bracketed else text + "\n" * lines
                    last = node.end_lineno or first
                    yield Mutant(self._file, prefix + node.name, first, last, begin.lineno, kind, start, stop, text)

    def _place(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        begin = self._begins[node.lineno - 1] + node.col_offset
        return begin, self._begins[node.end_lineno - 1] + node.end_col_offset


Place = tuple[ast.expr | ast.stmt, ast.expr | ast.stmt]
Change = tuple[str, Place, str]
"""Kind, first and last node that are replaced, and the new text."""


def _of_function(function: Function) -> Iterator[Change]:
    parameters = function.args
    for default in (*parameters.defaults, *filter(None, parameters.kw_defaults)):
        yield from _constants(default, "default")
    names = [one.arg for one in (*parameters.posonlyargs, *parameters.args) if one.arg not in ("self", "cls")]
    yield from _block(function.body, names[:1], in_init=function.name in ("__init__", "build"))


def _block(body: Sequence[ast.stmt], inputs: Sequence[str], *, in_init: bool) -> Iterator[Change]:
    for node in body:
        yield from _statement(node, inputs, in_init=in_init)


def _statement(node: ast.stmt, inputs: Sequence[str], *, in_init: bool) -> Iterator[Change]:
    if isinstance(node, Function):
        yield from _block(node.body, inputs, in_init=False)
        return
    if isinstance(node, ast.Raise):
        yield "refusal dropped", (node, node), "pass"
        return
    if isinstance(node, ast.Assert | ast.Import | ast.ImportFrom | ast.ClassDef):
        return
    if _may_be_dropped(node, in_init=in_init):
        yield "statement dropped", (node, node), "pass"
    if isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
        others = [one for one in inputs if one != ast.unparse(node.value)]
        yield from (("input returned", (node.value, node.value), f"({one})") for one in others)
    if isinstance(node, ast.If):
        yield from _condition(node, inputs, in_init=in_init)
        return
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield from _statement(child, inputs, in_init=in_init)
        elif isinstance(child, ast.ExceptHandler):
            yield from _block(child.body, inputs, in_init=in_init)
        elif isinstance(child, ast.withitem):
            yield from _expression(child.context_expr)
        elif isinstance(child, ast.expr):
            yield from _expression(child)


def _condition(node: ast.If, inputs: Sequence[str], *, in_init: bool) -> Iterator[Change]:
    test = ast.unparse(node.test)
    other, own = bool(_OTHER_BACKEND.search(test)), "'tensorflow'" in test
    if not other:
        if not own and not all(isinstance(one, ast.Raise) for one in node.body):
            yield "branches swapped", (node.test, node.test), f"(not ({test}))"
        yield from _expression(node.test)
        yield from _block(node.body, inputs, in_init=in_init)
    if node.orelse and not own:
        if not isinstance(node.orelse[0], ast.If) and not other and not isinstance(node.orelse[0], ast.Raise):
            yield "else dropped", (node.orelse[0], node.orelse[-1]), "pass"
        yield from _block(node.orelse, inputs, in_init=in_init)


def _may_be_dropped(node: ast.stmt, *, in_init: bool) -> bool:
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call) and not _TEXTS.fullmatch(ast.unparse(node.value.func))
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        read = {one.id for one in ast.walk(node.value) if isinstance(one, ast.Name)}
        return node.targets[0].id in read
    if isinstance(node, ast.Assign):
        return not in_init and isinstance(node.targets[0], ast.Attribute | ast.Subscript)
    return isinstance(node, ast.AugAssign)


def _expression(node: ast.AST) -> Iterator[Change]:
    """Yield the changes of an expression and of its parts. The parts of formatted strings have no places."""
    if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Call) and _TEXTS.fullmatch(ast.unparse(node.func))):
        return
    if isinstance(node, ast.expr):
        yield from _changes(node)
        yield from _constants(node, "constant")
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.keyword) and child.arg in ("axis", "axes"):
            yield from ((("axis", *rest)) for _kind, *rest in _expression(child.value))  # type: ignore[misc]
        elif not (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)):
            yield from _expression(child)


def _changes(node: ast.expr) -> Iterator[Change]:
    at, place = ast.unparse, (node, node)
    match node:
        case ast.Compare(ops=[one]) if type(one) in _COMPARED:
            yield "comparison", place, f"({at(ast.Compare(node.left, [_COMPARED[type(one)]()], node.comparators))})"
        case ast.BinOp() if type(node.op) in _COMPUTED and not {_is_text(node.left), _is_text(node.right)} & {True}:
            yield "arithmetic", place, f"({at(ast.BinOp(node.left, _COMPUTED[type(node.op)](), node.right))})"
        case ast.BoolOp():
            other: ast.boolop = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield "and, or, not", place, f"({at(ast.BoolOp(other, node.values))})"
        case ast.UnaryOp(op=ast.Not()):
            yield "and, or, not", place, f"({at(node.operand)})"
        case ast.IfExp():
            yield "branches swapped", place, f"({at(ast.IfExp(node.test, node.orelse, node.body))})"
        case ast.Call():
            for given in node.keywords:
                if given.arg is not None and given.arg not in ("name", "dtype_policy"):
                    rest = [keyword for keyword in node.keywords if keyword is not given]
                    yield f"without {given.arg}=", place, f"({at(ast.Call(node.func, node.args, rest))})"


def _constants(node: ast.expr, kind: str) -> Iterator[Change]:
    match node:
        case ast.Constant(value=bool() as truth):
            yield kind, (node, node), f"({not truth})"
        case ast.Constant(value=int() | float() as number):
            yield kind, (node, node), f"({_other(number)})"
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            yield kind, (node, node), f"({0 if number == 1 else number})"


def _other(number: float) -> float:
    if number in (0, 1):
        return type(number)(1 - number)
    return number + 1 if isinstance(number, int) else number * (1000 if abs(number) < 1e-3 else 2)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
