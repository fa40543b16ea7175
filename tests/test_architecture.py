"""The direction of imports and the size of modules: what the layers promise each other."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import resolve_name
from pathlib import Path

import pytest

import pytest_ddl

ROOT = Path(pytest_ddl.__file__).parent
MODULES = {
    "pytest_ddl." + ".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in sorted(ROOT.rglob("*.py"))
}
HEAVY = ("tensorflow", "keras", "tf_keras", "numpy", "hypothesis", "cloudpickle")
MAX_LINES = 450


def imports(path: Path, *, whole: bool) -> Iterator[str]:
    """Names that a module imports: everywhere in it, or only when it is loaded; never for type checkers alone."""

    def visit(nodes: list[ast.stmt]) -> Iterator[ast.stmt]:
        for node in nodes:
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
                yield from visit(node.orelse)
                continue
            yield node
            if whole or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                for block in ("body", "orelse", "finalbody"):
                    yield from visit(getattr(node, block, []))
                for handler in getattr(node, "handlers", []):
                    yield from visit(handler.body)

    for node in visit(ast.parse(path.read_text()).body):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = resolve_name("." * node.level + (node.module or ""), "pytest_ddl") if node.level else node.module
            yield str(module)
            yield from (f"{module}.{alias.name}" for alias in node.names)


def under(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


@pytest.mark.parametrize(
    ("layer", "forbidden"),
    [
        ("pytest_ddl", ("pytest_ddl.plugin",)),
        (
            "pytest_ddl.checks",
            ("pytest", "_pytest", "tensorflow", "keras", "pytest_ddl.cluster", "pytest_ddl.training"),
        ),
        ("pytest_ddl.records", ("pytest", "tensorflow", "keras", "pytest_ddl.cluster", "pytest_ddl.checks")),
        (
            "pytest_ddl.cluster",
            ("pytest_ddl.checks", "pytest_ddl.training", "pytest_ddl.session", "pytest_ddl.harness"),
        ),
        ("pytest_ddl.items", ("pytest_ddl.checks", "pytest_ddl.training", "pytest_ddl.comparison")),
        ("pytest_ddl.comparison", ("pytest", "tensorflow", "keras", "pytest_ddl.session", "pytest_ddl.items.spmd")),
        ("pytest_ddl.training", ("pytest", "pytest_ddl.cluster", "pytest_ddl.checks", "pytest_ddl.session")),
        ("pytest_ddl.strategies", ("pytest", "pytest_ddl.cluster", "pytest_ddl.checks", "pytest_ddl.training")),
        ("pytest_ddl.bench", ("pytest", "pytest_ddl.session", "pytest_ddl.items.spmd", "pytest_ddl.report")),
        *[
            (f"pytest_ddl.{layer}", ("pytest_ddl.bench", "pytest_ddl.cli"))
            for layer in ("records", "strategies", "cluster", "training", "checks", "comparison", "items", "report")
        ],
        ("pytest_ddl.cluster.zygote", ("pytest", "numpy", "cloudpickle")),
    ],
)
def test_imports_point_one_way(layer: str, forbidden: tuple[str, ...]) -> None:
    found = [
        f"{name} imports {imported}"
        for name, path in MODULES.items()
        if under(name, layer)
        for imported in imports(path, whole=True)
        if under(imported, *forbidden)
    ]
    assert not found


def test_strategies_import_tensorflow_only_inside_functions() -> None:
    found = [
        f"{name} imports {imported}"
        for name, path in MODULES.items()
        if under(name, "pytest_ddl.strategies", "pytest_ddl.cluster") and name != "pytest_ddl.cluster.examples"
        for imported in imports(path, whole=False)
        if under(imported, "tensorflow", "keras", "tf_keras", "hypothesis")
    ]
    # Those of model parallelism are themselves imported only where it is built.
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


@pytest.mark.parametrize("name", pytest_ddl.__all__)
def test_public_names_resolve(name: str) -> None:
    assert getattr(pytest_ddl, name).__doc__
