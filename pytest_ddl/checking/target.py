"""Find the training function that ``pytest-ddl check`` names, without importing its module."""

from __future__ import annotations

import importlib.util
import re
import symtable
from dataclasses import dataclass
from pathlib import Path

from pytest_ddl.messages import did_you_mean

_MADE_OTHERWISE = re.compile(r"import \*|^def __getattr__|\bglobals\(\)", re.MULTILINE)
"""Ways to define a name that the text of a module does not show."""


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
        names, functions = _names(file)
        if names is not None and function not in names:
            hint = did_you_mean(function, functions)
            raise TargetError(f"{file} has no {function!r}{hint}; its functions: {', '.join(functions) or 'none'}")
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


def _names(file: Path) -> tuple[list[str] | None, list[str]]:
    """Return the names of a module's globals, and those of its public functions.

    The first is ``None`` if the text does not show all names, or cannot be parsed. The import then reports more.
    """
    try:
        text = file.read_text(encoding="utf-8")
        symbols = symtable.symtable(text, str(file), "exec").get_symbols()
    except (OSError, SyntaxError, ValueError):
        return None, []
    names = [one.get_name() for one in symbols if one.is_assigned() or one.is_imported() or one.is_namespace()]
    public = [one.get_name() for one in symbols if one.is_namespace() and not one.get_name().startswith("_")]
    return (None if _MADE_OTHERWISE.search(text) else names), public
