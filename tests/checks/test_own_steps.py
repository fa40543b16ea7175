"""Steps that end with values taken over: each is judged by itself, and a difference tolerated there hides nothing."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_ddl.equivalence.evidence.observe import update
from pytest_ddl.equivalence.findings import CheckResult, Finding, Outcome, Reason, Unjudged
from pytest_ddl.equivalence.verdict.judge import needs_noise
from pytest_ddl.equivalence.verdict.own_steps import MOST, step_by_step, up_to
from pytest_ddl.equivalence.verdict.precedence import root_causes
from pytest_ddl.equivalence.verdict.report import Report
from pytest_ddl.records import RankRecord, StepRecord, TrainingRecord
from pytest_ddl.training.settings import RunSettings, States

STEP_EQ = "STEP-EQ"


def record(steps: int, taken_over: tuple[int, ...] = ()) -> TrainingRecord:
    def made(step: int) -> StepRecord:
        own = {0: (np.array(step + 0.5),)} if step in taken_over else None
        return StepRecord(step, float(step), snapshot={0: (np.array(float(step)),)}, own=own)

    rank = RankRecord(0, "local", (0,), steps=tuple(map(made, range(1, steps + 1))), results={"evaluate": 1.0})
    return TrainingRecord("one_device", 1, (rank,), 12, "float64", 0, taken_over=taken_over)


def losses(of: TrainingRecord) -> list[float | None]:
    return [step.loss for step in of.ranks[0].steps]


def judged_as(found: dict[int, CheckResult], taken_over: tuple[int, ...], steps: int = 6) -> CheckResult:
    """Judge with a check that says ``found[n]`` of a run of n steps, and passes else."""

    def judged(cut, _having):
        return [found.get(cut(record(steps, taken_over)).num_steps, CheckResult(STEP_EQ, Outcome.PASS, "equal"))]

    (result,) = step_by_step(taken_over, judged)
    return result


def test_a_cut_record_ends_with_what_the_step_left_behind():
    cut = up_to(record(6, (2, 4)), 4, (2, 4))
    assert cut.num_steps == 4
    assert float(cut.value(0, 4)) == 4.5
    assert float(cut.value(0, 2)) == 2.0
    assert cut.ranks[0].results == {}
    assert losses(cut) == [1.0, None, 3.0, 4.0]


def test_without_such_steps_nothing_is_judged_twice():
    seen = []

    def judged(cut, _having):
        seen.append(losses(cut(record(6))))
        return [CheckResult(STEP_EQ, Outcome.PASS)]

    assert step_by_step((), judged) == (CheckResult(STEP_EQ, Outcome.PASS),)
    assert seen == [[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]]


def test_what_is_tolerated_in_the_step_hides_nothing_later():
    told = Finding(STEP_EQ, "differs", cause="mean-of-replica-means", step=3, approximation=True)
    result = judged_as({3: CheckResult(STEP_EQ, Outcome.FAIL, "", (told,))}, (3,))
    assert [finding.verified for finding in result.findings] == [True]
    later = Finding(STEP_EQ, "differs", step=5)
    assert root_causes([*result.findings, later], lambda finding: finding.approximation) == [*result.findings, later]


@pytest.mark.parametrize("check", ["LOSS-EQ", "STATE-EQ"])
def test_what_follows_from_it_in_the_same_step_is_not_reported_twice(check):
    told = Finding(STEP_EQ, "differs", cause="mean-of-replica-means", step=3, approximation=True, verified=True)
    same = Finding(check, "differs", step=3, also=("mean-of-replica-means",))
    assert root_causes([told, same], lambda finding: finding.approximation) == [told]


def test_what_is_tolerated_in_a_later_step_explains_the_loss_of_that_step():
    first, second = (
        Finding(STEP_EQ, "differs", cause="mean-of-replica-means", step=step, approximation=True, verified=True)
        for step in (2, 4)
    )
    loss = Finding("LOSS-EQ", "differs", step=4, also=("mean-of-replica-means",))
    other = Finding("LOSS-EQ", "differs", step=5, cause="reported-loss-wrong")
    found = root_causes([first, second, loss, other], lambda finding: finding.approximation)
    assert found == [first, other]


def test_only_the_last_step_of_a_cut_record_is_judged():
    early = Finding(STEP_EQ, "differs", step=2)
    result = judged_as({4: CheckResult(STEP_EQ, Outcome.FAIL, "", (early,))}, (4,))
    assert (result.outcome, result.findings) == (Outcome.PASS, ())


def test_a_defect_of_such_a_step_fails():
    wrong = Finding(STEP_EQ, "differs", step=4)
    result = judged_as({4: CheckResult(STEP_EQ, Outcome.FAIL, "differs", (wrong,))}, (2, 4))
    assert (result.outcome, result.findings) == (Outcome.FAIL, (wrong,))


def test_a_doubt_about_such_a_step_is_kept():
    result = judged_as({4: CheckResult(STEP_EQ, Outcome.INCONCLUSIVE, "the bound is too wide")}, (4,))
    assert (result.outcome, result.reason) == (Outcome.INCONCLUSIVE, "the bound is too wide")


@pytest.mark.parametrize(("verified", "wanted"), [(True, False), (False, True)])
def test_noise_is_not_measured_again_for_what_is_tolerated_there(verified, wanted):
    told = Finding(STEP_EQ, "differs", step=2, a_priori=True, approximation=True, verified=verified)
    report = Report("mirrored", (), [], None, None, approximations=(told,))
    assert needs_noise(report) is wanted


def test_it_is_said_which_steps_are_not_judged_alone():
    taken = tuple(range(1, MOST + 3))
    result = judged_as({}, taken, steps=MOST + 4)
    assert result.unjudged == (Unjudged(f"step {MOST + 1} and later uneven steps", Reason.TOO_MANY_STEPS),)


def test_settings_with_other_values_are_other_settings():
    def settings(value: float) -> str:
        # NumPy shortens what it prints of a large array.
        values = np.zeros(5000)
        values[2500] = value
        return repr(RunSettings(states=States({3: {0: values}})))

    assert settings(1.0) == settings(1.0)
    assert settings(1.0) != settings(2.0)


def test_the_change_of_a_step_is_its_own() -> None:
    changed = record(3, taken_over=(2,))
    assert [float(update(changed, 0, step)) for step in (2, 3)] == [1.5, 1.0]
