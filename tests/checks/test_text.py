"""The printed report: its first line is clear without the others, its lines fit, its numbers are there."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simulated_training import Program, pair

from pytest_ddl.equivalence.causes import CAUSES
from pytest_ddl.equivalence.findings import CheckResult, Doubt, Finding, Outcome
from pytest_ddl.equivalence.verdict.judge import judge
from pytest_ddl.equivalence.verdict.report import DivergenceError, Report
from pytest_ddl.equivalence.verdict.text import render_report
from pytest_ddl.records import ErrorRecord


def test_first_line_says_it_all() -> None:
    report = judge(*pair(Program(replicas=2), scale=2.0))
    first = str(DivergenceError(report)).splitlines()[0]
    assert first.startswith(
        "gradient-scaled-by-replica-count: mirrored[replicas=2] differs from one device at step 1 (dense/"
    )
    assert first.endswith(", 2.00x the update)")


def test_a_person_finds_numbers_bound_cause_and_fix() -> None:
    text = render_report(judge(*pair(Program(replicas=2), scale=2.0)))
    for part in (
        "ACTUAL:", "DESIRED:", "max absolute difference", "bound from:", "ratio:", "evidence:", "cause:",
        "compute_average_loss", "not applicable: ", "UNEVEN-EQ", "REPLICA-EQ  pass",
    ):  # fmt: skip
        assert part in text


@pytest.mark.parametrize("sin", [{"scale": 2.0}, {"aggregate": False}, {"loss": "first"}, {"duplicate": True}, {}])
def test_lines_fit_and_are_plain(sin: dict[str, object]) -> None:
    lines = render_report(judge(*pair(Program(replicas=2, batches=(12, 5)), **sin))).splitlines()
    assert all(len(line) <= 100 for line in lines[1:])
    assert not any("\x1b" in line or line != line.rstrip() for line in lines)


def test_pass_and_inconclusive_have_their_own_first_line() -> None:
    passing = render_report(judge(*pair(Program(replicas=2))))
    assert passing.startswith("mirrored[replicas=2] matches one device: 3 step(s)")
    still = render_report(judge(*pair(Program(replicas=2, learning_rate=0.0))))
    assert still.startswith("mirrored[replicas=2] is inconclusive: STEP-EQ: no trainable variable moved")


def test_every_reason_why_there_is_no_verdict_is_shown_in_full() -> None:
    report = judge(*pair(Program(replicas=2)))
    doubts = (Doubt("STEP-EQ", "one reason"), Doubt("DATA-COVER", "another, that is long " * 20))
    shown = " ".join(render_report(replace(report, doubts=doubts)).split())
    for doubt in doubts:
        assert f"not decided: {doubt}".rstrip() in shown
    assert "not decided" not in render_report(judge(*pair(Program(replicas=2, learning_rate=0.0))))


def test_tolerated_differences_are_not_called_failures() -> None:
    text = render_report(judge(*pair(Program(replicas=2, batches=(12, 5)), mean_of_means=True)))
    assert "FAIL" not in text
    assert "approximation: step 2, mean-of-replica-means" in text


def test_every_cause_has_a_sentence_and_a_fix() -> None:
    for cause in CAUSES.values():
        assert cause.title.endswith("."), cause.id
        assert cause.fix.text.endswith("."), cause.id


def test_checks_that_could_not_begin_share_one_row() -> None:
    reference, distributed = pair(Program(replicas=2))
    (rank,) = distributed.ranks
    error = ErrorRecord("ValueError", "no", "ValueError: no", 0)
    report = judge(reference, replace(distributed, ranks=(replace(rank, steps=(), error=error),)))
    lines = render_report(report).splitlines()
    assert [line for line in lines if line.startswith(("STEP-EQ", "BATCH", "MOVES"))] == []
    (row,) = [position for position, line in enumerate(lines) if line.startswith("inconclusive: ")]
    text = " ".join(" ".join(lines[row : row + 2]).split())
    assert "STEP-EQ" in text
    assert text.endswith("the run failed before its first step was recorded")


def test_rows_are_wrapped_and_nothing_is_cut() -> None:
    report = judge(*pair(Program(replicas=2), scale=2.0))
    long = (
        "the file checkpoints/model.weights.h5 is written by several ranks at once: " + "write to run.rank_path; " * 8
    )
    undecided = CheckResult("WRITE", Outcome.INCONCLUSIVE, long.strip())
    dropped = Finding("LOSS-EQ", "the loss of the step is not that of one device: " + "0.123456789 " * 9, step=1)
    results = (*report.results, undecided, CheckResult("LOSS-EQ", Outcome.FAIL, "", (dropped,)))
    text = render_report(replace(report, results=results))
    assert "..." not in text.partition("not applicable")[0].replace("compute_average_loss(...", "")
    words = " ".join(text.split())
    assert long.strip() in words
    assert dropped.message.strip() in words
    # The message of a finding that is shown above is not repeated.
    assert "STEP-EQ     FAIL          step 1, gradient-scaled-by-replica-count\n" in text
    assert all(len(line) <= 100 for line in text.splitlines()[1:])


def test_the_first_line_says_what_was_observed() -> None:
    apart = judge(*pair(Program(replicas=2), worker_shift_at=2))
    assert apart.findings[0].check == "REPLICA-EQ"
    assert "has copies of one variable that differ at step 2" in render_report(apart).splitlines()[0]
    early = replace(apart, findings=[Finding("PS", "closures were still running", "closures-not-awaited", step=2)])
    first = render_report(early).splitlines()[0]
    assert "reads or assigns weights that running closures still use at step 2" in first
    assert "one device" not in first


def test_a_second_thing_with_a_declared_cause_is_offered_by_its_name() -> None:
    cause = "state-not-aggregated"
    seen = Finding("STATE-EQ", "differs", cause, variable="seen", owner="seen")
    statistics = replace(seen, variable="norm/moving_mean", others=("norm/moving_variance",), owner="norm")
    for finding, key in ((seen, f"{cause}[seen]"), (statistics, f"{cause}[norm]")):
        report = Report("mirrored", (), [finding], None, None, expectations={cause: "of another layer"})
        assert f'"{key}": "the reason"' in str(report)
        assert f'"{cause}": "the reason"' in str(replace(report, expectations={}))


def test_a_declaration_without_a_name_shows_all_that_it_excuses() -> None:
    cause = "state-not-aggregated"
    first = Finding("STATE-EQ", "differs", cause, step=1, variable="seen")
    again = Finding("REPLICA-EQ", "differ", cause, step=2, variable="seen", others=("mean", "spread"))
    elsewhere = Finding("STATE-EQ", "differs", cause, step=1, variable="other", owner="another layer")
    results = tuple(CheckResult(one.check, Outcome.FAIL, findings=(one,)) for one in (first, again, elsewhere))
    report = Report(
        "mirrored", results, [elsewhere], None, None, expected=((first, "why"),), expectations={cause: "why"}
    )
    assert f"expected: step 1, {cause} (seen, mean, spread): why" in render_report(report)
    named = replace(report, expectations={f"{cause}[seen]": "why"})
    assert f"expected: step 1, {cause}: why" in render_report(named)


def test_a_declared_cause_of_weights_names_the_weights() -> None:
    cause = "gradient-scaled-by-replica-count"
    report = judge(*pair(Program(replicas=2), scale=2.0), expect={cause: "why"})
    line = next(line for line in render_report(report).splitlines() if "expected: step 1" in line)
    assert all(weight in line for weight in ("dense/kernel", "dense/bias")), line
