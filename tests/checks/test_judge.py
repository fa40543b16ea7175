"""Every check both ways: correct programs pass, each planted sin is found and named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from simulated_training import Program, pair, simulate

from pytest_ddl.equivalence.checks.registry import CHECKS, Check
from pytest_ddl.equivalence.evidence.slices import Slices
from pytest_ddl.equivalence.findings import Finding, Outcome
from pytest_ddl.equivalence.outcomes import failed
from pytest_ddl.equivalence.roles import Role
from pytest_ddl.equivalence.verdict.judge import judge, needs_noise
from pytest_ddl.equivalence.verdict.precedence import root_causes
from pytest_ddl.equivalence.verdict.report import Report
from pytest_ddl.records import LayerRecord, TrainingRecord, VariableKind, VariableRecord

EVEN, UNEVEN = (12, 12, 12), (12, 5, 12)


def outcomes(report: Report) -> dict[str, Outcome]:
    return {result.check: result.outcome for result in report.results}


def causes(report: Report) -> list[str | None]:
    return [finding.cause for finding in report.findings]


@pytest.mark.parametrize("batches", [EVEN, UNEVEN, (5, 12), (1, 12), (12, 9, 1)], ids=str)
@pytest.mark.parametrize(
    "optimizer",
    [{}, {"momentum": 0.9}, {"optimizer": "Adam"}, {"l2": 0.05}, {"clipnorm": 0.3}],
    ids=["sgd", "momentum", "adam", "l2", "clipnorm"],
)
@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_correct_program_passes(replicas: int, optimizer: dict[str, Any], batches: tuple[int, ...]) -> None:
    report = judge(*pair(Program(replicas=replicas, batches=batches, **optimizer)))
    assert report.verdict == "pass", str(report)
    assert not needs_noise(report)
    bad = (Outcome.FAIL, Outcome.INCONCLUSIVE)
    assert not [check for check, outcome in outcomes(report).items() if outcome in bad]


def test_correct_program_on_several_workers_passes() -> None:
    assert judge(*pair(Program(replicas=4, workers=2, batches=UNEVEN))).passed


PLANTED = [
    ("gradient-scaled-by-replica-count", {}, {"scale": 2.0}, "STEP-EQ"),
    ("gradient-scaled-by-replica-count", {"momentum": 0.9}, {"scale": 2.0}, "STEP-EQ"),
    ("gradient-scaled-by-replica-count", {"l2": 0.05}, {"data_scale": 2.0}, "STEP-EQ"),
    ("gradient-scaled-by-replica-count", {"optimizer": "Adam"}, {"scale": 2.0}, "STEP-EQ"),
    ("gradient-scaled-by-inverse-replica-count", {}, {"scale": 0.5}, "STEP-EQ"),
    ("gradient-scaled-by-inverse-replica-count", {"l2": 0.05}, {"data_scale": 0.5}, "STEP-EQ"),
    ("gradient-not-aggregated", {}, {"aggregate": False}, "STEP-EQ"),
    ("gradient-not-aggregated", {"batches": (5, 5)}, {"aggregate": False}, "STEP-EQ"),
    ("gradient-not-aggregated", {"workers": 2}, {"aggregate": False}, "STEP-EQ"),
    ("gradient-not-aggregated", {"optimizer": "Adam"}, {"aggregate": False}, "STEP-EQ"),
    ("regularization-scaled-by-replica-count", {"l2": 0.05}, {"l2_factor": 2.0}, "STEP-EQ"),
    ("gradient-clipped-before-aggregation", {"clipnorm": 0.3}, {"clip_first": True}, "STEP-EQ"),
    ("clipping-lost", {"clipnorm": 0.3}, {"clip_never": True}, "STEP-EQ"),
    ("empty-replica", {"batches": (1, 12)}, {"empty_counts": True}, "STEP-EQ"),
    ("empty-replica", {"batches": (12, 1)}, {"empty_counts": True}, "STEP-EQ"),
    ("variable-did-not-move", {}, {"still": True}, "STEP-EQ"),
    ("frozen-variable-moved", {}, {"frozen_moves": True}, "STEP-EQ"),
    ("initial-weights-differ", {}, {"initial_shift": 0.1}, "STEP-EQ"),
    ("unequal-steps", {}, {"truncate": 2}, "STEP-EQ"),
    ("workers-diverged", {"workers": 2}, {"worker_shift_at": 2}, "REPLICA-EQ"),
    ("replicas-diverged", {}, {"worker_shift_at": 2}, "REPLICA-EQ"),
    ("state-not-aggregated", {}, {"state_local": True}, "REPLICA-EQ"),
    ("reported-loss-wrong", {}, {"loss": "sum"}, "LOSS-EQ"),
    ("reported-loss-wrong", {}, {"loss": "first"}, "LOSS-EQ"),
    ("reported-loss-wrong", {"batches": UNEVEN}, {"loss": "means"}, "LOSS-EQ"),
    ("examples-duplicated", {}, {"duplicate": True}, "DATA-COVER"),
    ("global-batch-wrong", {}, {"drop": True}, "BATCH"),
    ("iteration-count-wrong", {}, {"extra_iterations": 1}, "OPT-STATE"),
    ("learning-rate-differs", {}, {"learning_rate_factor": 2.0}, "OPT-STATE"),
    ("optimizer-state-mismatch", {"momentum": 0.9}, {"slot_factor": 3.0}, "OPT-STATE"),
    (None, {}, {"scale": 1.37}, "STEP-EQ"),
    (None, {}, {"reorder_batches": True}, "DATA-COVER"),
    (None, {}, {"nan_at": 2}, "STEP-EQ"),
]


@pytest.mark.parametrize(("cause", "program", "sin", "check"), PLANTED)
def test_planted_sin_is_named(cause: str | None, program: dict[str, Any], sin: dict[str, Any], check: str) -> None:
    report = judge(*pair(Program(replicas=2, **program), **sin))
    assert report.verdict == "fail", str(report)
    assert report.findings[0].cause == cause, str(report)
    assert report.findings[0].check == check
    assert outcomes(report)[check] is Outcome.FAIL
    assert (report.findings[0].fix is None) == (cause is None)


@pytest.mark.parametrize("replicas", [2, 4])
def test_scale_is_seen_behind_a_scale_invariant_optimizer(replicas: int) -> None:
    report = judge(*pair(Program(replicas=replicas, optimizer="Adam"), scale=float(replicas)), checks=["OPT-STATE"])
    assert causes(report) == ["gradient-scaled-by-replica-count"]


def test_one_finding_per_root_cause() -> None:
    report = judge(*pair(Program(replicas=2, momentum=0.9), aggregate=False))
    assert causes(report) == ["gradient-not-aggregated"]
    failing = [check for check, outcome in outcomes(report).items() if outcome is Outcome.FAIL]
    assert {"STEP-EQ", "REPLICA-EQ"} <= set(failing)


def test_wrong_loss_beside_wrong_gradient_of_another_kind_is_reported_too() -> None:
    report = judge(*pair(Program(replicas=2), scale=2.0, loss="first"))
    assert causes(report) == ["gradient-scaled-by-replica-count", "reported-loss-wrong"]


def test_loss_off_by_the_gradient_s_formula_is_the_same_defect() -> None:
    report = judge(*pair(Program(replicas=2), scale=2.0, loss="sum"))
    assert causes(report) == ["gradient-scaled-by-replica-count"]


def test_mean_of_replica_means_is_an_approximation() -> None:
    """Nothing recomputes it if there are no recorded gradients or runs on parts of the batch: the verdict is open."""
    records = pair(Program(replicas=2, batches=(12, 12, 5)), mean_of_means=True)
    report = judge(*records)
    assert report.verdict == "inconclusive"
    assert "nothing recomputes the size of its effect" in report.inconclusive[0]
    assert [f.cause for f in report.approximations] == ["mean-of-replica-means"]
    assert causes(judge(*records, strict=True)) == ["mean-of-replica-means"]


def test_empty_replica_after_an_approximation_is_not_passed_over() -> None:
    report = judge(*pair(Program(replicas=2, batches=(12, 5, 1)), empty_counts=True))
    assert report.verdict == "inconclusive"
    assert "leaves a replica empty" in str(report)


@pytest.mark.parametrize("factor", [1.37, 3.0])
def test_unexplained_difference_in_an_uneven_first_step_is_not_excused(factor: float) -> None:
    program = Program(replicas=2, batches=(5, 12))
    record = simulate(replace(program, scale=factor, loss="first"))
    stripped = _without_batch_losses(record)
    report = judge(simulate(replace(program, replicas=1)), stripped, checks=["STEP-EQ"])
    assert report.verdict == "fail"


def _without_batch_losses(record: TrainingRecord) -> TrainingRecord:
    def strip(step: Any) -> Any:
        return replace(step, batches=tuple(replace(batch, loss=None) for batch in step.batches))

    ranks = tuple(replace(rank, steps=tuple(map(strip, rank.steps))) for rank in record.ranks)
    return replace(record, ranks=ranks)


def test_slices_turn_a_guess_into_a_recomputation() -> None:
    program = Program(replicas=2, batches=(5, 12))
    reference, distributed = pair(program, mean_of_means=True)
    # A replica's slice: the same first batch cut to the replica's examples.
    own = {replica: _one_replica(program, replica) for replica in range(2)}
    report = judge(reference, distributed, slices=Slices(1, own))
    (finding,) = report.approximations
    assert finding.exact
    assert "mean of the updates of each replica's examples" in (finding.evidence or "")


def _one_replica(program: Program, replica: int) -> TrainingRecord:
    """One device fed with a replica's part: read off a run whose replicas do not aggregate."""
    apart = simulate(replace(program, aggregate=False))
    rank = apart.ranks[0]

    def own(snapshot: Any) -> Any:
        return {index: (values[replica],) for index, values in snapshot.items()}

    steps = tuple(replace(step, snapshot=own(step.snapshot)) for step in rank.steps)
    return replace(apart, ranks=(replace(rank, initial=own(rank.initial), steps=steps),), num_replicas=1)


@pytest.mark.parametrize(
    ("layer", "cause"),
    [
        (LayerRecord("bn", "BatchNormalization", {"synchronized": False}), "per-replica-normalization"),
        (LayerRecord("drop", "Dropout", {"rate": 0.5}), "random-stream-differs-across-replicas"),
        (LayerRecord("embed", "Embedding", {"mask_zero": True}), "masked-loss-normalised-per-replica"),
    ],
)
def test_layers_suggest_a_cause_where_nothing_is_recomputed(layer: LayerRecord, cause: str) -> None:
    records = pair(Program(replicas=2, layers=(layer,)), scale=1.37)
    report = judge(*records)
    assert causes(report) == [cause]
    assert not report.findings[0].exact


def test_layers_do_not_hide_what_is_recomputed() -> None:
    layer = LayerRecord("drop", "Dropout", {"rate": 0.5})
    assert causes(judge(*pair(Program(replicas=2, layers=(layer,)), scale=2.0))) == ["gradient-scaled-by-replica-count"]


def test_expectation_that_does_not_occur_is_reported() -> None:
    report = judge(*pair(Program(replicas=2)), expect={"per-replica-normalization": "plain BN"})
    assert report.passed
    assert report.unused_expectations == {"per-replica-normalization": "plain BN"}
    assert "unused expectation: per-replica-normalization" in str(report)


def test_unknown_names_are_refused_with_the_valid_ones() -> None:
    records = pair(Program(replicas=2))
    with pytest.raises(ValueError, match=r"unknown cause 'gradient-scald' .did you mean 'gradient-"):
        judge(*records, expect={"gradient-scald": "typo"})
    with pytest.raises(ValueError, match=r"unknown check 'STEP' \(did you mean 'STEP-EQ'\?\); valid: RUN, "):
        judge(*records, checks=["STEP"])
    with pytest.raises(ValueError, match="must map cause ids to reasons"):
        judge(*records, expect="empty-replica")


def test_nothing_observed_never_passes() -> None:
    report = judge(*pair(Program(replicas=2), observe=False), checks=["BATCH", "DATA-COVER", "UNEVEN-EQ"])
    states = outcomes(report)
    states.pop("RUN")
    # One device has reported ids, and the strategy has not.
    assert states.pop("DATA-COVER") is Outcome.INCONCLUSIVE
    assert set(states.values()) == {Outcome.NOT_APPLICABLE}
    assert not report.passed
    empty = replace(simulate(Program()), ranks=())
    assert not judge(empty, empty).passed


def test_one_reason_of_several_checks_is_printed_once() -> None:
    text = str(judge(*pair(Program(replicas=2, truncate=0))))
    headline, _empty, table = text.partition("\n\n")
    assert "no training step was recorded" in headline
    assert " ".join(table.split()).count("no training step was recorded") == 1


def test_no_steps_is_inconclusive_in_every_check() -> None:
    report = judge(*pair(Program(replicas=2, truncate=0)))
    assert report.verdict == "inconclusive"
    passing = [check for check, outcome in outcomes(report).items() if outcome is Outcome.PASS]
    assert passing == ["RUN", "LIVENESS", "REPLICA-EQ"]


def test_reference_that_stands_still_is_inconclusive() -> None:
    report = judge(*pair(Program(replicas=2, learning_rate=0.0)))
    assert report.verdict == "inconclusive"


def test_reference_that_is_not_finite_is_inconclusive_unless_the_kind_differs() -> None:
    program = Program(nan_at=2)
    broken = simulate(program)
    assert judge(broken, simulate(replace(program, replicas=2))).verdict == "inconclusive"
    report = judge(broken, simulate(replace(program, replicas=2, nan_at=None)))
    assert report.verdict == "fail"


INVARIANTS = [
    "STEP-EQ",
    "REPLICA-EQ",
    "UNEVEN-EQ",
    "LOSS-EQ",
    "METRIC-EQ",
    "STATE-EQ",
    "OPT-STATE",
    "DATA-COVER",
    "BATCH",
    "SEED",
    "CKPT",
    "RESUME",
    "WRITE",
    "LIVENESS",
    "COLL-LOG",
    "COLL-VALUE",
    "NONFINITE",
    "CLIP",
    "GRAD-EQ",
    "ACCUM",
    "PERF",
    "PS",
    "LINT",
    "MOVES",
    "LAYOUT",
]


def test_registry_lists_every_invariant_once() -> None:
    names = [check.name for check in CHECKS]
    assert sorted(names) == sorted(["RUN", *INVARIANTS])


def test_declared_state_does_not_hide_weights_that_drift_later() -> None:
    records = pair(Program(replicas=2), state_local=True, worker_shift_at=2)
    report = judge(*records, expect={"state-not-aggregated": "plain moving average"})
    assert causes(report) == ["replicas-diverged"]


def test_declared_randomness_does_not_hide_replicas_that_drift() -> None:
    layer = LayerRecord("drop", "Dropout", {"rate": 0.5})
    records = pair(Program(replicas=2, layers=(layer,)), scale=1.37, worker_shift_at=2)
    report = judge(*records, expect={"random-stream-differs-across-replicas": "dropout"})
    assert causes(report) == ["replicas-diverged"]


def test_nan_in_an_uneven_step_is_never_excused_as_an_approximation() -> None:
    report = judge(*pair(Program(replicas=2, batches=UNEVEN), nan_at=2))
    assert report.verdict == "fail"


def test_a_tolerated_number_within_an_epoch_does_not_excuse_a_wrong_result() -> None:
    shown = Finding("METRIC-EQ", "mae that fit shows", cause="metric-wrong", step=1, approximation=True)
    result = Finding("METRIC-EQ", "evaluate/mae", cause="metric-wrong", step=3)
    assert root_causes([shown, result]) == [shown, result]


def test_what_is_trained_and_not_watched_is_no_pass():
    reference, distributed = pair(Program(replicas=2))
    (rank,) = distributed.ranks
    left_out = replace(rank, facts={"unwatched": ["second/kernel"]})
    report = judge(reference, replace(distributed, ranks=(left_out,)))
    assert report.verdict == "inconclusive"
    assert "second/kernel" in report.inconclusive[0]
    assert "run.watch(model=...)" in report.inconclusive[0]
    _reference, wrong = pair(Program(replicas=2), scale=2.0)
    (rank,) = wrong.ranks
    wrong = replace(wrong, ranks=(replace(rank, facts={"unwatched": ["second/kernel"]}),))
    assert judge(reference, wrong).verdict == "fail"


def test_a_note_names_what_an_optimizer_without_updates_leaves_open() -> None:
    """Three steps do not judge a second optimizer that runs every fifth step."""
    reference, distributed = pair(Program(replicas=2))

    def with_idle_part(record: TrainingRecord) -> TrainingRecord:
        weight, counter = len(record.variables), len(record.variables) + 1
        added = (
            VariableRecord(weight, "critic/kernel", VariableKind.TRAINABLE, (2,), "float64"),
            VariableRecord(counter, "critic_optimizer/iterations", VariableKind.ITERATIONS, (), "int64"),
        )
        values = {weight: (np.ones(2),), counter: (np.asarray(0),)}
        ranks = [
            replace(
                rank,
                variables=(*rank.variables, *added),
                initial={**rank.initial, **values},
                steps=tuple(replace(step, snapshot={**step.snapshot, **values}) for step in rank.steps),
            )
            for rank in record.ranks
        ]
        return replace(record, ranks=tuple(ranks))

    assert judge(reference, distributed).passed
    report = judge(with_idle_part(reference), with_idle_part(distributed))
    assert report.passed
    why = "its optimizer makes no update because critic_optimizer/iterations does not grow in 3 step(s)"
    assert f"MOVES did not compare critic/kernel ({why})" in report.notes


def test_infinite_values_cause_no_warnings_of_numpy() -> None:
    """Under ``-W error`` such a warning would be an error of the test."""

    def infinite(record: TrainingRecord) -> TrainingRecord:
        def from_step_2(step: Any) -> Any:
            if step.index < 2:
                return step
            return replace(step, snapshot={k: tuple(v * np.inf for v in parts) for k, parts in step.snapshot.items()})

        ranks = [replace(rank, steps=tuple(map(from_step_2, rank.steps))) for rank in record.ranks]
        return replace(record, ranks=tuple(ranks))

    with np.errstate(invalid="ignore"):
        reference, distributed = map(infinite, pair(Program(replicas=2, batches=EVEN)))
    report = judge(reference, distributed)
    assert report.verdict == "inconclusive"


def test_a_check_cannot_verify_its_own_finding() -> None:
    """A declared finding of a plugin hid what else differed in its step."""
    own = Finding("OWN", "declared", cause="variable-outside-scope", step=1, verified=True)
    check = Check("OWN", lambda *_records: failed("OWN", [own]), "title", "nothing", Role.SETUP)
    runs = pair(Program(replicas=2), scale=2.0)
    report = judge(*runs, known=(*CHECKS, check), expect={"variable-outside-scope": "meant"})
    assert report.verdict == "fail"
