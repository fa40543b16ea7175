"""Provenance of measured code: find imported modules that do not come from the version to be measured."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote, urlparse

from pytest_ddl.bench.git import GitError, git
from pytest_ddl.json_records import JsonRecord

SOURCE = "DDL_BENCH_SOURCE"
"""Environment variable that names the source to be measured, as JSON. asv itself does not set it. In an environment of
its own for each commit, asv measures what is installed there."""
_INSTALLED = frozenset(["site-packages", "dist-packages"])
_NOT_SEARCHED = _INSTALLED | {"node_modules", "third_party", "vendor", "vendored", "external"}
"""Folders that hold copies of other projects. A numpy/ in one of them does not make NumPy part of this project."""
_SOURCES = frozenset([".py", ".pyx", ".so", ".pyd", ".c", ".cc", ".cpp", ".cxx", ".cu", ".rs"])
"""Suffixes of source and built files of a module. Other files beside a module may have the same name."""
_NAMED = re.compile(
    r"^\[(?:project|tool\.poetry|metadata)\][ \t]*$(?:(?!^\[).)*?^name[ \t]*=[ \t]*[\"']?([\w.-]+)", re.M | re.S
)


def foreign_modules(
    modules: Iterable[ModuleType],
    root: Path,
    paths: Iterable[Path],
    checkout: Path,
    installed: Iterable[Distribution] | None = None,
) -> dict[str, Path]:
    """Return the modules that should have come from a version's folder but did not: name -> file.

    A module that was imported from another place is foreign in these cases:

    * It lies in the user's own checkout. An editable installation points there, and both versions would run it.
    * The version holds a module of the same name in some folder. The imported one is an installed copy, or it comes
      from a second clone.
    * It belongs to an installation of this project itself, such as a compiled extension. Such an installation was made
      from the checkout (``direct_url.json``, PEP 610), or a project file of the version gives its name.

    ``pytest_ddl`` is never foreign, because it is the instrument. The standard library is never foreign either.

    :param installed: is used instead of the distributions that are installed for this interpreter.
    """
    elsewhere = {name: path for name, path in _files(modules) if not lies_in(path, root) and not _is_standard(path)}
    holders, names = _searched(root, paths, {name.split(".")[0] for name in elsewhere})
    owned = set(_owned(distributions() if installed is None else installed, names, checkout, root))
    return {
        name: path
        for name, path in elsewhere.items()
        if (path.is_relative_to(checkout) and not _is_installed(path))
        or any(_holds(folder, name) for folder in holders)
        or path in owned
        or (not _is_installed(path) and not owned.isdisjoint(path.parents))
    }


def _files(modules: Iterable[ModuleType]) -> Iterator[tuple[str, Path]]:
    for module in list(modules):
        name, file = getattr(module, "__name__", ""), getattr(module, "__file__", None)
        # The modules that an editable installation adds only point to the code.
        instrument = name.split(".")[0] in ("pytest_ddl", "__main__", "__mp_main__") or name.startswith("__editable__")
        if file and isinstance(file, str) and not instrument:
            yield name, Path(file)


def lies_in(path: Path, folder: Path) -> bool:
    """Return whether a file belongs to a folder itself, and not to an environment inside it."""
    return path.is_relative_to(folder) and not _is_installed(path.relative_to(folder))


def _is_installed(path: Path) -> bool:
    return not _INSTALLED.isdisjoint(path.parts)


def _is_standard(path: Path) -> bool:
    """Return whether a file is part of the standard library, which in a Conda environment may lie in the checkout."""
    return not _is_installed(path) and any(
        path.is_relative_to(sysconfig.get_path(kind)) for kind in ("stdlib", "platstdlib")
    )


def _searched(root: Path, paths: Iterable[Path], tops: set[str]) -> tuple[list[Path], set[str]]:
    """Return the folders of a version that could provide one of the top-level modules, and its projects' names."""
    # Modules are imported from these folders even if they contain an __init__.py.
    given = {root, *paths}
    holders, names = [], set()
    for folder, folders, files in os.walk(root):
        here = Path(folder)
        if "__init__.py" in files and here not in given:
            # A module inside a package is no top-level module: horovod/tensorflow is not TensorFlow.
            folders.clear()
            continue
        folders[:] = [name for name in folders if not name.startswith(".") and name not in _NOT_SEARCHED]
        if tops & {*folders, *(name.split(".")[0] for name in files)}:
            holders.append(here)
        for name in {"pyproject.toml", "setup.cfg"} & set(files):
            names |= {_plain(found) for found in _NAMED.findall((here / name).read_text("utf-8", "replace"))}
    return holders + [path for path in given if path not in holders], names


def _holds(folder: Path, name: str) -> bool:
    base = folder.joinpath(*name.split("."))
    if (base / "__init__.py").is_file():
        return True
    return base.parent.is_dir() and any(path.suffix in _SOURCES for path in base.parent.glob(f"{base.name}.*"))


def _owned(installed: Iterable[Distribution], names: set[str], checkout: Path, root: Path) -> Iterator[Path]:
    """Yield the installed files of this project, and the folders that its editable installations point to."""
    for distribution in installed:
        source, is_editable = _source(distribution)
        from_here = source is not None and any(source.is_relative_to(folder) for folder in (checkout, root))
        if not from_here and _plain(distribution.name or "") not in names:
            continue
        if source is not None and is_editable:
            yield source
        for file in distribution.files or ():
            # Files of an editable installation are only loaders, except for the modules that it has compiled.
            if file.suffix in (".so", ".pyd") or (file.suffix == ".py" and not is_editable):
                yield Path(str(distribution.locate_file(file)))


def _source(distribution: Distribution) -> tuple[Path | None, bool]:
    """Return the folder that a distribution was installed from (PEP 610), and whether it still points there."""
    with contextlib.suppress(json.JSONDecodeError, AttributeError):
        origin = json.loads(distribution.read_text("direct_url.json") or "{}")
        url = urlparse(origin.get("url", ""))
        if url.scheme == "file" and "dir_info" in origin:
            return Path(unquote(url.path)).resolve(), bool(origin["dir_info"].get("editable"))
    return None, False


def _plain(name: str) -> str:
    """Return a distribution's name, normalized for comparison (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


@dataclass(frozen=True)
class SourceTrees(JsonRecord):
    """Work trees that hold the measured code."""

    trees: tuple[str, ...]
    paths: tuple[str, ...]
    """Folders from which modules are imported."""
    benchmarks: str
    """asv's folder of benchmarks. It may be newer than the commit, because asv measures old commits with it too."""
    written: tuple[str, ...] = ()
    """Folders that asv writes to. They are not compared, because each run changes them and they may be in git."""

    @classmethod
    def of(
        cls, commit: str, paths: Iterable[Path], folder: Path, benchmarks: Path, written: Iterable[Path]
    ) -> SourceTrees:
        """Return the work trees of these paths that contain the commit; if none does, the work tree of ``folder``."""
        given = _texts(paths)
        trees = [git(path, "rev-parse", "--show-toplevel") for path in given if _knows(path, commit)]
        trees = trees or [git(folder, "rev-parse", "--show-toplevel")]
        return cls(_texts(map(Path, trees)), given, str(benchmarks.resolve()), _texts(written))

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] = os.environ) -> SourceTrees | None:
        """Return the source that the environment names; ``None`` if it names none."""
        if not environ.get(SOURCE):
            return None
        return cls.from_json(json.loads(environ[SOURCE]))

    def as_environ(self) -> dict[str, str]:
        """Return the variables that name this source in the environment of the benchmarks."""
        return {SOURCE: json.dumps(self.as_json())}

    def differences(self, commit: str) -> tuple[list[str], list[str]]:
        """Return tracked files that differ from the commit: first the measured files, then those of the benchmarks."""
        files = [
            Path(tree, name)
            for tree in self.trees
            for name in git(tree, "diff", "--name-only", "-z", commit).split("\0")
            if name and not any(Path(tree, name).is_relative_to(folder) for folder in self.written)
        ]
        measuring = [file for file in files if file.is_relative_to(self.benchmarks) or file.name == "asv.conf.json"]
        return [str(file) for file in files if file not in measuring], [str(file) for file in measuring]

    def foreign(self, modules: Iterable[ModuleType]) -> dict[str, Path]:
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
            for file in git(tree, "ls-files", "-z", "--", end, f"*/{end}").split("\0")
            if file
        ]
        return bool(sources) and all(_content(file) != _content(path) for file in sources)


class ForeignCodeError(RuntimeError):
    """Error if the measured code is not the code of the version."""


class FromSource:
    """Training function that fails if it imported modules that differ from the source.

    It can be pickled if the function can.
    """

    def __init__(self, func: Callable[[Any], Any], source: SourceTrees) -> None:
        self.func, self.source = func, source

    def __call__(self, run: Any) -> None:
        self.func(run)
        foreign = self.source.foreign(sys.modules.values())
        if foreign:
            raise ForeignCodeError(
                f"the measured code is not the checked-out code in {', '.join(self.source.trees)}: "
                f"{listed(foreign)}. Each commit would get the result of this copy. Give the folder that holds the "
                "package's source as --path, for example pytest-ddl asv run --path python, or install the package "
                "again from the commit, or as an editable installation (pip install --editable .)"
            )


def listed(modules: Mapping[str, Path]) -> str:
    """Name the first modules with their files."""
    return "; ".join(f"{name} from {path}" for name, path in list(modules.items())[:5])


def _texts(paths: Iterable[Path]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(path.resolve()) for path in paths))


def _content(path: Path) -> bytes | None:
    """Return the content with LF line ends, because a checkout or wheel may change them; ``None`` if unreadable."""
    try:
        return path.read_bytes().replace(b"\r\n", b"\n")
    except OSError:
        return None


def _knows(folder: str, commit: str) -> bool:
    try:
        git(folder, "cat-file", "-e", f"{commit}^{{commit}}")
    except GitError:
        return False
    return True
