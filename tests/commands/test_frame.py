"""Common behavior of all commands: one vocabulary of options, usage errors in one line, and one way to end."""

from __future__ import annotations

import argparse
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from pytest_ddl.bench.outcome import FAILED, INTERRUPTED, USAGE, WRONG, UsageError
from pytest_ddl.cli import COMMANDS, main
from pytest_ddl.commands.frame import conducted

NAMES = [command.name for command in COMMANDS]
FOLDER = Path(import_module("pytest_ddl.commands").__file__ or "").parent


def parser_of(name: str) -> argparse.ArgumentParser:
    (module,) = (command.module for command in COMMANDS if command.name == name)
    parser = argparse.ArgumentParser(prog=f"pytest-ddl {name}")
    import_module(module).add_arguments(parser)
    return parser


def shown(name: str) -> set[str]:
    """The options of a command that its help shows."""
    actions = parser_of(name)._actions
    return {text for action in actions if action.help != argparse.SUPPRESS for text in action.option_strings}


@pytest.mark.parametrize(
    ("name", "given", "now", "value"),
    [
        ("evaluate", ["t:f", "--strategies=mirrored"], "strategy", "mirrored"),
        ("evaluate", ["t:f", "--batch=8"], "batch_per_replica", 8),
        ("evaluate", ["t:f", "--target=0.5"], "loss", 0.5),
        ("advise", ["t:f", "--strategies", "mirrored"], "strategy", "mirrored"),
        ("forecast", ["t:f", "--batch=8"], "batch_per_replica", 8),
    ],
)
def test_a_former_name_works_and_is_noted_in_one_line(
    name: str, given: list[str], now: str, value: object, capsys: pytest.CaptureFixture[str]
) -> None:
    assert vars(parser_of(name).parse_args(given))[now] == value
    told = capsys.readouterr().err
    assert "until version 1.0" in told
    assert told.count("\n") == 1


def test_a_former_name_checks_its_value(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("evaluate", "forecast"):
        with pytest.raises(SystemExit):
            main([name, "t:f", "--batch=x"])
        assert "--batch: 'x' is not a whole number" in capsys.readouterr().err


@pytest.mark.parametrize("given", [["--batch=8"], ["--batch-rule=replica"], ["--batch-rule=global"]])
def test_options_of_the_batch_that_contradict_each_other_are_refused(
    given: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", "t:f", "--global-batch-size=8", *given]) == USAGE
    assert "either --global-batch-size or --batch-per-replica" in capsys.readouterr().err


@pytest.mark.parametrize("name", NAMES)
def test_one_vocabulary(name: str) -> None:
    assert not shown(name) & {"--strategies", "--batch", "--batch-rule"}
    targets = [action for action in parser_of(name)._actions if "--target" in action.option_strings]
    assert all(action.help == argparse.SUPPRESS or "FUNCTION" in str(action.metavar) for action in targets)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("check", ["t:f"]),
        ("faults", ["t:f"]),
        ("try", ["t.py"]),
        ("gate", ["a", "b", "--target=t:f"]),
        ("evaluate", ["t:f"]),
        ("advise", ["t:f"]),
    ],
)
def test_strategies_are_repeated_or_listed(name: str, given: list[str]) -> None:
    repeated = parser_of(name).parse_args([*given, "--strategy=mirrored[replicas=2]", "--strategy", "one_device"])
    listed = parser_of(name).parse_args([*given, "--strategy=mirrored[replicas=2],one_device"])
    assert repeated.strategy == listed.strategy == "mirrored[replicas=2],one_device"


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_option_is_one_line_that_names_the_command(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = main([name, "--no-such-option"])
    except SystemExit as end:
        status = int(str(end.code))
    told = capsys.readouterr().err
    assert status == USAGE
    assert told.startswith(f"pytest-ddl {name}: error: ")
    assert told.count("\n") == 1


@pytest.mark.parametrize("name", ["try", "check"])
def test_what_follows_two_dashes_goes_to_pytest(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text("def train(run): pass\n")
    started: list[list[str]] = []
    monkeypatch.setattr("os.execv", lambda _python, command: started.append(command) or 0)
    target = str(tmp_path / "train.py") + ("" if name == "try" else ":train")
    assert main([name, target, "--steps=2", "--", "-n", "2", "--junitxml=x"]) == 0
    (command,) = started
    given = command.index("-n")
    assert command[given : given + 3] == ["-n", "2", "--junitxml=x"]
    assert "--" not in command


@pytest.mark.parametrize(
    ("given", "guess"),
    [
        ("--stepz=3", " (did you mean '--steps'?)"),
        (
            "--ddl-start-timeout=300",
            " (options of the script go into --args, and those of pytest come last, after --)",
        ),
        ("--nothing-alike", " (options of the script go into --args, and those of pytest come last, after --)"),
        ("-x", " (options of the script go into --args, and those of pytest come last, after --)"),
        ("other.py", " (one file in each call)"),
    ],
)
def test_a_wrong_option_is_answered_with_the_most_similar_one(
    given: str, guess: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["try", "train.py", given])
    assert f"unrecognized arguments: {given}{guess}; see pytest-ddl try --help" in capsys.readouterr().err


def test_a_wrong_command_is_answered_with_the_most_similar_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["evalute", "train.py:train"])
    assert "'evalute' is no command (did you mean 'evaluate'?); the commands: check, " in capsys.readouterr().err


def test_a_command_without_pytest_takes_nothing_after_two_dashes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["doctor", "--", "-n", "2"])
    assert "unrecognized arguments: -- -n 2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (UsageError("--x=1 is wrong"), USAGE, "pytest-ddl c: error: --x=1 is wrong\n"),
        (KeyError("k"), WRONG, "pytest-ddl c: lookup: 'k'\n"),
        (KeyboardInterrupt(), INTERRUPTED, "pytest-ddl c: nothing was kept\n"),
        (ZeroDivisionError("a\nb"), FAILED, "pytest-ddl c: failed: ZeroDivisionError: a b (the traceback is above)\n"),
    ],
)
def test_each_end_has_its_status_and_cleans_up(
    error: BaseException, status: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cleaned = []

    def body() -> int:
        raise error

    endings = [((LookupError,), WRONG, "lookup: ")]
    ended = conducted("c", body, endings, interrupted=lambda: "nothing was kept", clean_up=lambda: cleaned.append(1))
    told = capsys.readouterr().err
    assert (ended, cleaned) == (status, [1])
    assert told.endswith(words)
    assert ("Traceback" in told) == (status == FAILED)


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom pytest_ddl.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "assert not {'tensorflow', 'keras', 'numpy', 'pytest'} & set(sys.modules), 'heavy'\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_every_file_of_the_room_is_a_command_or_the_frame() -> None:
    modules = {command.module.rpartition(".")[2] for command in COMMANDS}
    assert {path.stem for path in FOLDER.glob("*.py")} == {*modules, "frame", "__init__"}
