"""Calls that save are reported, also if they fail: a failed call may have destroyed the file of another rank."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import keras
import pytest
import tensorflow as tf

from pytest_ddl.training.observers.assignments import Assignments
from pytest_ddl.training.observers.checkpoints import _variables_of
from pytest_ddl.training.observers.saving import Call, observed


@pytest.fixture
def heard():
    calls: list[Call] = []
    with observed(calls.append):
        yield calls


@pytest.fixture
def folder(tmp_path):
    """A folder that makes way for a file, so that nothing can be written below it."""
    path = tmp_path / "saved"
    path.mkdir()
    return path


def _blocked(folder):
    folder.rmdir()
    folder.write_text("in the way")


def test_a_manager_that_fails_tells_the_path_that_it_would_have_written(heard, folder):
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(x=tf.Variable(1.0)), str(folder), 1, checkpoint_name="at")
    _blocked(folder)
    with pytest.raises(tf.errors.OpError):
        manager.save(check_interval=False)
    with pytest.raises(tf.errors.OpError):
        manager.save(7)
    assert [(call.path, call.failed) for call in heard] == [(f"{folder}/at-1", True), (f"{folder}/at-7", True)]


def test_a_checkpoint_that_fails_tells_the_numbered_path(heard, folder):
    _blocked(folder)
    with pytest.raises(tf.errors.OpError):
        tf.train.Checkpoint(x=tf.Variable(1.0)).save(folder / "ckpt")
    assert f"{folder}/ckpt-1" in [call.path for call in heard if call.failed and call.api.endswith(".save")]


def test_what_succeeds_and_what_fails_have_one_name(heard, folder):
    checkpoint = tf.train.Checkpoint(x=tf.Variable(1.0))
    assert checkpoint.save(file_prefix=str(folder / "ckpt")) == heard[-1].path == f"{folder}/ckpt-1"
    checkpoint.write(options=tf.train.CheckpointOptions(), file_prefix=str(folder / "plain"))
    assert heard[-1].path == f"{folder}/plain"


LATE = """
class Model:
    def save(self, path): pass
    def save_weights(self, path): pass
    def export(self, path): pass
    def load_weights(self, path): pass
    def set_weights(self, values): pass


class layers:
    Layer = Model
"""


@pytest.fixture
def late_tf_keras(tmp_path, monkeypatch):
    """A package with the name of tf_keras that no program has imported yet."""
    for name in [name for name in sys.modules if name.split(".")[0] == "tf_keras"]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "late").mkdir()
    (tmp_path / "late" / "tf_keras.py").write_text(LATE)
    monkeypatch.syspath_prepend(tmp_path / "late")
    yield
    sys.modules.pop("tf_keras", None)


def test_saves_of_a_package_that_the_program_imports_are_heard(late_tf_keras, heard):
    import tf_keras

    for name in ("save", "save_weights", "export", "load_weights"):
        getattr(tf_keras.Model(), name)("somewhere")
    assert [call.api for call in heard] == [
        f"tf_keras.Model.{name}" for name in ("save", "save_weights", "export", "load_weights")
    ]


def test_methods_of_a_package_that_the_program_imports_are_restored(late_tf_keras):
    with observed(lambda _call: None), Assignments(None, SimpleNamespace(strategy=None), None).installed():
        import tf_keras

        replaced = [tf_keras.Model.save, tf_keras.Model.set_weights]
    assert [tf_keras.Model.save, tf_keras.Model.set_weights] != replaced
    assert tf_keras.Model.set_weights.__name__ == "set_weights"
    assert not hasattr(tf_keras.Model.set_weights, "__wrapped__")


@pytest.mark.parametrize(("api", "seeds"), [("keras.Model.load_weights", 0), ("tf.train.Checkpoint.restore", 1)])
def test_files_of_keras_have_no_states_of_seed_generators(api, seeds):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
    assert len(_variables_of(model, api)) == 2 + seeds
