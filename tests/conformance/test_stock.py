"""Objects of Keras pass the checks under strategies, except for defects of Keras, each with its reason."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

from pytest_ddl.conformance import Case, Tags, parametrize_with_ddl_checks

pytestmark = pytest.mark.slow

SYNCHRONOUS = ["mirrored[replicas=3]", "multi_worker_mirrored"]
LOCAL_STATE = "Keras 3 gives moving statistics no aggregation, so that each replica has its own"
SAME_MASK = "a seed generator of Keras 3 has the same state on each replica"
EVERY_WORKER = "Keras 3 writes on every worker"
SHARED = "replicas share the state of a metric, and each update sums it over them again"


def images(rows: int) -> tuple[Any, ...]:
    draw = np.random.default_rng(rows)
    return draw.random((rows, 2, 3)), draw.random((rows, 2, 3))


# Checks of objects are the same under each strategy; the suite runs them too. For each commit, one object of a kind has
# all checks and each other one has one. Their numbers are in the suite: test_metric_parameters.py, test_losses.py,
# test_optimizers.py and test_every_layer.py.
@pytest.mark.nightly(
    each_commit=(
        "mirrored[replicas=3]-Mean",
        "mirrored[replicas=3]-SparseCategoricalAccuracy-metric_of_weighted_parts",
        "mirrored[replicas=3]-AUC-metric_of_weighted_parts",
        "mirrored[replicas=3]-MeanIoU-metric_of_uneven_parts",
        "mirrored[replicas=3]-MeanAbsoluteError-metric_of_uneven_parts",
    )
)
@pytest.mark.ddl(strategies=SYNCHRONOUS)
@parametrize_with_ddl_checks(
    [
        keras.metrics.Mean,
        keras.metrics.SparseCategoricalAccuracy,
        lambda: keras.metrics.AUC(num_thresholds=20),
        lambda: keras.metrics.MeanIoU(num_classes=4, dtype="float64"),
        Case(keras.metrics.MeanAbsoluteError, data=images),
    ]
)
def test_metrics(ddl_check: Any) -> None:
    ddl_check()


@pytest.mark.nightly(
    each_commit=(
        "mirrored[replicas=3]-Huber",
        "mirrored[replicas=3]-CategoricalCrossentropy-loss_of_weighted_parts",
        "mirrored[replicas=3]-SparseCategoricalCrossentropy-loss_of_weighted_parts",
        "mirrored[replicas=3]-mean_squared_error-loss_of_parts",
    )
)
@pytest.mark.ddl(strategies=SYNCHRONOUS)
@parametrize_with_ddl_checks(
    [
        keras.losses.Huber,
        keras.losses.CategoricalCrossentropy,
        keras.losses.SparseCategoricalCrossentropy,
        Case(lambda: keras.losses.mean_squared_error, kind="loss"),
    ]
)
def test_losses(ddl_check: Any) -> None:
    ddl_check()


@pytest.mark.nightly(
    each_commit=(
        "mirrored[replicas=3]-SGD-optimizer_keeps_the_slots_of_one_device",
        "mirrored[replicas=3]-Adam",
    )
)
@pytest.mark.ddl(strategies=[*SYNCHRONOUS, "central_storage", "parameter_server"])
@parametrize_with_ddl_checks([lambda: keras.optimizers.SGD(0.1, momentum=0.9), keras.optimizers.Adam])
def test_optimizers(ddl_check: Any) -> None:
    ddl_check()


@pytest.mark.nightly(
    each_commit=(
        "mirrored[replicas=3]-Dense",
        "mirrored[replicas=3]-Conv2D-layer_of_parts",
        "mirrored[replicas=3]-GRU-layer_of_parts",
        "mirrored[replicas=3]-Embedding-layer_of_parts",
        "mirrored[replicas=3]-LayerNormalization-layer_of_parts",
        "mirrored[replicas=3]-BatchNormalization",
        "mirrored[replicas=3]-Dropout",
    )
)
@pytest.mark.ddl(strategies=SYNCHRONOUS)
@parametrize_with_ddl_checks(
    [
        lambda: keras.layers.Dense(3, activation="tanh", kernel_regularizer="l2"),
        lambda: keras.layers.Conv2D(2, 3),
        lambda: keras.layers.GRU(3),
        lambda: keras.layers.Embedding(7, 3),
        keras.layers.LayerNormalization,
        Case(
            keras.layers.BatchNormalization,
            tags=Tags(needs_whole_batch=True),
            expected_failures={"layer_state_on_all_replicas": LOCAL_STATE},
        ),
        Case(lambda: keras.layers.Dropout(0.5), expected_failures={"layer_draws_of_replicas": SAME_MASK}),
    ]
)
def test_layers(ddl_check: Any) -> None:
    ddl_check()


# Keras converts the learning rate to NumPy, and TensorFlow's variables under a strategy lack the keyword of NumPy 2.
@pytest.mark.nightly(each_commit=("mirrored-CSVLogger",))
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.ddl(strategies=["mirrored", "multi_worker_mirrored"])
@parametrize_with_ddl_checks(
    [
        lambda: keras.callbacks.EarlyStopping(monitor="loss", patience=1),
        lambda: keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2),
        Case(
            lambda: keras.callbacks.CSVLogger("log.csv"),
            expected_failures={"multi_worker_mirrored:callback_files": EVERY_WORKER},
        ),
    ]
)
def test_callbacks(ddl_check: Any) -> None:
    ddl_check()


@pytest.mark.nightly
@pytest.mark.ddl(strategies="central_storage")
@parametrize_with_ddl_checks(
    [keras.metrics.Sum],
    expected_failures={
        "central_storage:metric_of_uneven_parts": SHARED,
        "central_storage:metric_of_weighted_parts": SHARED,
        "central_storage:metric_of_parts_in_another_order": SHARED,
        "central_storage:metric_after_updates_without_weight": SHARED,
    },
)
def test_metrics_that_share_their_state(ddl_check: Any) -> None:
    ddl_check()


@pytest.mark.ddl(strategies="mirrored", keras="tf_keras")
@parametrize_with_ddl_checks(
    [lambda: __import__("tf_keras").metrics.Mean(), lambda: __import__("tf_keras").optimizers.Adam()]
)
def test_objects_of_tf_keras(ddl_check: Any) -> None:
    ddl_check()
