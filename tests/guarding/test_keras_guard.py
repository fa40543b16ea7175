"""The callback of Keras, in ranks and in a plain Python program."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import guarded_programs as programs
import pytest

from tests.known_crashes import MAY_DROP_AN_ITERATOR

pytestmark = [pytest.mark.slow, MAY_DROP_AN_ITERATOR]
InRank = Callable[[str, Callable[[], Any]], list[Any]]


@pytest.mark.nightly(each_commit=("mirrored", "one_device-{}"))
@pytest.mark.parametrize("given", [{}, {"lazily": True}, {"of": "tf_keras"}], ids=str)
@pytest.mark.parametrize("strategy", ["one_device", "mirrored"])
def test_right_programs_raise_no_alarm(given: dict[str, Any], strategy: str, in_rank: InRank) -> None:
    assert in_rank(strategy, partial(programs.fit, **given)) == [[]]


def test_several_steps_at_once_raise_no_alarm(in_rank: InRank) -> None:
    assert in_rank("one_device", partial(programs.fit, steps_per_execution=3)) == [[]]


def test_workers_that_are_right_raise_no_alarm(in_rank: InRank) -> None:
    assert in_rank("multi_worker_mirrored", partial(programs.fit, of="tf_keras")) == [[], []]


@pytest.mark.nightly(each_commit=("mirrored-keras", "multi_worker_mirrored"))
@pytest.mark.parametrize(
    ("strategy", "of", "cause"),
    [
        ("mirrored", "keras", "replicas-diverged"),
        ("mirrored", "tf_keras", "replicas-diverged"),
        ("multi_worker_mirrored", "tf_keras", "workers-diverged"),
    ],
)
def test_a_mistake_is_found_within_one_interval(strategy: str, of: str, cause: str, in_rank: InRank) -> None:
    for found in in_rank(strategy, partial(programs.fit, of=of, planted=True)):
        # The change is made after step 9, and checks are due after steps 8 and 12.
        assert found[0][:2] == (cause, 12)


PLAIN = """
import sys

import keras
import numpy as np
import tensorflow as tf

from pytest_ddl.keras import ReplicaGuard

(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")


class Planted(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if planted:
            copies = strategy.experimental_local_results(self.model.layers[0].kernel.value)
            copies[1].assign_add(tf.ones_like(copies[1]))


for planted in (False, True):
    model.fit(np.ones((12, 4)), np.ones((12, 1)), batch_size=4, verbose=0, callbacks=[Planted(), ReplicaGuard(every=2)])
    assert not {"pytest", "_pytest", "pytest_ddl.plugin", "pytest_ddl.equivalence.verdict"} & set(sys.modules)
    print("trained")
"""


def test_a_plain_program_needs_no_pytest(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(PLAIN)
    result = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300)
    assert (result.returncode, result.stdout) == (1, "trained\n"), result.stderr
    assert "pytest_ddl.GuardError: replicas-div" in result.stderr


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"every": 0}, "every=0 must be a number of steps"),
        ({"on_finding": "stop"}, "on_finding='stop' must be"),
        ({"tolerance": 2.0}, "tolerance=2.0 must be a fraction"),
        ({"expect": {"replica-diverged": ""}}, "did you mean 'replicas-diverged'"),
    ],
    ids=str,
)
def test_wrong_arguments_are_refused_in_one_line(given: dict[str, Any], text: str, in_rank: InRank) -> None:
    (message,) = in_rank("one_device", partial(programs.refusal, **given))
    assert text in message
    assert "\n" not in message


def test_a_strategy_without_copies_is_refused(in_rank: InRank) -> None:
    (message,) = in_rank("parameter_server", programs.refusal)
    assert message.startswith("nothing to guard under ParameterServerStrategy")
