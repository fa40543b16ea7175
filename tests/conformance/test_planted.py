"""Each check fails for an object with a defect that it is for, with a message that says what differs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from pytest_ddl import DivergenceError
from pytest_ddl.conformance import CONFORMANCE_CHECKS, Case, Tags, parametrize_with_ddl_checks
from tests.conformance import planted

pytestmark = pytest.mark.slow

MORE = r"\(2 times as much\)"
PLANTED: Mapping[Any, Mapping[str, str]] = {
    planted.AveragesReplicas: {
        "metric_of_uneven_parts": "the result after step 1 is .*, and .* on one device with all examples",
        "metric_of_parts_in_another_order": "the result of parts in another order is",
        "metric_after_a_reset": "the result after a reset and one more step is",
    },
    planted.IgnoresWeights: {
        "metric_of_weighted_parts": "the result with weights is .* with as many copies of the examples",
        "metric_after_updates_without_weight": "the result after 100 updates without weight is .* before them",
    },
    planted.ForgetsToReset: {"metric_after_a_reset": "the result after a reset and one more step is"},
    planted.AddsTheSumToItself: {
        "metric_of_uneven_parts": f"the result after step 1 is .*{MORE}",
        "metric_of_weighted_parts": f"the result after step 1 is .*{MORE}",
        "metric_of_parts_in_another_order": "the result of parts in another order is",
        "metric_after_a_reset": f"the result after a reset and one more step is .*{MORE}",
        "metric_after_updates_without_weight": "the result after 100 updates without weight is",
    },
    planted.DividesByTheLocalBatch: {
        "loss_of_parts": "the sum of the replicas' loss is",
        "loss_of_weighted_parts": "the sum of the replicas' loss is",
        "loss_of_each_example": "the loss of the examples of a replica is",
        "loss_averaged_over_the_global_batch": "the sum of the replicas' loss is",
    },
    planted.IsNotDivided: {
        "loss_of_parts": f"the sum of the replicas' loss is .* with the whole batch {MORE}",
        "loss_of_weighted_parts": f"the sum of the replicas' loss is .*{MORE}",
    },
    planted.DividesByTheLocalWeights: {"loss_of_weighted_parts": "the sum of the replicas' loss is"},
    planted.ScalesByReplicas: {
        "optimizer_applies_the_summed_gradient": "kernel of local replica 0 is .* with the sum of the gradients",
        "optimizer_sums_sparse_gradients": "the table of local replica 0 after step 1 is",
    },
    planted.CountsReplicas: {"optimizer_counts_each_step_once": "iteration of local replica 0 is .*, and 1 on one"},
    planted.KeepsLocalSlots: {"optimizer_keeps_the_slots_of_one_device": "size of local replica 0 is"},
    planted.DropsEqualRows: {"optimizer_sums_sparse_gradients": "the table of local replica 0 after step 1 is"},
    planted.KeepsLocalState: {
        "layer_state_on_all_replicas": "last is .* on the first replica, and .* on another",
        "layer_in_training": "",
    },
    planted.CentersItsPart: {
        "layer_of_parts": "the output of a replica's examples .*eager, training=False.* is",
        "layer_in_training": "",
    },
    planted.CountsInPython: {
        "layer_in_a_function": "the output in a function is .* eagerly",
        "layer_of_parts": "the output of a replica's examples",
        "layer_in_training": "",
    },
    planted.forgets_its_factor: {"layer_from_its_configuration": r"the output of the new layer is .*0\.3333 times"},
    planted.DrawsTheSame: {
        "layer_draws_of_replicas": "of 4 outputs .* number 1 and number 2 are equal",
        "layer_draws_after_a_seed": "the output is the same after another seed",
    },
    planted.DrawsWithoutSeed: {"layer_draws_after_a_seed": "the output after the same seed is .* the first time"},
    planted.StopsEarly: {
        "callback_calls": "on_epoch_begin is called 1 times, and 3 times on one device",
        "callback_weights": "the model after training is",
    },
    planted.LogsItsRank: {},
    planted.ScalesTheRate: {
        "callback_logs": "loss in the logs of on_epoch_end 0 is .*, and .* on one device",
        "callback_weights": "the model after training is",
    },
    planted.WritesOnEveryWorker: {},
    planted.WritesOnNoWorker: {"callback_files": "no rank has written result.txt, which one device writes"},
}
"""Object -> the checks that fail under every strategy with replicas, with a part of the message; others pass."""
ON_WORKERS: Mapping[Any, Mapping[str, str]] = {
    planted.LogsItsRank: {"callback_logs": "the logs of on_epoch_end 0 are .* on rank 1, and .* on rank 0"},
    planted.WritesOnEveryWorker: {"callback_files": "ranks 0, 1 have all written result.txt"},
}
"""Object -> the further checks that fail with several workers, with a part of the message."""


def judge(ddl_check: Callable[[], None], request: pytest.FixtureRequest, found: Mapping[Any, Any]) -> None:
    planned = request.node.callspec.params["ddl_check"]
    message = found.get(planned.subject.factory, {}).get(planned.check.name)
    if message is None:
        ddl_check()
        return
    with pytest.raises((pytest.fail.Exception, DivergenceError)) as caught:
        ddl_check()
    assert re.search(message, str(caught.value)), str(caught.value)
    if isinstance(caught.value, pytest.fail.Exception):
        assert str(caught.value).startswith(f"{planned.subject.name}: {planned.check.name} under ")
        assert f"\nproperty: {planned.check.title}\nadvice: " in str(caught.value)


@pytest.mark.nightly(
    each_commit=(
        "mirrored-AveragesReplicas-metric_of_parts_in_another_order",
        "mirrored-IgnoresWeights-metric_of_uneven_parts",
        "mirrored-IgnoresWeights-metric_after_a_reset",
        "mirrored-ForgetsToReset-metric_of_weighted_parts",
        "mirrored-AddsTheSumToItself-metric_of_uneven_parts",
        "mirrored-DividesByTheLocalBatch-loss_of_parts",
        "mirrored-DividesByTheLocalBatch-loss_of_weighted_parts",
        "mirrored-IsNotDivided-loss_of_each_example",
        "mirrored-KeepsLocalSlots-optimizer_keeps_the_slots_of_one_device",
        "mirrored-DropsEqualRows-optimizer_counts_each_step_once",
        "mirrored-KeepsLocalState-layer_state_on_all_replicas",
        "mirrored-CentersItsPart-layer_from_its_configuration",
        "mirrored-CountsInPython-layer_of_parts",
        "mirrored-forgets_its_factor-layer_in_a_function",
        "mirrored-forgets_its_factor-layer_in_training",
        "mirrored-DrawsTheSame-layer_of_parts",
        "mirrored-DrawsTheSame-layer_draws_after_a_seed",
        "mirrored-DrawsWithoutSeed-layer_of_parts",
        "mirrored-DrawsWithoutSeed-layer_from_its_configuration",
        "mirrored-StopsEarly-callback_calls",
        "mirrored-StopsEarly-callback_logs",
        "mirrored-StopsEarly-callback_weights",
        "mirrored-LogsItsRank-callback_weights",
        "mirrored-WritesOnNoWorker-callback_weights",
        "mirrored-WritesOnNoWorker-callback_files",
    )
)
@pytest.mark.ddl(strategies="mirrored")
@parametrize_with_ddl_checks([*PLANTED])
def test_a_defect_fails_its_checks_and_no_others(ddl_check: Any, request: pytest.FixtureRequest) -> None:
    judge(ddl_check, request, PLANTED)


@pytest.mark.nightly(
    each_commit=(
        "multi_worker_mirrored-LogsItsRank-callback_logs",
        "multi_worker_mirrored-LogsItsRank-callback_weights",
        "multi_worker_mirrored-WritesOnEveryWorker-callback_files",
        "multi_worker_mirrored-KeepsLocalState-layer_in_training",
    )
)
@pytest.mark.ddl(strategies="multi_worker_mirrored")
@parametrize_with_ddl_checks([planted.LogsItsRank, planted.WritesOnEveryWorker, planted.KeepsLocalState])
def test_a_defect_of_workers_fails(ddl_check: Any, request: pytest.FixtureRequest) -> None:
    judge(ddl_check, request, {**PLANTED, **ON_WORKERS})


def test_every_check_fails_for_a_defect() -> None:
    failed = {name for checks in (*PLANTED.values(), *ON_WORKERS.values()) for name in checks}
    assert failed == set(CONFORMANCE_CHECKS)


@pytest.mark.nightly
@pytest.mark.ddl(strategies="mirrored")
@parametrize_with_ddl_checks([Case(planted.CentersItsPart, tags=Tags(needs_whole_batch=True))])
def test_a_declared_tag_leaves_checks_out(ddl_check: Any, request: pytest.FixtureRequest) -> None:
    assert request.node.callspec.params["ddl_check"].check.name not in ("layer_of_parts", "layer_in_training")
    ddl_check()
