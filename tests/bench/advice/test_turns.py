"""Launches take turns with their knobs, note their steps, and say why one of them failed."""

from __future__ import annotations

import pytest

from pytest_ddl.bench.advice import turns
from pytest_ddl.bench.advice.collecting import Collector
from pytest_ddl.bench.advice.facts.evidence import Contender
from pytest_ddl.bench.advice.turns import take_turns
from pytest_ddl.bench.launching.ranks import BenchError
from pytest_ddl.bench.launching.records import BenchSpec
from pytest_ddl.harness import process_harness
from tests.bench.advice import turn_programs

BENCH = BenchSpec(global_batch_size=4, warm_up=3, timeout=200)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture(autouse=True)
def few_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests read counts and notes, which a few turns give."""
    monkeypatch.setattr(turns, "FEWEST_GROUPS", 2)
    monkeypatch.setattr(turns, "SECONDS", 0.0)


def contender(name: str, train: object = turn_programs.trains, variant: str = "mirrored", knob: str = "") -> Contender:
    return Contender(name, train, variant, BENCH, knob or name)  # type: ignore[arg-type]


def test_launches_take_turns_and_note_their_steps() -> None:
    found, failed = take_turns(process_harness(), [contender(name) for name in ("base", "rarely", "alone")])
    assert not failed
    base = found["base"]
    assert len(base.turns) == len(found["rarely"].turns) == 2
    assert base.launch.counters.collectives == {"all_reduce": 1}
    assert found["alone"].launch.counters.collectives == {}
    (notes,) = base.notes
    assert notes.loops == "steps"
    assert len(notes.steps) == len(notes.bodies) == len(notes.host) >= base.launch.counters.steady_steps
    # The Python function runs in each step, on each replica, and nothing is traced.
    assert min(notes.host) > 0
    assert max(notes.traced) == 0
    # A step looks up rows 0 to 2.
    assert [tuple(table[1:]) for table in notes.tables] == [(3, 50, 16)]
    taken = sum(seconds > 0 for seconds in notes.bodies)
    rarely = found["rarely"].notes[0]
    assert taken >= len(notes.bodies) - 1
    assert sum(seconds > 0 for seconds in rarely.bodies) <= len(rarely.bodies) / 10 + 1


def test_a_knob_that_fails_is_left_out_with_the_reason() -> None:
    contenders = [contender(name, turn_programs.fails_with_twice_the_batch) for name in ("base", "batch")]
    found, failed = take_turns(process_harness(), contenders)
    assert set(found) == {"base"}
    assert "a batch of 8 does not fit into memory" in failed["batch"]


def test_a_program_that_fails_is_an_error() -> None:
    def broken(_run: object) -> None:
        raise RuntimeError("the data is not there")

    with pytest.raises(BenchError, match="the data is not there"):
        take_turns(process_harness(), [contender("base", broken), contender("again", broken)])


def test_keras_notes_its_callbacks_and_knobs_that_do_not_fit_are_named() -> None:
    collector = Collector(process_harness(), turn_programs.fits, "one_device", BENCH)
    evidence = collector.first()
    (notes,) = evidence.notes
    assert notes.loops == "fit"
    assert min(notes.bodies[:-1]) > 0
    assert set(evidence.gains) == {"again", "cached"}
    assert collector._unfit(evidence, "loop") == ""
    notes.loops = "batches"
    assert "run.batches, which it does not change" in collector._unfit(evidence, "loop")
