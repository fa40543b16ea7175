"""The repeated comparison without randomness, on records: as strict as the plain one, and no more lenient after it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest
from simulated_training import Program, pair

from pytest_ddl.checks.candidates.shared import random_layers
from pytest_ddl.checks.causes import CAUSES
from pytest_ddl.checks.compare import judge
from pytest_ddl.checks.findings import Report
from pytest_ddl.comparison import neutralised_probe
from pytest_ddl.records import DrawRecord, ErrorRecord, LayerRecord, TrainingRecord
from pytest_ddl.training import neutral
from pytest_ddl.training.settings import RunSettings

DIFFERS, REPEATED = "random-stream-differs-across-replicas", "random-stream-repeated-across-replicas"
DROPOUT = LayerRecord("drop", "Dropout", {"rate": 0.5})
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
    first, second = (replace(record, neutralised=(neutral.RANDOM,)) for record in records)
    return first, second


def _probed(plain: Pair, quiet: Pair, expect: Collection[str] = (), strict: bool = False) -> Report:
    report = judge(*plain, expect=expect, strict=strict)
    assert neutralised_probe.wanted(report, ())

    def compare_once(settings: RunSettings, checks: Collection[str] | None) -> Report:
        assert settings.neutralise == (neutral.RANDOM,)
        return judge(*quiet, expect=expect, strict=strict, checks=checks)

    return neutralised_probe.probe_neutralised(report, RunSettings(), compare_once)


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
        replace(r, ranks=tuple(replace(k, notes=(f"{neutral.REFUSED}binomial",)) for k in r.ranks)) for r in good
    )
    for quiet in (bad, (failing, good[1]), short, (refused[0], refused[1])):
        report = _probed(_plain(alike, loss="first"), quiet, expect)
        assert not report.passed, str(report)
        assert {finding.cause for finding in report.findings} <= {DIFFERS, REPEATED}
        assert any("what else differs is not known" in why for why in report.inconclusive), str(report)
        recomputed = _probed(_plain(alike, scale=2.0), quiet, expect)
        assert "gradient-scaled-by-replica-count" in [finding.cause for finding in recomputed.findings]


def test_doubts_of_the_repeated_runs_are_doubts() -> None:
    still = Program(replicas=2, learning_rate=0.0, layers=(DROPOUT,))
    report = _probed(_plain(), _quiet(still), [DIFFERS])
    assert report.verdict == "inconclusive", str(report)
    assert any("with every random number replaced by a constant" in why for why in report.inconclusive)


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
