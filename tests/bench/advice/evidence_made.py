"""Evidence out of given numbers: each rule has one that it applies to, and one that it does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pytest_ddl.bench import Counters, Launch, RankTiming
from pytest_ddl.bench.advice.facts.changed import Notes
from pytest_ddl.bench.advice.facts.evidence import AdviceEvidence
from pytest_ddl.bench.advice.facts.gains import Gain
from pytest_ddl.bench.advice.turns import Contender, Measured
from pytest_ddl.bench.launching.records import BenchSpec
from tests.bench.made import launch

GRADIENTS = Counters(
    collectives={"all_reduce": 1},
    reduced_bytes=4_000_000,
    packs=1,
    parameter_bytes=4_000_000,
    reduced_dtypes={"float32": 4_000_000},
    nodes=50,
    steady_steps=100,
)
SEVERAL = replace(GRADIENTS, collectives={"all_reduce": 40}, packs=0, unpacked=40)


def gain(value: float, spread: float = 0.05) -> Gain:
    return Gain(value, value * (1 - spread), value * (1 + spread))


def of_ranks(counters: Counters = GRADIENTS, examples: tuple[int, ...] = (32, 32), **given: Any) -> Launch:
    one = launch("multi_worker_mirrored[workers=2,replicas=1]", 0.01, replicas=len(examples), batch=64, **given)
    timing: RankTiming = one.ranks[0]
    ranks = tuple(
        replace(timing, rank=rank, task=f"worker:{rank}", examples=number) for rank, number in enumerate(examples)
    )
    return replace(one, ranks=ranks, counters=counters)


def notes(rank: int = 0, bodies: float = 0.0, traced: float = 0.0, host: float = 0.0, **given: Any) -> Notes:
    """Notes of 50 steps of 10 ms, with further seconds of each step."""
    count = 50
    return Notes(
        rank,
        [0.01 + traced + host] * count,
        [bodies] * count,
        [traced] * count,
        [host] * count,
        loops="steps",
        **given,
    )


def alone(*seconds: float, together: float = 0.01) -> dict[str, Measured]:
    """Times of a step of each rank without communication, and with it."""
    contender = Contender("alone", print, "multi_worker_mirrored", BenchSpec())
    base = Contender("base", print, "multi_worker_mirrored", BenchSpec())
    whole = of_ranks()
    return {
        "alone": Measured(contender, whole, (), [seconds] * 10),
        "base": Measured(base, whole, (), [(together,) * len(seconds)] * 10),
    }


def evidence(one: Launch | None = None, gains: dict[str, float] | None = None, **given: Any) -> AdviceEvidence:
    """Evidence of a well-tuned program, with the gains of knobs that differ from it."""
    tuned = dict.fromkeys(
        (
            "again",
            "cached",
            "alone",
            "parallel",
            "prefetch",
            "graph",
            "rarely",
            "loop",
            "packs",
            "narrow",
            "half",
            "ungathered",
        ),
        1.0,
    )
    found = {name: gain(value) for name, value in {**tuned, "batch": 1.05, **(gains or {})}.items()}
    given = {"notes": (notes(0), notes(1)), "measured": alone(0.009, 0.009), **given}
    return AdviceEvidence(one or of_ranks(), gains=found, **given)


def times(**seconds: float) -> dict[tuple[str, int], float]:
    """Seconds of collectives, named by kind and bytes: ``all_reduce_4000000=0.01``."""
    return {(name.rpartition("_")[0], int(name.rpartition("_")[2])): value for name, value in seconds.items()}
