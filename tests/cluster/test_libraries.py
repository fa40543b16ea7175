"""Functions and classes of libraries that a test has replaced are found. What is unchanged is not compared again."""

from __future__ import annotations

import json
import types
from collections.abc import Callable
from typing import Any

import pytest

from pytest_ddl.cluster.state import dict_versions, libraries
from pytest_ddl.cluster.state.libraries import Libraries, _Owner


class Base:
    def call(self) -> int:
        return 1


def owners() -> tuple[types.ModuleType, type, list[_Owner]]:
    """Return a module and a class, and what is remembered of them."""
    module = types.ModuleType("library")
    module.dumps = json.dumps  # type: ignore[attr-defined]
    module.loads = json.loads  # type: ignore[attr-defined]
    kind = type("Layer", (Base,), {"build": lambda self: None})
    found = []
    for name, one, bases in (("library", module, ()), ("library.Layer", kind, kind.__mro__[1:])):
        space = vars(one)
        found.append(_Owner(name, space, tuple(space), tuple(space.values()), bases))
    return module, kind, found


@pytest.mark.parametrize("has_versions", [True, False])
@pytest.mark.parametrize(
    ("key", "change", "undo"),
    [
        ("library.dumps", lambda m, _k: setattr(m, "dumps", print), lambda m, _k: setattr(m, "dumps", json.dumps)),
        ("library.loads", lambda m, _k: delattr(m, "loads"), lambda m, _k: setattr(m, "loads", json.loads)),
        ("library.Layer.call", lambda _m, k: setattr(k, "call", print), lambda _m, k: delattr(k, "call")),
    ],
)
def test_a_change_is_found_until_it_is_undone(
    key: str,
    change: Callable[..., None],
    undo: Callable[..., None],
    has_versions: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dict_versions, "EXIST", has_versions and dict_versions.EXIST)
    module, kind, found = owners()
    monkeypatch.setattr(libraries, "_watched", lambda: found)
    watched = Libraries()
    assert watched.changes() == {}
    change(module, kind)
    assert list(watched.changes()) == list(watched.changes()) == [key]
    undo(module, kind)
    assert watched.changes() == {}


def test_what_nobody_has_changed_is_not_compared_again(monkeypatch: pytest.MonkeyPatch) -> None:
    if not dict_versions.EXIST:
        pytest.skip("dictionaries of this interpreter have no versions")
    module, _kind, found = owners()
    monkeypatch.setattr(libraries, "_watched", lambda: found)
    watched = Libraries()
    compared: list[Any] = []
    monkeypatch.setattr(_Owner, "changes", lambda self: compared.append(self.name) or ())
    assert (watched.changes(), compared) == ({}, [])
    module.dumps = print  # type: ignore[attr-defined]
    watched.changes()
    assert compared == ["library"]
