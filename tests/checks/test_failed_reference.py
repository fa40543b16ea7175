"""A failure of the run on one device is in the report, whatever the run under the strategy did."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simulated_training import Program, pair

from pytest_ddl.equivalence.runs.comparer import PlainComparison
from pytest_ddl.equivalence.runs.question import Question
from pytest_ddl.equivalence.verdict.judge import judge
from pytest_ddl.equivalence.verdict.report import Report
from pytest_ddl.items.selection import DdlMark
from pytest_ddl.notes import Note, NoteKind
from pytest_ddl.records import ErrorRecord, RankRecord, TrainingRecord
from pytest_ddl.strategies.registry import StrategyRegistry
from pytest_ddl.training.settings import RunSettings

STACKS = 'Fatal Python error: Segmentation fault\n\n  File "/project/train.py", line 71 in train\n'
PLACE = {"file": "/project/train.py", "line": 71, "function": "train", "source": "run.evaluate(model, x)"}
DIED = ErrorRecord("died", "was killed by SIGSEGV", "", 0, output=STACKS, **PLACE)
RAISED = ErrorRecord("ValueError", "no shape", "Traceback\nValueError: no shape", 0, **PLACE)
LATE = ErrorRecord("deadline", "deadline exceeded", STACKS, 0, **PLACE)
SEVERAL_STEPS = ErrorRecord(
    "tensorflow.python.framework.errors_impl.InvalidArgumentError",
    "You must feed a value for placeholder tensor 'while/body/_1/while/cond/then/_1/while/cond/Placeholder'",
    'Traceback\n  File "train.py", line 70, in train\n    model.fit(x)\n'
    '  File "/site-packages/keras/src/backend/tensorflow/trainer.py", line 1, in fit\n    code\n',
    0,
)


def judged(on_one_device: ErrorRecord, under_strategy: ErrorRecord | None = None) -> Report:
    """Judge a pair of which the run on one device failed before it watched anything."""
    reference, distributed = pair(Program(replicas=2))
    if under_strategy is not None:
        ranks = tuple(replace(rank, steps=(), error=under_strategy) for rank in distributed.ranks)
        distributed = replace(distributed, ranks=ranks)
    return judge(replace(reference, ranks=(RankRecord(0, "worker:0", (0,), error=on_one_device),)), distributed)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (DIED, "the process of the run on one device ended before the function returned: it was killed by SIGSEGV"),
        (RAISED, "the program fails on one device too: ValueError: no shape"),
        (LATE, "the run on one device did not end in time"),
    ],
    ids=["died", "raised", "late"],
)
def test_both_failures_are_shown_if_they_differ(error: ErrorRecord, reason: str) -> None:
    report = judged(error, SEVERAL_STEPS)
    finding = report.findings[0]
    assert finding.message.startswith(reason)
    assert "/project/train.py:71, in train: run.evaluate(model, x)" in finding.message
    assert "Under the strategy, in another way: Keras 3 Model.fit with steps_per_execution" in finding.message
    assert finding.details is not None
    before, _, after = finding.details.partition("one device:\n")
    assert "model.fit(x)" in before
    assert (error.traceback or error.output).splitlines()[0] in after
    assert finding.expected == "not known, because the run on one device failed"


@pytest.mark.parametrize("under_strategy", [None, SEVERAL_STEPS], ids=["returns", "raises"])
@pytest.mark.parametrize("on_one_device", [DIED, RAISED, LATE], ids=["died", "raised", "late"])
def test_no_check_blames_calls_that_are_missing(on_one_device: ErrorRecord, under_strategy: ErrorRecord | None) -> None:
    report = judged(on_one_device, under_strategy)
    assert report.verdict == ("fail" if under_strategy else "inconclusive")
    text = " ".join(str(report).split())
    assert "call run.watch" not in text
    assert "does the program use run.steps" not in text
    assert "one device failed before it watched a weight: see RUN" in text
    assert not report.program_reasons


@pytest.mark.parametrize("error", [DIED, RAISED, LATE], ids=["died", "raised", "late"])
def test_a_program_that_fails_in_both_runs_is_not_told_to_watch_something(error: ErrorRecord) -> None:
    ranks = (RankRecord(0, "worker:0", (0,), error=error),)
    report = judge(*(replace(record, ranks=ranks) for record in pair(Program(replicas=2))))
    assert report.verdict == "inconclusive"
    assert not report.comparable
    assert "run.watch" not in str(report)
    assert "one device failed before it watched a weight: see RUN" in " ".join(str(report).split())


def test_the_reason_of_one_device_comes_first() -> None:
    report = judged(DIED)
    assert str(report.doubts[0]).startswith("RUN: the process of the run on one device ended")
    assert "was killed by SIGSEGV" in str(report).splitlines()[0]
    assert "raised in /project/train.py:71" in str(report)
    assert STACKS.splitlines()[0] in str(report)


def test_a_repeated_run_is_noted() -> None:
    reference, distributed = pair(Program(replicas=2))
    note = Note(
        NoteKind.RUN_AGAIN, "one device was run again, because the process of the first run was killed by SIGSEGV"
    )
    ranks = tuple(replace(rank, notes=(Note(NoteKind.DRAWS, "another note"), note)) for rank in reference.ranks)
    report = judge(replace(reference, ranks=ranks), distributed)
    assert report.passed
    assert report.notes == (note,)


class Hanging:
    """Runs that hang in the program on one device, until no time is left for runs in another precision."""

    def reference(self, settings: RunSettings) -> TrainingRecord:
        error = LATE if settings.precision == "float64" else replace(LATE, traceback="", file="", source="")
        ranks = (RankRecord(0, "worker:0", (0,), error=error),)
        return replace(pair(Program(replicas=2))[0], ranks=ranks, precision=settings.precision)

    def distributed(self, settings: RunSettings) -> TrainingRecord:
        return replace(self.reference(replace(settings, precision="native")), num_replicas=2)


def test_a_run_that_hangs_is_shown_with_its_own_stacks() -> None:
    question = Question(lambda run: None, StrategyRegistry().default("mirrored"), DdlMark())
    report = PlainComparison(Hanging(), RunSettings(), question).in_precision("auto")  # type: ignore[arg-type]
    assert report.verdict == "inconclusive"
    assert "at the deadline, it was at /project/train.py:71, in train: run.evaluate(model, x)" in str(report)
    assert report.reference.errors[0][1] == LATE
