"""Golden pairs are judged as somebody has accepted it, without TensorFlow."""

from __future__ import annotations

import lzma
import re
import subprocess
import sys
from dataclasses import dataclass, fields, make_dataclass
from pathlib import Path

import numpy as np
import pytest

from pytest_ddl.notes import Note, NoteKind
from pytest_ddl.records import GradientRecord, GradientStage, RankRecord, StepRecord
from tests.checks.simulated_training import Program, pair
from tests.lab import codec, golden

PATHS = list(golden.paths(golden.RECORDS))
EXPECTED = golden.expected()


def test_every_committed_file_has_an_accepted_opinion() -> None:
    assert {path.name.removesuffix(golden.SUFFIX) for path in PATHS} == set(EXPECTED)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name.removesuffix(golden.SUFFIX))
def test_a_golden_pair_is_judged_as_accepted(path: Path) -> None:
    pair = golden.load(path)
    now = {pair.name: golden.opinion(pair.judged())}
    before = {pair.name: EXPECTED[pair.name]}
    changed = "\n".join(golden.difference(before, now))
    assert now == before, f"{changed}\nIf this is right: python -m tests.lab.record --judge --accept"


def test_the_judge_needs_no_tensorflow() -> None:
    code = (
        "import sys; from pathlib import Path; from tests.lab import golden; "
        "golden.load(Path(sys.argv[1])).judged(); assert not {'tensorflow', 'keras'} & set(sys.modules)"
    )
    smallest = min(PATHS, key=lambda path: path.stat().st_size)
    subprocess.run([sys.executable, "-c", code, str(smallest)], check=True, cwd=codec.ROOT)


def test_no_file_names_a_place_of_the_machine_that_made_it() -> None:
    for path in PATHS:
        # Texts are JSON in the file, which is searched in a fraction of the time that its records take to be made.
        assert not re.search(rb'"/(?:home|root|work|tmp)', lzma.decompress(path.read_bytes())), path.name


@dataclass(frozen=True)
class Larger(StepRecord):
    """Record with a field that older files lack."""

    added: int = 7


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    gradient = GradientRecord(1, GradientStage.APPLIED, 0, {3: np.arange(3.0), 4: None}, frozenset({3}))
    rank = RankRecord(0, "worker:0", (0, 1), steps=(StepRecord(1, float("nan"), gradients=(gradient,)),))
    note = Note(NoteKind.BATCHES, "not seen")
    facts = {
        "note": note,
        "words": ["a", ("b",)],
        "number": np.float32(1.5),
        "text": np.array(["x"], object),
        "path": Path("p"),
    }
    codec.dump((rank, facts), tmp_path / "file")
    read, read_facts = codec.load(tmp_path / "file")
    step = read.steps[0]
    assert np.isnan(step.loss)
    assert step.gradients[0].stage is GradientStage.APPLIED
    assert step.gradients[0].sparse == frozenset({3})
    np.testing.assert_array_equal(step.gradients[0].values[3], np.arange(3.0))
    assert step.gradients[0].values[4] is None
    assert (read_facts["note"].kind, read_facts["note"]) == (NoteKind.BATCHES, "not seen")
    assert read_facts["words"] == ["a", ("b",)]
    assert read_facts["number"].dtype == np.float32
    assert read_facts["text"].tolist() == ["x"]


def test_a_file_is_read_after_a_class_has_got_a_field(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    codec.dump(StepRecord(1, 0.5), tmp_path / "file")
    monkeypatch.setitem(codec.CLASSES, "StepRecord", Larger)
    assert codec.load(tmp_path / "file") == Larger(1, 0.5, added=7)


def test_a_file_with_a_field_that_is_gone_is_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    codec.dump(StepRecord(1, 0.5, traces=3), tmp_path / "file")
    left = [(f.name, f.type, f) for f in fields(StepRecord) if f.name != "traces"]
    monkeypatch.setitem(codec.CLASSES, "StepRecord", make_dataclass("StepRecord", left))
    with pytest.raises(codec.StaleRecordError, match="StepRecord has no traces"):
        codec.load(tmp_path / "file")


def test_a_text_loses_the_places_of_this_machine() -> None:
    assert codec.without_places(f"{codec.ROOT}/tests/x.py and {sys.prefix}/lib") == "<root>/tests/x.py and <env>/lib"


def test_a_difference_is_readable() -> None:
    before = {"a": {"verdict": "pass", "findings": [], "excused": [], "doubts": []}}
    after = {"a": {"verdict": "inconclusive", "findings": [], "excused": [], "doubts": ["LOSS-EQ"]}}
    assert golden.difference(before, after) == ["a: pass -> inconclusive", "    + doubts: LOSS-EQ"]
    assert golden.difference(before, {}) == ["a: gone"]


def test_a_simulated_pair_is_judged_alike_after_a_trip_through_a_file(tmp_path: Path) -> None:
    reference, distributed = pair(Program(), replicas=2, scale=2.0)
    made = golden.Golden("simulated", reference, distributed)
    golden.save(made, tmp_path)
    again = golden.load(tmp_path / f"simulated{golden.SUFFIX}")
    assert golden.opinion(again.judged()) == golden.opinion(made.judged())
