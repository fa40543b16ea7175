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

from pytest_ddl.definitions import lacks
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
        if not place or not function.isidentifier():
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


def _file(place: str) -> Path:
    file = Path(place)
    if not file.is_file():
        here = [str(file.with_name(other.name)) for other in file.parent.glob("*.py")] if file.parent.is_dir() else []
        raise TargetError(f"there is no file {place!r}{did_you_mean(place, here)}")
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
