"""A change is reported only after a re-run confirms it; one re-run decides about all that it can explain."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_ddl.bench.history.confirm import Confirmations, NotRerunError, at_most, confirm_all
from pytest_ddl.bench.history.detect import Change, ChangeVerdict, changes
from pytest_ddl.bench.history.meaning import mark_clashes
from pytest_ddl.bench.history.model import Benchmark, Series
from pytest_ddl.bench.history.report import explain
from pytest_ddl.bench.history.rerun import gate_confirmation, judged, known_names
from pytest_ddl.bench.outcome import UsageError
from tests.bench.history.power import STEP, THROUGHPUT, creeping, simulated, step_at

CONFIRMED = ChangeVerdict("confirmed", "slower", 0.05)


def places(*several: Series) -> dict[str, int]:
    return {point.commit.hash: point.commit.position for one in several for point in one.points}


def both(size: float = 0.08) -> tuple[Series, Series]:
    level = step_at(40, size)
    return simulated(level, 0.01, 1, kind=STEP), simulated(level, 0.01, 1, kind=THROUGHPUT)


def test_an_unconfirmed_candidate_never_alerts() -> None:
    one = simulated(step_at(40, 0.5), 0.01, 1)
    (found,) = confirm_all(changes(one), None, Confirmations(None, []), places(one))
    assert found.verdict.status == "unconfirmed"
    assert found.is_candidate
    assert not found.alerts


@pytest.mark.parametrize(
    ("status", "alerts", "candidate"),
    [("confirmed", True, False), ("refuted", False, False), ("unconfirmed", False, True)],
)
def test_the_verdict_decides(status: Any, alerts: bool, candidate: bool) -> None:
    one = simulated(step_at(40, 0.08), 0.01, 1)
    found = confirm_all(changes(one), lambda *_: ChangeVerdict(status), Confirmations(None, []), places(one))[0]
    assert (found.alerts, found.is_candidate) == (alerts, candidate)


def test_one_rerun_decides_about_step_and_throughput() -> None:
    step, throughput = both()
    asked: list[tuple[str, str, str]] = []

    def confirm(before: str, after: str, series: Series) -> ChangeVerdict:
        asked.append((before, after, series.benchmark.name))
        return CONFIRMED

    found = confirm_all(
        [*changes(throughput), *changes(step)], confirm, Confirmations(None, []), places(step, throughput)
    )
    assert [one.alerts for one in found] == [True, True]
    ((before, after, name),) = asked
    assert name == STEP.name
    assert int(before, 16) < 40 <= int(after, 16)


def test_verdicts_are_kept_and_not_asked_for_again(tmp_path: Path) -> None:
    step, _ = both()
    path = tmp_path / "confirmations.jsonl"
    confirm_all(changes(step), lambda *_: CONFIRMED, Confirmations.load(path), places(step))
    assert len(path.read_text().splitlines()) == 1
    path.write_text(path.read_text() + "broken\n")

    def unasked(*_: object) -> ChangeVerdict:
        raise AssertionError("asked again")

    (found,) = confirm_all(changes(step), unasked, Confirmations.load(path), places(step))
    assert found.alerts
    assert found.verdict == CONFIRMED


def test_a_verdict_about_other_commits_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "confirmations.jsonl"
    early = simulated(step_at(10, 0.08), 0.01, 1)
    confirm_all(changes(early), lambda *_: ChangeVerdict("refuted"), Confirmations.load(path), places(early))
    late = simulated(step_at(40, 0.08), 0.01, 1)
    (found,) = confirm_all(changes(late), None, Confirmations.load(path), places(late))
    assert found.verdict.status == "unconfirmed"


def test_what_decided_nothing_is_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "confirmations.jsonl"
    one = simulated(step_at(40, 0.08), 0.01, 1)
    confirm_all(changes(one), lambda *_: ChangeVerdict("unconfirmed", "busy"), Confirmations.load(path), places(one))
    assert not path.exists()


def test_a_creep_is_reported_besides_steps_that_were_refuted_one_by_one() -> None:
    one = simulated(creeping(0.25), 0.01, 1)
    found = changes(one)
    assert any(change.kind == "step" for change in found)

    def confirm(before: str, after: str, _series: Series) -> ChangeVerdict:
        return ChangeVerdict("confirmed" if int(after, 16) - int(before, 16) > 30 else "refuted")

    alerts = [change for change in confirm_all(found, confirm, Confirmations(None, []), places(one)) if change.alerts]
    assert [change.kind for change in alerts] == ["creep"]


def test_a_step_that_was_confirmed_explains_the_level() -> None:
    one = simulated(step_at(25, 0.1), 0.01, 1)
    found = changes(one)
    assert {change.kind for change in found} == {"step", "creep"}
    done = confirm_all(found, lambda *_: CONFIRMED, Confirmations(None, []), places(one))
    assert [change.kind for change in done] == ["step"]


def efficiency_of(level: Any) -> Series:
    kind = Benchmark("training.Dash.track_efficiency", "", "1", ("strategy", "replicas"), {"higher_is_better": True})
    base = simulated(level, 0.005, 2, kind=THROUGHPUT)
    return Series(base.machine, base.environment, kind, base.parameters, base.points)


def test_efficiency_that_fell_because_one_device_got_faster_is_explained() -> None:
    step, fallen = simulated(lambda _: 0.02, 0.005, 1), efficiency_of(step_at(20, 0.1))
    (found,) = explain(changes(fallen), [step, fallen])
    assert found.worse
    assert found.verdict.status == "explained"
    assert not found.is_candidate


def test_efficiency_that_fell_with_a_slower_step_is_a_candidate() -> None:
    slower = simulated(step_at(20, 0.1), 0.005, 1)
    fallen = efficiency_of(step_at(20, 0.1))
    found = explain([*changes(slower), *changes(fallen)], [slower, fallen])
    assert all(one.is_candidate for one in found)


def test_efficiency_alone_is_a_candidate() -> None:
    fallen = efficiency_of(step_at(20, 0.1))
    (found,) = explain(changes(fallen), [fallen])
    assert found.is_candidate


def result(verdict: str, launches: int = 6, ratio: float = 1.05, memory: tuple[int, int] = (100, 100)) -> Any:
    def launch(size: int, sign: int) -> Any:
        return SimpleNamespace(ranks=[SimpleNamespace(peak_memory_bytes=(size * 2**20) + sign)])

    decision = SimpleNamespace(ratio=ratio, launches=launches)
    made = [
        SimpleNamespace(base=launch(memory[0], at), head=launch(memory[1], -at), load=SimpleNamespace(problem=""))
        for at in range(launches)
    ]
    cell = SimpleNamespace(
        verdict=SimpleNamespace(value=verdict), reason="a step takes +5.0 % time", decision=decision, launches=made
    )
    return SimpleNamespace(cells=[cell], margin=0.025)


def rerun(gate: Any, one: Series, **more: Any) -> ChangeVerdict:
    confirm = gate_confirmation(Path(), ["benchmarks:train"], machine="runner", gate=gate, **more)
    return confirm("a" * 40, "b" * 40, one)


@pytest.mark.parametrize(
    ("verdict", "status"),
    [
        ("regression", "confirmed"),
        ("pass", "refuted"),
        ("improvement", "refuted"),
        ("inconclusive", "unconfirmed"),
        ("error", "unconfirmed"),
    ],
)
def test_only_a_regression_of_the_gate_confirms(verdict: str, status: str) -> None:
    asked: list[Any] = []

    def gate(*arguments: Any, **options: Any) -> Any:
        asked.append((arguments, options))
        return result(verdict)

    found = rerun(gate, both()[0], options=["batch_per_replica=64", "budget=300"])
    assert found.status == status
    assert "6 launches" in found.message
    (arguments, options), = asked  # fmt: skip
    assert arguments == ("a" * 40, "b" * 40, "benchmarks:train", "mirrored[replicas=2]")
    assert options["budget"] == 300
    assert options["bench"].batch_per_replica == 64


def test_without_a_decision_nothing_is_decided() -> None:
    assert judged("error", "TensorFlow is missing", None) == ChangeVerdict(
        "unconfirmed", "re-run: TensorFlow is missing"
    )


def test_memory_is_judged_by_the_memory_of_the_rerun() -> None:
    kind = Benchmark("training.Gate.track_peak_memory", "MiB", "1", ("strategy", "replicas"))
    one = Series("runner", "env", kind, both()[0].parameters, ())
    more = rerun(lambda *_, **__: result("pass", memory=(100, 120)), one)
    assert more.status == "confirmed"
    assert more.effect == pytest.approx(0.2, rel=1e-3)
    assert "peak_memory" in more.message
    assert rerun(lambda *_, **__: result("regression", memory=(100, 100)), one).status == "refuted"


def test_results_of_another_machine_are_not_confirmed_here() -> None:
    confirm = gate_confirmation(
        Path(), ["benchmarks:train"], machine="laptop", gate=lambda *_, **__: result("regression")
    )
    with pytest.raises(NotRerunError, match="--machine runner"):
        confirm("a", "b", both()[0])


def test_a_workload_without_target_is_not_confirmed() -> None:
    confirm = gate_confirmation(
        Path(), ["Cnn=benchmarks:train"], machine="runner", gate=lambda *_, **__: result("pass")
    )
    with pytest.raises(NotRerunError, match="training"):
        confirm("a", "b", both()[0])


def of(name: str, machine: str = "runner", size: float = 0.08) -> Series:
    one = simulated(step_at(40, size), 0.01, 1)
    kind = replace(one.benchmark, name=f"{name}.track_step_time")
    return replace(one, machine=machine, benchmark=kind)


def test_a_re_run_of_one_suite_says_nothing_about_another_of_its_name() -> None:
    """One re-run, of the module that comes first, used to decide for both."""
    vision, text = mark_clashes([of("vision.GateCnn"), of("text.GateCnn")])
    found = [*changes(vision), *changes(text)]

    def confirm(_before: str, _after: str, series: Series) -> ChangeVerdict:
        return ChangeVerdict("confirmed" if series is text else "refuted")

    done = confirm_all(found, confirm, Confirmations(None, []), places(vision))
    assert {one.series.benchmark.name for one in done if one.alerts} == {text.benchmark.name}


def test_a_verdict_on_a_suite_is_not_one_on_another_of_its_name(tmp_path: Path) -> None:
    path = tmp_path / "confirmations.jsonl"
    vision, text = of("vision.GateCnn"), of("text.GateCnn")
    confirm_all(changes(vision), lambda *_: ChangeVerdict("refuted"), Confirmations.load(path), places(vision))
    (again,) = confirm_all(changes(vision)[:1], None, Confirmations.load(path), places(vision))
    (other,) = confirm_all(changes(text)[:1], None, Confirmations.load(path), places(text))
    assert (again.verdict.status, other.verdict.status) == ("refuted", "unconfirmed")


def test_targets_are_of_a_suite_by_its_short_or_its_whole_name() -> None:
    asked: list[str] = []

    def gate(_before: str, _after: str, target: str, _strategy: str, **_: Any) -> Any:
        asked.append(target)
        return result("pass")

    vision, text = mark_clashes([of("vision.GateCnn"), of("text.GateCnn")])
    targets = ["vision.Cnn=m:vision", "Cnn=m:cnn", "m:other"]
    confirm = gate_confirmation(Path(), targets, machine="runner", gate=gate)
    for one in (vision, text, of("vision.GateCnn"), of("text.GateCnn")):
        confirm("a", "b", one)
    # Of two that are called the same, the short name is that of neither.
    assert asked == ["m:vision", "m:other", "m:cnn", "m:cnn"]


def test_what_cannot_be_re_run_takes_no_ones_turn() -> None:
    told: list[str] = []
    confirm = gate_confirmation(
        Path(), ["m:f"], machine="runner", gate=lambda *_, **__: result("regression"), reruns=1, tell=told.append
    )
    several = [of("a.Gate", "laptop"), of("b.Gate"), of("c.Gate"), of("d.Gate", "laptop")]
    found = [changes(one)[0] for one in several]
    done = confirm_all(found, confirm, Confirmations(None, []), places(*several))
    assert [one.alerts for one in done] == [False, True, False, False]
    assert len(told) == 1
    assert "re-running" in told[0]
    messages = [one.verdict.message for one in done]
    assert "--machine laptop" in messages[0]
    assert "left for the next call" in messages[2]
    assert "--machine laptop" in messages[3]


def test_a_gate_that_could_not_begin_takes_no_ones_turn() -> None:
    def gate(_before: str, _after: str, target: str, _strategy: str, **_: Any) -> Any:
        if target == "m:missing":
            raise UsageError("no m:missing in BASE")
        return result("regression")

    targets = ["a=m:missing", "m:f"]
    confirm = gate_confirmation(Path(), targets, machine="runner", gate=gate, reruns=1)
    several = [of("a.Gate"), of("b.Gate")]
    done = confirm_all([changes(one)[0] for one in several], confirm, Confirmations(None, []), places(*several))
    assert [one.verdict.status for one in done] == ["unconfirmed", "confirmed"]
    assert "no m:missing in BASE" in done[0].verdict.message


def test_only_so_many_are_run() -> None:
    limited = at_most(2, lambda: "run")
    assert [limited(), limited()] == ["run", "run"]
    with pytest.raises(NotRerunError, match="2 were re-run"):
        limited()


@pytest.mark.parametrize(
    "line",
    [b"\xff\xfe", b"[1]", b"{", b"null", b'{"status": "confirmed", "base": [1], "head": {}, "cell": 5, "kind": []}',
     b'{"status": "confirmed", "base": "a", "head": "b", "effect": "much"}'],
)  # fmt: skip
def test_lines_that_are_no_verdicts_are_left_out_and_counted(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "confirmations.jsonl"
    step, _ = both()
    confirm_all(changes(step), lambda *_: CONFIRMED, Confirmations.load(path), places(step))
    path.write_bytes(line + b"\n" + path.read_bytes())
    known = Confirmations.load(path)
    assert (len(known.rows), known.unread) == (1, 1)
    assert all(one.alerts for one in confirm_all(changes(step), None, known, places(step)) if one.worse)


@pytest.mark.parametrize(
    ("targets", "options", "words"),
    [
        ([], [], "--target"),
        (["train"], [], "MODULE:FUNCTION"),
        (["m:f"], ["speed=3"], "--confirm-option='speed=3'"),
        (["m:f"], ["warm_up=0"], "warm_up=0"),
    ],
)
def test_wrong_arguments_are_named(targets: list[str], options: list[str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        gate_confirmation(Path(), targets, options)


def test_names_of_this_machine_are_those_that_asv_knows(tmp_path: Path) -> None:
    path = tmp_path / "asv-machine.json"
    path.write_text('{"gpu-runner": {}, "version": 1}')
    assert "gpu-runner" in known_names(path)
    assert known_names(tmp_path / "none")


def test_findings_have_the_same_id_in_every_run() -> None:
    first, second = (changes(simulated(step_at(40, 0.08), 0.01, 1))[0] for _ in range(2))
    assert isinstance(first, Change)
    assert first.id == second.id
