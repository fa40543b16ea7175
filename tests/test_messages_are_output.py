"""Messages are output: no code but a renderer searches or compares the text of a note, a finding or a doubt."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "pytest_ddl"
READERS = ("startswith", "endswith", "partition", "rpartition", "removeprefix", "removesuffix", "split", "rsplit")
SEARCHERS = ("find", "rfind", "index", "rindex", "count", "replace")
PATTERNS = ("search", "match", "fullmatch", "sub", "split", "findall", "finditer")
"""Functions of ``re``, whose second argument is the text, and methods of patterns, whose first one is."""
FIELDS = (
    "message",
    "reason",
    "evidence",
    "note",
    "details",
    "fix",
    "why",
    "explanation",
    "workaround",
    "doubt",
    "advice",
)
"""Names of fields and variables that hold sentences of our own."""


def texts_read(source: str) -> Iterator[tuple[int, str]]:
    """Yield the places that search or compare a sentence."""
    tree = ast.parse(source)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    for function in (tree, *functions):
        sentences = _Sentences(function)
        for node in _own(function):
            if sentences.are_read_by(node):
                yield node.lineno, ast.unparse(node)


def _own(function: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions of a function or module without those of the functions in it."""
    for child in ast.iter_child_nodes(function):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _own(child)
            if isinstance(child, ast.expr):
                yield child


class _Sentences:
    """Expressions of one function that hold a sentence: fields, and variables that were assigned one."""

    def __init__(self, function: ast.AST) -> None:
        self._names = set(FIELDS)
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and self.hold(node.value):
                self._names.add(ast.unparse(node.targets[0]))
            elif isinstance(node, ast.NamedExpr) and self.hold(node.value):
                self._names.add(node.target.id)
            elif isinstance(node, ast.comprehension | ast.For) and self._are_several(node.iter):
                self._names.add(ast.unparse(node.target))

    def hold(self, node: ast.expr) -> bool:
        """Return whether an expression is a sentence, or a part of one."""
        if isinstance(node, ast.BoolOp):  # (finding.fix or "")
            return any(map(self.hold, node.values))
        if isinstance(node, ast.IfExp):
            return self.hold(node.body) or self.hold(node.orelse)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):  # note.strip()
            return node.func.attr in ("strip", "lower", "splitlines") and self.hold(node.func.value)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "str" and node.args:
            return ast.unparse(node.args[0]) in ("error", "raised") or self.hold(node.args[0])
        if isinstance(node, ast.JoinedStr):
            return any(self.hold(part.value) for part in node.values if isinstance(part, ast.FormattedValue))
        return (isinstance(node, ast.Attribute) and node.attr in FIELDS) or ast.unparse(node) in self._names

    def _are_several(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Attribute) and node.attr.endswith("s") and node.attr[:-1] in FIELDS

    def are_read_by(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            method, arguments = node.func.attr, node.args
            if method in PATTERNS and any(map(self.hold, arguments[:2])):
                return True
            layout = not arguments or (isinstance(arguments[0], ast.Constant) and not str(arguments[0].value).strip())
            return method in (*READERS, *SEARCHERS) and self.hold(node.func.value) and not layout
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            for operator, left, right in zip(node.ops, sides, sides[1:], strict=False):
                if isinstance(operator, ast.In | ast.NotIn) and self.hold(right):
                    return True
                if isinstance(operator, ast.Eq | ast.NotEq) and any(map(self.hold, (left, right))):
                    return not any(isinstance(side, ast.Constant) and not side.value for side in (left, right))
        return False


FOREIGN = {
    "bench/evaluating/records.py": "a failure of a rank ends with the traceback of Python",
    "cluster/explain.py": "leaves addresses out of texts of exceptions of the program",
    "commands/advise.py": "an argument of BenchSpec is shown as the option of the command",
    "commands/doctor.py": "the options of this command have no prefix",
    "doctor/connections.py": "the error of a lease has its fix after a semicolon",
    "equivalence/checks/liveness.py": "texts of exceptions of TensorFlow",
    "equivalence/checks/run.py": "texts of exceptions of TensorFlow",
    "equivalence/checks/write.py": "texts of exceptions that name a file",
    "equivalence/diagnosis/limitations.py": "texts of exceptions of TensorFlow and Keras",
    "equivalence/diagnosis/mistakes.py": "texts of exceptions of TensorFlow and Keras",
    "equivalence/runs/alignment.py": "TensorFlow carries an exception of the data through its runtime as text",
    "faults/damaged.py": "texts of exceptions that name a damaged file",
    "messages.py": "shortens texts of exceptions of TensorFlow and Keras",
    "terminal.py": "pytest begins reasons with a word of its own",
    "training/execute.py": "removes colors from texts of exceptions",
    "trying/execution.py": "texts of exceptions of TensorFlow",
}
"""Modules that may read texts, each with the text. All but a few are of frameworks, which have no kind."""


def test_no_decision_depends_on_the_wording_of_a_message() -> None:
    found: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        for line, code in texts_read(path.read_text(encoding="utf-8")):
            found.setdefault(name, []).append(f"{name}:{line}: {code}")
    own = [place for name, places in found.items() if name not in FOREIGN for place in places]
    assert not own, "give the message a kind, and read that:\n" + "\n".join(own)
    assert set(FOREIGN) == set(found), "these modules read no text any more"


@pytest.mark.parametrize(
    "code",
    [
        "any('the weights differ' in note for note in report.notes)",
        "any('gradients' in text for text in record.notes)",
        "note.startswith(RUN_AGAIN)",
        "(finding.fix or '').startswith(UNMEASURED)",
        "why.partition(': ')",
        "finding.message == 'differs'",
        "finding.fix == fix_of(cause)",
        "re.search(pattern, result.reason)",
        "_PATTERN.sub('', finding.message)",
        "text = result.reason.strip()\nif 'steps=' in text: pass",
        "while (said := doubt.reason) and said.endswith('.'): pass",
        "str(error).partition('; ')",
        "PATTERN.search(f'{kind} {error.message}')",
    ],
)
def test_places_that_read_text_are_seen(code: str) -> None:
    assert len(list(texts_read(code))) == 1
    assert len(list(texts_read(f"def function():\n    {code.replace(chr(10), chr(10) + '    ')}"))) == 1


@pytest.mark.parametrize(
    "code",
    [
        "note.kind is NoteKind.DRAWS",
        "name.startswith('x')",
        "'a' in names",
        "message == ''",
        "' '.join(message.split())",
        "reason.partition('\\n')",
        "note in shown",
    ],
)
def test_other_places_are_left_alone(code: str) -> None:
    assert not list(texts_read(code))
