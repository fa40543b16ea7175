"""What all tests of the plugin share: a folder of their own for warm servers."""

from __future__ import annotations

import os
import tempfile

import pytest

OWN = "_PYTEST_DDL_TEST_SERVERS"
"""Environment variable of the pytest process that has made the folder. Workers of pytest-xdist inherit it."""


def pytest_configure(config: pytest.Config) -> None:
    if OWN in os.environ:
        return
    # Sockets need short paths, so the folder is not a test's own temporary folder.
    folder = tempfile.TemporaryDirectory(prefix="ddl-")
    patch = pytest.MonkeyPatch()
    patch.setenv("XDG_RUNTIME_DIR", folder.name)
    patch.setenv(OWN, folder.name)

    def end() -> None:
        from pytest_ddl.cluster import warm

        warm.stop()
        patch.undo()
        folder.cleanup()

    config.add_cleanup(end)
