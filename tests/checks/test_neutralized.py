"""The repeated comparison without randomness, on records: as strict as the plain one, and no more lenient after it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest
from simulated_training import Program, pair

from pytest_ddl.equivalence.causes import CAUSES
from pytest_ddl.equivalence.diagnosis.candidates.shared import random_layers
from pytest_ddl.equivalence.probes import neutralized as neutralized_probe
from pytest_ddl.equivalence.verdict.judge import judge
from pytest_ddl.equivalence.verdict.report import Report
from pytest_ddl.notes import Note, NoteKind
from pytest_ddl.records import DrawRecord, ErrorRecord, LayerRecord, StepRecord, TrainingRecord
from pytest_ddl.training import neutral
from pytest_ddl.training.settings import RunSettings

DIFFERS, REPEATED = "random-stream-differs-across-replicas", "random-stream-repeated-across-replicas"
NORMALIZES = "per-replica-normalization"
DROPOUT = LayerRecord("drop", "Dropout", {"rate": 0.5})
COMMON, ORDERED = (neutral.RANDOM,), (neutral.RANDOM, neutral.IN_ORDER)
STILL = Program(replicas=2, learning_rate=0.0, layers=(DROPOUT,))
"""Program in which nothing moves, like one that trains only on masked examples if none is masked."""
Pair = tuple[TrainingRecord, TrainingRecord]


def _drawing(
    record: TrainingRecord, alike: bool, op: str = "stateless_random_uniform_v2", **few: Any
) -> TrainingRecord:
    """A record whose replicas drew numbers for their examples."""
    rows = 12 // record.num_replicas

    def draw(replica: int, step: int) -> DrawRecord:
        digest = step if alike else 100 * replica + step
        made = DrawRecord(replica, 0, op, "drop/uniform", digest, rows * 8, (rows, 8), "float32", rows * 8)
        return replace(made, **few)

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
    plain: Pair, quiet: Pair, expect: Collection[str] = (), strict: bool = False, ordered: Pair | None = None
) -> Report:
    """The report after the runs with common numbers; those with ordered ones are the same unless given."""
    report, _runs = _probed_runs(plain, quiet, expect, strict, ordered)
    return report


def _probed_runs(
    plain: Pair, quiet: Pair, expect: Collection[str] = (), strict: bool = False, ordered: Pair | None = None
) -> tuple[Report, list[tuple[str, ...]]]:
    """Return the report, and what was switched off in each comparison that was repeated."""
    report = judge(*plain, expect=expect, strict=strict)
    assert neutralized_probe.wanted(report, ())
    runs = []

    def compare_once(settings: RunSettings, checks: Collection[str] | None) -> Report:
        runs.append(settings.neutralize)
        assert settings.places is not None
        pairs = {COMMON: quiet, ORDERED: ordered or quiet}
        return judge(*pairs[settings.neutralize], expect=expect, strict=strict, checks=checks)

    return neutralized_probe.probe(report, RunSettings(), compare_once), runs


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
    assert any("with the same random numbers for the same examples" in why for why in report.inconclusive)


def test_numbers_in_order_are_tried_for_a_program_that_may_sort_its_examples() -> None:
    report, runs = _probed_runs(_plain(), _quiet(scale=1.2), ordered=_quiet())
    assert runs == [COMMON, ORDERED]
    assert report.passed, str(report)
    assert report.neutralized == ORDERED
    assert "ordered by replica" in report.approximations[0].evidence  # type: ignore[operator]
    assert _probed_runs(_plain(), _quiet())[1] == [COMMON]
    recomputed, runs = _probed_runs(_plain(), _quiet(scale=2.0), ordered=_quiet())
    assert runs == [COMMON]
    assert recomputed.verdict == "fail"


@pytest.mark.parametrize("ordered", [{"scale": 2.0}, {"loss": "first"}, {"truncate": 2}], ids=str)
def test_numbers_in_order_excuse_nothing_that_they_show_too(ordered: dict[str, Any]) -> None:
    report, runs = _probed_runs(_plain(), _quiet(scale=1.2), ordered=_quiet(**ordered))
    assert runs == [COMMON, ORDERED]
    assert report.verdict == "fail", str(report)
    assert report.neutralized == COMMON


def test_a_doubt_of_numbers_in_order_leaves_the_finding() -> None:
    report, _runs = _probed_runs(_plain(), _quiet(scale=1.2), ordered=_quiet(STILL))
    assert report.verdict == "fail", str(report)


def test_numbers_without_a_place_leave_a_doubt() -> None:
    """The draws have as many rows as no batch, so they are all alike, and a wrong mean over them would not show."""

    def resized(record: TrainingRecord) -> TrainingRecord:
        def step(one: StepRecord) -> StepRecord:
            return replace(one, draws=tuple(replace(draw, shape=(draw.shape[0] // 2 + 1, 8)) for draw in one.draws))

        ranks = (replace(rank, steps=tuple(map(step, rank.steps))) for rank in record.ranks)
        return replace(record, ranks=tuple(ranks))

    plain = _plain()
    reference, distributed = map(resized, plain)
    quiet = tuple(_drawn_like(record, drawn) for record, drawn in zip(_quiet(), (reference, distributed), strict=True))
    report = _probed((reference, distributed), (quiet[0], quiet[1]))
    assert report.verdict == "inconclusive", str(report)
    assert any("it is not known to which examples" in why for why in report.inconclusive)
    fitting = tuple(_drawn_like(record, drawn) for record, drawn in zip(_quiet(), plain, strict=True))
    assert _probed(plain, (fitting[0], fitting[1])).passed


def _drawn_like(record: TrainingRecord, drawn: TrainingRecord) -> TrainingRecord:
    ranks = zip(record.ranks, drawn.ranks, strict=True)
    made = (
        replace(
            rank,
            steps=tuple(replace(s, draws=o.draws) for s, o in zip(rank.steps, other.steps, strict=True)),
        )
        for rank, other in ranks
    )
    return replace(record, ranks=tuple(made))


@pytest.mark.parametrize(
    ("alike", "op", "fields", "verdict"),
    [
        (True, "stateful_uniform_int", {}, "inconclusive"),
        (False, "stateful_uniform_int", {}, "pass"),
        (True, "stateful_uniform_int", {"distinct": 1.0}, "inconclusive"),
        (True, "random_uniform_int", {}, "pass"),  # follows the global seed, which the plugin sets alike
        (True, "random_uniform_int", {"seeded": True}, "inconclusive"),
        (True, "stateless_random_uniform_int_v2", {"seeds": 5}, "fail"),
    ],
)
def test_equal_streams_explain_no_difference(alike: bool, op: str, fields: dict[str, Any], verdict: str) -> None:
    """A few coins that agree may agree by chance, so they are no finding, but the difference is not understood."""
    given = {"dtype": "int32", "distinct": 1.1, **fields}
    reference, distributed = (
        _drawing(record, alike, op, **given) for record in pair(Program(replicas=2, layers=(DROPOUT,)), scale=1.37)
    )
    report = _probed((reference, distributed), _quiet())
    assert report.verdict == verdict, str(report)
    if verdict == "inconclusive":
        assert "drew the same few numbers" in report.inconclusive[0]


def test_runs_on_other_examples_leave_the_rest_open() -> None:
    report = _probed(_plain(), _quiet(reorder_batches=True), [DIFFERS])
    assert report.verdict == "inconclusive", str(report)
    assert any("whether anything else differs is not known" in why for why in report.inconclusive), str(report)


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


@pytest.mark.parametrize("which", [0, 1], ids=["on one device", "under the strategy"])
@pytest.mark.parametrize("kind", ["deadline", "ValueError"])
def test_a_repeated_run_that_fails_leaves_the_difference_open(kind: str, which: int) -> None:
    """Dropout of a right program differs like that, too. The machine may be slow, or refuse the other numbers."""
    plain = judge(*_plain())
    assert [finding.cause for finding in plain.findings] == [DIFFERS]
    error = ErrorRecord(kind, "message", "", 0)
    quiet = list(_quiet())
    quiet[which] = replace(quiet[which], ranks=tuple(replace(rank, error=error) for rank in quiet[which].ranks))
    report = _probed(_plain(), (quiet[0], quiet[1]))
    assert report.verdict == "inconclusive", str(report)
    (reason,) = report.inconclusive
    assert ("set a longer timeout=" in reason) is (kind == "deadline")


def test_a_layer_that_normalizes_differently_is_left_open_if_the_repeated_run_is_late() -> None:
    """Its statistics differ in a right program, too. Only the repeated run tells whether anything else does."""
    layer = LayerRecord("norm", "BatchNormalization", {"synchronized": False, "trainable": True})
    program = Program(replicas=2, layers=(layer,))
    report = judge(*pair(program, scale=1.37))
    assert {finding.cause for finding in report.findings} == {NORMALIZES}
    reference, distributed = pair(program)
    late = ErrorRecord("deadline", "deadline exceeded", "", 0)
    reference = replace(reference, ranks=tuple(replace(rank, error=late) for rank in reference.ranks))
    left = neutralized_probe.probe(report, RunSettings(), lambda *_: judge(reference, distributed))
    assert left.verdict == "inconclusive", str(left)
    assert not left.findings
