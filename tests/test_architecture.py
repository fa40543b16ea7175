"""The direction of imports and the size of modules: what the layers promise each other."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from importlib.util import resolve_name
from pathlib import Path

import pytest

import pytest_ddl

ROOT = Path(pytest_ddl.__file__).parent
DOCS = Path(__file__).parents[1] / "docs"
PACKAGE = "pytest_ddl"
MODULES = {
    ".".join((PACKAGE, *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(ROOT.rglob("*.py"))
}
HEAVY = ("tensorflow", "keras", "tf_keras", "numpy", "hypothesis", "cloudpickle")
MAX_LINES = 450
BUDGETS = Path(__file__).with_name("room_lines.json")
"""Maximum number of lines of each room. Raise one only in a commit that says why."""


@cache
def parsed(path: Path) -> ast.Module:
    """Syntax tree of a module. Nobody changes it."""
    return ast.parse(path.read_text())


SAME_NAMES = {
    "Case": "documented in api.md for conformance; the diagnosis recomputes a case of differing data",
    "Decision": "documented for the gate; a tolerance decides how a value is compared",
    "Ledger": "documented for the launchers; the other one holds all values of a record",
}
"""Names of several classes, each with the reason. This list may only become shorter."""


def imports(path: Path, *, whole: bool, types: bool = False) -> Iterator[str]:
    """Names that a module imports, in the whole module or only when it is loaded.

    :param types: also those that only type checkers import.
    """

    def visit(nodes: list[ast.stmt]) -> Iterator[ast.stmt]:
        for node in nodes:
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test) and not types:
                yield from visit(node.orelse)
                continue
            yield node
            if whole or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                for block in ("body", "orelse", "finalbody"):
                    yield from visit(getattr(node, block, []))
                for handler in getattr(node, "handlers", []):
                    yield from visit(handler.body)

    for node in visit(parsed(path).body):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = resolve_name("." * node.level + (node.module or ""), "pytest_ddl") if node.level else node.module
            names = [f"{module}.{alias.name}" for alias in node.names]
            yield from names
            if not all(name in MODULES for name in names):
                yield str(module)


def named_in_strings(path: Path) -> Iterator[str]:
    """Modules of the package that a module names in a string, for example to load them later."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in MODULES:
            yield node.value


def under(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


@cache
def edges(*, types: bool = False) -> dict[str, set[str]]:
    """Module -> modules that it imports or names. The package itself only passes on public names."""
    found = {}
    for name, path in MODULES.items():
        used = {*imports(path, whole=True, types=types), *named_in_strings(path)}
        found[name] = {other for other in used if other in MODULES and other not in (name, PACKAGE)}
    return {name: used for name, used in found.items() if name != PACKAGE}


def layers() -> list[tuple[str, tuple[str, ...]]]:
    """Parts of the package from the lowest to the highest, each with what it must not import: the table of the docs."""
    text = (DOCS / "how-it-works.md").read_text()
    rows = re.findall(r"^\| ((?:`[\w.]+`(?:, )?)+) \|[^|]*\|([^|]*)\|$", text, re.MULTILINE)
    return [
        (f"{PACKAGE}.{part}", tuple(re.findall(r"`(\w+)`", forbidden)))
        for parts, forbidden in rows
        for part in re.findall(r"`([\w.]+)`", parts)
    ]


def layer_of(name: str, names: list[str]) -> int:
    """Position of the most exact layer that holds a module."""
    return max((len(layer), position) for position, layer in enumerate(names) if under(name, layer))[1]


def test_every_module_is_in_a_layer_of_the_docs() -> None:
    names = [name for name, _forbidden in layers()]
    assert [name for name in MODULES if name != PACKAGE and not under(name, *names)] == []
    assert [name for name in names if not any(under(module, name) for module in MODULES)] == []


def test_imports_point_to_lower_layers() -> None:
    names = [name for name, _forbidden in layers()]
    wrong = [
        f"{name} imports {other}"
        for name, used in edges().items()
        for other in used
        if layer_of(other, names) > layer_of(name, names)
    ]
    assert sorted(wrong) == []


def test_layers_do_without_what_the_docs_say() -> None:
    wrong = [
        f"{name} imports {imported}"
        for layer, forbidden in layers()
        for name, path in MODULES.items()
        if under(name, layer)
        for imported in imports(path, whole=True)
        if under(imported, *forbidden)
    ]
    assert sorted(wrong) == []


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Return the largest groups of nodes that all reach each other."""

    def reached(start: str) -> set[str]:
        found: set[str] = set()
        waiting = [start]
        while waiting:
            new = graph.get(waiting.pop(), set()) - found
            found |= new
            waiting += new
        return found

    reach = {node: reached(node) for node in graph}
    groups = {frozenset(other for other in reach[node] if node in reach.get(other, ())) for node in graph}
    return sorted((set(group) for group in groups if group), key=sorted)


def folder_of(name: str) -> str:
    package = name if MODULES[name].name == "__init__.py" else name.rpartition(".")[0]
    return package.removeprefix(f"{PACKAGE}").removeprefix(".")


def test_no_module_imports_itself_through_others() -> None:
    assert circles(edges()) == []


def test_no_modules_need_each_other_for_types() -> None:
    assert circles(edges(types=True)) == []


def test_no_folders_import_each_other() -> None:
    folders: dict[str, set[str]] = {}
    for name, used in edges(types=True).items():
        # Modules at the top belong to no folder.
        folders.setdefault(folder_of(name), set()).update({folder_of(other) for other in used} - {folder_of(name), ""})
    folders.pop("")
    assert circles(folders) == []


def room_lines() -> dict[str, int]:
    """Return the number of lines of each room: a folder of the package, or a folder in one of them."""
    found: Counter[str] = Counter()
    for name, path in MODULES.items():
        room = ".".join(folder_of(name).split(".")[:2]) if name != PACKAGE else ""
        found[room or PACKAGE] += len(path.read_text().splitlines())
    return dict(sorted(found.items()))


def test_no_room_grows_without_a_reason() -> None:
    allowed = json.loads(BUDGETS.read_text())
    found = room_lines()
    wrong = [
        f"{room}: {lines} of {allowed.get(room, 0)}" for room, lines in found.items() if lines > allowed.get(room, 0)
    ]
    gone = [room for room in allowed if room not in found]
    text = f"lines of rooms: {wrong}, rooms that are gone: {gone}; say why in the commit and run"
    assert (wrong, gone) == ([], []), f"{text}: python -m tests.test_architecture"


def test_strategies_import_tensorflow_only_inside_functions() -> None:
    found = [
        f"{name} imports {imported}"
        for name, path in MODULES.items()
        if under(name, "pytest_ddl.strategies", "pytest_ddl.cluster")
        for imported in imports(path, whole=False)
        if under(imported, "tensorflow", "keras", "tf_keras", "hypothesis")
    ]
    # Modules of model parallelism are imported only by the code that builds it.
    assert [line for line in found if "model_parallel_" not in line] == []


@pytest.mark.parametrize(
    "name", ["plugin", "config", "session", "items/selection", "harness", "strategies/machine", "hookspecs"]
)
def test_what_every_pytest_run_loads_is_light(name: str) -> None:
    assert [imported for imported in imports(ROOT / f"{name}.py", whole=False) if under(imported, *HEAVY)] == []


def test_a_run_without_ddl_tests_loads_nothing_heavy_and_starts_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_plain.py").write_text("def test_plain(): pass\n")
    code = (
        "import sys, subprocess, pytest\n"
        "started = []\n"
        "sys.addaudithook(lambda event, args: started.append(event) if event in"
        " ('subprocess.Popen', 'os.fork', 'os.posix_spawn', 'tempfile.mkdtemp') else None)\n"
        "status = pytest.main(['-q', '-p', 'no:cacheprovider', '-p', 'no:xdist', '-p', 'pytest_ddl.plugin'])\n"
        f"heavy = [name for name in {HEAVY} if name in sys.modules]\n"
        "assert (int(status), heavy, started) == (0, [], []), (status, heavy, started)\n"
    )
    environ = {"PATH": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("name", sorted(MODULES))
def test_modules_are_small_and_say_what_they_are_for(name: str) -> None:
    text = MODULES[name].read_text()
    assert len(text.splitlines()) <= MAX_LINES
    assert not text or ast.get_docstring(ast.parse(text))


def test_no_function_or_class_hides_an_earlier_one() -> None:
    # Ruff reports this only if nothing uses the earlier one. Text is searched, because syntax trees take seconds.
    twice = {
        f"{path.relative_to(DOCS.parent)}: {name}"
        for folder in ("pytest_ddl", "suites", "tests", "asv_bench")
        for path in (DOCS.parent / folder).rglob("*.py")
        for name, count in Counter(_undecorated(path.read_text())).items()
        if count > 1
    }
    assert not twice


def _undecorated(text: str) -> list[str]:
    """Names of the functions and classes of a module that have no decorator, such as ``overload``."""
    found = re.findall(r"^(@.*\n|\)\n)?(?:async def|def|class) (\w+)", text, re.MULTILINE)
    return [name for decorator, name in found if not decorator]


def test_a_class_name_means_one_thing() -> None:
    homes: dict[str, list[str]] = {}
    for module, path in MODULES.items():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(module)
    doubled = {name: modules for name, modules in homes.items() if len(modules) > 1}
    assert {name: modules for name, modules in doubled.items() if name not in SAME_NAMES} == {}
    assert set(SAME_NAMES) <= set(doubled), "this name has one meaning now: remove it from the list"


@pytest.mark.parametrize("name", pytest_ddl.__all__)
def test_public_names_resolve(name: str) -> None:
    assert getattr(pytest_ddl, name).__doc__


if __name__ == "__main__":
    rounded = {room: -(-lines // 100) * 100 for room, lines in room_lines().items()}
    BUDGETS.write_text(json.dumps(rounded, indent=2) + "\n")
