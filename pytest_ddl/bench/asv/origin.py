"""Check that ``pytest-ddl asv run`` measures the code of the commit under which it keeps the result."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from pytest_ddl.bench.gate.origin import foreign_modules, lies_in

SOURCE = "DDL_BENCH_SOURCE"
"""Environment variable that names the source to be measured, as JSON. asv itself does not set it. In an environment of
its own for each commit, asv measures what is installed there."""


@dataclass(frozen=True)
class Source:
    """Work trees that hold the measured code."""

    trees: tuple[str, ...]
    """Top-level folders of the work trees."""
    paths: tuple[str, ...]
    """Folders from which modules are imported."""
    benchmarks: str
    """asv's folder of benchmarks. It may be newer than the commit, because asv measures old commits with it too."""
    written: tuple[str, ...] = ()
    """Folders that asv writes to. They are not compared, because each run changes them and they may be in git."""

    @classmethod
    def of(cls, commit: str, paths: Iterable[Path], folder: Path, benchmarks: Path, written: Iterable[Path]) -> Source:
        """Return the work trees of these paths that contain the commit; if none does, the work tree of ``folder``."""
        given = _texts(paths)
        trees = [_git(path, "rev-parse", "--show-toplevel") for path in given if _knows(path, commit)]
        trees = trees or [_git(folder, "rev-parse", "--show-toplevel")]
        return cls(_texts(map(Path, trees)), given, str(benchmarks.resolve()), _texts(written))

    @classmethod
    def told(cls, environ: Mapping[str, str] = os.environ) -> Source | None:
        """Return the source that the environment names; ``None`` if it names none."""
        if not environ.get(SOURCE):
            return None
        said = json.loads(environ[SOURCE])
        return cls(tuple(said["trees"]), tuple(said["paths"]), said["benchmarks"], tuple(said["written"]))

    def tell(self) -> dict[str, str]:
        """Return the variables that name this source in the environment of the benchmarks."""
        return {SOURCE: json.dumps(asdict(self))}

    def differences(self, commit: str) -> tuple[list[str], list[str]]:
        """Return tracked files that differ from the commit: first the measured files, then those of the benchmarks."""
        files = [
            Path(tree, name)
            for tree in self.trees
            for name in _git(tree, "diff", "--name-only", "-z", commit).split("\0")
            if name and not any(Path(tree, name).is_relative_to(folder) for folder in self.written)
        ]
        measuring = [file for file in files if file.is_relative_to(self.benchmarks) or file.name == "asv.conf.json"]
        return [str(file) for file in files if file not in measuring], [str(file) for file in measuring]

    def strangers(self, modules: Iterable[ModuleType]) -> dict[str, Path]:
        """Return modules that were imported from a copy that differs from the source: name -> file.

        A module is returned if the gate considers it foreign, and its file differs from the file of that name in the
        source. A module without such a file, for example a compiled extension, cannot be checked and is left out.
        """
        places = [Path(self.benchmarks), *map(Path, self.trees)]
        loaded = [module for module in list(modules) if getattr(module, "__file__", None)]
        found: dict[str, Path] = {}
        for tree in map(Path, self.trees):
            found |= foreign_modules(loaded, tree, map(Path, self.paths), tree)
        return {
            name: path
            for name, path in found.items()
            if not any(lies_in(path, place) for place in places) and self._differs(name, path)
        }

    def _differs(self, name: str, path: Path) -> bool:
        tail = path.parts[-len(name.split(".")) - (path.name == "__init__.py") :]
        end = "/".join(tail)
        sources = [
            Path(tree, file)
            for tree in self.trees
            for file in _git(tree, "ls-files", "-z", "--", end, f"*/{end}").split("\0")
            if file
        ]
        return bool(sources) and all(_content(file) != _content(path) for file in sources)


class FromSource:
    """Training function that fails if it imported modules that differ from the source.

    It can be pickled if the function can.
    """

    def __init__(self, func: Callable[[Any], Any], source: Source) -> None:
        self.func, self.source = func, source

    def __call__(self, run: Any) -> None:
        self.func(run)
        strangers = self.source.strangers(sys.modules.values())
        if strangers:
            raise StrangerError(_told(strangers, self.source))


class StrangerError(RuntimeError):
    """Error if the measured code is not that of the commit."""


def _told(strangers: dict[str, Path], source: Source) -> str:
    shown = "; ".join(f"{name} from {path}" for name, path in list(strangers.items())[:5])
    return (
        f"code was measured that is not the checked-out one in {', '.join(source.trees)}: {shown}. Each commit would "
        "get the numbers of that copy. Give the folder that holds the package's source as --path, for example "
        "pytest-ddl asv run --path python, or install the package anew from the commit, or as an editable one "
        "(pip install --editable .)"
    )


def _texts(paths: Iterable[Path]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(path.resolve()) for path in paths))


def _content(path: Path) -> bytes | None:
    """Return the content with LF line ends, because a checkout or wheel may change them; ``None`` if unreadable."""
    try:
        return path.read_bytes().replace(b"\r\n", b"\n")
    except OSError:
        return None


def _knows(folder: str, commit: str) -> bool:
    words = ["git", "-C", folder, "cat-file", "-e", f"{commit}^{{commit}}"]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


def _git(folder: str | Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, check=True)
    return os.fsdecode(done.stdout).strip("\n")
