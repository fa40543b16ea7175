"""Address of the project, and the command that installs it. The name is not on PyPI yet."""

from __future__ import annotations

PROJECT = "https://github.com/pytest-ddl/pytest-ddl"
"""Address of the repository. ``pyproject.toml`` has the same, and all commands that the documentation shows."""


def install_line(*extras: str) -> str:
    """Return the command that installs pytest-ddl from its repository, with some of its extras."""
    chosen = f"[{','.join(extras)}]" if extras else ""
    return f"pip install 'pytest-ddl{chosen}@git+{PROJECT}'"
