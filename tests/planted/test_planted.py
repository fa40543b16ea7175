"""The first planted bugs of each topic are caught and their causes named first, and their correct twins pass."""

from __future__ import annotations

import re

import pytest

from tests.planted.catalogue import KNOWN_MISSES, NOT_SHOWABLE, PLANTED, TOPICS
from tests.planted.run import evaluate

QUICK = {
    ("loss_is_a_mean_per_replica", "mirrored"),
    ("gradients_are_applied_without_aggregation", "multi_worker_mirrored"),
    ("global_norm_is_clipped_before_the_reduction", "mirrored"),
    ("every_worker_reads_everything", "multi_worker_mirrored"),
}
"""Pairs that the quick loop runs; the others are marked slow."""

PER_TOPIC = 3
"""Bugs of each topic that the tests run, each under its first strategy; the evaluation runs all under all."""

CHOSEN = [
    entry
    for topic in TOPICS
    for entry in [
        entry for entry in PLANTED if getattr(entry.sin, "func", entry.sin).__module__ == f"tests.planted.{topic}"
    ][:PER_TOPIC]
]
# Sorted by strategy: clusters stay warm.
CASES = [
    pytest.param(
        entry,
        strategy,
        id=f"{entry.name}-{strategy}",
        marks=() if (entry.name, strategy) in QUICK else pytest.mark.slow,
    )
    for strategy, entry in sorted(((entry.strategies[0], entry) for entry in CHOSEN), key=lambda pair: pair[0])
]


# Of "translation", whose models take longest, no bug runs for each commit. Smaller programs have these mistakes:
# mean_with_dropout and masked_mean_on_each_replica in test_gradients.py, masked_by_replica in test_random_numbers.py.
@pytest.mark.nightly(
    each_commit=(
        "augmentation_draws_alike_on_all_replicas",
        "weights_alone_are_saved",
        "step_is_decorated_within_the_loop",
        "replicas_skip_the_update_by_themselves",
        "velocity_by_hand_hides_the_scale",
        "norm_of_the_first_replica_limits_the_sum",
        "positives_lack_the_offset_of_the_replica",
        "divergence_of_codes_is_a_mean_over_the_replica",
        "lion_hides_a_mean_per_replica",
        "rule_matches_no_variable",
        "loss_is_multiplied_by_the_mesh",
        "chief_alone_saves_synchronised_variables",
        "every_worker_iterates_over_all_data",
    )
)
@pytest.mark.parametrize(("planted", "strategy"), CASES)
def test_a_sin_is_caught_and_its_cause_named(planted, strategy, request):
    reason = KNOWN_MISSES.get((planted.name, strategy))
    if reason is not None:
        request.applymarker(pytest.mark.xfail(reason=reason, strict=True))
    outcome = evaluate(planted, strategy)
    assert outcome.caught, outcome.detail
    assert outcome.cause in planted.causes, outcome.detail


@pytest.mark.nightly(
    each_commit=(
        "optimizer_does_not_aggregate",
        "aggregation_is_switched_off_in_tf_keras",
        "rows_are_added_up_without_their_ids",
        "dropout_of_keras_draws_alike_on_all_replicas",
        "loss_shown_is_the_mean_of_uneven_replica_means",
        "weights_alone_are_saved",
        "optimizer_is_restored_before_it_is_built",
        "number_of_the_step_is_a_python_number",
        "step_is_decorated_within_the_loop",
        "replicas_leave_out_their_own_bad_gradients",
        "final_weights_are_summed_over_the_replicas",
        "learning_rate_is_scaled_after_the_loop",
    )
)
@pytest.mark.parametrize(("planted", "strategy"), CASES)
def test_a_correct_twin_passes(planted, strategy):
    outcome = evaluate(planted, strategy, "twin")
    assert outcome.verdict == "pass", outcome.detail


@pytest.mark.nightly
@pytest.mark.slow
def test_data_that_each_worker_of_a_coordinator_reads_is_tolerated_and_named():
    """TensorFlow documents it, so the report passes by default, and says what happens to the examples."""
    (entry,) = [entry for entry in PLANTED if entry.name == "every_worker_iterates_over_all_data"]
    outcome = evaluate(entry, "parameter_server", strict=False)
    assert outcome.verdict == "pass", outcome.detail
    text = " ".join(outcome.detail.split())
    assert "approximation: step 2, examples-duplicated" in text
    assert "workers of the coordinator reads all of the data by itself" in text


def test_names_and_causes_are_those_of_the_contract():
    from pytest_ddl.equivalence.causes import CAUSES

    names = [entry.name for entry in PLANTED]
    assert len(set(names)) == len(names) >= 75
    assert not {cause for entry in PLANTED for cause in entry.causes} - set(CAUSES)
    assert all(entry.causes and entry.strategies for entry in PLANTED)


def test_known_misses_name_planted_bugs():
    assert set(KNOWN_MISSES) <= {(entry.name, strategy) for entry in PLANTED for strategy in entry.strategies}


VISIBLE = """
    A01 A03 A04 A05 A06 A08 A09 A12 A13 A14 B01 B03 B04 B06 B07 B08 B09 B11 B14 B15 B16 B17 B19 B23 B27 B29 B31
    B32 B34 B35 B36 C01 C06 C07 C09 C10 C12 C13 C16 C17 C18 C19 C24 C25 C26 C27 C28 D01 D03 D05 D07 D09 D11 D14
    D15 D16 D17 E02 E03 E05 E06 E07 E10 E12 F02 F04 F06 F07 F08 G03 G07 G08 G09 G10 G11 G12 G13 H01 H05 H06 H07
    H08 J01 J02 J04 J05 J06 K02 K03 K04 K05 K06
"""
"""The ids of the visible corpus."""


def test_every_entry_of_the_visible_corpus_is_accounted_for():
    shown = {id_ for entry in PLANTED for id_ in entry.ids}
    assert all(re.fullmatch(r"[A-K]\d\d", id_) for id_ in shown)
    assert not shown & set(NOT_SHOWABLE)
    assert shown | set(NOT_SHOWABLE) == set(VISIBLE.split())
