"""Fingerprints and consumed batches: plain NumPy, no TensorFlow."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from pytest_ddl.step_records import BatchRecord, InputRecord
from pytest_ddl.training import fingerprint
from pytest_ddl.training.consumption import Consumption, Part, as_ids, digest

ROWS = np.random.default_rng(0).normal(size=(64, 5)).astype(np.float32)


def prints(*arrays):
    return fingerprint.combine([fingerprint.hash_rows(array, place) for place, array in enumerate(arrays)])


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "uint8", "bool"])
def test_a_row_does_not_depend_on_its_neighbors(dtype):
    rows = (ROWS * 10).astype(dtype)
    whole = prints(rows, rows[:, 0])
    assert whole[:20] + whole[20:] == prints(rows[:20], rows[:20, 0]) + prints(rows[20:], rows[20:, 0])


def test_different_rows_differ():
    assert len(set(prints(ROWS))) == 64
    swapped = ROWS[:, [1, 0, 2, 3, 4]]
    assert not set(prints(ROWS)) & set(prints(swapped))
    moved = ROWS.copy()
    moved[:, 2] = np.nextafter(moved[:, 2], np.float32(np.inf))
    assert not set(prints(ROWS)) & set(prints(moved))


def test_texts_and_empty_batches():
    words = np.array([[b"a", b"bc"], [b"ab", b"c"]], dtype=object)
    assert len(set(prints(words))) == 2
    assert prints(ROWS[:0]) == ()
    assert len(prints(np.zeros((3, 0), np.float32))) == 3


def test_sparse_and_ragged_rows():
    parts = (Part("ragged", 0, 3),)
    values, rows = np.array([1.0, 2.0, 3.0]), np.array([0, 0, 2])
    found = digest(parts, [values, rows, np.array(3)])
    assert found.size == 3
    tail = digest(parts, [values[2:], np.array([0]), np.array(1)])
    assert found.fingerprints[2:] == tail.fingerprints
    assert len(set(found.fingerprints)) == 3
    assert found.columns == ()


def test_digest_keeps_to_the_examples():
    parts = (Part("dense", 0, 1), Part("dense", 1, 1), Part("dense", 2, 1, is_ids=True))
    found = digest(parts, [ROWS, np.array(3.0), np.arange(64)])
    assert (found.size, len(found.fingerprints), found.example_ids) == (64, 64, tuple(range(64)))
    assert digest((Part("dense", 0, 1),), [np.array(1.0)]) == BatchRecord(0, size=0)


def test_each_tensor_of_an_example_has_a_hash():
    parts = (Part("dense", 0, 1), Part("dense", 1, 1))
    found, other = (digest(parts, [ROWS, labels]) for labels in (np.arange(64), np.arange(64) + 1))
    assert [len(column) for column in found.columns] == [64, 64]
    assert found.columns[0] == other.columns[0]
    assert found.columns[1] != other.columns[1]


def test_large_batches_are_only_counted(monkeypatch):
    monkeypatch.setattr("pytest_ddl.training.consumption.LARGEST", 10)
    found = digest((Part("dense", 0, 1),), [ROWS])
    assert (found.size, found.fingerprints, found.inputs) == (64, None, (InputRecord(ROWS.shape[:2]),))


def test_batches_come_from_threads_and_leave_by_replica():
    consumption = Consumption()
    threads = [threading.Thread(target=consumption.batch, args=(BatchRecord(replica, 4),)) for replica in (1, 0, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    consumption.name(1, (7, 8, 9, 10))
    taken = consumption.take()
    assert [record.replica for record in taken] == [0, 1, 2]
    assert taken[1].example_ids == (7, 8, 9, 10)
    assert consumption.take() == ()


def test_ids():
    assert as_ids(np.array([1, 2], dtype=np.int64)) == (1, 2)
    assert as_ids(np.array([b"a", b"\xff"], dtype=object)) == ("a", "\N{REPLACEMENT CHARACTER}")
