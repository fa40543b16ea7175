"""Evidence that the collector takes from launches, and launches that it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_ddl.bench.advice import collecting
from pytest_ddl.bench.advice.collecting import Collector
from pytest_ddl.bench.advice.facts.evidence import AdviceEvidence, MissingError
from pytest_ddl.bench.advice.turns import Contender, Measured
from pytest_ddl.bench.launching.records import BenchSpec
from tests.bench.advice.evidence_made import of_ranks


def collected(
    monkeypatch: pytest.MonkeyPatch, knob: str, of_knob: Any, turns: Sequence[float] = (0.01,) * 20
) -> AdviceEvidence:
    """Ask for a knob whose launch is ``of_knob``, with steady turns; all others have ``turns``."""

    def take(_harness: Any, contenders: Sequence[Contender]) -> tuple[dict[str, Measured], dict[str, str]]:
        launches = {knob: of_knob}
        return {
            one.id: Measured(
                one,
                launches.get(one.id, of_ranks()),
                (),
                [(each, each) for each in ((0.01,) * 20 if one.id == knob else turns)],
            )
            for one in contenders
        }, {}

    monkeypatch.setattr(collecting, "take_turns", take)
    found = AdviceEvidence(of_ranks(), notes=(SimpleNamespace(loops="steps"),))  # type: ignore[arg-type]
    collector = Collector(None, print, "multi_worker_mirrored", BenchSpec())  # type: ignore[arg-type]
    assert collector.answer(found, [MissingError(knob=knob)])
    return found


def test_a_gain_is_taken_from_quartiles_and_from_means(monkeypatch: pytest.MonkeyPatch) -> None:
    found = collected(monkeypatch, "prefetch", of_ranks(), [0.01, 0.01, 0.01, 0.05] * 5)
    assert set(found.gains) == set(found.averages) == {"again", "prefetch"}
    assert found.gains["prefetch"].value == pytest.approx(1.0)
    assert found.averages["prefetch"].value == pytest.approx(2.0)
    assert found.helps("prefetch") is found.averages["prefetch"]
    assert "on average" in str(found.helps("prefetch"))


@pytest.mark.parametrize(
    ("examples", "reason"),
    [
        ((64, 64), ""),
        ((32, 32), "does not take its batch size from run.global_batch_size"),
        ((None, 64), "the examples of a step could not be counted"),
    ],
)
def test_twice_the_batch_is_evidence_only_if_it_was_counted(
    monkeypatch: pytest.MonkeyPatch, examples: tuple[int | None, ...], reason: str
) -> None:
    one = of_ranks()
    ranks = tuple(replace(rank, examples=number) for rank, number in zip(one.ranks, examples, strict=True))
    found = collected(monkeypatch, "batch", replace(one, ranks=ranks))
    assert ("batch" in found.gains) == (not reason)
    assert reason in found.unavailable.get("batch", "")
    assert bool(found.unavailable) == bool(reason)
