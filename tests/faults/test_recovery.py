"""A program that recovers passes at every point, and each mistake in its recovery gets its verdict."""

from __future__ import annotations

import json
from functools import partial

import pytest
import recovery_programs as programs

from pytest_ddl import Sweep, check_training, generators
from pytest_ddl.equivalence.runs.question import ArgumentError
from pytest_ddl.faults.rank.write_gate import why_not
from pytest_ddl.faults.verdict import FIXES, RecoveryVerdict

pytestmark = pytest.mark.slow

GIVEN = {"global_batch_size": programs.BATCH, "timeout": 120}
WORKERS = "multi_worker_mirrored"
needs_gate = pytest.mark.skipif(bool(why_not()), reason=why_not() or "there is a gate")


def only(report):
    (trial,) = report.trials
    return trial


# Mistakes are the same under each strategy, and the points of one rank stand for those of all.
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("fault", "work"),
    [
        ("kill worker:1 before training", 0),
        ("kill worker:0 before step 4", 1),
        ("kill worker:1 in step 4, collective 1", 1),
        ("kill worker:0 after step 4", 2),
        ("kill worker:0 before save 2", 2),
        ("kill worker:0 after save 2", 0),
        ("abort worker:0 after step 5", 1),
        ("exception worker:1 before step 4", 1),
    ],
)
def test_a_program_that_saves_recovers_exactly(fault, work):
    report = check_training(programs.checkpointed, WORKERS, faults=fault, exact=True, always_loadable=True, **GIVEN)
    assert report.passed, str(report)
    trial = only(report)
    assert (trial.verdict, trial.work_lost, trial.attempts) == (RecoveryVerdict.EXACT, work, 2)
    assert trial.detected is not None
    assert trial.resumed is not None


def test_a_rank_that_ends_within_a_step_costs_what_was_not_saved():
    # It may read its batch while its all-reduces already run, so that the other rank may finish the step, and save it.
    given = {"faults": "kill worker:1 in step 4, batch 1", "exact": True, "always_loadable": True, **GIVEN}
    report = check_training(programs.checkpointed, WORKERS, **given)
    assert report.passed, str(report)
    trial = only(report)
    assert (trial.verdict, trial.attempts) == (RecoveryVerdict.EXACT, 2)
    assert (trial.work_lost, trial.resumed_at) in {(1, 2), (2, 2), (0, 4)}


@pytest.mark.nightly(each_commit=("term",))
@pytest.mark.parametrize("kind", ["term", "term-group"])
def test_a_process_that_has_no_handler_ends_by_the_first_signal(kind):
    report = check_training(programs.checkpointed, "mirrored", faults=f"{kind} worker:0 after step 5", **GIVEN)
    assert report.passed, str(report)
    assert (only(report).work_lost, only(report).attempts) == (1, 2)


@pytest.mark.nightly
def test_tensorflow_keeps_workers_alive_within_the_grace():
    # The preemption notifier of TensorFlow's coordination service handles SIGTERM, and the program goes on.
    fault = "term worker:1 after step 5 for 60 s"
    report = check_training(programs.checkpointed, WORKERS, faults=fault, exact=True, **GIVEN)
    assert report.passed, str(report)
    assert only(report).attempts == 1


@pytest.mark.nightly
@pytest.mark.parametrize("strategy", ["mirrored", WORKERS])
def test_a_notice_of_preemption_lets_the_program_save_before_it_ends(strategy):
    fault = "notice worker:0 before step 4"
    program = partial(programs.preempted, steps=12)
    report = check_training(program, strategy, faults=fault, exact=True, max_lost_steps=0, **GIVEN)
    assert report.passed, str(report)
    trial = only(report)
    assert (trial.attempts, trial.work_lost) == (2, 0)
    # TensorFlow's handler hears of it beside the steps, and agrees on a later one with the other workers.
    assert 3 <= trial.resumed_at < 12


# Each strikes at many points. Each commit runs one sweep.
# The test of the command strikes at every point, too.
@pytest.mark.nightly
def test_a_notice_that_nobody_reads_costs_what_was_not_saved():
    fault = "notice worker:0 before step 4 for 10 s"
    program = partial(programs.preempted, sin="watches nothing")
    report = check_training(program, "mirrored", faults=fault, max_lost_steps=0, **GIVEN)
    trial = only(report)
    assert (trial.verdict, trial.attempts, trial.work_lost) == (RecoveryVerdict.EXACT, 2, 4), str(report)
    assert "max_lost_steps=0, and 4 steps were made again" in str(report)


@pytest.mark.nightly
def test_a_program_that_reads_the_notice_and_forgets_its_data_trains_on_examples_twice():
    program = partial(programs.preempted, sin="begins the data again")
    report = check_training(program, "mirrored", faults="notice worker:0 before step 4", **GIVEN)
    assert only(report).verdict in (RecoveryVerdict.REPLAYED, RecoveryVerdict.EXAMPLES), str(report)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["stop", "gil", "slow"])
def test_a_delay_changes_nothing(kind):
    seconds = {"stop": 0.5, "gil": 0.5, "slow": 0.05}[kind]
    report = check_training(
        programs.starts_again, WORKERS, faults=f"{kind} worker:1 before step 3 for {seconds} s", exact=True, **GIVEN
    )
    assert report.passed, str(report)
    assert (only(report).attempts, only(report).work_lost) == (1, None)


def test_a_program_without_a_save_makes_all_steps_again():
    report = check_training(programs.starts_again, "mirrored", faults="kill worker:0 after step 5", **GIVEN)
    assert report.passed, str(report)
    assert (only(report).work_lost, only(report).resumed_at) == (5, 0)


@pytest.mark.nightly(each_commit=("mirrored-forgets the step",))
@pytest.mark.parametrize(
    ("sin", "verdict", "told"),
    [
        (
            "forgets the step",
            RecoveryVerdict.REPLAYED,
            "replayed 4 steps: the final weights have 10 updates, 6 without",
        ),
        ("forgets the optimizer", RecoveryVerdict.DIVERGED, "resume-lost-state"),
        ("begins the data again", RecoveryVerdict.EXAMPLES, "24 examples trained on twice, 24 examples never"),
        ("counts in a file", RecoveryVerdict.LOST, "lost 1 step: the final weights have 5 updates, 6 without"),
        ("refuses to continue", RecoveryVerdict.CANNOT_RESUME, "cannot resume, attempt 2: rank 0"),
    ],
)
@pytest.mark.parametrize("strategy", ["mirrored", WORKERS])
def test_a_mistake_in_the_recovery_gets_its_verdict(sin, verdict, told, strategy):
    program = partial(programs.checkpointed, sin=sin)
    report = check_training(program, strategy, faults="kill worker:0 before step 6", **GIVEN)
    trial = only(report)
    assert trial.verdict is verdict, str(report)
    assert told in trial.message
    assert not report.passed
    assert f"    fix: {FIXES.get(verdict, trial.finding and trial.finding.fix)}\n" in f"{report}\n"
    assert json.loads(report.to_json())["trials"][0]["verdict"] == verdict.value


@pytest.mark.nightly
@needs_gate
def test_a_file_that_is_written_in_place_cannot_be_loaded_after_a_kill():
    sweep = Sweep(phases=["save"])
    right = check_training(partial(programs.newest, sin=""), "mirrored", faults=sweep, exact=True, **GIVEN)
    assert right.passed, str(right)
    wrong = check_training(programs.newest, "mirrored", faults=sweep, **GIVEN)
    verdicts = {trial.verdict for trial in wrong.trials if trial.schedule[0].point.detail}
    assert verdicts == {RecoveryVerdict.EXACT, RecoveryVerdict.CANNOT_RESUME}, str(wrong)
    assert {trial.verdict for trial in wrong.trials if not trial.schedule[0].point.detail} == {RecoveryVerdict.EXACT}


@pytest.mark.nightly
@needs_gate
@pytest.mark.parametrize(("kind", "points"), [("kill", 15), ("torn-write", 13), ("io-error", 13), ("no-space", 13)])
def test_every_write_of_a_checkpoint_may_be_the_last(kind, points):
    program = partial(programs.checkpointed, steps=2)
    faults = Sweep(kind, phases=["save"])
    report = check_training(program, "mirrored", faults=faults, exact=True, always_loadable=True, **GIVEN)
    assert report.passed, str(report)
    assert len(report.trials) >= points


@pytest.mark.nightly
@needs_gate
def test_after_a_kill_at_every_write_another_number_of_replicas_loads_the_last_complete_save():
    program = partial(programs.checkpointed, steps=2)
    report = check_training(
        program,
        "mirrored[replicas=2]",
        faults=Sweep(phases=["save"]),
        restart_on="mirrored[replicas=3]",
        always_loadable=True,
        **GIVEN,
    )
    assert report.passed, str(report)
    assert sum(trial.schedule[0].point.detail == "write" for trial in report.trials) >= 13
    assert {trial.complete_save for trial in report.trials} == {0, 2}


@pytest.mark.nightly
@pytest.mark.parametrize(("saves", "work"), [(True, 1), (False, 3)])
@pytest.mark.parametrize("strategy", ["mirrored", WORKERS])
def test_a_loop_that_records_its_steps_continues_where_it_was_saved(saves, work, strategy):
    program = partial(programs.recording, saves=saves)
    report = check_training(program, strategy, faults="kill worker:0 after step 3", exact=True, **GIVEN)
    assert report.passed, str(report)
    trial = only(report)
    assert (trial.resumed_at, trial.work_lost, trial.notes) == (3 - work, work, ())


@pytest.mark.nightly(each_commit=("2",))
@pytest.mark.parametrize(("reports", "after"), [(1, 5), (2, 4), (3, 3)])
def test_values_that_are_reported_now_and_then_are_those_of_their_steps(reports, after):
    given = {"faults": f"kill worker:0 after step {after}", "restart_on": "mirrored[replicas=3]", **GIVEN}
    report = check_training(partial(programs.recording, reports=reports), "mirrored", **given)
    assert report.passed, str(report)
    wrong = check_training(partial(programs.recording, reports=reports, how="reports half"), "mirrored", **given)
    trial = only(wrong)
    assert (trial.verdict, trial.finding.cause) == (RecoveryVerdict.DIVERGED, "metric-wrong"), str(wrong)
    saved = (after - 1) // 2 * 2
    first = next(step for step in range(reports, 7, reports) if step > saved)
    assert f"/size returned after step {first} is not that of one device" in trial.message


@pytest.mark.nightly
def test_what_a_program_reports_of_its_restored_state_is_compared_with_nothing():
    program = partial(programs.recording, reports=3, how="reports the start")
    given = {"faults": "kill worker:0 after step 5", "restart_on": "mirrored[replicas=3]", **GIVEN}
    report = check_training(program, "mirrored", **given)
    assert report.passed, str(report)


@pytest.mark.nightly
def test_a_loaded_model_is_located_by_its_values():
    report = check_training(programs.loaded, "mirrored", faults="kill worker:0 after step 5", exact=True, **GIVEN)
    assert report.passed, str(report)
    assert (only(report).resumed_at, only(report).work_lost) == (3, 2)


@pytest.mark.nightly
def test_every_point_is_struck_once_and_the_restore_too():
    report = check_training(programs.checkpointed, "mirrored", faults=Sweep(writes=False), exact=True, **GIVEN)
    assert report.passed, str(report)
    struck = [str(trial.schedule[-1]) for trial in report.trials]
    assert len(set(struck)) == len(struck)
    phases = {trial.schedule[-1].point.phase for trial in report.trials}
    assert phases == {"training", "step", "save", "restore"}
    assert "kill worker:0 before restore 1 of attempt 2" in struck


@pytest.mark.nightly
def test_a_sweep_of_restores_alone_strikes_in_the_second_attempt():
    report = check_training(programs.checkpointed, "mirrored", faults=Sweep(phases=["restore"]), exact=True, **GIVEN)
    assert report.passed, str(report)
    struck = [str(trial.schedule[-1]) for trial in report.trials]
    assert struck == [f"kill worker:0 {when} restore 1 of attempt 2" for when in ("before", "after")]


def test_a_sweep_strikes_at_chosen_points():
    points = ["before step 4", "after save 1", "before restore 1"]
    report = check_training(programs.checkpointed, "mirrored", faults=Sweep(points=points, writes=False), **GIVEN)
    assert report.passed, str(report)
    assert [str(trial.schedule[-1].point) for trial in report.trials] == ["after save 1", "before step 4", points[2]]
    with pytest.raises(ArgumentError, match="the run has no point 'before step 9' that this sweep strikes"):
        check_training(programs.starts_again, "mirrored", faults=Sweep(points=["before step 9"]), **GIVEN)


def test_two_faults_strike_in_two_attempts():
    faults = ["kill worker:0 before step 4", "kill worker:1 before step 6 of attempt 2"]
    report = check_training(programs.checkpointed, WORKERS, faults=faults, exact=True, **GIVEN)
    assert report.passed, str(report)
    assert only(report).attempts == 3


@pytest.mark.nightly(each_commit=("kill worker:1 before step 4 of attempt 2",))
@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("kill worker:1 before step 9", "the point of kill worker:1 before step 9 was not reached"),
        ("kill worker:1 before step 4 of attempt 2", "there was no attempt 2"),
    ],
)
def test_a_fault_that_does_not_strike_is_no_survival(fault, told):
    report = check_training(programs.checkpointed, WORKERS, faults=fault, **GIVEN)
    assert only(report).verdict is RecoveryVerdict.NOT_INJECTED
    assert told in only(report).message
    assert not report.passed


@pytest.mark.nightly(each_commit=("ends with status 0-multi_worker_mirrored", "returns"))
@pytest.mark.parametrize(
    ("how", "strategy", "verdict"),
    [
        ("ends with status 0", "mirrored", RecoveryVerdict.CANNOT_RESUME),
        ("ends with status 0", WORKERS, RecoveryVerdict.CANNOT_RESUME),
        ("exits with status 0", "mirrored", RecoveryVerdict.CANNOT_RESUME),
        ("misses a dependency", "mirrored", RecoveryVerdict.CANNOT_RESUME),
        ("returns", "mirrored", RecoveryVerdict.UNDECIDED),
        ("returns on one rank", WORKERS, RecoveryVerdict.HUNG),
    ],
)
def test_a_second_attempt_that_only_pretends_is_no_recovery(how, strategy, verdict):
    report = check_training(
        partial(programs.pretends, how=how), strategy, faults="kill worker:0 before step 4", **GIVEN
    )
    assert only(report).verdict is verdict, str(report)
    assert not report


def test_an_exception_that_the_program_swallows_loses_its_step():
    report = check_training(
        programs.catches_everything, "mirrored", faults="exception worker:0 in step 3, batch 0", **GIVEN
    )
    assert only(report).verdict is RecoveryVerdict.LOST, str(report)
    assert only(report).attempts == 1


@pytest.mark.nightly
@pytest.mark.parametrize(("workers", "on"), [(2, 3), (3, 2)])
def test_a_program_continues_on_another_number_of_workers(workers, on):
    report = check_training(
        programs.checkpointed,
        f"{WORKERS}[workers={workers}]",
        faults="kill worker:1 before step 4",
        restart_on=f"{WORKERS}[workers={on}]",
        always_loadable=True,
        **GIVEN,
    )
    assert report.passed, str(report)
    assert (only(report).verdict, only(report).resumed_at) == (RecoveryVerdict.EQUAL, 2)


@pytest.mark.nightly(each_commit=("forgets the optimizer",))
@pytest.mark.parametrize(
    ("sin", "verdict"), [("", RecoveryVerdict.EQUAL), ("forgets the optimizer", RecoveryVerdict.DIVERGED)]
)
def test_after_the_last_step_too_another_number_of_replicas_is_compared(sin, verdict):
    program = partial(programs.checkpointed, sin=sin)
    given = {"faults": "kill worker:0 after save 3", "restart_on": "mirrored[replicas=3]", **GIVEN}
    report = check_training(program, "mirrored[replicas=2]", **given)
    trial = only(report)
    assert (trial.verdict, trial.resumed_at, report.passed) == (verdict, 6, not sin), str(report)
    assert not sin or trial.finding.cause == "resume-lost-state"


@pytest.mark.nightly
@pytest.mark.parametrize("on", [None, "mirrored[replicas=3]"])
def test_weights_that_the_last_attempt_lacks_are_not_taken_as_equal(on):
    program = partial(programs.checkpointed, sin="builds less in the end")
    given = {"faults": "kill worker:0 after save 3", "restart_on": on, **GIVEN}
    report = check_training(program, "mirrored[replicas=2]", **given)
    assert not report.passed
    trial = only(report)
    assert trial.verdict is RecoveryVerdict.UNDECIDED, str(report)
    assert "so sequential/dense_1/bias, sequential/dense_1/kernel cannot be compared" in trial.message


@pytest.mark.nightly(each_commit=("2",))
@pytest.mark.parametrize("save", [2, 3])
def test_an_optimizer_that_makes_its_slots_in_a_step_needs_none_after_the_last_one(save):
    program = partial(programs.checkpointed, late=True)
    given = {"faults": f"kill worker:0 after save {save}", "restart_on": f"{WORKERS}[workers=3]", **GIVEN}
    report = check_training(program, WORKERS, **given)
    assert report.passed, str(report)
    assert (only(report).verdict, only(report).resumed_at) == (RecoveryVerdict.EQUAL, 2 * save)


@pytest.mark.nightly
def test_the_limits_are_kept_or_named():
    fault = "kill worker:1 before step 6"
    report = check_training(programs.starts_again, WORKERS, faults=fault, max_lost_steps=2, **GIVEN)
    assert "max_lost_steps=2, and 5 steps were made again" in str(report)
    report = check_training(programs.starts_again, WORKERS, faults=fault, detected_within=1e-6, **GIVEN)
    assert "detected_within=1e-06, and it took" in str(report)


@pytest.mark.nightly
def test_a_generator_finds_the_shortest_schedule_that_breaks():
    program = partial(programs.checkpointed, sin="forgets the step")
    report = check_training(program, "mirrored", faults=generators.faults(examples=6), **GIVEN)
    assert not report.passed
    assert len(only(report).schedule) == 1
    good = check_training(programs.checkpointed, "mirrored", faults=generators.faults(examples=3), **GIVEN)
    assert good.trials
    assert good.passed, str(good)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("faults", "told"),
    [
        ("kill worker:7 before step 1", "faults: task='worker:7' does not exist; tasks: worker:0"),
        ("kil worker:0 before step 1", "faults: there is no fault 'kil'"),
        (3, "faults: faults=3 is no fault"),
        ([], "faults: faults=[] is no fault"),
    ],
)
def test_a_wrong_fault_is_refused(faults, told):
    with pytest.raises(ArgumentError, match=r"^faults: ") as caught:
        check_training(programs.starts_again, "mirrored", faults=faults, **GIVEN)
    assert told in str(caught.value)


def test_a_limit_without_faults_is_refused():
    with pytest.raises(ArgumentError, match=r"exact=True concerns faults: give faults= too"):
        check_training(programs.starts_again, "mirrored", exact=True, **GIVEN)
