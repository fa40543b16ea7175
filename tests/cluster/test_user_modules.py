"""The modules of the user among all that are loaded, of which most are judged once."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pytest_ddl import deferred
from pytest_ddl.cluster.state import dict_versions, user_modules
from pytest_ddl.cluster.state.user_modules import Reporting, UserModules, judge_replaced, loaded

NAME = "ddl_module_of_a_user"


def module_at(file: str) -> ModuleType:
    module = ModuleType(NAME)
    module.__file__ = file
    return module


@pytest.fixture(params=[True, False], ids=["versions", "no versions"])
def _versions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dict_versions, "EXIST", request.param and dict_versions.EXIST)
    monkeypatch.setattr(user_modules, "_LOADED", user_modules._Loaded())


@pytest.mark.usefixtures("_versions")
def test_a_module_is_found_as_long_as_it_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert NAME not in loaded()
    module = module_at(str(tmp_path / "user.py"))
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, NAME, module)
        assert loaded()[NAME] is module
        another = module_at(str(tmp_path / "another.py"))
        patch.setitem(sys.modules, NAME, another)
        assert loaded()[NAME] is another
    assert NAME not in loaded()


@pytest.mark.usefixtures("_versions")
def test_a_module_that_takes_the_place_of_an_installed_one_is_judged_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, NAME, module_at(pytest.__file__))
    assert NAME not in loaded()
    monkeypatch.setitem(sys.modules, NAME, module_at(str(tmp_path / "user.py")))
    assert NAME not in loaded()
    judge_replaced()
    assert NAME in loaded()


@pytest.mark.usefixtures("_versions")
def test_a_caller_may_change_what_it_got() -> None:
    loaded()[NAME] = module_at("user.py")
    assert NAME not in loaded()


def test_without_a_new_module_nothing_is_judged_again(monkeypatch: pytest.MonkeyPatch) -> None:
    if not dict_versions.EXIST:
        pytest.skip("dictionaries of this interpreter have no versions")
    one = user_modules._Loaded()
    present = one.of_user()
    judged: list[Any] = []
    monkeypatch.setattr(user_modules, "is_user_file", judged.append)
    assert (one.of_user(), judged) == (present, [])
    monkeypatch.setitem(sys.modules, NAME, module_at("user.py"))
    one.of_user()
    assert "user.py" in judged


def test_a_module_is_found_behind_a_finder_that_defers_its_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [one for one in sys.meta_path if one is not deferred._finder])
    UserModules(installed=lambda _module: None)
    deferred.defer()
    spec = deferred._finder.find_spec("tf_keras", None)
    assert spec is not None
    assert isinstance(spec.loader, Reporting)
