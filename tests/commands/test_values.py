"""Wrong values of all options of all commands, found by introspection: one line that names the option and the value."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from pytest_ddl.bench.outcome import USAGE
from pytest_ddl.cli import COMMANDS, main
from tests.commands.test_frame import NAMES, parser_of

WRONG = ["no such value", "nan", "-1", "0x10", ""]
TEXTS = {
    "check": {"--strategy", "--precision", "--checks", "--expect"},
    "faults": {"--strategy", "--precision", "--checks", "--expect", "--tasks", "--restart-on", "--report"},
    "try": {"--strategy", "--args"},
    "doctor": {"--launcher", "--hosts"},
    "gate": {"--strategy", "--target", "--path", "--base-python", "--head-python", "--accept"},
    "asv": {"--machine", "--commit", "--python", "--path", "--bench"},
    "history": {"--branch", "--target", "--confirm-option", "--machine", "--accept"},
    "forecast": {"--replicas", "--strategy", "--link", "--link-within", "--output", "--picture", "--check", "--score"},
    "evaluate": {"--strategy", "--replicas", "--output", "--batch-sizes", "--target-loss", "--metric"},
    "advise": {"--strategy", "--after"},
}
"""Options whose values the parser cannot judge. The tests of the commands say what they do with wrong ones."""


def options_with_values(parser: argparse.ArgumentParser, before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words that lead to each option that takes a value. Any text may be the name of a file."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                yield from options_with_values(inner, (*before, name))
        elif action.nargs != 0 and action.type is not Path and action.help != argparse.SUPPRESS:
            for option in action.option_strings[:1]:
                yield *before, option


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_value_is_one_line_that_names_it(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (module,) = (command.module for command in COMMANDS if command.name == name)
    monkeypatch.setattr(import_module(module), "main", lambda options: 0)
    taken: set[str] = set()
    for *before, option in options_with_values(parser_of(name)):
        for value in WRONG:
            with pytest.raises(SystemExit) as ended:
                # Without the arguments that are required, a command whose values are right ends, too.
                main([name, *before, f"{option}={value}", "--no-such-option"])
            told = capsys.readouterr().err
            assert ended.value.code == USAGE
            assert told.count("\n") == 1
            if f"argument {option}" not in told:
                taken.add(option)
            elif value:
                assert repr(value) in told
    assert taken == TEXTS.get(name, set())
