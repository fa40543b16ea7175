"""Folders for warm servers that a test has for itself."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_ddl.cluster.warm import servers as warm


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for warm servers that no other test uses. Its path is short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="ddl-") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield Path(folder) / f"pytest-ddl-warm-{os.getuid()}"
        warm.stop()


@pytest.fixture
def light(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is first on the path of servers and zygotes. Its modules stand for TensorFlow and Keras.

    A server then starts in a fraction of the time. What it does with the files that it has imported is the same.
    """
    folder = home.parent / "path"
    folder.mkdir()
    for name in ("tensorflow", "keras"):
        (folder / f"{name}.py").write_text("__version__ = '0.1'")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")])))
    return folder
