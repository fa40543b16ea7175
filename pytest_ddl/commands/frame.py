"""Common parts of the subcommands of ``pytest-ddl``: options, checks of values, progress, and one way to end."""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from pytest_ddl.bench.outcome import FAILED, INTERRUPTED, OK, USAGE, UsageError, failed, interruptible
from pytest_ddl.bench.trackers import OPTION, TRACKERS, Export, Sheet, parse_export
from pytest_ddl.option_values import argument, parse_seconds
from pytest_ddl.strategies.registry import split_variants
from pytest_ddl.target import Target, TargetError

_START_MESSAGE = re.compile(r"I\d{4} |WARNING: All log messages before absl|To enable the following instructions")


def conducted(
    command: str,
    body: Callable[[], int],
    endings: Sequence[tuple[tuple[type[Exception], ...], int, str]] = (),
    *,
    interrupted: Callable[[], str] = lambda: "interrupted",
    clean_up: Callable[[], object] = lambda: None,
    unexpected: str = "failed",
) -> int:
    """Run a command and return its exit status, also after errors and signals.

    :param endings: types of exceptions, each with its exit status and the words before its message. The first that
        fits counts. :class:`UsageError` and :class:`TargetError` need no entry.
    :param interrupted: function that returns what to say after a signal.
    :param clean_up: function that is called after an error or a signal, before it is reported.
    :param unexpected: words before any other error, which is reported with its traceback.
    """
    try:
        with interruptible():
            return body()
    except KeyboardInterrupt:
        clean_up()
        return failed(command, interrupted(), INTERRUPTED)
    except Exception as error:
        clean_up()
        for kinds, status, words in (*endings, ((UsageError, TargetError), USAGE, "error: ")):
            if isinstance(error, kinds):
                return failed(command, f"{words}{error}", status)
        text = f"{unexpected}: {type(error).__name__}: {' '.join(str(error).split())}"
        return failed(command, text, FAILED, error)


def tell(line: str) -> None:
    """Write one line of progress to standard error."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def close_clusters() -> None:
    """End all processes of clusters. At exit would be too late if the caller continues."""
    from pytest_ddl.harness import process_harness

    process_harness().close()


class Names(argparse.Action):
    """Comma-separated names of a repeatable option, joined by commas."""

    def __call__(self, _parser: object, namespace: argparse.Namespace, value: Any, _option: str | None = None) -> None:
        before = getattr(namespace, self.dest)
        # The object of the default is replaced, and equal text that was given is not.
        setattr(namespace, self.dest, value if before is self.default else f"{before},{value}")


def former(action: argparse.Action, name: str, parser: argparse.ArgumentParser) -> None:
    """Accept the former name of an option until version 1.0, with one line that says the present name."""
    present = action.option_strings[0]

    class Former(argparse.Action):
        def __call__(self, parser: Any, namespace: argparse.Namespace, value: Any, _option: str | None = None) -> None:
            tell(f"{parser.prog}: {name} is now {present}; the former name is accepted until version 1.0")
            action(parser, namespace, value, present)

    hidden = parser.add_argument(
        name, dest=action.dest, action=Former, default=argparse.SUPPRESS, help=argparse.SUPPRESS
    )
    hidden.type = action.type


def add_strategy(parser: argparse._ActionsContainer, text: str, default: str | None = None) -> argparse.Action:
    """Add ``--strategy``, which is repeatable and takes a list.

    :param text: its help, which says what the strategies are for and the default.
    """
    return parser.add_argument("--strategy", action=Names, default=default, metavar="NAMES", help=text)


def add_export(parser: argparse._ActionsContainer) -> None:
    """Add ``--export``, which sends the numbers of a result to experiment trackers."""
    ways = " or ".join(f"{name}[:{tracker.place}]" for name, tracker in TRACKERS.items())
    text = f"send the numbers to a tracker that is installed: {ways}; repeatable"
    read = argument(parse_export)
    parser.add_argument(OPTION, action="append", type=read, default=[], metavar="TRACKER", help=text)


def exported(command: str, exports: Sequence[Export], sheet: Callable[[], Sheet]) -> int:
    """Send the numbers of a result, and return the exit status: one tracker that fails does not stop the others."""
    status, made = OK, None
    for export in exports:
        try:
            made = made or sheet()
            export.send(made)
        except Exception as error:
            why = f"{type(error).__name__}: {' '.join(str(error).split())}"
            status = failed(command, f"error: {export} could not be written: {why}", FAILED)
    return status


def strategies_of(text: str) -> list[str]:
    """Return the names and variants of ``--strategy``."""
    return [part for part in split_variants(text) if part]


def whole(text: str, least: int = 0, below: float = float("inf"), limit: str = "") -> int:
    """Parse a whole number, which may be zero.

    :param limit: words of the message about the number that it must be below.
    """
    if not text.isdecimal() or not least <= int(text) < below:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, at least {least}{limit}")
    return int(text)


positive = partial(whole, least=1)
"""Parser of a whole number above zero."""
seed = partial(whole, below=2**32, limit=" and below 2**32")
"""Parser of the seed of all random numbers of a run."""
seconds = argument(parse_seconds)
"""Parser of a positive number of seconds."""


def share(text: str) -> float:
    """Parse a share such as ``0.025`` or ``2.5%``."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share, for example 0.025 or 2.5%") from None
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be between 0 and 1, for example 0.025 for 2.5 %")
    return value


def fields_of(kind: type[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are fields of a dataclass."""
    return {field.name: given[field.name] for field in fields(kind) if field.name in given}


def numbers(name: str, text: str) -> tuple[int, ...]:
    """Return the whole numbers of an option, without duplicates.

    :raises UsageError: if one is no whole number above zero.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise UsageError(f"{name}={text} must be whole numbers, at least 1, separated by commas, for example 1,2,4")
    return tuple(dict.fromkeys(int(part) for part in parts))


def check_file(name: str, path: Path | None) -> None:
    """Check that the file of an option can be written before minutes are spent on measuring.

    :raises UsageError: if it cannot.
    """
    if path is None:
        return
    folder = path.absolute().parent
    if not folder.is_dir():
        raise UsageError(f"{name}={path}: there is no folder {folder}")
    if path.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        raise UsageError(f"{name}={path} cannot be written: give a file in a folder that you may write to")


def find_target(text: str) -> Target:
    """Find a training function. As for ``python -m pytest``, modules of the current folder can be imported.

    :raises TargetError: if it does not exist.
    """
    sys.path.insert(0, str(Path.cwd()))
    return Target.find(text)


@contextmanager
def without_start_messages() -> Iterator[None]:
    """Hide the messages of TensorFlow at its import, which the program may do here. Show everything else.

    TensorFlow writes some of them before it reads ``TF_CPP_MIN_LOG_LEVEL``, to the file and not to ``sys.stderr``.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            lines = file.read().decode(errors="replace").splitlines(keepends=True)
            sys.stderr.write("".join(line for line in lines if not _START_MESSAGE.match(line)))
