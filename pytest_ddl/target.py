"""Find the training function that a command names, without importing its module, and import it."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from pytest_ddl.definitions import absent, lacks
from pytest_ddl.messages import did_you_mean


class TargetError(ValueError):
    """Error for a target that does not exist. The message is one line and says what to change."""


@dataclass(frozen=True)
class Target:
    """Training function and the file that defines it."""

    file: Path
    function: str
    module: str = ""
    """Name under which the module is imported; empty if the target names a file."""

    @classmethod
    def find(cls, text: str) -> Target:
        """Find the file of ``MODULE:FUNCTION`` or ``path/to/file.py:FUNCTION``, and check that it has the function.

        :raises TargetError: if the file or the function does not exist.
        """
        place, _, function = text.rpartition(":")
        place = place.removesuffix(":")  # file.py::train, as pytest names a test
        if not place or ":" in place or not function.isidentifier():
            shown = text.rstrip(":")
            raise TargetError(
                f"{text!r} must name a function as MODULE:FUNCTION or path/to/file.py:FUNCTION, for example "
                f"{shown if ':' not in shown else 'train.py'}:train"
            )
        file = _file(place) if place.endswith(".py") else _module(place)
        with suppress(SyntaxError):  # the import reports more
            problem = lacks(file, function)
            if problem:
                raise TargetError(problem)
        return cls(file, function, "" if place.endswith(".py") else place)

    def on_ranks(self) -> TargetOnRanks:
        """Return the function for ranks, without an import in this process."""
        return TargetOnRanks(str(self.file.absolute()), self.function, str(Path.cwd()))

    def load(self) -> Callable[[Any], Any]:
        """Import the module and return the function.

        :raises TargetError: if the import fails, or the name is no function.
        """
        try:
            found = getattr(self._import(), self.function, None)
        except Exception as error:
            shown = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise TargetError(f"{self.file} cannot be imported: {shown}") from error
        if not callable(found):
            raise TargetError(f"{self.file}: {self.function} is {type(found).__name__}, not a function train(run)")
        loaded: Callable[[Any], Any] = found
        return loaded

    def _import(self) -> ModuleType:
        if self.module:
            return importlib.import_module(self.module)
        # The file may import its neighbors, as a script may.
        sys.path.insert(0, str(self.file.absolute().parent))
        return importlib.import_module(self.file.stem)


@dataclass(frozen=True)
class TargetOnRanks:
    """Training function that each rank imports when it is called. The process of the command does not import it."""

    file: str
    """Absolute path."""
    function: str
    folder: str
    """Folder in which the command runs; its modules can be imported."""

    @property
    def func(self) -> Callable[[Any], Any]:
        """Function itself. Code that looks into a ``functools.partial`` finds its function by the same name."""
        name, folder = self._module()
        for place in (self.folder, folder):
            if place not in sys.path:
                sys.path.insert(0, place)
        loaded = sys.modules.get(name)
        if loaded is None or getattr(loaded, "__file__", None) != self.file:
            loaded = module_of(name, Path(self.file))
        function: Callable[[Any], Any] = getattr(loaded, self.function)
        return function

    def _module(self) -> tuple[str, str]:
        """Return the name by which other modules import this one, and the folder from which."""
        path = Path(self.file)
        names, folder = [path.stem], path.parent
        while (folder / "__init__.py").is_file():
            names.insert(0, folder.name)
            folder = folder.parent
        return ".".join(names), str(folder)

    def __call__(self, run: Any) -> None:
        self.func(run)


def module_of(name: str, file: Path) -> ModuleType:
    """Import a file under a name, whatever :data:`sys.path` has under that name."""
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _file(place: str) -> Path:
    file = Path(place)
    if not file.is_file():
        raise TargetError(absent(file, ".py"))
    return file


def _module(name: str) -> Path:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        spec = None
    if spec is None or spec.origin is None:
        here = [path.stem for path in Path().glob("*.py")]
        raise TargetError(
            f"there is no module {name!r} here or installed{did_you_mean(name, here)}. Run the command in the folder "
            "that contains it, or name its file: path/to/file.py:FUNCTION"
        )
    file = Path(spec.origin)
    if file.suffix != ".py":
        raise TargetError(f"the module {name!r} is not a Python file: {spec.origin}")
    return file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
