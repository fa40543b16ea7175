"""An interrupted run is compared with the uninterrupted one, whatever the comparison with one device excuses."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from test_joining import BASELINE, RANK, REFERENCE, WEIGHTS, attempt, changed, continued, verdict

from pytest_ddl.equivalence.findings import Doubt, Finding
from pytest_ddl.equivalence.verdict.judge import judge
from pytest_ddl.faults.judging import judge_trial
from pytest_ddl.faults.rank.fault import Fault, Point
from pytest_ddl.faults.rank.point_log import Reached
from pytest_ddl.faults.trials import TrialRun
from pytest_ddl.faults.unlike import goes_on
from pytest_ddl.faults.verdict import RecoveryVerdict
from pytest_ddl.records import BatchRecord, DrawRecord, ErrorRecord

SLIGHTLY = 1e-15


def with_reports(last, judged, repeatable=True):
    """The verdict of a last attempt if the comparison with one device gives these reports."""
    first = attempt(replace(RANK, error=ErrorRecord("died", "was ended by SIGKILL", "", 3)), 3)
    run = TrialRun((), (first, attempt(last, len(last.steps))), 0.0)
    plain = TrialRun((), (attempt(RANK, 4),), 0.0)
    return judge_trial(run, plain, BASELINE, judged, repeatable)


def excusing(kind):
    """A judge that compares nothing, because everything is excused by one finding."""
    finding = Finding("STEP-EQ", "the weights differ", cause="batch-coupled-loss", step=1)

    def judged(record):
        report = judge(REFERENCE, BASELINE, repeated=True)
        given = {
            "known": {"known": (replace(finding, known="keras-seed-generator"),)},
            "expected": {"expected": ((finding, "declared"),)},
            "approximations": {"approximations": (replace(finding, approximation=True),)},
        }
        return replace(report, distributed=record, **given[kind])

    return judged


def moved(last, by):
    """The last attempt with other weights from its first step on."""
    return replace(last, steps=tuple(replace(s, snapshot=changed(s.snapshot, WEIGHTS, by)) for s in last.steps))


@pytest.mark.parametrize("kind", ["known", "expected", "approximations"])
def test_what_a_comparison_excuses_does_not_excuse_other_weights_after_a_restart(kind):
    trial = with_reports(moved(continued(2), 0.01), excusing(kind))
    assert trial.verdict is RecoveryVerdict.DIVERGED
    assert "differs by 0.01 after step 3 from the run without the interruption" in trial.message
    unsure = with_reports(moved(continued(2), 0.01), excusing(kind), repeatable=False)
    assert unsure.verdict is RecoveryVerdict.UNDECIDED
    assert with_reports(continued(2), excusing(kind)).verdict is RecoveryVerdict.EXACT


@pytest.mark.parametrize("kind", ["known", "expected", "approximations"])
def test_rounding_is_no_difference_after_a_restart(kind):
    assert with_reports(moved(continued(2), SLIGHTLY), excusing(kind)).verdict is RecoveryVerdict.EQUAL


KERNEL = {"not_deterministic": "UnimplementedError: no deterministic kernel"}


def on_a_gpu(last, baseline=BASELINE):
    """The verdict if an operation has no deterministic kernel, so that the sums of each run are rounded otherwise."""
    known = replace(baseline, ranks=tuple(replace(rank, facts={**rank.facts, **KERNEL}) for rank in baseline.ranks))
    return verdict(last, known)


@pytest.mark.parametrize("after", [1, 2, 3])
def test_values_of_a_run_that_rounds_otherwise_are_no_lost_state(after):
    last = continued(after)
    every = tuple(item.kind for item in RANK.variables if item.dtype.startswith("float"))
    rounded = replace(
        moved(last, SLIGHTLY), resumed={at: changed(v, every, SLIGHTLY) for at, v in last.resumed.items()}
    )
    assert verdict(rounded).verdict is RecoveryVerdict.DIVERGED
    undecided = on_a_gpu(rounded)
    assert undecided.verdict is RecoveryVerdict.UNDECIDED
    assert "no deterministic kernel" in undecided.details
    assert on_a_gpu(last).verdict is RecoveryVerdict.EXACT


def test_a_program_that_begins_anew_is_found_however_it_rounds():
    anew = replace(continued(0), facts={"no_loop": False, "epochs": ()})
    assert on_a_gpu(anew).resumed_at == 0
    again = on_a_gpu(replace(RANK, resumed={2: RANK.initial}, steps=RANK.steps[:2]))
    assert again.verdict not in (RecoveryVerdict.EXACT, RecoveryVerdict.EQUAL, RecoveryVerdict.UNDECIDED)


def test_a_program_with_no_steps_left_shows_no_difference_that_could_be_missing():
    """Only a further step shows what its last attempt has not restored."""

    def undecided(record):
        doubt = Doubt("RESUME", "weights cannot be compared")
        return replace(judge(REFERENCE, BASELINE, repeated=True), distributed=record, doubts=(doubt,))

    weights = [item.index for item in RANK.variables if item.kind in WEIGHTS]
    partly = {at: parts for at, parts in RANK.steps[3].snapshot.items() if at != weights[-1]}
    trial = with_reports(continued(4, resumed={4: partly}), undecided)
    assert trial.verdict is RecoveryVerdict.UNDECIDED, trial


def test_a_reported_number_is_compared_too():
    first, last = moved(continued(2), SLIGHTLY).steps
    trial = with_reports(continued(2, steps=(first, replace(last, loss=last.loss * 1.1))), excusing("known"))
    assert trial.verdict is RecoveryVerdict.DIVERGED
    assert "the loss differs" in trial.message


def drawn(step, shift=0):
    digest = step.index + shift
    return replace(
        step,
        draws=tuple(DrawRecord(r, 0, "StatelessRandomNormalV2", "noise", digest, 4, (4,)) for r in RANK.replicas),
    )


def test_random_numbers_of_another_step_are_the_cause():
    baseline = replace(BASELINE, ranks=(replace(RANK, steps=tuple(map(drawn, RANK.steps))),))
    right = tuple(drawn(step, shift=2) for step in continued(2).steps)  # their indices begin with 1 again
    again = tuple(drawn(step) for step in moved(continued(2), 0.01).steps)
    assert verdict(continued(2, steps=right), baseline).verdict is RecoveryVerdict.EXACT
    trial = verdict(continued(2, steps=again), baseline)
    assert (trial.verdict, trial.finding.cause) == (RecoveryVerdict.DIVERGED, "resume-random-wrong")
    assert "noise draws other numbers in step 3" in trial.message
    assert "tf.random.Generator" in trial.finding.fix


def more(step, number):
    """A step after the end, with examples of its own."""
    batches = tuple(BatchRecord(one.replica, one.size, example_ids=(f"more {number}",)) for one in step.batches)
    return replace(step, batches=batches, snapshot=changed(step.snapshot, WEIGHTS, number + 1.0))


@pytest.mark.parametrize("extra", [1, 2, 3])
def test_training_that_does_not_end_is_no_replay(extra):
    steps = (*continued(2).steps, *(more(RANK.steps[3], number) for number in range(extra)))
    trial = verdict(continued(2, steps=steps))
    assert (trial.verdict, trial.steps) == (RecoveryVerdict.DIVERGED, extra)
    assert trial.finding.cause == "resume-lost-state"
    assert f"training does not end after step 4, but {extra} step(s) later" in trial.message
    assert "EarlyStopping" in trial.finding.fix


@pytest.mark.parametrize(
    ("epochs", "expected"),
    [
        (None, RecoveryVerdict.REPLAYED),
        ({0: 0, 1: 2}, RecoveryVerdict.REPLAYED),  # it begins with the first epoch
        ({1: 0, 2: 2}, RecoveryVerdict.DIVERGED),  # it continues with the second, and does not end with it
    ],
)
def test_a_program_that_makes_all_steps_once_more_has_forgotten_its_count(epochs, expected):
    """The steps after the restart are those of the second epoch, whether it is the first that begins or the second."""
    later = [replace(more(step, number), batches=step.batches) for number, step in enumerate(RANK.steps[:2])]
    steps = (*continued(2).steps, *later)
    facts = {"no_loop": False, **({"epochs": epochs} if epochs else {})}
    baseline = replace(BASELINE, ranks=(replace(RANK, facts={"epochs": {0: 0, 1: 2}}),))
    assert verdict(continued(2, steps=steps, facts=facts), baseline).verdict is expected


@pytest.mark.parametrize(("epochs", "expected"), [(None, None), ({1: 0}, "resume-lost-state"), ({0: 0}, None)])
def test_on_another_number_of_replicas_only_the_epoch_shows_that_the_count_is_right(epochs, expected):
    steps = (*BASELINE.ranks[0].steps, *(more(RANK.steps[3], number) for number in range(2)))
    facts = {"epochs": epochs} if epochs else {}
    ranks = (replace(RANK, steps=steps, facts=facts), replace(RANK, rank=1, steps=steps, facts=facts))
    baseline = replace(BASELINE, ranks=(replace(RANK, facts={"epochs": {0: 0, 1: 2}}),))
    finding = goes_on(replace(BASELINE, ranks=ranks, num_replicas=4), baseline, 2)
    assert (finding and finding.cause) == expected


@pytest.mark.parametrize(
    ("epochs", "expected"), [({1: 0}, RecoveryVerdict.REPLAYED), ({2: 0}, RecoveryVerdict.DIVERGED)]
)
def test_an_epoch_that_is_older_than_the_weights_is_replayed(epochs, expected):
    """All steps are made. The third epoch is one too many, and the second one that the weights contain."""
    steps = tuple(more(RANK.steps[3], number) for number in range(2))
    baseline = replace(BASELINE, ranks=(replace(RANK, facts={"epochs": {0: 0, 1: 2}}),))
    last = continued(4, steps=steps, facts={"no_loop": False, "epochs": epochs})
    assert verdict(last, baseline, done=4).verdict is expected


def test_steps_with_wrong_values_are_replayed():
    steps = (*moved(continued(2), 0.01).steps, more(RANK.steps[3], 1))
    assert verdict(continued(2, steps=steps, resumed={2: RANK.steps[1].snapshot})).verdict is RecoveryVerdict.REPLAYED


def test_the_lost_state_comes_before_its_effects():
    lost = Finding("RESUME", "a slot was lost", cause="resume-lost-state")
    others = [Finding(check, "an effect", cause="metric-wrong") for check in ("METRIC-EQ", "INITIAL")]

    def judged(record, findings):
        report = judge(REFERENCE, BASELINE, repeated=True)
        return replace(report, findings=findings if record is not BASELINE else [])

    for order in ([lost, *others], [*others, lost]):
        trial = with_reports(moved(continued(2), 0.01), partial(judged, findings=order))
        assert (trial.verdict, trial.finding) == (RecoveryVerdict.DIVERGED, lost)
    writers = Finding("WRITE", "two writers", cause="unsafe-checkpoint-path")
    trial = with_reports(moved(continued(2), 0.01), partial(judged, findings=[lost, writers]))
    assert trial.finding is writers


def test_files_that_are_written_outside_of_a_save_are_named():
    fault = Fault.parse("kill worker:0 in writing 2, write 1")
    points = [
        Reached(Point("before", "writing", 1), 0.0, file="step.json"),
        Reached(Point("after", "writing", 1), 0.1),
        Reached(Point("before", "writing", 2), 0.2, file="epoch.txt"),
        Reached(fault.point, 0.3, fault, change=("write", "epoch.txt")),
    ]
    first = replace(attempt(replace(RANK, error=ErrorRecord("died", "was ended", "", 3)), 3), points=(tuple(points),))
    run = TrialRun((fault,), (first, attempt(continued(2), 2)), 0.0)
    plain = TrialRun((), (attempt(RANK, 4),), 0.0)
    trial = judge_trial(run, plain, BASELINE, partial(judge, REFERENCE, repeated=True))
    assert (trial.written, trial.in_writing) == (("step.json", "epoch.txt"), "epoch.txt")


def test_the_file_of_a_save_that_a_fault_leaves_half_written_is_named():
    for change in (("write", "ckpt/a -> b.keras"), ("rename", "ckpt/tmp 1", "ckpt/a -> b.keras")):
        fault = Fault.parse("kill worker:0 in save 1, write 2")
        points = (Reached(Point("before", "save", 1), 0.0), Reached(fault.point, 0.1, fault, change=change))
        first = replace(attempt(replace(RANK, error=ErrorRecord("died", "was ended", "", 3)), 3), points=(points,))
        run = TrialRun((fault,), (first, attempt(continued(2), 2)), 0.0)
        plain = TrialRun((), (attempt(RANK, 4),), 0.0)
        trial = judge_trial(run, plain, BASELINE, partial(judge, REFERENCE, repeated=True))
        assert (trial.written, trial.in_writing) == ((), "ckpt/a -> b.keras")
