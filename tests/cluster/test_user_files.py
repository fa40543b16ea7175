"""Check which files count as the user's."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from pytest_ddl.cluster.state.user_files import is_user_file


def test_packages_that_are_installed_elsewhere_are_not_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``pip install --target`` gives a folder that does not have the name of one for packages."""
    target, project, vendored = tmp_path / "target", tmp_path / "project", tmp_path / "project" / "lib"
    for folder, file in ((target, "one.py"), (project, "two/__init__.py"), (vendored, "three.py")):
        record = folder / "some-1.0.dist-info" / "RECORD"
        record.parent.mkdir(parents=True)
        record.write_text(f"{file},sha256=abc,12\nsome-1.0.dist-info/RECORD,,\n", encoding="utf-8")
    monkeypatch.setattr(sys, "path", [f"{target}/", str(project), str(vendored), *sys.path])
    assert not is_user_file(str(target / "one.py"))
    assert not is_user_file(str(project / "two" / "part.py"))
    assert not is_user_file(str(vendored / "three.py"))
    for own in (target / "own.py", project / "own.py", vendored / "own" / "one.py", tmp_path / "other" / "one.py"):
        assert is_user_file(str(own))


def test_installed_files_are_not_the_users() -> None:
    assert is_user_file(__file__)
    assert not is_user_file(pytest.__file__)
    assert not is_user_file(np.__file__)
    assert not is_user_file("/somewhere/else/site-packages/tensorflow/__init__.py")
    assert not is_user_file(None)


def test_keras_of_a_checkout_is_not_the_users_but_its_tests_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "keras"
    package.mkdir()
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "keras", raising=False)
    assert not is_user_file(str(package / "src" / "layers" / "layer.py"))
    assert is_user_file(str(package / "src" / "layers" / "layer_test.py"))
    assert is_user_file(str(package / "conftest.py"))
    assert is_user_file(str(tmp_path / "keras_tuner" / "one.py"))
    loaded = ModuleType("keras")
    loaded.__file__ = str(tmp_path / "other" / "keras" / "__init__.py")
    monkeypatch.setitem(sys.modules, "keras", loaded)
    assert not is_user_file(str(tmp_path / "other" / "keras" / "models.py"))


@pytest.mark.slow
def test_a_rank_runs_a_function_with_keras_of_a_checkout(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pytest process changes globals of Keras by its use, for example modules that are imported late."""
    origin = find_spec("keras")
    assert origin is not None
    assert origin.origin is not None
    (pytester.path / "checkout").mkdir()
    (pytester.path / "checkout" / "keras").symlink_to(Path(origin.origin).parent)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(pytester.path / "checkout"), *sys.path]))
    file = pytester.makepyfile(
        """
        def file_of_keras():
            import keras
            return keras.__file__

        def test_it(ddl_cluster):
            import keras
            assert keras.utils.PyDataset and ddl_cluster.run(file_of_keras) == [keras.__file__]
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "--ddl-strategy=one_device", file)
    result.assert_outcomes(passed=1)


def test_a_package_without_a_record_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "first-1.0.dist-info").mkdir()
    record = tmp_path / "second-1.0.dist-info" / "RECORD"
    record.parent.mkdir()
    record.write_text("second.py,,\n", encoding="utf-8")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert not is_user_file(str(tmp_path / "second.py"))
    assert is_user_file(str(tmp_path / "first.py"))
