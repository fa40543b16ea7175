"""Read the names that a module defines from its text, because an import may take long or have effects."""

from __future__ import annotations

import re
import symtable
from pathlib import Path

from pytest_ddl.messages import did_you_mean

_MADE_OTHERWISE = re.compile(r"import \*|__getattr__|globals\(|setattr\(")
"""Pattern for code that adds names to a module without showing them in its text."""


def lacks(file: Path, function: str, shown: str = "") -> str:
    """Return the message that a file does not define a function; empty if it does, or if its text does not show this.

    :param shown: the file as the message names it.
    :raises SyntaxError: if the file is no Python.
    """
    try:
        text = file.read_text(encoding="utf-8")
        symbols = symtable.symtable(text, str(file), "exec").get_symbols()
    except SyntaxError:
        raise
    except (OSError, ValueError):
        return ""
    names = [one.get_name() for one in symbols if one.is_assigned() or one.is_imported() or one.is_namespace()]
    if function in names or _MADE_OTHERWISE.search(text):
        return ""
    functions = [one.get_name() for one in symbols if one.is_namespace() and not one.get_name().startswith("_")]
    hint = did_you_mean(function, functions)
    return f"{shown or file} has no {function!r}{hint}; its functions: {', '.join(functions) or 'none'}"
