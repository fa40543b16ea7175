"""The files of the user that hosts compare are those that he has written."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from pytest_ddl.cluster.state.user_files import files


def _loaded_by_path(path: Path) -> ModuleType:
    # As AutoGraph does it: https://github.com/tensorflow/tensorflow/blob/v2.21.0/tensorflow/python/autograph/pyct/loader.py
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_modules_that_a_library_has_generated_are_left_out(folder: Path) -> None:
    generated = folder / "__autograph_generated_filexyz.py"
    generated.write_text("answer = 1\n")
    assert files([_loaded_by_path(generated)]) == set()


def test_the_functions_that_tensorflow_converts_are_left_out() -> None:
    import tensorflow as tf

    before = set(sys.modules)
    tf.autograph.to_graph(lambda value: value + 1)
    converted = [sys.modules[name] for name in set(sys.modules) - before if "autograph" in name]
    assert len(converted) == 1
    assert files(converted) == set()


def test_modules_in_the_folder_of_temporary_files_are_compared_if_they_have_a_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(folder)
    paths = [folder / "written_by_the_user.py", folder / "package_of_the_user" / "part.py"]
    paths[1].parent.mkdir()
    for path, name in zip(paths, ("written_by_the_user", "package_of_the_user.part"), strict=True):
        path.write_text("answer = 1\n")
        before = set(sys.modules)
        try:
            assert files([importlib.import_module(name)]) == {str(path)}
        finally:
            # Other tests compare the modules that are loaded.
            for added in set(sys.modules) - before:
                del sys.modules[added]


def test_a_module_elsewhere_is_compared_however_it_was_loaded(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("project") / "train.py"
    path.write_text("answer = 1\n")
    assert files([_loaded_by_path(path)]) == {str(path)}


def test_test_modules_are_compared_wherever_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(Path(__file__).parents[2]))
    assert files([sys.modules[__name__]]) == {__file__}
