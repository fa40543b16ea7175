"""The interpreters of both sides: whether two names stand for one environment."""

from __future__ import annotations

import subprocess

_SECONDS = 60
_ASKED = """import os, sys
shell = ("_", "PWD", "OLDPWD", "SHLVL")
variables = sorted(item for item in os.environ.items() if item[0] not in shell)
print([sys.version, os.path.realpath(sys.prefix), sys.path, variables])
"""


def is_same_environment(one: str, other: str) -> bool:
    """Whether both interpreters would run the same code: of one environment, with the same paths and variables.

    ``python``, ``python3`` and a full path may well be the same one; a script that sets ``LD_LIBRARY_PATH`` and then
    starts the same Python is not.
    """
    if one == other:
        return True
    told = _told(one)
    return told is not None and told == _told(other)


def _told(python: str) -> str | None:
    """What an interpreter says of its environment; ``None`` where it does not, which its side will report."""
    try:
        done = subprocess.run(
            [python, "-c", _ASKED],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=True,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout
