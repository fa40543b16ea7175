"""Lines that distribute the loop of a script without a strategy."""

from __future__ import annotations

import pytest

from pytest_ddl.trying.rewriting import distributed_loop
from tests.trying import scripts

DATA = "tf.data.Dataset.from_tensor_slices(keras.random.normal((40, 4), seed=1)).batch(4)"
TAPE = "    with tf.GradientTape() as tape:\n        loss = f(x)\n"
TWO_OPTIMIZERS = """
@tf.function
def train_step(images, noise):
    with tf.GradientTape() as gen_tape, tf.GradientTape() as disc_tape:
        gen_loss = generator_loss(images)
        disc_loss = tf.reduce_mean(critic(images))
    gen_gradients = gen_tape.gradient(gen_loss, generator.trainable_variables)
    disc_gradients = disc_tape.gradient(disc_loss, critic.trainable_variables)
    gen_optimizer.apply_gradients(zip(gen_gradients, generator.trainable_variables))
    disc_optimizer.apply_gradients(zip(disc_gradients, critic.trainable_variables))
    return gen_loss, disc_loss


def generator_loss(images):
    return cross_entropy(tf.ones_like(images), images)


cross_entropy = tf.keras.losses.BinaryCrossentropy()


def train(dataset):
    for image_batch in dataset:
        losses = train_step(image_batch, noise=noise)
"""


def test_a_loop_with_its_own_arithmetic_divides_the_loss() -> None:
    assert distributed_loop(scripts.OWN_LOOP_WITHOUT_STRATEGY).splitlines()[5:] == [
        "",
        "    # the last lines inside of the tape, after line 9:",
        "    loss = loss / strategy.num_replicas_in_sync",
        "    # A metric, and what is printed of a replica, needs its mean:",
        "    #     loss * strategy.num_replicas_in_sync",
        "",
        "    @tf.function",
        "    def train_step(x):",
        "        ...  # from line 8, all lines that use the batch or what is computed from it",
        "        return loss",
        "",
        f"    for x in strategy.experimental_distribute_dataset({DATA}):",
        '        loss = strategy.reduce("SUM", strategy.run(train_step, args=(x,)), axis=None)',
    ]


def test_a_step_with_two_optimizers_builds_both() -> None:
    lines = distributed_loop(TWO_OPTIMIZERS)
    assert "        gen_optimizer.build(generator.trainable_variables)\n" in lines
    assert "        disc_optimizer.build(critic.trainable_variables)\n" in lines
    assert "    # cross_entropy divides its mean by strategy.num_replicas_in_sync." in lines
    run = "strategy.run(train_step, args=(image_batch,), kwargs=dict(noise=noise))"
    assert lines.endswith(f'        losses = strategy.reduce("SUM", {run}, axis=None)')


def test_a_counted_batch_keeps_its_number() -> None:
    code = scripts.OWN_LOOP_WITHOUT_STRATEGY.replace("for x in tf", "for step, x in enumerate(tf").replace(
        "(4):", "(4)):"
    )
    lines = distributed_loop(code)
    assert "    def train_step(x):\n" in lines
    assert "    for step, x in enumerate(strategy.experimental_distribute_dataset(tf." in lines


@pytest.mark.parametrize(
    "code",
    [
        f"for step in range(9):\n{TAPE}    o.apply(tape.gradient(loss, v), v)\n",
        f"for x in data:\n{TAPE}    o.apply(tape.gradient(f(x), v), v)\n",
        f"if True:\n{TAPE}    o.apply(tape.gradient(loss, v), v)\n",
    ],
    ids=["no dataset", "loss without a name", "no loop"],
)
def test_other_shapes_have_no_lines(code: str) -> None:
    assert distributed_loop(code) == ""
