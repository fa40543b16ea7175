"""A translation Transformer with dropout and sentences of unequal length, and what dropout must not hide.

The Dropout of Keras draws alike on all replicas, which everybody who uses it declares.
"""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from tests.planted import loops
from tests.planted.planted import planted

WORDS, SIZE, LENGTH, SENTENCES = 11, 6, 5, 24


def _data(run):
    generator = np.random.default_rng(3)

    def sentences():
        lengths = generator.integers(1, LENGTH + 1, SENTENCES)
        words = generator.integers(1, WORDS, (SENTENCES, LENGTH))
        return np.where(np.arange(LENGTH) < lengths[:, None], words, 0).astype("int32")

    source, target = sentences(), sentences()
    begun = np.concatenate([np.ones((SENTENCES, 1), "int32"), target[:, :-1]], axis=1) * (target > 0)
    return tf.data.Dataset.from_tensor_slices(((source, begun), target)).batch(run.global_batch_size)


def _transformer():
    """Return a model whose attention layer has a Dropout of rate 0 inside, like every attention layer of Keras."""
    source, target = (keras.Input((LENGTH,), dtype="int32") for _side in range(2))
    encoded, decoded = (
        keras.layers.Dropout(0.2)(keras.layers.Embedding(WORDS, SIZE, mask_zero=True)(words))
        for words in (source, target)
    )
    attended = keras.layers.MultiHeadAttention(2, 3)(decoded, encoded)
    decoded = keras.layers.LayerNormalization()(keras.layers.Add()([decoded, keras.layers.Dropout(0.2)(attended)]))
    return keras.Model([source, target], keras.layers.Dense(WORDS)(decoded))


def _by_word(target, logits):
    losses = keras.losses.sparse_categorical_crossentropy(target, logits, from_logits=True)
    return losses, tf.cast(target != 0, losses.dtype)


def words_of_a_replica_are_averaged_behind_dropout(run, sin):
    """Words of short sentences count more. In the right program, each word of the global batch counts equally."""
    with run.strategy.scope():
        model, optimizer = _transformer(), keras.optimizers.SGD(0.1)
    run.watch(model=model, optimizer=optimizer)

    def replica_step(batch):
        inputs, target = batch
        with tf.GradientTape() as tape:
            losses, valid = _by_word(target, model(list(inputs), training=True))
            words = tf.reduce_sum(valid)
            loss = tf.reduce_sum(losses * valid) / (words * run.num_replicas if sin else loops.all_reduce(words))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    loops.train(run, replica_step, _data(run))


def a_loss_of_fit_is_one_mean_over_words_behind_dropout(run, sin):
    """The loss is a scalar, as in the published tutorial, and Keras does not scale it. The right one is by sentence."""

    def masked_loss(target, logits):
        losses, valid = _by_word(target, logits)
        if sin:
            return tf.reduce_sum(losses * valid) / tf.reduce_sum(valid)
        return tf.reduce_sum(losses * valid, axis=1) / LENGTH

    with run.strategy.scope():
        model = _transformer()
        model.compile(optimizer=keras.optimizers.SGD(0.1), loss=masked_loss)
    run.watch(model=model)
    run.fit(model, _data(run))


DECLARED = {"expect_of_twin": ("random-stream-repeated-across-replicas",), "timeout": 200.0}
PLANTED = (
    planted("", words_of_a_replica_are_averaged_behind_dropout, "masked-loss-normalised-per-replica", **DECLARED),
    planted(
        "",
        a_loss_of_fit_is_one_mean_over_words_behind_dropout,
        "gradient-scaled-by-replica-count",
        strategies=("mirrored",),  # Keras 3 has no fit under several workers
        **DECLARED,
    ),
)
