"""``expect=`` per strategy: what is declared for one holds for that one, and wrong names are refused at once."""

from __future__ import annotations

import dataclasses

import pytest

from pytest_ddl.equivalence.expectations import expectations_for, parse_expectations
from pytest_ddl.equivalence.findings import Finding
from pytest_ddl.strategies.registry import StrategyRegistry

REGISTRY = StrategyRegistry()
STATE, SHARED, METRIC = "state-not-aggregated", "unsupported-by-framework", "metric-wrong"
EXPECT = {
    STATE: "for all",
    "mirrored": {METRIC: "mirrored"},
    "mirrored[replicas=4]": {STATE: "four replicas"},
    "mwms": [SHARED],
}


@pytest.mark.parametrize(
    ("variant", "declared"),
    [
        ("mirrored", {STATE: "for all", METRIC: "mirrored"}),
        ("mirrored[replicas=4]", {STATE: "four replicas", METRIC: "mirrored"}),
        ("multi_worker_mirrored[workers=3]", {STATE: "for all", SHARED: "no reason given"}),
        ("parameter_server", {STATE: "for all"}),
    ],
)
def test_the_most_exact_name_decides(variant, declared):
    assert expectations_for(REGISTRY.parse_variant(variant), EXPECT, REGISTRY) == declared


def test_the_plain_forms_hold_for_every_strategy():
    spec = REGISTRY.default("mirrored")
    assert expectations_for(spec, {STATE: "why"}, REGISTRY) == {STATE: "why"}
    assert expectations_for(spec, [STATE], REGISTRY) == {STATE: "no reason given"}
    assert expectations_for(spec, (), REGISTRY) == {}


@pytest.mark.parametrize(
    ("expect", "words"),
    [
        (
            {"mirored": {STATE: "why"}},
            r"'mirored' is not a strategy \(did you mean 'mirrored'\?\); valid: one_device, ",
        ),
        ({"mirrored[copies=4]": {STATE: "why"}}, "'copies=4' is not a setting of mirrored"),
        ({"parameter_server": {"state": "why"}}, "unknown cause 'state' .did you mean .*'state-not-aggregated'"),
        ({"gradient-clip": "why"}, "unknown cause 'gradient-clip' .did you mean 'gradient-clipped-before-aggregation'"),
        ({"xyz": "why"}, "unknown cause 'xyz'; https://.*causes.md lists all"),
        ({"mirrored": "why"}, "must map the strategy to {cause id: reason}"),
        ({"mirrored": None}, "must map the strategy to {cause id: reason}"),
        ({STATE: ["why"]}, "is a cause, and its reason must be text"),
        (STATE, "must map cause ids to reasons"),
    ],
)
def test_wrong_names_are_refused_also_for_a_strategy_that_does_not_run(expect, words):
    with pytest.raises(ValueError, match=words):
        expectations_for(REGISTRY.default("mirrored"), expect, REGISTRY)


def _of_state(variable: str, owner: str, step: int = 1, others: tuple[str, ...] = ()) -> Finding:
    return Finding("STATE-EQ", "differs", STATE, step=step, variable=variable, owner=owner, others=others)


AVERAGE, SEEN = _of_state("norm/moving_mean", "norm", 2, ("norm/moving_variance",)), _of_state("seen", "seen")


@pytest.mark.parametrize(
    ("expect", "excused"),
    [
        ([STATE], [SEEN]),  # the earliest of two unrelated things
        ([f"{STATE}[seen]"], [SEEN]),
        ([f"{STATE}[norm]"], [AVERAGE]),
        ([f"{STATE}[norm/moving_mean]"], []),  # the finding is about another variable too
        ([f"{STATE}[norm/moving_*]"], [AVERAGE]),
        ([f"{STATE}[norm]", STATE], [AVERAGE, SEEN]),
        ([f"{METRIC}[seen]"], []),
    ],
)
def test_a_declaration_excuses_the_things_that_it_names(expect, excused):
    findings = [AVERAGE, SEEN]
    assert [findings[at] for at in sorted(parse_expectations(expect).excusing(findings))] == excused


def test_a_declaration_without_a_name_is_for_a_known_behavior_first():
    """The description of the behavior offers this key, and a state of the program must not come in its place."""
    known = dataclasses.replace(AVERAGE, known="keras-batch-normalization")
    assert parse_expectations([STATE]).excusing([SEEN, known]) == {1: STATE}
