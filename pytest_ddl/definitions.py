"""Read the names that a module defines from its text, because an import may take long or have effects."""

from __future__ import annotations

import re
import symtable
from pathlib import Path

from pytest_ddl.messages import did_you_mean, similar

_MADE_OTHERWISE = re.compile(r"import \*|__getattr__|globals\(|setattr\(")
"""Pattern for code that adds names to a module without showing them in its text."""


def lacks(file: Path, function: str, shown: str = "") -> str:
    """Return why a file has no such function to train; empty if it has one, or if its text does not show this.

    :param shown: the file as the message names it.
    :raises SyntaxError: if the file is no Python.
    """
    try:
        text = file.read_text(encoding="utf-8")
        table = symtable.symtable(text, str(file), "exec")
    except SyntaxError:
        raise
    except (OSError, ValueError):
        return ""
    given = (one for one in table.get_children() if isinstance(one, symtable.Function) and one.get_name() == function)
    fixtures = [name for one in given for name in one.get_parameters() if name.startswith("ddl_")]
    if fixtures:
        return (
            f"{shown or file}: {function} is a test, because it takes {fixtures[0]}. Run it with `pytest "
            f"{file}::{function}`, or name the function that it compares"
        )
    symbols = table.get_symbols()
    names = [one.get_name() for one in symbols if one.is_assigned() or one.is_imported() or one.is_namespace()]
    if function in names or _MADE_OTHERWISE.search(text):
        return ""
    made = {one.get_name() for one in table.get_children() if isinstance(one, symtable.Function)}
    functions = [name for name in names if name in made and not name.startswith("_")]
    hint = did_you_mean(function, functions)
    return f"{shown or file} has no {function!r}{hint}; its functions: {', '.join(functions) or 'none'}"


def absent(file: Path, *suffixes: str) -> str:
    """Return the message that a file does not exist, with a similar one of the same folder."""
    others = sorted(file.parent.glob("*")) if file.parent.is_dir() else []
    # Folder and suffix are left out: they are the same in names that have nothing else in common.
    here = {other.stem: other for other in others if other.suffix in suffixes}
    close = similar(file.stem, here)
    return f"there is no file {str(file)!r}" + (f" (did you mean {str(here[close])!r}?)" if close else "")
