"""The examples of the page about the guard run, and fail, as it says."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.docs.test_readme import ROOT, blocks, normalized
from tests.forks import Forks, forks

__all__ = ["forks"]
pytestmark = pytest.mark.slow
PAGE = ROOT / "docs" / "guard.md"

LOOP = """
import tensorflow as tf

import pytest_ddl

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    model = tf.Module()
    model.w = tf.Variable(0.0, aggregation=tf.VariableAggregation.SUM)
optimizer = None
distributed = strategy.experimental_distribute_dataset(tf.data.Dataset.range(640).batch(4))


@tf.function
def train_step(batch):
    strategy.run(lambda part: model.w.assign_add(tf.cast(tf.reduce_sum(part), tf.float32)), args=(batch,))


"""


def run(forks: Forks, program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(program)
    return forks.run(folder / "train.py", folder, timeout=120)


def test_the_example_fails_as_shown_and_runs_with_the_fix(forks: Forks, tmp_path: Path) -> None:
    found = blocks(PAGE)
    result = run(forks, found["example: train.py"], tmp_path)
    assert result.returncode == 1
    shown = found["example: the error"]
    printed = result.stderr[result.stderr.index("pytest_ddl.GuardError") :]
    assert normalized(printed) == normalized(shown)
    line = "            value = tf.reduce_mean(x, axis=0)\n"
    fix = shown[shown.index("      context") : shown.index("\nTo find")].replace("      context", "context", 1)
    mended = "".join(f"            {one.removeprefix('      ')}\n" for one in fix.splitlines())
    program = found["example: train.py"].replace(line, line + mended)
    result = run(forks, program, tmp_path)
    assert result.returncode == 0, result.stderr


def test_the_loop_runs(forks: Forks, tmp_path: Path) -> None:
    loop = blocks(PAGE)["example: loop"]
    result = run(forks, f"{LOOP}{loop}print(guard.steps, guard.findings)\n", tmp_path)
    assert result.stdout.splitlines()[-1:] == ["160 []"], result.stderr
