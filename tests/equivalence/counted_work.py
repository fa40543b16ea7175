"""Print how much work the second check of a process does, by strategy. It is a process of its own.

What a check sends depends on the modules of the user that are loaded, and a run of tests has loaded hundreds.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytest_ddl.cluster.local_launcher import LocalLauncher
from pytest_ddl.cluster.local_process import LocalProcess
from pytest_ddl.equivalence.runs.comparer import Comparer
from pytest_ddl.equivalence.runs.question import Question
from pytest_ddl.harness import process_harness
from pytest_ddl.items.selection import DdlMark

IN_CONTROLLER = ("processes started", "bytes sent", "bytes received")
IN_RANKS = ("runs", "traces", "files opened", "modules imported", "values described")
_EVENTS = {"open": "files opened", "import": "modules imported"}
_attempts = itertools.count()


def train(folder: str, attempt: int, run: Any) -> None:
    """Train two layers for some steps, and count in files what this process does from now on."""
    import keras
    import numpy as np
    import tensorflow as tf

    count = _counter(folder)
    count("runs")
    with run.strategy.scope():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.05)
    run.watch(model=model, optimizer=optimizer)
    # Other data in each attempt, so that its reference is not known yet.
    x = np.random.default_rng(attempt).normal(size=(64, 8)).astype("float32")
    dataset = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(run.global_batch_size)

    @tf.function  # type: ignore[untyped-decorator]
    def train_step(iterator: Any) -> Any:
        def replica_step(batch: Any) -> Any:
            count("traces")
            x, y = batch
            with tf.GradientTape() as tape:
                losses = tf.square(model(x) - y)[:, 0]
                loss = tf.nn.compute_average_loss(losses, global_batch_size=run.global_batch_size)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(next(iterator),)), axis=None)

    for _loss in run.steps(train_step, dataset):
        pass


def _counter(folder: str) -> Callable[[str], object]:
    """Return the function that counts one more of a name in this process. Its first call begins to count events."""
    from pytest_ddl.cluster.state.remembered import _Walk

    whole = _Walk.whole
    if hasattr(whole, "add"):
        return whole.add
    files = {name: os.open(os.path.join(folder, name), os.O_WRONLY | os.O_APPEND | os.O_CREAT) for name in IN_RANKS}

    def add(name: str) -> None:
        os.write(files[name], b".")

    def counted(walk: Any, value: Any) -> Any:
        add("values described")
        return whole(walk, value)

    # A global of this file would be a change that a test left in the rank.
    counted.add = add  # type: ignore[attr-defined]
    _Walk.whole = counted  # type: ignore[method-assign]
    sys.addaudithook(lambda event, _arguments: add(_EVENTS[event]) if event in _EVENTS else None)
    return add


def watch_controller() -> Counter[str]:
    """Count from now on what this process sends, receives and starts."""
    counts: Counter[str] = Counter()
    launch, send, receive = LocalLauncher.launch, LocalProcess.send, LocalProcess.receive

    def launched(self: LocalLauncher, *args: Any) -> Any:
        started = launch(self, *args)
        counts["processes started"] += len(started)
        return started

    def sent(self: LocalProcess, data: bytes) -> None:
        counts["bytes sent"] += len(data)
        send(self, data)

    def received(self: LocalProcess) -> bytes:
        data = receive(self)
        counts["bytes received"] += len(data)
        return data

    LocalLauncher.launch, LocalProcess.send, LocalProcess.receive = launched, sent, received  # type: ignore[method-assign]
    return counts


def counted(folder: Path, in_controller: Counter[str], strategy: str) -> dict[str, int]:
    """Check a training function twice under a strategy, and return the counts of the second time."""
    harness = process_harness()
    spec = harness.registry.parse_variant(strategy)

    def counted_after_a_check() -> dict[str, int]:
        subject = functools.partial(train, str(folder), next(_attempts))
        report = Comparer(harness).compare(Question(subject, spec, DdlMark(), global_batch_size=16, steps=4))
        assert report.passed, str(report)
        in_ranks = {name: (folder / name).stat().st_size for name in IN_RANKS}
        return {name: in_controller[name] for name in IN_CONTROLLER} | in_ranks

    # The first check starts the clusters.
    before, after = counted_after_a_check(), counted_after_a_check()
    return {name: after[name] - before[name] for name in before}


if __name__ == "__main__":
    # All ranks have the same folder, because the strategies share the rank of the reference.
    with tempfile.TemporaryDirectory() as folder:
        watched = watch_controller()
        print(json.dumps({strategy: counted(Path(folder), watched, strategy) for strategy in sys.argv[1:]}))
