"""Address of the project, the command that installs it, and versions of packages. The project is not on PyPI yet."""

from __future__ import annotations

import importlib.metadata

PROJECT = "https://github.com/pytest-ddl/pytest-ddl"
"""Address of the repository. ``pyproject.toml`` has the same, and all commands that the documentation shows."""


TENSORFLOW_PACKAGES = (
    "tensorflow",
    "tensorflow-cpu",
    "tensorflow-intel",
    "tensorflow-macos",
    "tf-nightly",
    "tf-nightly-cpu",
)
"""Packages that contain TensorFlow."""


def installed(package: str) -> str | None:
    """Return the version of an installed package, or ``None``."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def version_of(name: str) -> str | None:
    """Return the version of a package. TensorFlow for CPUs counts as TensorFlow, as it does when it is imported."""
    names = TENSORFLOW_PACKAGES if name in TENSORFLOW_PACKAGES else (name,)
    return next((version for one in names if (version := installed(one))), None)


def install_line(*extras: str) -> str:
    """Return the command that installs pytest-ddl from its repository, with some of its extras."""
    chosen = f"[{','.join(extras)}]" if extras else ""
    return f"pip install 'pytest-ddl{chosen}@git+{PROJECT}'"
