"""Save variables in shards, and load them as another number of shards, or as one."""

from __future__ import annotations

import numpy as np
import pytest

from suites.properties.test_sharding import WHOLE, sharded, variable

__all__ = ["variable"]


def in_parts(values, number):
    """Return the values as a variable in this number of shards, without a strategy. One shard is a plain variable."""
    import tensorflow as tf
    from tensorflow.python.distribute.sharded_variable import ShardedVariable

    if number == 1:
        return tf.Variable(values)
    return ShardedVariable([tf.Variable(part) for part in np.array_split(values, number)])


@pytest.mark.ddl_item("sharding.checkpoint")
@sharded
@pytest.mark.parametrize("number", [1, 2, 3, 5])
def test_a_checkpoint_has_the_whole(variable, tmp_path, number):
    """Any number of shards loads what three shards saved, and three shards load what any number saved."""
    import tensorflow as tf

    path = tf.train.Checkpoint(v=variable).write(str(tmp_path / "three"))
    name, shape = tf.train.list_variables(path)[-1]
    assert (name, shape) == ("v/.ATTRIBUTES/VARIABLE_VALUE", [7, 2])
    other = in_parts(np.zeros_like(WHOLE), number)
    tf.train.Checkpoint(v=other).read(path).assert_consumed()
    np.testing.assert_array_equal(other.numpy(), WHOLE)

    other.assign(WHOLE * 2)
    path = tf.train.Checkpoint(v=other).write(str(tmp_path / "other"))
    tf.train.Checkpoint(v=variable).read(path).assert_consumed()
    np.testing.assert_array_equal(variable.numpy(), WHOLE * 2)


@pytest.mark.ddl_item("sharding.checkpoint")
@sharded
@pytest.mark.parametrize("number", [1, 2])
def test_a_variable_that_is_made_after_the_checkpoint_is_read(ddl_strategy, tmp_path, number):
    import tensorflow as tf

    path = tf.train.Checkpoint(v=in_parts(WHOLE, number)).write(str(tmp_path / "before"))
    module = tf.Module()
    status = tf.train.Checkpoint(module).read(path)
    with ddl_strategy.scope():
        module.v = tf.Variable(lambda: tf.zeros([7, 2], tf.float64), shape=[7, 2], dtype=tf.float64)
    status.assert_consumed()
    assert len(module.v.variables) == 3
    np.testing.assert_array_equal(module.v.numpy(), WHOLE)


@pytest.mark.ddl_item("sharding.savedmodel")
@sharded
def test_a_saved_model_has_one_variable(variable, tmp_path):
    """The saved function reads the one variable that replaces the shards."""
    import tensorflow as tf

    class Table(tf.Module):
        def __init__(self):
            super().__init__()
            self.table = variable

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
        def look(self, indices):
            return tf.nn.embedding_lookup(self.table.variables, indices)

    module = Table()
    np.testing.assert_array_equal(module.look(tf.constant([6, 0], tf.int64)), WHOLE[[6, 0]])
    tf.saved_model.save(module, str(tmp_path), signatures=module.look)
    stored = dict(tf.train.list_variables(str(tmp_path / "variables" / "variables")))
    assert [shape for name, shape in stored.items() if "OBJECT_GRAPH" not in name] == [[7, 2]]
    found = tf.train.load_variable(str(tmp_path / "variables" / "variables"), "table/.ATTRIBUTES/VARIABLE_VALUE")
    np.testing.assert_array_equal(found, WHOLE)
