"""Work of a rank before and after a measurement."""

from __future__ import annotations

import gc
import weakref

import pytest

from pytest_ddl.bench.launching import remote


@pytest.mark.ddl(strategies=["mirrored", "multi_worker_mirrored"])
def test_what_iterates_over_data_outlives_the_program(ddl_strategy, monkeypatch):
    import tensorflow as tf

    monkeypatch.setattr(remote, "_kept", [])
    dataset = tf.data.Dataset.range(4).batch(2)
    made = [iter(dataset), iter(ddl_strategy.experimental_distribute_dataset(dataset))]
    alive = [weakref.ref(one) for one in made]
    remote.keep_iterators()
    del made
    gc.collect()
    assert all(one() is not None for one in alive)
    remote._kept.clear()
    gc.collect()
    assert not any(one() is not None for one in alive)
