"""Causes come before general remedies, questions are answered, and a text says all of it."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from pytest_ddl.bench.advice.choosing import Choice, Rated, choose, from_matrix
from pytest_ddl.bench.advice.confirming import Confirmation, ConfirmationOutcome
from pytest_ddl.bench.advice.deciding import decide, limit_of, limits
from pytest_ddl.bench.advice.facts.evidence import AdviceEvidence, MissingError
from pytest_ddl.bench.advice.facts.gains import Gain, from_share, gain_of, noise_of, resampled
from pytest_ddl.bench.advice.text import AdviceReport
from tests.bench.advice.evidence_made import SEVERAL, alone, evidence, gain, notes, of_ranks
from tests.bench.made import matrix

CHOICE = Choice("multi_worker_mirrored", "it is the only one", (), {})


def test_a_cause_comes_before_a_general_remedy_with_a_larger_gain() -> None:
    problem = evidence(gains={"batch": 1.95}, notes=(notes(0, bodies=0.004), notes(1)))
    decision = decide(problem)
    assert [one.rule.id for one in decision.advice] == ["loop-body"]
    assert "small-batch" in decision.not_asked
    assert limit_of(problem, decision) == "Python and host"


def test_of_two_causes_the_larger_gain_comes_first() -> None:
    problem = evidence(gains={"cached": 4.0, "parallel": 3.5}, notes=(notes(0, bodies=0.01), notes(1)))
    assert [one.rule.id for one in decide(problem).advice] == ["parallel-map", "loop-body"]


def test_a_well_tuned_program_gets_no_advice() -> None:
    decision = decide(evidence())
    assert not decision.advice
    assert not decision.missing
    assert limit_of(evidence(), decision) == "compute"
    assert "nothing: no rule applies" in str(AdviceReport(CHOICE, evidence(), decision))


def test_what_limits_a_program_without_advice_is_its_largest_part() -> None:
    problem = evidence(gains={"alone": 1.4})
    decision = decide(problem)
    assert not decision.advice
    assert limit_of(problem, decision) == "communication"
    assert limits(problem)["communication"].value == 1.4


def test_a_part_has_at_least_the_gain_of_an_advice_about_it() -> None:
    """Else "1.00 times" stands beside "1.80 times": the body of the loop costs nothing, and the calls do."""
    problem = evidence(gains={"loop": 1.8})
    decision = decide(problem)
    assert [one.rule.id for one in decision.advice] == ["many-steps-in-one-call"]
    report = AdviceReport(CHOICE, problem, decision)
    assert limits(problem)["Python and host"].value < 1.01
    assert "Python and host without cost: a step would be 1.80 times" in str(report)
    assert report.as_json()["parts"]["Python and host"]["value"] == 1.8


def test_questions_are_answered_until_no_rule_asks() -> None:
    problem = evidence(of_ranks(SEVERAL), {"alone": 5.0})
    del problem.gains["packs"]
    asked = []

    def answer(given: AdviceEvidence, missing: object) -> bool:
        for error in missing:  # type: ignore[attr-defined]
            asked.append(error.knob or error.collective)
            if error.knob:
                given.gains[error.knob] = gain(1.0)
            if error.collective:
                given.collectives[error.collective] = {100_000: 0.002, 4_000_000: 0.004}[error.collective[1]]
        return True

    decision = decide(problem, answer)
    assert [one.rule.id for one in decision.advice] == ["one-reduction-each"]
    assert asked == ["packs", "packs", ("all_reduce", 100_000), ("all_reduce", 4_000_000)]
    assert not decision.missing


def test_what_cannot_be_measured_is_said() -> None:
    problem = evidence(gains={"cached": 3.0}, unavailable={"parallel": "the program reads arrays"})
    del problem.gains["parallel"]
    decision = decide(problem, lambda _evidence, missing: not all(error.reason for error in missing))
    assert set(decision.missing) == {"parallel-map", "slow-input"}
    text = str(AdviceReport(CHOICE, problem, decision))
    assert "not judged: slow-input: a launch with parallel: the program reads arrays" in text


def test_a_matrix_alone_judges_counts_and_names_the_rest() -> None:
    launch = replace(of_ranks(), counters=replace(of_ranks().counters, misplaced=("w: CPU:0",)))
    decision = decide(AdviceEvidence(launch))
    assert [one.rule.id for one in decision.advice] == ["misplaced-variables"]
    assert "slow-input" in decision.missing


def test_a_report_has_measurement_gain_source_and_json() -> None:
    problem = evidence(gains={"cached": 4.0, "parallel": 3.5})
    decision = decide(problem)
    held = Confirmation("parallel", gain(3.4), (3.3, 3.4, 3.5), decision.advice[0].found.gain)
    report = AdviceReport(CHOICE, problem, decision, held)
    text = " ".join(str(report).split())
    assert "what limits it: input, because advice 1 below is about it: a step would be 3.50 times as fast" in text
    assert "1. parallel-map: give every Dataset.map" in text
    assert "expected gain: 3.50 times as fast (3.3" in text
    assert "source: https://www.tensorflow.org/guide/data_performance" in text
    assert "the first piece of advice held: a step is 3.40 times as fast (3.23 to 3.57), 3 pairs of new" in text
    data = json.loads(json.dumps(report.as_json()))
    assert data["advice"][0]["rule"] == "parallel-map"
    assert data["confirmation"]["outcome"] == "held"


def test_an_upper_bound_need_not_be_reached() -> None:
    measured, expected = Gain(5.0, 4.5, 5.5), Gain(9.5, 8.7, 10.4)
    assert Confirmation("base", measured, (5.0, 5.0), expected, at_most=True).outcome is ConfirmationOutcome.HELD
    assert "expected at most 9.5" in str(Confirmation("base", measured, (5.0, 5.0), expected, at_most=True))
    assert (
        Confirmation("base", Gain(0.9, 0.8, 0.99), (0.9, 0.9), expected, at_most=True).outcome
        is ConfirmationOutcome.FAILED
    )


@pytest.mark.parametrize(
    ("measured", "expected", "outcome"),
    [
        (Gain(2.0, 1.7, 2.3), gain(2.0), ConfirmationOutcome.HELD),
        (Gain(2.0, 1.7, 2.3), None, ConfirmationOutcome.HELD),
        # Faster, but by less than what was expected.
        (Gain(1.2, 1.1, 1.3), gain(2.0), ConfirmationOutcome.FAILED),
        (Gain(0.8, 0.7, 0.9), None, ConfirmationOutcome.FAILED),
        (Gain(1.2, 0.6, 2.4), gain(2.0), ConfirmationOutcome.OPEN),
    ],
)
def test_a_confirmation_is_judged_by_intervals(
    measured: Gain, expected: Gain | None, outcome: ConfirmationOutcome
) -> None:
    assert Confirmation("parallel", measured, (1.0, 2.0), expected).outcome is outcome


def test_gains_are_computed_from_common_groups() -> None:
    drift = np.linspace(1, 5, 30)
    found = gain_of(list(0.02 * drift), list(0.01 * drift))
    assert found.value == found.low == found.high == pytest.approx(2.0)
    assert found.share == pytest.approx(0.5)
    assert gain(2.0).partly(0.5).value == pytest.approx(1 / 0.75)
    assert from_share(0.5, -0.1, 0.75) == Gain(2.0, 1.0, 4.0)
    with pytest.raises(ValueError, match=r"turns=\[\]"):
        resampled(lambda _times: 1.0, [[], []])


def test_noise_is_that_of_two_launches_and_never_less_than_between_launches() -> None:
    assert noise_of(None) == noise_of(Gain(1.0, 0.99, 1.01)) == 1.1
    assert noise_of(Gain(0.9, 0.8, 1.0)) == pytest.approx(1.25)
    assert noise_of(Gain(1.2, 1.0, 1.5)) == 1.5


def test_the_slowest_rank_is_found_and_its_gain() -> None:
    rank, found = evidence(measured=alone(0.004, 0.009, together=0.01)).slowest_rank() or (None, gain(1))
    assert rank == 1
    assert found.value == pytest.approx(2.0)
    with pytest.raises(MissingError):
        AdviceEvidence(of_ranks()).slowest_rank()


STALLS = [0.01, 0.01, 0.01, 0.01, 0.06] * 8
"""Turns of a launch that waits in one of five."""


def test_a_cost_that_few_turns_have_is_found_in_the_means() -> None:
    smooth = [0.01] * len(STALLS)
    found = evidence()
    found.averages = {name: gain_of(STALLS, smooth, on_average=True) for name in ("cached", "prefetch")}
    for name in ("again", "parallel"):
        found.averages[name] = gain_of(STALLS, STALLS, on_average=True)
    assert gain_of(STALLS, smooth).value == pytest.approx(1.0)
    (advice,) = decide(found).advice
    assert advice.rule.id == "prefetch"
    assert advice.found.gain is not None
    assert "times as fast (1." in advice.found.measurement
    assert "on average" in advice.found.measurement
    assert advice.found.gain.value == pytest.approx(2.0)
    assert limits(found)["input"].on_average
    # On a machine on which means of two launches of the same program differ as much, it is no evidence.
    found.averages["again"] = Gain(1.5, 0.9, 2.5, on_average=True)
    assert decide(found).advice == ()


def test_a_rank_that_stops_seldom_is_found_in_the_means() -> None:
    given = alone(0.01, 0.01)
    for name, slow in (("alone", STALLS), ("base", STALLS)):
        given[name].turns[:] = [(0.01, seconds) for seconds in slow]
    found = evidence(measured=given)
    found.averages["again"] = Gain(1.0, 1.0, 1.0, on_average=True)
    rank, saved = found.slowest_rank() or (None, gain(1))
    assert rank == 1
    assert saved.on_average
    assert saved.value == pytest.approx(2.0)
    assert [one.rule.id for one in decide(found).advice] == ["slow-worker"]


def test_of_equal_variants_the_one_with_fewest_replicas_is_chosen() -> None:
    close = [Rated("mirrored", 2, 105.0, None), Rated("one_device", 1, 100.0, Gain(1.05, 1.02, 1.08))]
    assert choose(close, {}).variant == "one_device"
    assert "no slower than mirrored beyond noise" in choose(close, {}).because
    far = [Rated("mirrored", 2, 200.0, None), Rated("one_device", 1, 100.0, Gain(2.0, 1.9, 2.1))]
    assert choose(far, {}).variant == "mirrored"
    assert "one_device has 100 (mirrored is 2.00 times as fast" in choose(far, {}).because
    # A wide interval does not show that both are equal.
    unclear = [Rated("mirrored", 2, 190.0, None), Rated("one_device", 1, 100.0, Gain(1.9, 0.5, 7.0))]
    assert choose(unclear, {}).variant == "mirrored"
    assert "not told apart from one_device, so give more launches" in choose(unclear, {}).because


def test_a_variant_is_chosen_from_an_evaluation() -> None:
    measured = matrix({"one_device": [0.01, 0.0101, 0.0099], "mirrored[replicas=2]": [0.011, 0.0111, 0.0109]})
    assert from_matrix(measured).variant == "mirrored[replicas=2]"
    single = matrix({"one_device": [0.01], "mirrored[replicas=2]": [0.0201]})
    assert from_matrix(single).variant == "one_device"
