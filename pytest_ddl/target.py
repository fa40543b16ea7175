"""Find the training function that ``pytest-ddl check`` names, without importing its module."""

from __future__ import annotations

import importlib.util
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pytest_ddl.definitions import lacks
from pytest_ddl.messages import did_you_mean


class TargetError(ValueError):
    """Error for a target that does not exist. The message is one line and says what to change."""


@dataclass(frozen=True)
class Target:
    """Training function and the file that defines it."""

    file: Path
    function: str

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
        return cls(file, function)


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
