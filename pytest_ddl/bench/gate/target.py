"""Find the training function to measure in a version's folder, and check that its code comes from there."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from pytest_ddl.bench.outcome import UsageError
from pytest_ddl.bench.provenance import foreign_modules, listed
from pytest_ddl.definitions import lacks
from pytest_ddl.target import module_of


@dataclass(frozen=True)
class VersionTarget:
    """Name of a training function: ``module:function`` or ``path/to/file.py:function``."""

    place: str
    """Module or file."""
    function: str

    def __str__(self) -> str:
        return f"{self.place}:{self.function}"

    @classmethod
    def parse(cls, text: str) -> VersionTarget:
        """Parse the text of a target.

        :raises UsageError: if the text has neither form.
        """
        place, colon, function = text.rpartition(":")
        parts = [function] if place.endswith(".py") else [function, *place.split(".")]
        if not colon or not place or not all(part.isidentifier() for part in parts):
            raise UsageError(
                f"--target={text!r} must be MODULE:FUNCTION or path/to/file.py:FUNCTION, for example "
                "benchmarks.training:train"
            )
        return cls(place, function)

    @property
    def module(self) -> str:
        """Name under which the module is imported."""
        return Path(self.place).stem if self.place.endswith(".py") else self.place

    def find(self, root: Path, paths: Iterable[Path]) -> Path | None:
        """Return the file in a version's folder, or ``None`` if this version has none."""
        if self.place.endswith(".py"):
            candidates = [root / self.place]
        else:
            base = Path(*self.place.split("."))
            candidates = [path / tail for path in paths for tail in (base.with_suffix(".py"), base / "__init__.py")]
        return next((path for path in candidates if path.is_file()), None)

    def problem(self, root: Path, paths: Iterable[Path]) -> str:
        """Return the message that the file in a version's folder does not have the function, or an empty text."""
        file = self.find(root, paths)
        with suppress(SyntaxError):  # the import reports more
            return "" if file is None else lacks(file, self.function, str(file.relative_to(root)))
        return ""

    def meant(self, paths: Iterable[Path]) -> str:
        """Return the module in these folders with the most similar name, or an empty text."""
        names = sorted({file.stem for path in paths for file in path.glob("*.py")})
        return next(iter(get_close_matches(self.module, names, 1)), "")


class FromVersion:
    """Training function of one version, imported only in the ranks, with a check that its code is from that version.

    There are two reasons to import it only there. Some strategies must exist before the first TensorFlow operation,
    and modules may make operations when they are imported. In addition, the process that starts the ranks then does
    not need to import TensorFlow.

    :param root: the version's folder.
    :param paths: folders in it from which modules are imported.
    :param checkout: the user's own checkout, which an installation may point to.
    """

    def __init__(self, target: VersionTarget, file: Path, root: Path, paths: tuple[Path, ...], checkout: Path) -> None:
        self.target, self.file, self.root, self.paths, self.checkout = target, file, root, paths, checkout
        self._loaded: Callable[[Any], Any] | None = None

    @property
    def func(self) -> Callable[[Any], Any]:
        """The function itself. Code that looks into a ``functools.partial`` finds its function by the same name."""
        if self._loaded is None:
            self._loaded = self._load()
        return self._loaded

    def __call__(self, run: Any) -> None:
        function = self.func
        function(run)
        # Checked after the run, because a function may import modules while it runs.
        foreign = foreign_modules(sys.modules.values(), self.root, self.paths, self.checkout)
        if foreign:
            raise VersionTargetError(
                f"imported code is not from the version to be measured ({self.root}): {listed(foreign)}. Both "
                "versions would run the same code. Uninstall the package and keep what it depends on (an editable "
                "installation points to your checkout, any other is a copy of one version), or give the folder of the "
                "repository that holds its source as --path"
            )

    def _load(self) -> Callable[[Any], Any]:
        if self.target.place.endswith(".py"):
            module = self._load_file()
        else:
            try:
                module = importlib.import_module(self.target.module)
            except ModuleNotFoundError as error:
                raise VersionTargetError(
                    f"{self.target} cannot be imported: {error}. Modules are looked for in "
                    f"{', '.join(_inside(path, self.root) for path in self.paths)} of the version, and in what is "
                    "installed; --path adds a folder"
                ) from error
        file = Path(module.__file__ or "").resolve()
        if file != self.file.resolve():
            raise VersionTargetError(
                f"{self.target} was imported from {file}, not from {self.file} of the version to be measured. "
                "Uninstall the package, or give the folder that holds its source as --path"
            )
        function = getattr(module, self.target.function, None)
        if function is None:
            functions = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
            raise VersionTargetError(
                f"{_inside(self.file, self.root)} has no {self.target.function!r}; "
                f"it has {', '.join(functions) or 'no functions'}"
            )
        if not callable(function):
            raise VersionTargetError(
                f"{self.target} is a {type(function).__name__}, not a training function, train(run)"
            )
        loaded: Callable[[Any], Any] = function
        return loaded

    def _load_file(self) -> ModuleType:
        # The file may import its neighbors, as a script may.
        folder = str(self.file.parent)
        if folder not in sys.path:
            sys.path.insert(0, folder)
        return module_of(self.target.module, self.file)


class VersionTargetError(RuntimeError):
    """Raised if the training function is missing, or is not the one of the version to measure."""


def _inside(path: Path, root: Path) -> str:
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
