"""A frozen layer may become trainable later: its weights are then expected to move."""

from __future__ import annotations

import keras
import tensorflow as tf

from pytest_ddl.records import VariableKind
from pytest_ddl.training.watching import Watcher


def test_weights_of_a_layer_that_is_made_trainable_are_known_to_have_thawed() -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2), keras.layers.Dense(1)])
    model.layers[0].trainable = False
    watcher = Watcher(tf.distribute.get_strategy(), lambda _text: None)
    watcher.add(model=model)
    kinds = {item.record.index: item.record.kind for item in watcher.scan()}
    watcher.snapshot()
    assert watcher.thawed == set()
    model.layers[0].trainable = True
    watcher.snapshot()
    assert watcher.thawed == {index for index, kind in kinds.items() if kind is VariableKind.FROZEN}
    assert watcher.thawed
