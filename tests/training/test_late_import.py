"""A module that is imported while the context is open is prepared, and Python's search is left as it was."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from pytest_ddl.training.environment import on_import


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "imported_late.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "imported_late", raising=False)
    return "imported_late"


def test_the_first_import_is_reported_once_the_module_is_there(module: str) -> None:
    told, finders = [], list(sys.meta_path)
    with on_import(module, lambda found: told.append(found.value)):
        importlib.import_module(module)
        importlib.import_module(module)
    assert told == [1]
    assert sys.meta_path == finders
    sys.modules.pop(module)


def test_without_an_import_nothing_is_left(module: str) -> None:
    finders = list(sys.meta_path)
    with on_import(module, lambda _found: pytest.fail("was not imported")):
        pass
    assert sys.meta_path == finders
