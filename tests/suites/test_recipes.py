"""Recipes of recovery: the catalogue, its tests, the recorded verdicts, the page and the known failures agree."""

from __future__ import annotations

import pytest

from pytest_ddl import check_training
from pytest_ddl.faults.verdict import RecoveryVerdict
from suites.faults import loops, page, test_recipes, verdicts
from suites.faults.catalogue import RECIPES
from suites.faults.training import BATCH
from suites.known_failures import FILE, load
from suites.tiers import tier_of

ENTRIES = load(FILE.read_text(encoding="utf-8"))
TRIALS = [
    pytest.param(name, strategy, trial, id=f"{name}-{strategy}-{trial['faults'] or trial['verdict']}")
    for name, of_strategies in verdicts.load()["recipes"].items()
    for strategy, found in of_strategies.items()
    for trial in found["trials"]
]


def test_each_recipe_has_a_test_under_its_strategies():
    marks = {
        name.removeprefix("test_"): next(mark for mark in test.pytestmark if mark.name == "ddl").kwargs
        for name, test in vars(test_recipes).items()
        if name.startswith("test_")
    }
    assert list(marks) == list(RECIPES)
    for name, recipe in RECIPES.items():
        strategies = marks[name]["strategies"]
        assert tuple([strategies] if isinstance(strategies, str) else strategies) == recipe.strategies
        assert marks[name].get("keras", "") == recipe.keras


def test_the_documentation_is_quoted():
    assert all(recipe.sentence and recipe.link.startswith("https://") for recipe in RECIPES.values())


def test_every_point_is_for_the_night():
    name = "suites/faults/test_recipes.py::test_backup_by_epoch[mirrored-{}]"
    assert [tier_of(name.format(points)) for points in test_recipes.SWEEPS] == ["core", "full"]


def test_the_verdicts_are_those_of_the_catalogue():
    recorded = verdicts.load()["recipes"]
    assert {name: set(found) for name, found in recorded.items()} == {
        name: set(recipe.strategies) for name, recipe in RECIPES.items()
    }
    for name, of_strategies in recorded.items():
        for found in of_strategies.values():
            faults = [trial["faults"] for trial in found["trials"] if trial["verdict"] != verdicts.NOT_COMPARED]
            points = {point for point in RECIPES[name].points if any(f" {point}" in fault for fault in faults)}
            assert points == (set(RECIPES[name].points) if faults else set())


@pytest.mark.parametrize(("name", "strategy", "trial"), TRIALS)
def test_a_verdict_is_allowed_or_a_known_failure(name, strategy, trial):
    recipe = RECIPES[name]
    allowed = recipe.allows(trial["verdict"], trial["cause"])
    assert allowed or verdicts.entry_of(trial, recipe, strategy, ENTRIES), trial


def test_each_known_failure_of_a_recipe_is_recorded():
    cases = [case.values for case in TRIALS]
    shown = {verdicts.entry_of(trial, RECIPES[name], strategy, ENTRIES) for name, strategy, trial in cases}
    # An entry for every point explains what only the full tier meets.
    own = [one for one in ENTRIES if "test_recipes" in one.test and not one.test.endswith("every")]
    assert [entry for entry in own if entry not in shown] == []


def test_the_page_is_up_to_date():
    assert page.PAGE.read_text(encoding="utf-8") == page.page(), "run python -m suites.faults page"


def leaves_the_optimizer_out(run):
    """Run a right recipe with a checkpoint that drops the optimizer."""
    import tensorflow as tf

    right = tf.train.Checkpoint
    tf.train.Checkpoint = lambda optimizer, **parts: right(**parts)
    try:
        loops.checkpoint_manager(run)
    finally:
        tf.train.Checkpoint = right


@pytest.mark.slow
def test_a_mistake_in_a_recipe_is_found():
    recipe = RECIPES["checkpoint_manager"]
    report = check_training(
        leaves_the_optimizer_out, global_batch_size=BATCH, faults="kill worker:0 before step 4", exact=True, timeout=120
    )
    (trial,) = report.trials
    assert (trial.verdict, trial.finding.cause) == (RecoveryVerdict.DIVERGED, "resume-lost-state"), str(report)
    assert not recipe.allows(trial.verdict.value, trial.finding.cause)
    found = {"faults": "", "verdict": "diverged", "cause": trial.finding.cause, "message": trial.message}
    assert verdicts.entry_of(found, recipe, "mirrored", ENTRIES) is None
