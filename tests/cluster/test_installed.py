"""Patches of installed packages and of Python: they travel or are refused; what changes by itself is neither."""

from __future__ import annotations

import importlib
import math
import os
import random
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from pytest_ddl.cluster import overrides, ship
from pytest_ddl.cluster.ship import ShippingError
from pytest_ddl.cluster.state.installed import InstalledModules
from pytest_ddl.cluster.state.reach import Reach
from tests.cluster.test_ship import elsewhere

pytestmark = pytest.mark.slow

SOURCE = """
import random
RATE = 1
TABLE = {"rate": 1}
calls = 0
client = None

class Proxy:
    # Stands for anything until its first use, and can be called. A lock cannot be sent.
    lock = __import__("threading").Lock()

    def __call__(self):
        raise NotImplementedError

parser = Proxy()

class Options:
    rate = 1

def made():
    return "as written"

def seen():
    return RATE, TABLE["rate"], Options.rate, made()

def draw():
    return random.random()

def use():
    global calls, client
    calls += 1
    client = open(__file__)

def parse():
    global_names = globals()
    if isinstance(global_names["parser"], Proxy):
        import types
        import sys
        loaded = types.SimpleNamespace(lock=Proxy.lock)
        sys.modules["ddl_installed.work.overlay"] = loaded
        global_names["parser"] = loaded
    return parser.lock is Proxy.lock
"""
AS_WRITTEN = (1, 1, 1, "as written")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    folder = tmp_path / "site-packages" / "ddl_installed"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "work.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(folder.parent))
    monkeypatch.setenv("PYTHONPATH", str(folder.parent))
    yield importlib.import_module("ddl_installed.work")
    for name in ("ddl_installed", "ddl_installed.work", "ddl_installed.work.overlay"):
        sys.modules.pop(name, None)


@pytest.fixture
def remembered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Remember the present state, and afterwards what this session has remembered."""
    for name in ("_modules", "_libraries", "_installed"):
        monkeypatch.setattr(overrides, name, None)
    overrides.remember()
    yield
    overrides.forget()


def patch(package: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package, "RATE", 2)
    monkeypatch.setattr(package.Options, "rate", 4)
    monkeypatch.setattr(package, "made", lambda: "by the test")


@pytest.mark.usefixtures("remembered")
def test_a_patch_of_an_installed_package_travels_and_is_put_back(
    package: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # The package was imported after the state was remembered, as a test does that imports it at its start.
    patch(package, monkeypatch)
    monkeypatch.setitem(package.TABLE, "rate", 3)
    job = ship.pack(package.seen)
    assert elsewhere(job, tmp_path) == (2, 3, 4, "by the test")
    monkeypatch.undo()
    assert ship.unpack(job.call()) == (2, 3, 4, "by the test")
    assert package.seen() == AS_WRITTEN
    assert not {name: values for name, values in ship.pack(package.seen).overrides.items() if "ddl_inst" in name}


def test_a_patch_travels_if_the_package_was_imported_before(
    package: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue("remembered")
    patch(package, monkeypatch)
    assert elsewhere(ship.pack(package.seen), tmp_path)[0] == 2


@pytest.mark.usefixtures("remembered")
def test_a_function_that_cannot_travel_is_named(package: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package, "made", threading.Lock())
    with pytest.raises(ShippingError, match=r"ddl_installed\.work\.made was changed .* cannot be sent"):
        ship.pack(package.seen)


@pytest.mark.usefixtures("remembered")
def test_what_a_package_keeps_by_itself_is_no_patch(package: Any) -> None:
    package.use()
    values = ship.pack(package.seen).overrides["ddl_installed.work"]
    assert set(values) == {"calls"}
    package.client.close()


def draws() -> float:
    return random.random()


def waits() -> float:
    import time as clock

    return clock.time()


def circle() -> float:
    return float(np.pi * math.pi)


def counted() -> int:
    return len([])


def looks_for_itself() -> Any:
    return finder_of(sys.meta_path)


def finder_of(finders: Any, kind: type = PathFinder) -> Any:
    return next(one for one in finders if one is kind)


@pytest.mark.usefixtures("remembered")
def test_a_library_may_change_the_import_system_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """``import importlib_metadata`` removes this method."""
    monkeypatch.delattr(PathFinder, "find_distributions", raising=False)
    ship.pack(looks_for_itself)


@pytest.mark.usefixtures("remembered")
@pytest.mark.parametrize(
    ("owner", "name", "function"),
    [
        (random, "random", draws),
        (time, "time", waits),
        (np, "pi", circle),
        (math, "pi", circle),
        ("builtins", "len", counted),
        (os, "getcwd", lambda: os.sep),
    ],
)
def test_a_patch_that_the_function_reaches_is_refused(
    owner: Any, name: str, function: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ship.pack(function)
    module = importlib.import_module(owner) if isinstance(owner, str) else owner
    with monkeypatch.context() as patches:
        patches.setattr(module, name, (lambda *_: 0) if callable(getattr(module, name)) else 3.0)
        # Not pytest.raises, which uses what is patched here.
        message = ""
        try:
            ship.pack(function)
        except ShippingError as error:
            message = str(error)
    assert f"{module.__name__}.{name} was replaced in the pytest process" in message
    assert "pass the value as an argument" in message


@pytest.mark.usefixtures("remembered")
def test_python_that_an_installed_package_uses_is_reached(package: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "random", lambda: 0.5)
    with pytest.raises(ShippingError, match=r"random\.random was replaced"):
        ship.pack(lambda: package.draw())


@pytest.mark.usefixtures("remembered")
def test_a_module_that_a_package_imports_at_first_use_stays_here(package: Any) -> None:
    assert package.parse()
    assert "parser" not in ship.pack(package.parse).overrides.get("ddl_installed.work", {})


@pytest.mark.usefixtures("remembered")
def test_what_pytest_and_python_change_themselves_is_no_patch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", sys.stderr)
    monkeypatch.setattr(threading, "excepthook", print)
    monkeypatch.setenv("ANY", "1")
    monkeypatch.setattr(time, "sleep", print)
    monkeypatch.setattr(random, "new_name", print, raising=False)
    random.seed(3)
    np.random.seed(3)
    with warnings.catch_warnings(record=True):
        ship.pack(lambda: (random, sys, threading, warnings, np, math, time.time()))


def test_another_thread_may_import_a_module_while_changes_are_looked_for(package: ModuleType) -> None:
    installed = InstalledModules()

    class Importing:
        def replaced(self) -> Iterator[tuple[str, Any, Any]]:
            installed.imported(ModuleType("ddl_other"))
            return iter(())

    installed._spaces = {"ddl_installed.first": [Importing()], **installed._spaces}  # type: ignore[list-item]
    assert "ddl_other" not in installed._spaces
    assert installed.traveling(Reach(package.seen)) == {}
    assert "ddl_other" in installed._spaces
