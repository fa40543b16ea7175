"""Save trained models as files under one strategy, and load, serve and train them under others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_ddl import current_strategy
from suites import subject
from suites.properties.clusters import run_under
from suites.properties.test_values import distributed, everyone
from suites.properties.variables import local_replicas

SAVED_BY = ("one_device", "mirrored[replicas=3]", "multi_worker_mirrored", "central_storage")
LOADED_BY = ("one_device", "mirrored", "mirrored[replicas=3]", "multi_worker_mirrored", "central_storage")
RATE, MOMENTUM = 0.125, 0.5
INPUTS = np.array([[1.0, -2.0, 3.0], [0.5, 4.0, -1.0], [2.0, 0.0, 1.0], [-3.0, 1.0, 0.5], [1.5, -1.0, 2.0], [0, 1, 2]])
TARGETS = np.array([[1.0], [-2.0], [0.5], [3.0], [-1.0], [2.0]])
KERNEL, BIAS = np.array([[0.5], [-1.0], [2.0]]), np.array([0.25])
ITEMS = {".keras": "saving.keras_file", ".weights.h5": "saving.weights_h5"}
"""Suffix of a file, and the item that it belongs to."""


def trained(steps: int) -> dict[str, Any]:
    """Return weights and velocities after steps of SGD with momentum on the mean of all squares, in NumPy."""
    kernel, bias, velocities = KERNEL.copy(), BIAS.copy(), [np.zeros_like(KERNEL), np.zeros_like(BIAS)]
    for _ in range(steps):
        errors = 2 * (INPUTS @ kernel + bias - TARGETS) / len(INPUTS)
        gradients = [INPUTS.T @ errors, errors.sum(axis=0)]
        velocities = [MOMENTUM * old - RATE * new for old, new in zip(velocities, gradients, strict=True)]
        kernel, bias = kernel + velocities[0], bias + velocities[1]
    return {"kernel": kernel, "bias": bias, "velocities": velocities, "iterations": steps}


def tolerance(steps: int) -> float:
    """Return a bound: about 30 operations in a step, and a step makes an error at most four times as large."""
    return float(30 * steps * 4**steps * np.finfo("float64").eps)


def build(strategy: Any) -> Any:
    from suites.subject import keras

    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((3,), dtype="float64"), keras.layers.Dense(1, dtype="float64", name="dense")]
        )
        model.compile(keras.optimizers.SGD(RATE, momentum=MOMENTUM), loss="mse")
        model.optimizer.build(model.trainable_variables)
        model.layers[0].kernel.assign(KERNEL)
        model.layers[0].bias.assign(BIAS)
    return model


def train(strategy: Any, model: Any, steps: int) -> None:
    """Make steps in which each replica has its part of the examples."""
    import tensorflow as tf

    replicas = strategy.num_replicas_in_sync
    inputs, targets = (
        distributed(strategy, lambda replica, whole=whole: whole[replica::replicas]) for whole in (INPUTS, TARGETS)
    )

    def replica_function(own: Any, wanted: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(model(tf.identity(own)) - wanted)) / len(INPUTS)
        variables = model.trainable_variables
        model.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    step = tf.function(lambda own, wanted: strategy.run(replica_function, args=(own, wanted)), autograph=False)
    for _ in range(steps):
        step(inputs, targets)


def check(strategy: Any, model: Any, steps: int) -> None:
    """Compare each component of the weights and of the optimizer's variables with NumPy."""
    expected = trained(steps)
    of = [(name, one) for name in ("kernel", "bias") for one in model.optimizer.variables]
    slots = [one for name, one in of if subject.is_slot(one, name, "momentum")]
    layer = model.layers[0]
    for variable, value in [
        (layer.kernel, expected["kernel"]),
        (layer.bias, expected["bias"]),
        *zip(slots, expected["velocities"], strict=True),
        (model.optimizer.iterations, steps),
    ]:
        for part in strategy.experimental_local_results(subject.value_of(variable)):
            np.testing.assert_allclose(part.read_value(), value, rtol=tolerance(steps), err_msg=variable.name)


def file_of(strategy: Any, folder: str, suffix: str) -> str:
    """Return a path that only this rank writes; the other ranks load that of the chief."""
    rank = local_replicas(strategy)[0]
    own = Path(folder) / ("chief" if rank == 0 else f"worker{rank}")
    own.mkdir(exist_ok=True)
    return str(own / f"model{suffix}")


def save(folder: str, suffix: str) -> None:
    strategy = current_strategy()
    model = build(strategy)
    train(strategy, model, 2)
    path = file_of(strategy, folder, suffix)
    if suffix == "export":
        subject.export(model, path)
    elif suffix == ".weights.h5":
        model.save_weights(path)
    else:
        model.save(path)


def load(folder: str, suffix: str) -> None:
    """Compare what was loaded, make one more step, and compare again: it needs the optimizer's velocities."""
    from suites.subject import keras

    strategy = current_strategy()
    path = f"{folder}/chief/model{suffix}"
    if suffix == ".weights.h5":
        model = build(strategy)
        train(strategy, model, 1)
        model.load_weights(path)
    else:
        with strategy.scope():
            model = keras.models.load_model(path)
    check(strategy, model, 2)
    train(strategy, model, 1)
    check(strategy, model, 3)


CASES = [
    pytest.param(
        suffix,
        name,
        marks=pytest.mark.ddl_item(item, under=(name, *LOADED_BY)),
        id=f"{suffix.replace('.', '_')}-{name}",
    )
    for suffix, item in ITEMS.items()
    for name in SAVED_BY
]


# Keras warns that HDF5 files are old, and converts variables as NumPy 1 did.
QUIET = pytest.mark.filterwarnings("ignore:.*HDF5", "ignore:__array__ implementation:DeprecationWarning")


@QUIET
@pytest.mark.parametrize(("suffix", "saved_by"), CASES)
def test_a_model_and_its_optimizer_go_to_other_strategies(suffix, saved_by, tmp_path):
    """Two steps under one strategy and a third under another one are three steps."""
    run_under(saved_by, save, str(tmp_path), suffix)
    for loaded_by in LOADED_BY:
        run_under(loaded_by, load, str(tmp_path), suffix)


def serve(folder: str) -> list[Any]:
    import tensorflow as tf

    loaded = tf.saved_model.load(f"{folder}/chief/modelexport")
    return [loaded.serve(tf.constant(INPUTS)).numpy(), loaded.serve(tf.constant(INPUTS[:1])).numpy()]


@QUIET
@pytest.mark.parametrize(
    "saved_by",
    [pytest.param(name, marks=pytest.mark.ddl_item("saving.export", under=(name,))) for name in SAVED_BY],
)
def test_an_exported_model_is_served_without_a_strategy(saved_by, tmp_path):
    run_under(saved_by, save, str(tmp_path), "export")
    (found,) = run_under("one_device", serve, str(tmp_path))
    weights = trained(2)
    for outputs, inputs in zip(found, (INPUTS, INPUTS[:1]), strict=True):
        expected = inputs @ weights["kernel"] + weights["bias"]
        np.testing.assert_allclose(outputs, expected, rtol=tolerance(2), atol=tolerance(2))


def module(strategy: Any) -> Any:
    """Return a module with a mirrored variable and a count of examples that each replica keeps."""
    import tensorflow as tf

    class Scale(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = tf.Variable([2.0, 5.0], aggregation=tf.VariableAggregation.SUM)
            self.seen = tf.Variable(
                0.0,
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.SUM,
            )

        @tf.function(input_signature=[tf.TensorSpec([None, 2])])
        def call(self, value: Any) -> Any:
            return value * self.factor + self.seen

        @tf.function(input_signature=[tf.TensorSpec([None, 2])])
        def update(self, value: Any) -> Any:
            self.seen.assign_add(tf.reduce_sum(value))
            self.factor.assign_add(tf.reduce_sum(value, axis=0))
            return self.factor.read_value()

    with strategy.scope():
        return Scale()


def rows(replica: int) -> np.ndarray[Any, Any]:
    return np.array([[replica + 1.0, 2.0 - replica], [3.0 * replica, 1.0]], "float32")


def save_module(folder: str, in_scope: bool) -> None:
    """Update on the replicas, and save. What is served is the sum of all replicas."""
    import tensorflow as tf

    strategy = current_strategy()
    made = module(strategy)
    own = distributed(strategy, rows, "float32")
    seen = [float(rows(replica).sum()) for replica in range(strategy.num_replicas_in_sync)]
    for _ in range(2):
        strategy.run(lambda value: made.seen.assign_add(tf.reduce_sum(value)), args=(own,))
        strategy.run(lambda value: made.factor.assign_add(tf.reduce_sum(value, axis=0)), args=(own,))
    path = file_of(strategy, folder, "")
    if in_scope:
        with strategy.scope():
            tf.saved_model.save(made, path)
    else:
        tf.saved_model.save(made, path)
    # Saving changes nothing.
    with strategy.scope():
        assert float(made.seen.read_value()) == 2 * sum(seen)


def factor_after(replicas: int) -> np.ndarray[Any, Any]:
    return np.array([2.0, 5.0]) + 2 * np.sum([rows(replica).sum(axis=0) for replica in range(replicas)], axis=0)


def seen_after(replicas: int) -> float:
    return 2 * float(np.sum([rows(replica).sum() for replica in range(replicas)]))


def serve_module(folder: str, replicas: int) -> None:
    import tensorflow as tf

    loaded = tf.saved_model.load(f"{folder}/chief/model")
    expected = rows(5) * factor_after(replicas) + seen_after(replicas)
    np.testing.assert_array_equal(loaded.call(tf.constant(rows(5))), expected)
    # Everything is a small whole number, which float32 holds.
    np.testing.assert_array_equal(loaded.update(tf.constant(rows(5))), factor_after(replicas) + rows(5).sum(axis=0))
    assert float(loaded.seen) == seen_after(replicas) + rows(5).sum()


def train_module(folder: str, replicas: int) -> None:
    """Call the loaded functions on the replicas: each has its own part, and updates are summed."""
    import tensorflow as tf

    strategy = current_strategy()
    with strategy.scope():
        loaded = tf.saved_model.load(f"{folder}/chief/model")
    number = strategy.num_replicas_in_sync
    own = distributed(strategy, lambda replica: rows(replica + 3), "float32")
    factor, share = factor_after(replicas), seen_after(replicas) / number
    outputs = strategy.run(lambda value: loaded.call(value), args=(own,))
    for replica, found in zip(local_replicas(strategy), strategy.experimental_local_results(outputs), strict=True):
        # A third of a sum is rounded once, and the sum with a product once more.
        expected = rows(replica + 3) * factor + share
        np.testing.assert_allclose(found, expected, rtol=4 * np.finfo("float32").eps)

    def replica_function(value: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(loaded.call(value))
        return tape.gradient(loss, loaded.factor)

    gradients = strategy.run(replica_function, args=(own,))
    for replica, found in zip(local_replicas(strategy), strategy.experimental_local_results(gradients), strict=True):
        np.testing.assert_array_equal(found, rows(replica + 3).sum(axis=0))

    def update(value: Any) -> None:
        loaded.factor.assign_add(tf.reduce_sum(value, axis=0))
        loaded.seen.assign_add(tf.reduce_sum(value))

    strategy.run(update, args=(own,))
    added = np.sum(everyone(strategy, lambda replica: rows(replica + 3).sum(axis=0)), axis=0)
    for part in strategy.experimental_local_results(loaded.factor):
        np.testing.assert_array_equal(part.read_value(), factor + added)
    with strategy.scope():
        total = seen_after(replicas) + float(added.sum())
        np.testing.assert_allclose(loaded.seen.read_value(), total, rtol=4 * number * np.finfo("float32").eps)


MODULES = ("one_device", "mirrored", "mirrored[replicas=3]", "multi_worker_mirrored")


def number_of(variant: str) -> int:
    return {"one_device": 1, "mirrored[replicas=3]": 3}.get(variant, 2)


@pytest.mark.parametrize(
    "saved_by",
    [
        pytest.param(
            name,
            marks=[
                pytest.mark.ddl_item("variables.savedmodel.serve", under=(name,)),
                pytest.mark.ddl_item("variables.savedmodel.train", under=MODULES),
                *([pytest.mark.ddl_item("variables.savedmodel.mw", under=(name,))] if "multi" in name else []),
            ],
        )
        for name in MODULES
    ],
)
@pytest.mark.parametrize("in_scope", [True, False], ids=["in_scope", "out_of_scope"])
def test_a_saved_module_is_served_and_trained(saved_by, in_scope, tmp_path):
    run_under(saved_by, save_module, str(tmp_path), in_scope)
    run_under("one_device", serve_module, str(tmp_path), number_of(saved_by))
    for loaded_by in MODULES:
        run_under(loaded_by, train_module, str(tmp_path), number_of(saved_by))


@pytest.mark.ddl(strategies=["one_device", "mirrored[replicas=3]", "multi_worker_mirrored"])
@pytest.mark.ddl_item("variables.savedmodel.train")
def test_a_loaded_function_updates_all_replicas_alike(ddl_strategy, tmp_path):
    """The replicas' values are summed into a mirrored variable, or the function is refused, as the original is."""
    import tensorflow as tf

    strategy = ddl_strategy
    tf.saved_model.save(module(strategy), str(tmp_path))
    with strategy.scope():
        loaded = tf.saved_model.load(str(tmp_path))
    own = distributed(strategy, rows, "float32")
    added = np.sum(everyone(strategy, lambda replica: rows(replica).sum(axis=0)), axis=0)
    try:
        strategy.run(lambda value: loaded.update(value), args=(own,))
    except RuntimeError as error:
        assert "merge_call" in str(error)  # noqa: PT017
        return
    with strategy.scope():
        assert float(loaded.seen.read_value()) == added.sum()
    for part in strategy.experimental_local_results(loaded.factor):
        np.testing.assert_array_equal(part.read_value(), np.array([2.0, 5.0]) + added)


def save_where_all_can_read(folder: str) -> None:
    """Save as the guide for several workers says: the chief to the path, the others to folders of their own."""
    import tensorflow as tf

    strategy = current_strategy()
    made = module(strategy)
    own = distributed(strategy, rows, "float32")
    manager = tf.train.CheckpointManager(
        tf.train.Checkpoint(module=made), file_of(strategy, folder, "manager"), max_to_keep=1
    )
    for number in range(1, 4):
        strategy.run(lambda value: made.factor.assign_add(tf.reduce_sum(value, axis=0)), args=(own,))
        strategy.run(lambda value: made.seen.assign_add(tf.reduce_sum(value)), args=(own,))
        manager.save()
        # A barrier: no rank reads before the chief has written.
        strategy.reduce("SUM", distributed(strategy, lambda replica: 1.0), axis=None)
        latest = tf.train.latest_checkpoint(f"{folder}/chief/modelmanager")
        assert latest is not None
        assert latest.endswith(f"ckpt-{number}")
        other = module(strategy)
        tf.train.Checkpoint(module=other).restore(latest).assert_existing_objects_matched()
        total = number * np.sum(everyone(strategy, lambda replica: rows(replica).sum(axis=0)), axis=0)
        for part in strategy.experimental_local_results(other.factor):
            np.testing.assert_array_equal(part.read_value(), np.array([2.0, 5.0]) + total)
        with strategy.scope():
            assert float(other.seen.read_value()) == total.sum()
        strategy.reduce("SUM", distributed(strategy, lambda replica: 1.0), axis=None)


@pytest.mark.parametrize(
    "variant",
    [
        pytest.param(name, marks=pytest.mark.ddl_item("saving.path_clash", under=(name,)))
        for name in ("multi_worker_mirrored", "multi_worker_mirrored[workers=3]")
    ],
)
def test_the_chief_writes_and_all_workers_read(variant, tmp_path):
    run_under(variant, save_where_all_can_read, str(tmp_path))
    assert sorted(path.name for path in (tmp_path / "chief" / "modelmanager").glob("*.index")) == ["ckpt-3.index"]
