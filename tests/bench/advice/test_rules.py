"""Each rule applies to evidence of its problem, and not to evidence that is close to it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_ddl.bench import Counters
from pytest_ddl.bench.advice.facts.evidence import MissingError
from pytest_ddl.bench.advice.facts.knobs import KNOBS
from pytest_ddl.bench.advice.rules import LIMITS, RULES
from pytest_ddl.bench.advice.rules.registry import rule
from tests.bench.advice.evidence_made import GRADIENTS, SEVERAL, alone, evidence, notes, of_ranks, times

GATHERS = replace(GRADIENTS, collectives={"all_reduce": 1, "all_gather": 1}, gathered_bytes=8_000_000)
WIDE = replace(GRADIENTS, reduced_bytes=8_000_000, reduced_dtypes={"float64": 8_000_000})
TABLE = [["table", 100, 30_000, 128]]
SPARSE = times(all_reduce_160000=0.001, all_gather_12800=0.0005, all_reduce_4000000=0.01)

CASES = {
    "parallel-map": (
        evidence(gains={"cached": 3.0, "parallel": 2.5, "prefetch": 1.0}),
        # Steps do not wait for data: parallel calls only seem to help.
        evidence(gains={"cached": 1.02, "parallel": 1.3}),
    ),
    "prefetch": (
        evidence(gains={"cached": 3.0, "parallel": 1.0, "prefetch": 1.8}),
        evidence(gains={"cached": 3.0, "parallel": 2.5, "prefetch": 1.8}),
    ),
    "slow-input": (
        evidence(gains={"cached": 3.0, "parallel": 1.0, "prefetch": 1.0}),
        evidence(gains={"cached": 3.0, "parallel": 2.5, "prefetch": 1.0}),
    ),
    "eager-step": (
        evidence(of_ranks(Counters(eager=True)), {"graph": 4.0}),
        evidence(of_ranks(GRADIENTS), {"graph": 4.0}),
    ),
    "host-calls": (
        evidence(of_ranks(replace(GRADIENTS, host_calls=1)), notes=(notes(0), notes(1, host=0.02))),
        # Calls of an input pipeline are not in the graph of a step.
        evidence(of_ranks(GRADIENTS), notes=(notes(0), notes(1, host=0.02))),
    ),
    "loop-body": (
        evidence(notes=(notes(0, bodies=0.02), notes(1))),
        evidence(notes=(notes(0, bodies=0.0005), notes(1))),
    ),
    "many-steps-in-one-call": (evidence(gains={"loop": 1.6}), evidence(gains={"loop": 1.05})),
    "retracing": (
        evidence(of_ranks(replace(GRADIENTS, retraces=100)), notes=(notes(traced=0.05),)),
        # Warm-up traced, steady steps did not.
        evidence(of_ranks(replace(GRADIENTS, traces=3)), notes=(notes(traced=0.05),)),
    ),
    "unbalanced-batches": (
        evidence(of_ranks(examples=(8, 56)), {"alone": 1.2}, measured=alone(0.002, 0.009)),
        evidence(of_ranks(examples=(32, 32)), {"alone": 1.2}, measured=alone(0.002, 0.009)),
    ),
    "slow-worker": (
        evidence(of_ranks(examples=(32, 32)), {"alone": 1.2}, measured=alone(0.002, 0.009)),
        evidence(of_ranks(examples=(32, 32)), {"alone": 1.2}, measured=alone(0.0085, 0.009)),
    ),
    "small-batch": (evidence(gains={"batch": 1.9}), evidence(gains={"batch": 1.25})),
    "swapping": (
        evidence(notes=(notes(major_faults=500),)),
        evidence(notes=(notes(major_faults=3),)),
    ),
    "misplaced-variables": (
        evidence(of_ranks(replace(GRADIENTS, misplaced=("w: CPU:0",)))),
        evidence(of_ranks(GRADIENTS)),
    ),
    "device-copies": (
        evidence(of_ranks(replace(GRADIENTS, copies={"device_to_host": 2}), device="gpu")),
        evidence(of_ranks(replace(GRADIENTS, copies={"device_to_host": 2}), device="cpu")),
    ),
    "pack-options": (
        evidence(of_ranks(SEVERAL), {"alone": 5.0, "packs": 3.0}),
        evidence(of_ranks(GRADIENTS), {"alone": 5.0, "packs": 3.0}),
    ),
    "one-reduction-each": (
        evidence(
            of_ranks(SEVERAL), {"alone": 5.0}, collectives=times(all_reduce_100000=0.002, all_reduce_4000000=0.004)
        ),
        # One all-reduce of all bytes takes as long.
        evidence(
            of_ranks(SEVERAL), {"alone": 5.0}, collectives=times(all_reduce_100000=0.0001, all_reduce_4000000=0.004)
        ),
    ),
    "wide-gradients": (
        evidence(of_ranks(WIDE), {"alone": 3.0, "narrow": 1.5}),
        evidence(of_ranks(GRADIENTS), {"alone": 3.0, "narrow": 1.5}),
    ),
    "gathers": (
        evidence(of_ranks(GATHERS), {"alone": 3.0, "ungathered": 2.0}),
        # All-gathers of a few numbers.
        evidence(of_ranks(GATHERS), {"alone": 3.0, "ungathered": 1.02}),
    ),
    "dense-embedding": (
        evidence(gains={"alone": 4.0}, notes=(notes(tables=TABLE),), collectives=SPARSE),
        # Each step changes most rows.
        evidence(gains={"alone": 4.0}, notes=(notes(tables=[["w", 29_000, 30_000, 128]]),), collectives=SPARSE),
    ),
    "half-gradients": (
        evidence(gains={"alone": 3.0, "half": 1.6}),
        # There is no communication to save.
        evidence(gains={"alone": 1.02, "half": 1.6}),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_rule_applies_to_its_problem(name: str) -> None:
    found = RULES[name].judge(CASES[name][0])
    assert found is not None
    assert found.measurement
    if not RULES[name].expected.startswith("none"):
        assert found.gain is not None
        assert found.gain.low > 1.1


@pytest.mark.parametrize("name", CASES)
def test_a_rule_does_not_apply_to_what_is_close_to_its_problem(name: str) -> None:
    assert RULES[name].judge(CASES[name][1]) is None


@pytest.mark.parametrize("name", RULES)
def test_no_rule_applies_to_a_well_tuned_program(name: str) -> None:
    assert RULES[name].judge(evidence()) is None


@pytest.mark.parametrize("name", [name for name in CASES if not RULES[name].expected.startswith("none")])
def test_a_gain_within_the_noise_is_no_advice(name: str) -> None:
    problem = CASES[name][0]
    noisy = replace(problem, gains={**problem.gains, "again": replace(problem.gains["again"], high=30.0)})
    assert RULES[name].judge(noisy) is None


def test_every_rule_has_both_cases_and_its_texts() -> None:
    assert set(CASES) == set(RULES)
    for one in RULES.values():
        assert one.limit in LIMITS
        assert not one.knob or one.knob in KNOBS
        assert all((one.looks_at, one.applies_if, one.expected, one.change, one.source))
        assert one.rank in (0, 1, 2)


def test_a_rule_asks_for_what_it_misses() -> None:
    lacking = evidence(gains={"cached": 3.0})
    del lacking.gains["parallel"]
    with pytest.raises(MissingError) as caught:
        RULES["parallel-map"].judge(lacking)
    assert caught.value.knob == "parallel"
    with pytest.raises(MissingError) as caught:
        RULES["one-reduction-each"].judge(evidence(of_ranks(SEVERAL), {"alone": 5.0}))
    assert caught.value.collective == ("all_reduce", 100_000)


def test_a_pack_of_all_gradients_beside_two_scalars_is_how_it_should_be() -> None:
    usual = replace(GRADIENTS, collectives={"all_reduce": 3}, unpacked=2, reduced_bytes=4_000_008)
    seconds = times(all_reduce_1333336=0.003, all_reduce_4000008=0.004)
    assert RULES["one-reduction-each"].judge(evidence(of_ranks(usual), {"alone": 2.0}, collectives=seconds)) is None


@pytest.mark.parametrize("name", ["parallel-map", "prefetch", "slow-input"])
def test_a_repeated_batch_is_no_evidence_if_others_are_traced_again(name: str) -> None:
    problem = CASES[name][0]
    shapes = replace(problem, launch=of_ranks(replace(GRADIENTS, retraces=50)), notes=(notes(traced=0.02),))
    assert RULES[name].judge(shapes) is None
    assert RULES["retracing"].judge(shapes) is not None
    # A function that is traced again now and then takes no time.
    seldom = replace(problem, launch=of_ranks(replace(GRADIENTS, retraces=1)), notes=(notes(traced=0.0001),))
    assert RULES[name].judge(seldom) is not None


def test_calls_with_a_few_tensors_each_are_reductions_too() -> None:
    pairs = replace(GRADIENTS, collectives={"all_reduce": 20}, packs=20, unpacked=0)
    seconds = times(all_reduce_200000=0.002, all_reduce_4000000=0.004)
    found = RULES["one-reduction-each"].judge(evidence(of_ranks(pairs), {"alone": 5.0}, collectives=seconds))
    assert found is not None
    assert "a step has 20 reductions, 0 of them of a single tensor, 3.81 MiB in all" in found.measurement


@pytest.mark.parametrize(
    ("given", "words"),
    [(("new", "luck"), "limit='luck' must be one of input"), (("prefetch", "input"), "already a rule 'prefetch'")],
)
def test_a_wrong_registration_is_refused(given: tuple[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        rule(*given, looks_at="", applies_if="", expected="", change="", source="")
