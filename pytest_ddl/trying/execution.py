"""Execute the code of a script in its place: working directory, arguments, ``__main__`` and temporary files."""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import Any

from pytest_ddl.run_facts import FailedCell
from pytest_ddl.training.execute import error_record
from pytest_ddl.trying import shell
from pytest_ddl.trying.found import OWN_ERRORS, Found, explained
from pytest_ddl.trying.source import Script
from pytest_ddl.trying.written import write_alike

_DOUBLE = re.compile(r"\b(?:double|float64|DT_DOUBLE)\b")
"""Names of float64 in messages of TensorFlow, Keras and NumPy."""
_TEMPORARY = re.compile(r"(?<=[\"'])/tmp/(?P<name>[^/\"'\n]+)")


@contextmanager
def in_place(run: Any, source: Script, arguments: tuple[str, ...], data: tuple[str, ...]) -> Iterator[None]:
    """Set working directory, ``sys.path``, ``sys.argv`` and ``__main__`` for a script, and restore them afterwards."""
    folder, argv, path, main = Path.cwd(), sys.argv, list(sys.path), sys.modules.get("__main__")
    for item in data:
        target = run.tmp_path / Path(item).name
        if not target.is_symlink():
            with suppress(FileExistsError):  # another rank made it
                target.symlink_to(item)
    os.chdir(run.tmp_path)
    backend = os.environ.get("MPLBACKEND")
    os.environ["MPLBACKEND"] = "Agg"
    sys.argv = [source.file, *arguments]
    sys.path[:0] = [str(Path(source.file).parent), str(run.tmp_path)]  # a notebook may write modules
    modules = set(sys.modules)
    try:
        with _flags_kept():
            yield
    finally:
        os.chdir(folder)
        sys.argv, sys.path[:] = argv, path
        for name in set(sys.modules) - modules:
            # The next run writes its own modules, in a folder of its own.
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(run.tmp_path) + os.sep):
                del sys.modules[name]
        if main is not None:
            sys.modules["__main__"] = main
        if backend is None:
            del os.environ["MPLBACKEND"]
        else:
            os.environ["MPLBACKEND"] = backend


@contextmanager
def _flags_kept() -> Iterator[None]:
    """Remove the flags that a script defines with absl, because it defines them again in the next run."""
    flags = getattr(sys.modules.get("absl.flags"), "FLAGS", None)
    before = set(flags) if flags is not None else set()
    try:
        yield
    finally:
        for name in set(flags or ()) - before:
            delattr(flags, name)


def execute(source: Script, folder: Path, found: Found, failing: tuple[FailedCell, ...] | None, precision: str) -> None:
    """Run the code as ``__main__``. A cell of a notebook that fails is noted, and the next cell runs.

    :param precision: precision of the run; a cell that fails because of float64 is not noted.
    :param folder: gets a file with the code of a notebook, because AutoGraph reads the lines again.
    :param failing: cells that may fail, with the same exception; ``None`` for all.
    """
    file = source.file
    code = _with_own_temporary_files(source.code, folder)
    if source.is_notebook:
        written = folder / f"{Path(file).stem}_notebook.py"
        write_alike(written, code)
        file = str(written)
    module = ModuleType("__main__")
    module.__dict__.update(__file__=file, __builtins__=__builtins__)
    sys.modules["__main__"] = module
    if not source.is_notebook:
        exec(compile(code, file, "exec", dont_inherit=True), module.__dict__)
        return
    module.__dict__.update(shell.NAMES)
    for cell, nodes in groupby(ast.parse(code).body, key=lambda node: source.cell_of(node.lineno)):
        body = compile(ast.Module(list(nodes), []), file, "exec", dont_inherit=True)
        try:
            exec(body, module.__dict__)
        except Exception as error:
            name = type(error).__name__
            unexpected = failing is not None and (cell, name) not in [one[:2] for one in failing]
            # The comparison then runs the script again in its own precision, in which the cell may not fail.
            of_precision = precision == "float64" and _DOUBLE.search(str(error))
            if name in OWN_ERRORS or unexpected or of_precision:
                raise
            place = f"{Path(file).name}:{_line(error, file)}"
            found.failed.append(FailedCell(cell, name, place, explained(error_record(error))))


def _with_own_temporary_files(code: str, folder: Path) -> str:
    """Replace ``/tmp/NAME`` in strings, unless it exists. Otherwise a run restores what the one before it has saved."""

    def replaced(match: re.Match[str]) -> str:
        return match[0] if os.path.exists(match[0]) else f"{folder}{match[0]}"

    code, count = _TEMPORARY.subn(replaced, code)
    if count:
        (folder / "tmp").mkdir(exist_ok=True)
    return code


def _line(error: BaseException, file: str) -> int:
    """Return the innermost line of a file in the traceback of an exception."""
    trace, line = error.__traceback__, 0
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == file:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line
