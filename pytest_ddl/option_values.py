"""Parse and read the values of options and commands, without pytest, whose import takes longer than most commands."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

Value = TypeVar("Value")


def positive(unit: str, example: int, most: float = float("inf")) -> Callable[[str], float]:
    """Return a function that parses a positive number of a unit, and raises a :class:`ValueError` for other text."""

    def parse(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = 0.0
        if not 0 < number < float("inf"):
            raise ValueError(f"{text!r} is not a positive number of {unit}, for example {example}")
        if number > most:
            raise ValueError(f"{text!r} is more than {most:.0f} {unit}")
        return number

    return parse


LONGEST_WAIT = 1_000_000.0
"""Seconds. Waiting for processes counts milliseconds in 32 bits, which allows twice as much."""
parse_seconds, parse_megabytes = positive("seconds", 60, most=LONGEST_WAIT), positive("megabytes", 500)


def argument(parse: Callable[[str], Value]) -> Callable[[str], Value]:
    """Return a function that parses a value for :mod:`argparse`, which shows only messages of an error of its own."""

    def parse_argument(text: str) -> Value:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse_argument


def parse_range(text: str) -> str:
    """Check that a text names two versions as ``BASE..HEAD``, and return it.

    :raises ValueError: for any other text.
    """
    base, dots, head = text.partition("..")
    if not (base.strip() and dots and head.strip()) or head.startswith("."):
        raise ValueError("give two versions as BASE..HEAD, for example main..WORKTREE")
    return text


def given_options(options: object, names: Iterable[str]) -> dict[str, Any]:
    """Return the values of the options that were given on a command line, by name. Zero and an empty text are values.

    :param options: result of :mod:`argparse`, with ``None`` or ``False`` for an option that was not given.
    """
    values = {name: getattr(options, name) for name in names}
    return {name: value for name, value in values.items() if value is not None and value is not False}


def parse_switch(text: str) -> bool:
    """Parse a switch in an ini or environment value.

    :raises ValueError: for an unknown word.
    """
    lowered = text.strip().lower()
    if lowered not in ("1", "true", "yes", "on", "0", "false", "no", "off", ""):
        raise ValueError(f"{text!r} is not a switch; valid: 1, true, yes, on, 0, false, no, off")
    return lowered in ("1", "true", "yes", "on")
