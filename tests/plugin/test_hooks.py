"""Strategies and checks of other plugins: registered by hook, selected, run and reported like ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.slow

CONFTEST = """
from pytest_ddl import Check, CheckResult, Finding, Outcome
from pytest_ddl.strategies.mirrored import Mirrored

class Trio(Mirrored):
    name = "trio"
    aliases = ("three",)
    defaults = {"replicas": 3}

def check_steps(reference, distributed, tolerance):
    finding = Finding("FEW-STEPS", f"{distributed.num_steps} steps are too few")
    return CheckResult("FEW-STEPS", Outcome.FAIL, findings=(finding,))

def pytest_ddl_register_strategies(registry):
    registry.add(Trio())

def pytest_ddl_register_checks(checks):
    checks.append(Check("FEW-STEPS", check_steps, "there are many steps", "steps"))
"""
TESTS = """
import numpy as np
import tensorflow as tf

def test_rank(ddl_strategy):
    assert ddl_strategy.num_replicas_in_sync == 3

def train(run):
    with run.strategy.scope():
        weight = tf.Variable(1.0)
    run.watch(variables=[weight])
    run.record(loss=1.0)

def test_training(ddl_equivalence):
    ddl_equivalence(train)

def broken(run):
    undefined_name

def test_broken(ddl_equivalence):
    ddl_equivalence(broken)
"""


@pytest.fixture(scope="module")
def run(new_project: Callable[..., Any]) -> Any:
    project = new_project({"conftest.py": CONFTEST, "test_hooks.py": TESTS})
    return project.pytest("--ddl-strategy=three")


def test_a_strategy_of_a_plugin_runs_in_ranks(run: Any) -> None:
    assert run["test_rank[trio]"].outcome == "passed", run["test_rank[trio]"].text


def test_a_check_of_a_plugin_is_judged(run: Any) -> None:
    assert run["test_training[trio]"].outcome == "failed"
    assert "FEW-STEPS: 1 steps are too few" in run["test_training[trio]"].text


def test_a_program_that_fails_on_one_device_too_fails_its_test(run: Any) -> None:
    assert run["test_broken[trio]"].outcome == "failed"
    assert "undefined_name" in run["test_broken[trio]"].text
