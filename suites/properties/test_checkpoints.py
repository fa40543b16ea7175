"""Save a checkpoint with N replicas and load it with M replicas: all variables and slots keep their bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from pytest_ddl import current_strategy, generators
from pytest_ddl.generators import ModelSpec, OptimizerSpec
from suites.properties.clusters import run_under
from suites.subject import value_of

SAVED_BY = ("one_device", "mirrored", "mirrored[replicas=3]", "multi_worker_mirrored")
LOADED_BY = ("one_device", "mirrored[replicas=3]", "multi_worker_mirrored", "central_storage", "mirrored")
Values = list[list[np.ndarray[Any, Any]]]
"""Components of each variable, in the order of creation."""


@pytest.mark.ddl_item("variables.checkpoint.mirrored", "saving.tf_checkpoint", under=(*SAVED_BY, *LOADED_BY))
@given(
    spec=generators.trainings(optimizer_kinds=["momentum", "adam", "amsgrad", "sgd"]),
    saved_by=st.sampled_from(SAVED_BY),
    loaded_by=st.sampled_from(LOADED_BY),
)
def test_what_was_saved_is_loaded(spec, saved_by, loaded_by, tmp_path_factory):
    note(f"{saved_by} -> {loaded_by}\n{spec.program(saved_by)}")
    folder = tmp_path_factory.mktemp("checkpoint")
    saved = run_under(saved_by, save, spec.model, spec.optimizer, str(folder))[0]
    for loaded in run_under(loaded_by, load, spec.model, spec.optimizer, str(folder)):
        assert len(loaded) == len(saved)
        for components, expected in zip(loaded, saved, strict=True):
            for component in components:
                np.testing.assert_array_equal(component, expected[0])


def save(model: ModelSpec, optimizer: OptimizerSpec, folder: str) -> Values:
    """Train with a different loss on each replica, and save on every rank; only the chief's file is read later."""
    import tensorflow as tf

    from suites.subject import keras

    strategy = current_strategy()
    built, updater = made(strategy, model, optimizer, seed=1)
    inputs, targets = (tf.constant(array) for array in model.examples(6))

    @tf.function
    def step() -> None:
        def replica_step() -> None:
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            with tf.GradientTape() as tape:
                errors = tf.square(built(inputs, training=True) - targets)
                loss = tf.reduce_mean(errors) * tf.cast(replica + 1, errors.dtype)
            variables = built.trainable_variables
            updater.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

        strategy.run(replica_step)

    for _ in range(2):
        step()
    resolver = strategy.cluster_resolver
    is_chief = resolver is None or resolver.task_id in (None, 0)
    path = Path(folder) / ("checkpoint" if is_chief else f"not-the-chief-{resolver.task_id}")
    tf.train.Checkpoint(model=built, optimizer=updater).write(str(path))
    keras.backend.clear_session()
    return values(strategy, built, updater)


def load(model: ModelSpec, optimizer: OptimizerSpec, folder: str) -> Values:
    """Create the same objects with other weights, and load the checkpoint into them; every object must be matched."""
    import tensorflow as tf

    strategy = current_strategy()
    built, updater = made(strategy, model, optimizer, seed=2)
    status = tf.train.Checkpoint(model=built, optimizer=updater).read(str(Path(folder) / "checkpoint"))
    status.assert_existing_objects_matched()
    return values(strategy, built, updater)


def made(strategy: Any, model: ModelSpec, optimizer: OptimizerSpec, seed: int) -> tuple[Any, Any]:
    from suites.subject import keras

    keras.utils.set_random_seed(seed)
    with strategy.scope():
        built = model.build()
        updater = optimizer.build()
        updater.build(built.trainable_variables)
    return built, updater


def values(strategy: Any, model: Any, optimizer: Any) -> Values:
    import tensorflow as tf

    found = [value_of(variable) for variable in (*model.variables, *optimizer.variables)]
    # NumPy warns when it copies a variable of TensorFlow itself.
    return [
        [tf.convert_to_tensor(part).numpy() for part in strategy.experimental_local_results(variable)]
        for variable in found
    ]
