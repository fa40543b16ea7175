"""The repeated comparison without randomness, on records: as strict as the plain one, and no more lenient after it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest
from simulated_training import Program, pair

from pytest_ddl.equivalence.causes import CAUSES
from pytest_ddl.equivalence.diagnosis.candidates.shared import random_layers
from pytest_ddl.equivalence.findings import Doubt, Outcome
from pytest_ddl.equivalence.probes import neutralized as neutralized_probe
from pytest_ddl.equivalence.probes.draw_levels import Level, doubts, joined
from pytest_ddl.equivalence.report import Report
from pytest_ddl.equivalence.verdict.judge import judge
from pytest_ddl.notes import Note, NoteKind
from pytest_ddl.records import DrawRecord, ErrorRecord, LayerRecord, StepRecord, TrainingRecord
from pytest_ddl.training import neutral
from pytest_ddl.training.settings import RunSettings

DIFFERS, REPEATED = "random-stream-differs-across-replicas", "random-stream-repeated-across-replicas"
DROPOUT = LayerRecord("drop", "Dropout", {"rate": 0.5})
HIGH, LOW, VARIED = (neutral.RANDOM,), (neutral.RANDOM, neutral.LOW), (neutral.RANDOM, neutral.VARIED)
STILL = Program(replicas=2, learning_rate=0.0, layers=(DROPOUT,))
"""Nothing moves: as where a program trains on masked examples only, and none is masked."""
Pair = tuple[TrainingRecord, TrainingRecord]


def _drawing(record: TrainingRecord, alike: bool) -> TrainingRecord:
    """A record whose replicas drew numbers for their examples."""
    rows = 12 // record.num_replicas

    def draw(replica: int, step: int) -> DrawRecord:
        digest = step if alike else 100 * replica + step
        return DrawRecord(replica, 0, "stateless_random_uniform_v2", "drop/uniform", digest, rows * 8, (rows, 8),
                          "float32", rows * 8)  # fmt: skip

    ranks = tuple(
        replace(
            rank,
            draws_observed=True,
            steps=tuple(replace(step, draws=tuple(draw(r, step.index) for r in rank.replicas)) for step in rank.steps),
        )
        for rank in record.ranks
    )
    return replace(record, ranks=ranks)


def _plain(alike: bool = False, **sins: object) -> Pair:
    """Runs that differ by what they draw, and by sins."""
    program = Program(replicas=2, layers=(DROPOUT,))
    reference, distributed = pair(program, **{"scale": 1.37, **sins})
    return _drawing(reference, alike), _drawing(distributed, alike)


def _quiet(program: Program | None = None, **sins: object) -> Pair:
    """The runs without randomness."""
    records = pair(program or Program(replicas=2, layers=(DROPOUT,)), **sins)
    first, second = (replace(record, neutralized=(neutral.RANDOM,)) for record in records)
    return first, second


def _probed(
    plain: Pair, quiet: Pair, expect: Collection[str] = (), strict: bool = False, low: Pair | None = None
) -> Report:
    """The report after the runs without randomness; those with low random numbers are the same unless given."""
    report, _levels = _probed_at_levels(plain, quiet, low or quiet, expect, strict)
    return report


def _probed_at_levels(
    plain: Pair, high: Pair, low: Pair, expect: Collection[str] = (), strict: bool = False, varied: Pair | None = None
) -> tuple[Report, list[tuple[str, ...]]]:
    """Return the report, and what was switched off in each comparison that was repeated."""
    report = judge(*plain, expect=expect, strict=strict)
    assert neutralized_probe.wanted(report, ())
    levels = []

    def compare_once(settings: RunSettings, checks: Collection[str] | None) -> Report:
        levels.append(settings.neutralize)
        pairs = {HIGH: high, LOW: low, VARIED: varied or high}
        return judge(*pairs[settings.neutralize], expect=expect, strict=strict, checks=checks)

    return neutralized_probe.probe(report, RunSettings(), compare_once), levels


def test_a_difference_that_vanishes_is_understood() -> None:
    report = _probed(_plain(), _quiet())
    assert report.passed, str(report)
    assert [finding.cause for finding in report.approximations] == [DIFFERS]
    assert [finding.cause for finding in _probed(_plain(), _quiet(), strict=True).findings] == [DIFFERS]
    declared = _probed(_plain(), _quiet(), [DIFFERS])
    assert declared.passed, str(declared)
    assert [finding.cause for finding, _reason in declared.expected] == [DIFFERS]
    assert not declared.unused_expectations


def test_a_stream_that_is_repeated_stays_a_finding_until_it_is_declared() -> None:
    assert [finding.cause for finding in _probed(_plain(alike=True), _quiet()).findings] == [REPEATED]
    declared = _probed(_plain(alike=True), _quiet(), [REPEATED])
    assert declared.passed, str(declared)
    assert not declared.unused_expectations


@pytest.mark.parametrize("expect", [(), [DIFFERS], [REPEATED], [DIFFERS, REPEATED]], ids=str)
@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize(
    "sin",
    [
        {"scale": 2.0},
        {"scale": 1.2},
        {"still": True},
        {"loss": "first"},
        {"worker_shift_at": 2},
        {"truncate": 2},
        {"extra_iterations": 1},
        {"nan_at": 2},
        {"frozen_moves": True},
    ],
    ids=str,
)
def test_what_remains_is_found_whatever_is_declared(sin: dict[str, Any], alike: bool, expect: Collection[str]) -> None:
    shown = {} if "truncate" in sin else sin
    report = _probed(_plain(alike, **{"scale": 1.37, **shown}), _quiet(**sin), expect)
    assert report.verdict == "fail", str(report)
    found = [finding.cause for finding in report.findings if finding.check != "SEED"]
    assert found
    assert not set(found) & {DIFFERS, REPEATED}, str(report)


@pytest.mark.parametrize("expect", [[DIFFERS], [REPEATED]], ids=str)
@pytest.mark.parametrize("alike", [False, True])
def test_runs_that_do_not_go_through_without_randomness_leave_the_rest_open(
    alike: bool, expect: Collection[str]
) -> None:
    error = ErrorRecord("ValueError", "the noise must not be constant", "", 1)
    good, bad = _quiet(), _quiet(error=error, truncate=1)
    failing = replace(good[0], ranks=tuple(replace(rank, error=error) for rank in good[0].ranks))
    short = _quiet(Program(replicas=2, truncate=1, layers=(DROPOUT,)))
    refused = tuple(
        replace(r, ranks=tuple(replace(k, notes=(Note(NoteKind.NOT_REPLACED, "binomial"),)) for k in r.ranks))
        for r in good
    )
    for quiet in (bad, (failing, good[1]), short, (refused[0], refused[1])):
        report = _probed(_plain(alike, loss="first"), quiet, expect)
        assert not report.passed, str(report)
        assert {finding.cause for finding in report.findings} <= {DIFFERS, REPEATED}
        assert any("whether anything else differs is not known" in why for why in report.inconclusive), str(report)
        recomputed = _probed(_plain(alike, scale=2.0), quiet, expect)
        assert "gradient-scaled-by-replica-count" in [finding.cause for finding in recomputed.findings]


def test_doubts_of_the_repeated_runs_are_doubts() -> None:
    report = _probed(_plain(), _quiet(STILL), [DIFFERS])
    assert report.verdict == "inconclusive", str(report)
    assert any("with every random number replaced by a constant" in why for why in report.inconclusive)


@pytest.mark.parametrize("expect", [(), [DIFFERS]], ids=str)
@pytest.mark.parametrize("sin", [{"scale": 2.0}, {"still": True}, {"loss": "first"}, {"truncate": 2}], ids=str)
def test_what_only_low_numbers_show_is_found(sin: dict[str, Any], expect: Collection[str]) -> None:
    report, levels = _probed_at_levels(_plain(), _quiet(), _quiet(**sin), expect)
    assert levels == [HIGH, LOW]
    assert report.verdict == "fail", str(report)
    assert not {finding.cause for finding in report.findings} & {DIFFERS, REPEATED}
    assert any("replaced by a low constant" in finding.message for finding in report.findings), str(report)
    assert report.neutralized == LOW


def test_low_numbers_are_not_tried_after_a_finding() -> None:
    report, levels = _probed_at_levels(_plain(), _quiet(scale=2.0), _quiet())
    assert levels == [HIGH]
    assert report.verdict == "fail"
    assert report.neutralized == HIGH


def test_shuffles_have_one_level() -> None:
    def shuffled(record: TrainingRecord) -> TrainingRecord:
        def step(one: StepRecord) -> StepRecord:
            return replace(one, draws=tuple(replace(draw, op="random_shuffle") for draw in one.draws))

        ranks = (replace(rank, steps=tuple(map(step, rank.steps))) for rank in record.ranks)
        return replace(record, ranks=tuple(ranks))

    reference, distributed = map(shuffled, _plain())
    report, levels = _probed_at_levels((reference, distributed), _quiet(), _quiet())
    assert levels == [HIGH]
    assert report.passed, str(report)


def _choosing(records: Pair) -> Pair:
    """Runs in which a draw is one whole number."""

    def of(record: TrainingRecord) -> TrainingRecord:
        def step(one: StepRecord) -> StepRecord:
            return replace(one, draws=tuple(replace(draw, shape=(), dtype="int32") for draw in one.draws))

        return replace(record, ranks=tuple(replace(rank, steps=tuple(map(step, rank.steps))) for rank in record.ranks))

    return of(records[0]), of(records[1])


def test_numbers_that_vary_are_tried_for_draws_that_choose() -> None:
    report, levels = _probed_at_levels(_choosing(_plain()), _quiet(), _quiet(), varied=_quiet(scale=2.0))
    assert levels == [HIGH, LOW, VARIED]
    assert report.verdict == "fail"
    assert "replaced by one that changes with the step" in report.findings[0].message
    assert _probed_at_levels(_choosing(_plain()), _quiet(), _quiet())[0].passed


def test_numbers_that_cannot_vary_on_one_device_are_left_out() -> None:
    error = ErrorRecord("ValueError", "no converter for PyFunc", "", 1)
    reference, distributed = _quiet()
    failing = replace(reference, ranks=tuple(replace(rank, error=error) for rank in reference.ranks))
    report, _levels = _probed_at_levels(_choosing(_plain()), _quiet(), _quiet(), varied=(failing, distributed))
    assert report.passed, str(report)
    only_there = replace(distributed, ranks=tuple(replace(rank, error=error) for rank in distributed.ranks))
    report, _levels = _probed_at_levels(_choosing(_plain()), _quiet(), _quiet(), varied=(reference, only_there))
    assert not report.passed


@pytest.mark.parametrize("low_is_still", [True, False])
def test_the_level_in_which_weights_move_decides(low_is_still: bool) -> None:
    def probed(moving: Pair) -> Report:
        high, low = (moving, _quiet(STILL)) if low_is_still else (_quiet(STILL), moving)
        report, levels = _probed_at_levels(_plain(), high, low)
        assert report.neutralized == (HIGH if low_is_still else LOW)
        assert levels == [HIGH, LOW][: len(levels)]
        return report

    report = probed(_quiet())
    assert report.passed, str(report)
    assert any("once by a high one, once by a low one" in note for note in report.notes)
    told = "constant" if low_is_still else "low constant"
    assert f"(with every random number replaced by a {told})" in report.result("STEP-EQ").reason  # type: ignore[union-attr]
    assert probed(_quiet(scale=2.0)).verdict == "fail"


def test_a_check_stays_open_if_what_moved_stands_still_at_the_other_level() -> None:
    """Numbers that say nothing about most weights do not decide what is open for these."""

    def level(pair: Pair, outcome: Outcome) -> Level:
        report = judge(*pair)
        results = tuple(replace(r, outcome=outcome) if r.check == "STEP-EQ" else r for r in report.results)
        why = [Doubt(r.check, r.reason) for r in results if r.outcome is Outcome.INCONCLUSIVE]
        return Level(replace(report, results=results, doubts=tuple(why)), HIGH, "told")

    for decided, settled in ((_quiet(), True), (_quiet(STILL), False)):
        levels = level(_quiet(), Outcome.INCONCLUSIVE), level(decided, Outcome.PASS)
        result = joined(levels, "STEP-EQ")
        assert result is not None
        assert result.outcome is (Outcome.PASS if settled else Outcome.INCONCLUSIVE)
        assert any(why.check == "STEP-EQ" for why in doubts(levels[0], levels)) is not settled


def test_a_level_that_does_not_go_through_leaves_the_rest_open() -> None:
    error = ErrorRecord("ValueError", "no example is masked", "", 1)
    reference, distributed = _quiet()
    failing = replace(reference, ranks=tuple(replace(rank, error=error) for rank in reference.ranks))
    report, levels = _probed_at_levels(_plain(), (reference, distributed), (failing, distributed), [DIFFERS])
    assert levels == [HIGH, LOW]
    assert report.verdict == "inconclusive", str(report)
    assert any(
        "replaced by a low constant, but the runs could not be compared: ValueError" in why
        for why in report.inconclusive
    )


@pytest.mark.parametrize(
    ("settings", "observed", "names"),
    [
        ({"rate": 0.0}, False, []),
        ({"rate": 0.5}, False, ["drop"]),
        ({"rate": 0.5}, True, []),
        ({"rate": 0}, True, []),
    ],
)
def test_layers_count_only_if_they_can_draw_unseen(settings: dict[str, Any], observed: bool, names: list[str]) -> None:
    program = Program(replicas=2, layers=(LayerRecord("drop", "Dropout", settings),))
    records = pair(program, scale=1.37)
    records = tuple(replace(r, ranks=tuple(replace(k, draws_observed=observed) for k in r.ranks)) for r in records)  # type: ignore[assignment]
    assert random_layers(records[1]) == names
    assert judge(*records).findings[0].cause == (DIFFERS if names else None)


def test_what_can_be_switched_off_is_known_by_the_causes() -> None:
    known = {cause.gone_without for cause in CAUSES.values()}
    assert known == {"", neutral.RANDOM, neutral.NORMALIZATION}
