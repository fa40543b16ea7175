"""Count the costs of a run for a rank, without those of the program. Each function runs in a rank, outside training."""

from __future__ import annotations

import gc
import sys
import tempfile

from pytest_ddl.cluster.worker import current_rank
from pytest_ddl.training import execute
from pytest_ddl.training.observers.registry import OBSERVERS
from pytest_ddl.training.settings import RunSettings


def _run(train):
    with tempfile.TemporaryDirectory() as folder:
        return execute.execute(train, RunSettings(tmp_path=folder, is_reference=True), current_rank(), OBSERVERS)


def collections():
    """Return how often a run collects garbage by itself."""
    seen = []
    gc.collect()
    gc.disable()
    gc.callbacks.append(lambda phase, info: seen.append(info["generation"]) if phase == "start" else None)
    try:
        _run(lambda run: None)
    finally:
        gc.callbacks.pop()
        gc.enable()
    return seen


def calls_for_an_attribute():
    """Return how many Python functions are called for an attribute of a module outside of replicas, and in a run."""
    import tensorflow as tf

    def count(found):
        module, names = tf.Module(), []
        sys.setprofile(lambda frame, event, _argument: names.append(frame.f_code.co_name) if event == "call" else None)
        try:
            module.some = tf
        finally:
            sys.setprofile(None)
        found.append(len(names))

    bare, observed = [], []
    count(bare)

    def train(run):
        with run.strategy.scope():
            count(observed)

    _run(train)
    return bare[0], observed[0]
