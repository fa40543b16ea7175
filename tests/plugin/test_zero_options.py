"""Zero and an empty text are values: each option that takes a value passes them on, or refuses them in one line."""

from __future__ import annotations

import argparse
import json
import os
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from pytest_ddl import Sweep, cli
from pytest_ddl.commands import check, faults, try_script
from pytest_ddl.equivalence.runs.question import ArgumentError
from pytest_ddl.faults.api import injection_of
from pytest_ddl.faults.rank.fault import FaultError
from pytest_ddl.option_values import given_options
from pytest_ddl.strategies.registry import StrategyRegistry

TARGET = f"{Path(__file__).parents[1] / 'faults' / 'recovery_programs.py'}:checkpointed"
COMMANDS = {
    "check": (check, [TARGET]),
    "faults": (faults, [TARGET, "--every-point"]),
    "try": (try_script, [__file__]),
}


def options_of(name):
    """The names of the options of a command that take a value."""
    module, given = COMMANDS[name]
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)
    values = vars(parser.parse_args(given))
    return [one for one, value in values.items() if not isinstance(value, bool) and one not in ("target", "script")]


CASES = [(name, option, text) for name in COMMANDS for option in options_of(name) for text in ("0", "")]


def passed_on(monkeypatch, name, *given):
    """The command line of pytest that a command makes, or ``None`` if it refuses its own."""
    made = []
    monkeypatch.setattr(os, "execv", lambda _path, command: made.append(command) or 0)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with suppress(SystemExit):
        cli.main([name, *COMMANDS[name][1], *given])
    return " ".join(made[0]) if made else None


@pytest.mark.parametrize(("name", "option", "text"), CASES)
def test_zero_and_an_empty_text_are_passed_on_or_refused(monkeypatch, capsys, name, option, text):
    flag = f"--{option.replace('_', '-')}"
    without = passed_on(monkeypatch, name)
    command_line = passed_on(monkeypatch, name, f"{flag}={text}")
    if command_line is None:
        assert flag in capsys.readouterr().err.strip().splitlines()[-1]
    elif (option, text) not in {("args", ""), ("data", "")}:  # no arguments, and the current folder
        assert command_line != without


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("--max-lost-steps=-1", "is not a whole number, at least 0"),
        ("--max-lost-steps=1.5", "is not a whole number, at least 0"),
        ("--detected-within=-1", "is not a number of seconds, at least 0"),
        ("--detected-within=nan", "is not a number of seconds, at least 0"),
        ("--tasks=,", "names nothing: leave the option out for all of them"),
        ("--report=", "the name of the folder is empty"),
    ],
)
def test_a_value_without_a_meaning_is_refused(monkeypatch, capsys, option, told):
    assert passed_on(monkeypatch, "faults", option) is None
    assert told in capsys.readouterr().err


def test_the_strictest_limits_and_a_seed_of_zero_reach_pytest(monkeypatch):
    made = passed_on(monkeypatch, "faults", "--max-lost-steps=0", "--detected-within=0", "--seed=0")
    plan, _ = json.JSONDecoder().raw_decode(made[made.index("{") :])
    assert plan["injected"]["limits"] == {"max_lost_steps": 0, "detected_within": 0.0}
    assert plan["arguments"]["seed"] == 0
    assert '"seed": 0' in passed_on(monkeypatch, "check", "--seed=0")
    assert '"seed": 0' in passed_on(monkeypatch, "try", "--seed=0")


def test_only_none_and_false_are_not_given():
    given = argparse.Namespace(zero=0, real=0.0, text="", none=None, off=False, on=True, empty=[])
    assert given_options(given, vars(given)) == {"zero": 0, "real": 0.0, "text": "", "on": True, "empty": []}


@pytest.fixture
def limits():
    registry = StrategyRegistry()

    def of(**given):
        return injection_of(given, registry.parse_variant("mirrored"), registry)

    return of


@pytest.mark.parametrize("given", [{"max_lost_steps": 0}, {"detected_within": 0}, {"detected_within": 0.0}])
def test_a_limit_of_zero_is_a_limit(limits, given):
    kept = limits(faults="kill worker:0 before step 1", **given).limits
    assert {name: getattr(kept, name) for name in given} == given
    with pytest.raises(ArgumentError, match="concerns faults: give faults= too"):
        limits(**given)


@pytest.mark.parametrize(
    "given",
    [
        {"max_lost_steps": -1},
        {"max_lost_steps": True},
        {"max_lost_steps": 1.0},
        {"detected_within": -1},
        {"detected_within": float("inf")},
        {"exact": 0},
        {"always_loadable": 1},
        {"restart_on": ""},
    ],
)
def test_a_limit_without_a_meaning_is_refused(limits, given):
    with pytest.raises(ArgumentError, match=next(iter(given))):
        limits(faults="kill worker:0 before step 1", **given)


@pytest.mark.parametrize("name", ["phases", "tasks", "points"])
@pytest.mark.parametrize("value", [[], (), "", "save"])
def test_a_sweep_of_nothing_is_refused(name, value):
    with pytest.raises(FaultError, match="must be a list of at least one name"):
        Sweep(**{name: value})
