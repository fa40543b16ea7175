"""What is heard of calls that save, also of those that fail: by then they may have destroyed another rank's file."""

from __future__ import annotations

import pytest
import tensorflow as tf

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
