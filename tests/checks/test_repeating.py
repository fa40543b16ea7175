"""Probes on simulated records: a repeated comparison is judged like any run, and nothing of it is lost."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

import pytest
from simulated_training import Program, pair, simulate

from pytest_ddl.equivalence.findings import CheckResult, Doubt, Finding, Outcome
from pytest_ddl.equivalence.probes import follow as follow_probe
from pytest_ddl.equivalence.probes import growth as growth_probe
from pytest_ddl.equivalence.probes import nonfinite as nonfinite_probe
from pytest_ddl.equivalence.probes import one_by_one as one_by_one_probe
from pytest_ddl.equivalence.probes import registry as probes
from pytest_ddl.equivalence.probes import stale as stale_probe
from pytest_ddl.equivalence.verdict.judge import judge, require
from pytest_ddl.equivalence.verdict.report import Report
from pytest_ddl.records import ErrorRecord, GradientRecord, GradientStage, TrainingRecord
from pytest_ddl.training.settings import RunSettings

LATE = Program(replicas=2, batches=(12,) * growth_probe.STEPS, learning_rate=0.0, observe=False)
STRAY = ErrorRecord("ValueError", "boom", "Traceback", step=5)
UNENDED = ErrorRecord("deadline", "60 s", "stacks", step=0)


def lasting(record: TrainingRecord, seconds: float) -> TrainingRecord:
    return replace(record, seconds=seconds)


def failing(record: TrainingRecord, error: ErrorRecord) -> TrainingRecord:
    """The record whose first rank raised."""
    first, *rest = record.ranks
    return replace(record, ranks=(replace(first, error=error), *rest))


def metric(record: TrainingRecord) -> TrainingRecord:
    """The record with a named value in each step."""
    ranks = tuple(
        replace(rank, steps=tuple(replace(step, values={"accuracy": 0.5}) for step in rank.steps))
        for rank in record.ranks
    )
    return replace(record, ranks=ranks)


def plain(names: tuple[str, ...] | None = ("METRIC-EQ",), seconds: float = 1.0) -> Report:
    reference, distributed = pair(Program(replicas=2))
    return judge(metric(lasting(reference, seconds)), metric(lasting(distributed, seconds)), checks=names)


def grown(reference: TrainingRecord, distributed: TrainingRecord, report: Report | None = None) -> Report:
    """The report after the growth probe whose runs left these records."""
    report = plain() if report is None else report
    return growth_probe.probe(
        report, RunSettings(), lambda _s, names, _n=1: judge(reference, distributed, checks=names)
    )


@pytest.fixture(scope="module")
def long() -> tuple[TrainingRecord, TrainingRecord]:
    reference, distributed = pair(LATE)
    return metric(reference), metric(distributed)


def short(record: TrainingRecord, steps: int) -> TrainingRecord:
    ranks = tuple(replace(rank, steps=rank.steps[:steps]) for rank in record.ranks)
    return replace(record, ranks=ranks)


def test_a_run_of_many_steps_that_is_right_passes(long: tuple[TrainingRecord, TrainingRecord]) -> None:
    report = grown(*long)
    assert report.passed, str(report)
    assert "run again for 300 steps on one batch" in report.result("METRIC-EQ").reason  # type: ignore[union-attr]


@pytest.mark.parametrize("steps", [0, 6])
def test_a_repeated_run_with_fewer_steps_fails(long: tuple[TrainingRecord, TrainingRecord], steps: int) -> None:
    reference, distributed = long
    report = grown(reference, short(distributed, steps))
    assert [finding.cause for finding in report.findings] == ["unequal-steps"], str(report)
    assert report.findings[0].check == "METRIC-EQ"
    assert "run again for 300 steps" in report.findings[0].message


def test_a_repeated_run_that_raises_fails(long: tuple[TrainingRecord, TrainingRecord]) -> None:
    reference, distributed = long
    report = grown(reference, failing(short(distributed, 50), STRAY))
    assert [(finding.cause, finding.symptom) for finding in report.findings] == [("worker-raised", "crash")]


def test_weights_that_change_late_in_a_repeated_run_fail(long: tuple[TrainingRecord, TrainingRecord]) -> None:
    reference, _distributed = long
    report = grown(reference, metric(simulate(replace(LATE, worker_shift_at=52))))
    assert report.verdict == "fail"
    assert (report.findings[0].step, report.findings[0].cause) == (52, None)
    assert "learning rate is 0" in (report.findings[0].evidence or "")


def test_a_repeated_check_without_a_decision_makes_the_report_inconclusive(
    long: tuple[TrainingRecord, TrainingRecord],
) -> None:
    reference, distributed = (short(record, 0) for record in long)
    report = grown(reference, distributed)
    assert report.verdict == "inconclusive"
    assert report.result("METRIC-EQ").outcome is Outcome.INCONCLUSIVE  # type: ignore[union-attr]


def test_a_program_that_ends_by_itself_is_judged_by_the_steps_that_it_runs(
    long: tuple[TrainingRecord, TrainingRecord],
) -> None:
    reference, distributed = (short(record, 8) for record in long)
    report = grown(reference, distributed)
    assert report.passed
    assert "one device ran 8" in report.notes[-1]


def test_a_repeated_run_that_one_device_refuses_is_reported(long: tuple[TrainingRecord, TrainingRecord]) -> None:
    reference, distributed = long
    report = grown(failing(reference, STRAY), distributed)
    assert report.passed
    assert "one device raises ValueError: boom" in report.notes[-1]


@pytest.mark.parametrize(("seconds", "verdict"), [(30.0, "fail"), (4.0, "inconclusive")])
def test_a_repeated_run_without_an_end_hangs_if_it_had_the_time(
    long: tuple[TrainingRecord, TrainingRecord], seconds: float, verdict: str
) -> None:
    reference, distributed = long
    hanging = lasting(failing(short(distributed, 0), UNENDED), seconds)
    report = grown(lasting(reference, 2.0), hanging)
    assert report.verdict == verdict, str(report)
    if verdict == "fail":
        assert [(f.cause, f.symptom) for f in report.findings] == [("deadline-exceeded", "hang")]
    else:
        assert "longer timeout" in report.inconclusive[0]


def test_a_reference_without_an_end_needs_more_time(long: tuple[TrainingRecord, TrainingRecord]) -> None:
    reference, distributed = long
    report = grown(lasting(failing(short(reference, 0), UNENDED), 9.0), distributed)
    assert report.verdict == "inconclusive"
    assert "more than the 9 s" in report.inconclusive[0]


def planted(error: ErrorRecord | None, of_reference: ErrorRecord | None = None, seconds: float = 30.0) -> Report:
    """The report after the probe of gradients that are not finite, whose run under the strategy ends by an error."""
    names = ("NONFINITE", "STEP-EQ")
    reference, distributed = (with_gradients(record) for record in pair(Program(replicas=2)))
    report = judge(lasting(reference, 1.0), lasting(distributed, 1.0), checks=names)

    def compare_once(_settings: RunSettings, checks: object, _runs: int = 1) -> Report:
        ours = reference if of_reference is None else failing(short(reference, 0), of_reference)
        theirs = distributed if error is None else failing(short(distributed, 0), error)
        return judge(lasting(ours, 1.0), lasting(theirs, seconds), checks=checks)  # type: ignore[arg-type]

    assert nonfinite_probe.wanted(report, names)
    return require(nonfinite_probe.probe(report, RunSettings(), compare_once), names)


def with_gradients(record: TrainingRecord) -> TrainingRecord:
    ranks = []
    for rank in record.ranks:
        gradients = [
            GradientRecord(replica, GradientStage.COMPUTED, 0, {0: rank.initial[0][0]}) for replica in rank.replicas
        ]
        steps = tuple(replace(step, gradients=tuple(gradients)) for step in rank.steps)
        ranks.append(replace(rank, steps=steps))
    return replace(record, ranks=tuple(ranks))


def test_waiting_for_ever_over_a_gradient_that_is_not_finite_is_a_hang() -> None:
    report = planted(UNENDED)
    assert [(f.check, f.cause, f.symptom) for f in report.findings] == [("NONFINITE", "deadline-exceeded", "hang")]
    assert planted(UNENDED, seconds=1.5).verdict == "inconclusive"


def test_raising_over_a_gradient_that_is_not_finite_is_found_unless_one_device_raises_too() -> None:
    assert [finding.cause for finding in planted(STRAY).findings] == ["worker-raised"]
    alike = planted(STRAY, STRAY)
    assert alike.verdict == "inconclusive", "NONFINITE was named, and nothing could be judged"
    assert "boom" in alike.inconclusive[0]
    assert "the run under the strategy continues" in planted(None, STRAY).inconclusive[0]


def test_batches_that_do_not_divide_keep_all_that_they_show() -> None:
    report = plain(("UNEVEN-EQ", "STEP-EQ"))
    shares = []

    def compare_once(settings: RunSettings, checks: object, runs: int = 1) -> Report:
        shares.append(runs)
        sin = {"mean_of_means": True} if settings.global_batch_size == 1 else {}
        program = Program(replicas=2, batches=(settings.global_batch_size or 0,) * 3)
        expect = {"empty-replica": "meant", "mean-of-replica-means": "meant"}
        return judge(*pair(program, **sin), checks=checks, expect=expect)  # type: ignore[arg-type]

    declared = replace(report, unused_expectations={"empty-replica": "meant", "mean-of-replica-means": "meant"})
    report = probes.probe_uneven(declared, RunSettings(global_batch_size=12), compare_once)
    assert shares == [2, 1]
    assert not report.findings, str(report)
    assert [finding.check for finding, _why in report.expected] == ["UNEVEN-EQ"]
    assert len(report.unused_expectations) == 1
    assert report.seconds > 0 or report.result("UNEVEN-EQ") is not None


def test_older_weights_that_are_expected_are_tolerated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cause is known only after the weights were held, and ``expect=`` names it."""
    vague = Finding("STEP-EQ", "differs", step=2)
    named = replace(vague, cause="staleness-exceeded")
    monkeypatch.setattr(stale_probe, "stale_update", lambda *_records: named)
    reference, distributed = pair(Program(replicas=2))
    result = CheckResult("STEP-EQ", Outcome.FAIL, "differs", (vague,))
    run = CheckResult("RUN", Outcome.PASS)
    found = Report("mirrored", (run, result), [vague], reference, distributed)
    plain = judge(reference, distributed)
    assert stale_probe.probe(found, RunSettings(), lambda *_asked: plain).findings == [named]
    declared = replace(found, unused_expectations={"staleness-exceeded": "meant"})
    report = stale_probe.probe(declared, RunSettings(), lambda *_asked: plain)
    assert report.passed, str(report)
    assert report.expected == ((named, "meant"),)
    assert not report.unused_expectations


FINDING = Finding("STEP-EQ", "differs", cause="gradient-not-aggregated")


def some(**fields: object) -> Report:
    report = Report("mirrored", (CheckResult("METRIC-EQ", Outcome.PASS, "3 values"),), [], None, None)
    return replace(report, **fields)  # type: ignore[arg-type]


def test_merging_drops_nothing() -> None:
    again = some(
        findings=[FINDING], doubts=(Doubt("STEP-EQ", "too wide"),), approximations=(replace(FINDING, cause="x"),)
    )
    report = some().merged(again, "METRIC-EQ", "run again")
    assert [(f.check, f.message) for f in report.findings] == [("METRIC-EQ", "run again: differs")]
    assert report.inconclusive == ("METRIC-EQ: run again: STEP-EQ: too wide",)
    assert [finding.cause for finding in report.approximations] == ["x"]
    assert report.results[0].outcome is Outcome.FAIL


def test_merging_respects_what_is_expected() -> None:
    meant = {"gradient-not-aggregated": "meant"}
    declared = some(expectations=meant, unused_expectations=meant)
    report = declared.merged(some(findings=[FINDING]), "METRIC-EQ", "run again")
    assert report.passed
    assert [why for _finding, why in report.expected] == ["meant"]
    assert not report.unused_expectations


def test_joining_keeps_each_excuse_and_each_doubt_once() -> None:
    first, second = (Finding("STEP-EQ", "differs", cause=cause) for cause in ("scaled", "stale"))
    doubt, other = Doubt("STEP-EQ", "one"), Doubt("LOSS-EQ", "two")
    declared = {"scaled": "why", "stale": "why", "idle": "why"}
    plain = some(expected=((first, "why"),), unused_expectations={"stale": "why", "idle": "why"}, doubts=(doubt,))
    again = some(
        expected=((first, "why"), (second, "why")),
        unused_expectations={"idle": "why"},
        doubts=(doubt, other),
        known=(replace(first, known="a-behavior"),),
        expectations=declared,
    )
    joined = plain.joined(again)
    assert joined.expected == ((first, "why"), (second, "why"))
    assert joined.unused_expectations == {"idle": "why"}
    assert joined.doubts == (doubt, other)
    assert joined.joined(again).known == joined.known == again.known


def test_merging_keeps_the_worse_outcome() -> None:
    undecided = some(
        results=(CheckResult("METRIC-EQ", Outcome.INCONCLUSIVE, "wide"),), doubts=(Doubt("METRIC-EQ", "wide"),)
    )
    assert undecided.merged(some(), "METRIC-EQ", "again").results[0].outcome is Outcome.INCONCLUSIVE
    idle = some(results=(CheckResult("METRIC-EQ", Outcome.NOT_APPLICABLE, "nothing"),))
    assert idle.merged(some(), "METRIC-EQ", "again").results[0] == CheckResult(
        "METRIC-EQ", Outcome.PASS, "again: 3 values"
    )


def test_a_report_is_true_only_if_it_passed() -> None:
    assert some()
    assert not some(findings=[FINDING])
    assert not some(doubts=(Doubt("METRIC-EQ", "wide"),))
    assert "gradient-not-aggregated" in repr(some(findings=[FINDING]))


@pytest.mark.parametrize("name", ["METRIC-EQ", "CKPT", "UNEVEN-EQ"])
def test_a_named_check_that_does_not_apply_is_inconclusive(name: str) -> None:
    report = judge(*pair(Program(replicas=2)), checks=[name])
    assert report.passed
    report = require(report, [name])
    assert report.verdict == "inconclusive"
    assert report.inconclusive[0].startswith(f"{name}: checks= names it, but it does not apply: ")


def test_a_named_check_that_an_expected_crash_left_idle_adds_no_doubt() -> None:
    reference, distributed = pair(Program(replicas=2), truncate=1, error=STRAY)
    report = judge(reference, distributed, checks=["METRIC-EQ"], expect={"worker-raised": "known"})
    assert require(report, ["METRIC-EQ"]).inconclusive == report.inconclusive


def test_no_name_of_a_check_is_refused() -> None:
    with pytest.raises(ValueError, match="checks= names no check: leave it out"):
        judge(*pair(Program(replicas=2)), checks=[])


def test_what_is_expected_of_one_check_does_not_settle_another() -> None:
    reference, distributed = pair(Program(replicas=2))
    silent = tuple(
        replace(rank, steps=tuple(replace(step, loss=None, eager=True) for step in rank.steps))
        for rank in distributed.ranks
    )
    report = judge(reference, replace(distributed, ranks=silent), expect={"eager-step": "meant"})
    assert [finding.cause for finding, _why in report.expected] == ["eager-step"]
    assert report.verdict == "inconclusive"
    assert report.inconclusive[0].startswith("LOSS-EQ: ")


def test_what_weights_leave_undecided_has_one_reason() -> None:
    records = pair(Program(replicas=2, batches=(12, 12, 5)), initial_shift=0.5)
    report = judge(*records, expect={"initial-weights-differ": "meant"})
    (reason,) = report.inconclusive
    assert reason.startswith("STEP-EQ: initial-weights-differ is declared, and steps that begin")


@pytest.mark.parametrize("probe", [follow_probe, one_by_one_probe])
@pytest.mark.parametrize("side", [0, 1])
def test_a_probe_that_runs_out_of_time_leaves_no_pass(probe: ModuleType, side: int) -> None:
    tolerated = Finding("STEP-EQ", "differs", cause=follow_probe.TOLERATED, step=1, approximation=True)
    report = replace(plain(("STEP-EQ",)), approximations=(tolerated,))
    assert report.passed
    runs = list(pair(Program(replicas=2)))
    runs[side] = failing(runs[side], UNENDED)
    report = probe.probe(report, RunSettings(), lambda _s, names, _n=1: judge(*runs, checks=names))
    assert report.verdict == "inconclusive"
    assert "longer timeout" in report.inconclusive[0]
