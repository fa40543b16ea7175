"""The experiment on real clusters, cut small; and a training function with a planted bug, which it refuses."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asv_bench.studies.mnist import command
from asv_bench.studies.mnist.program import digits
from pytest_ddl.bench.launching.ranks import BenchError
from pytest_ddl.bench.outcome import OK

pytestmark = pytest.mark.slow


@pytest.fixture
def options(tmp_path: Path) -> argparse.Namespace:
    pytest.importorskip("matplotlib")
    full = digits()
    small = {name: getattr(full, name)[:64] for name in ("x_train", "y_train", "x_test", "y_test")}
    np.savez(tmp_path / "small.npz", **small)
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    given = ["--epochs", "2", "--batch", "16", "--device", "cpu", "--no-pin", "--data", str(tmp_path / "small.npz")]
    return parser.parse_args([*given, "--output", str(tmp_path / "out")])


def test_one_and_two_workers_are_trained_and_timed(options: argparse.Namespace) -> None:
    assert command.main(options) == OK
    found = json.loads((Path(options.output) / "results.json").read_text())
    one, two = found["trainings"]
    assert [rank["steps"] for rank in one["ranks"]] == [8]
    assert [rank["steps"] for rank in two["ranks"]] == [4, 4]
    assert (one["global_batch_size"], two["global_batch_size"]) == (16, 32)
    assert all(len(rank["epoch_seconds"]) == 2 for training in (one, two) for rank in training["ranks"])
    assert two["ranks"][0]["weights"] == two["ranks"][1]["weights"]
    # The same for every rank: each tests with a copy of the weights of its own.
    assert two["ranks"][0]["test_losses"] == pytest.approx(two["ranks"][1]["test_losses"], rel=1e-5)
    assert two["ranks"][0]["losses"] == two["ranks"][1]["losses"]
    assert found["check"].startswith("multi_worker_mirrored[workers=2,replicas=1] matches one device")


def train_with_halved_gradients(run: Any, file: str, epochs: int) -> None:
    """Planted: the loss of a replica is the mean over its own examples, and then divided by the replicas again."""
    import keras
    import tensorflow as tf

    with run.strategy.scope():
        model = keras.Sequential([keras.Input((28, 28)), keras.layers.Flatten(), keras.layers.Dense(10)])
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)
    run.watch(model=model, optimizer=optimizer)
    with np.load(file) as found:
        images, labels = (found["x_train"] / 255).astype("float32"), found["y_train"]
    dataset = tf.data.Dataset.from_tensor_slices((images, labels)).batch(run.global_batch_size).repeat(epochs)

    @tf.function
    def train_step(iterator: Any) -> Any:
        def replica_step(batch: Any) -> Any:
            with tf.GradientTape() as tape:
                logits = model(batch[0], training=True)
                losses = keras.ops.sparse_categorical_crossentropy(batch[1], logits, from_logits=True)
                loss = tf.reduce_sum(losses) / run.global_batch_size / run.num_replicas
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(next(iterator),)), axis=None)

    for _ in run.steps(train_step, dataset):
        pass


def test_wrong_training_is_not_timed(options: argparse.Namespace, capsys: pytest.CaptureFixture[str]) -> None:
    options.strategy = "mirrored"
    with pytest.raises(BenchError, match=r"mirrored\[replicas=2\]") as raised:
        command.run(options, train_with_halved_gradients)
    told = capsys.readouterr().err
    assert "the training is wrong" in str(raised.value)
    assert "repeat 1/1" not in told
    assert not Path(options.output).exists()
