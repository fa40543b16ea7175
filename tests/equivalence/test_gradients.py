"""Real programs whose gradients go wrong: each cause is recomputed, and right programs raise no alarm."""

from __future__ import annotations

import pytest

import pytest_ddl

N, INVERSE = "gradient-scaled-by-replica-count", "gradient-scaled-by-inverse-replica-count"
CLIPPED, APART = "gradient-clipped-before-aggregation", "gradient-not-aggregated"
ACCUMULATION, STILL = "gradient-accumulation-wrong", "variable-did-not-move"

CAUSES = {
    "mean_with_adam": N,
    "mean_with_momentum": N,
    "mean_with_rmsprop": N,
    "mean_on_uneven_batches": N,
    "mean_with_dropout": N,
    "mean_in_single_precision": N,
    "reduced_twice": N,
    "masked_mean_summed": N,
    "first_example_is_left_out": "examples-dropped",
    "one_replica_skips_its_second_step": APART,
    "averaged_over_replicas_again": INVERSE,
    "biases_not_reduced": APART,
    "clipped_by_keras": CLIPPED,
    "clipped_by_keras_adam": CLIPPED,
    "clipped_by_hand": CLIPPED,
    "clipped_by_hand_each_variable": CLIPPED,
    "fit_with_clipping": CLIPPED,
    "fit_with_clipping_of_a_sparse_gradient": CLIPPED,
    "penalty_on_each_replica": "regularization-scaled-by-replica-count",
    "small_penalty_on_each_replica": "regularization-scaled-by-replica-count",
    "masked_mean_on_each_replica": "masked-loss-normalised-per-replica",
    "masked_in_single_precision": "masked-loss-normalised-per-replica",
    "rows_of_an_embedding_mixed_up": "sparse-gradient-mismatch",
    "zeros_move_momentum": ACCUMULATION,
    "zeros_count_for_adam": ACCUMULATION,
    "zeros_let_weights_decay": ACCUMULATION,
    "accumulators_are_never_reset": ACCUMULATION,
    "accumulators_lose_a_batch_after_the_record": ACCUMULATION,
    "accumulators_are_never_reset_in_any_step": ACCUMULATION,
    "accumulators_sum_over_replicas": ACCUMULATION,
    "optimizers_share_a_counter": ACCUMULATION,
    "a_weight_is_left_out": STILL,
    "optimizer_holds_a_stale_copy": STILL,
    "schedule_of_a_python_number": "learning-rate-differs",
    "schedule_of_a_python_number_with_adam": "learning-rate-differs",
    "one_term_is_a_mean": N,
    "mean_of_a_delayed_actor": N,
    "replicas_have_weights_of_their_own": "replica-computes-otherwise",
    "batch_is_cut_to_a_multiple_of_four": "examples-dropped",
    "batch_is_cut_and_averaged": "examples-dropped",
    "worst_example_of_the_replica": "batch-coupled-loss",
    "fit_with_a_sum_over_activations": "batch-coupled-loss",
    "penalty_of_a_critic_is_a_mean": N,
    "labels_are_reversed_on_one_replica": "examples-altered",
    "labels_are_rolled_under_the_strategy": "examples-altered",
    "moved_by_the_gradient_of_a_replica": "replicas-diverged",
}
CONSISTENT = {
    "masked_behind_synchronized_normalization": "masked-loss-normalised-per-replica",
    "masked_term_beside_another": "masked-loss-normalised-per-replica",
    "positives_lack_the_offset_of_the_replica": "gathered-positions-wrong",
    "ratios_of_the_replicas_gradients": CLIPPED,
    "targets_are_negated_on_one_replica": "replica-computes-otherwise",
    "targets_are_negated_on_one_replica_that_gathers": "replica-computes-otherwise",
    "contrastive_on_each_replica": "batch-coupled-loss",
    "returns_are_standardized": "batch-coupled-loss",
    "hardest_examples_of_the_replica": "batch-coupled-loss",
    "weights_of_the_replicas_classes": "batch-coupled-loss",
    "contrastive_and_divided_twice": "batch-coupled-loss",
    "contrastive_in_full": "batch-coupled-loss",
    "contrastive_term_divided_by_the_replicas": "batch-coupled-loss",
    "one_mean_is_divided_twice": None,
    "weights_of_a_replica_are_zero": "masked-loss-normalised-per-replica",
}
"""Causes with which the records are consistent, but which do not reproduce the whole update."""
BESIDES = {
    "contrastive_and_divided_twice": ("gradient-scaled-by-inverse-replica-count",),
    "contrastive_in_full": (N,),
}
"""Causes that act at the same time as the first one."""


def _programs() -> dict[str, object]:
    import accumulation_programs
    import gradient_programs
    import programs_of_several_gradients
    import term_programs

    modules = (gradient_programs, accumulation_programs, term_programs, programs_of_several_gradients)
    return {name: found for module in modules for name, found in vars(module).items()}


def _check(name: str, strategy: str) -> pytest_ddl.Report:
    program = _programs()[name]
    return pytest_ddl.check_training(program, strategy, global_batch_size=12, steps=4, timeout=300)  # type: ignore[arg-type]


# Causes that need many recomputations: others of this kind run for each commit.
@pytest.mark.nightly(
    each_commit=(
        "mean_with_momentum",
        "mean_with_dropout",
        "reduced_twice",
        "one_replica_skips_its_second_step",
        "biases_not_reduced",
        "fit_with_clipping_of_a_sparse_gradient",
        "small_penalty_on_each_replica",
        "masked_mean_on_each_replica",
        "masked_in_single_precision",
        "accumulators_are_never_reset",
        "optimizer_holds_a_stale_copy",
        "mean_of_a_delayed_actor",
    )
)
@pytest.mark.slow
@pytest.mark.parametrize("name", CAUSES)
def test_cause_is_named_by_recomputation(name: str) -> None:
    report = _check(name, "mirrored")
    assert report.verdict == "fail"
    assert (report.findings[0].cause, report.findings[0].exact) == (CAUSES[name], True), str(report)


@pytest.mark.nightly(each_commit=("contrastive_and_divided_twice", "contrastive_term_divided_by_the_replicas"))
@pytest.mark.slow
@pytest.mark.parametrize("name", CONSISTENT)
def test_cause_is_named_if_records_are_consistent_with_it(name: str) -> None:
    report = _check(name, "mirrored")
    assert report.verdict == "fail"
    assert (report.findings[0].cause, report.findings[0].exact) == (CONSISTENT[name], False), str(report)
    assert report.findings[0].besides == BESIDES.get(name, ()), str(report)
    assert all(cause in str(report).splitlines()[0] for cause in BESIDES.get(name, ())), str(report)


@pytest.mark.nightly(each_commit=("mean_with_adam", "biases_not_reduced"))
@pytest.mark.slow
@pytest.mark.parametrize("name", ["mean_with_adam", "biases_not_reduced", "clipped_by_hand", "zeros_move_momentum"])
def test_cause_is_named_over_workers(name: str) -> None:
    assert _check(name, "multi_worker_mirrored").findings[0].cause == CAUSES[name]


RIGHT = (
    *("right", "right_adam", "right_clipping_after_the_sum", "right_fit", "right_adversaries", "right_loss_scale"),
    *("right_one_network_is_never_updated", "right_sharpness_aware", "right_penalty_divided_by_the_replicas"),
    *("right_micro_batches_in_a_step", "right_in_single_precision", "right_accumulation"),
    "right_accumulation_after_the_record",
    *("right_accumulation_with_adam", "right_accumulation_by_zeros_and_plain_sgd", "right_schedule"),
    "right_schedule_with_adam",
    *("right_terms", "right_masked_behind_synchronized_normalization", "right_masked_term_beside_another"),
    *("right_returns", "right_contrastive", "right_ratios", "right_delayed_actor", "right_weights_of_zero"),
)


@pytest.mark.nightly(each_commit=("right_adam", "right_micro_batches_in_a_step", "right_in_single_precision"))
@pytest.mark.slow
@pytest.mark.parametrize("name", RIGHT)
def test_right_program_raises_no_alarm(name: str) -> None:
    report = _check(name, "mirrored")
    assert report.verdict == "pass", str(report)


@pytest.mark.nightly
@pytest.mark.slow
def test_a_third_that_keras_rounds_to_float32_raises_no_alarm() -> None:
    assert _check("right_fit", "mirrored[replicas=3]").verdict == "pass"


def test_every_program_is_tested() -> None:
    import inspect

    names = {n for n, p in _programs().items() if inspect.isfunction(p) and not n.startswith("_")}
    assert names == {*CAUSES, *CONSISTENT, *RIGHT}
