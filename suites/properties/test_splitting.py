"""Check that the summed gradient is that of the whole batch, for any split of the batch over replicas."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddl import generators


@pytest.mark.ddl_item("optimizer.unequal_inputs", "loop.gradient_tape", shows="parity")
@given(
    model=generators.models(max_layers=1),
    owners=st.lists(st.integers(0, 11), min_size=1, max_size=8),
)
def test_any_split_has_the_gradient_of_the_whole_batch(model, owners, synchronous_strategy, float64):
    """Split by ``owners``, which has the replica of each example; a replica may get no example or all of them."""
    import tensorflow as tf

    from suites.subject import keras

    strategy = synchronous_strategy
    inputs, targets = model.examples(len(owners))
    owner = np.array(owners) % strategy.num_replicas_in_sync
    keras.utils.set_random_seed(1)
    with strategy.scope():
        distributed = model.build()
    single = model.build()
    single.set_weights(distributed.get_weights())

    def gradient(trained, part_inputs, part_targets):
        with tf.GradientTape() as tape:
            errors = tf.reduce_sum(tf.square(trained(part_inputs) - tf.cast(part_targets, "float64")), axis=-1)
            loss = tf.reduce_sum(errors) / len(owners)
        return [tf.convert_to_tensor(part) for part in tape.gradient(loss, trained.trainable_variables)]

    def share(values):
        return strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(values[owner == context.replica_id_in_sync_group])
        )

    @tf.function
    def summed(*parts):
        gradients = strategy.run(lambda *part: gradient(distributed, *part), args=parts)
        return [strategy.reduce("SUM", value, axis=None) for value in gradients]

    expected = gradient(single, tf.constant(inputs), tf.constant(targets))
    for actual, desired in zip(summed(share(inputs), share(targets)), expected, strict=True):
        # Rounding errors are near 1e-15 in float64. The error of a lost share, or of one counted twice, is much larger.
        np.testing.assert_allclose(actual.numpy(), desired.numpy(), rtol=1e-9, atol=1e-9)
