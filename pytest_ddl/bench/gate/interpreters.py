"""Compare the interpreters of both sides: find out if two names mean the same environment."""

from __future__ import annotations

import subprocess

_SECONDS = 60
_ASKED = """import os, sys
shell = ("_", "PWD", "OLDPWD", "SHLVL")
variables = sorted(item for item in os.environ.items() if item[0] not in shell)
print([sys.version, os.path.realpath(sys.prefix), sys.path, variables])
"""


def is_same_environment(one: str, other: str) -> bool:
    """Return whether both interpreters run the same code: one environment, with the same paths and variables.

    ``python``, ``python3`` and a full path can all be the same interpreter. A script that sets ``LD_LIBRARY_PATH``
    and then starts the same Python counts as another one.
    """
    if one == other:
        return True
    told = _told(one)
    return told is not None and told == _told(other)


def _told(python: str) -> str | None:
    """Return what an interpreter prints about its environment, or ``None`` if it fails; its side reports that later."""
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
