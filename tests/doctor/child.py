"""The doctor in a process of its own, in which an obstacle is planted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest

_MAIN = "import sys\nfrom pytest_ddl.cli import main\n{before}\nsys.exit(main(['doctor', *sys.argv[1:]]))"

PATIENT = (
    "from pytest_ddl.doctor import connections, examination\nexamination.SECONDS = connections.CHILD_SECONDS = 30.0\n"
)
"""Code for deadlines that a busy machine meets too."""


def doctor(
    *arguments: str, before: str = "", inside: tuple[str, ...] = (), **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run the command. ``before`` is Python that runs first, and ``inside`` a command that runs Python."""
    command = [*inside, sys.executable, "-c", _MAIN.format(before=before), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, **environ})


def findings(
    before: str = "", inside: tuple[str, ...] = (), environ: Mapping[str, str] | None = None
) -> dict[str, list[dict[str, Any]]]:
    """Run the command, and return its findings by probe."""
    result = doctor("--json", before=PATIENT + before, inside=inside, **(environ or {}))
    assert result.stderr == ""
    said = json.loads(result.stdout)
    assert result.returncode == (1 if said["problems"] else 0)
    found: dict[str, list[dict[str, Any]]] = {}
    for finding in said["findings"]:
        found.setdefault(finding["probe"], []).append(finding)
    return found


def permits(*command: str) -> None:
    """Skip the test if the kernel does not let this user call a command."""
    try:
        result = subprocess.run([*command, "true"], capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        pytest.skip(f"{command[0]} is not installed")
    if result.returncode != 0:
        pytest.skip(f"{' '.join(command)}: {result.stderr.strip()}")
