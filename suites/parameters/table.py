"""Say of each public parameter which values the properties give to it, or why none does.

``python -m suites.parameters.table`` prints the table, and ``--missing`` only the parameters that nothing covers.
"""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from suites.parameters.spaces import Space
from suites.parameters.surface import surface

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE = Path(__file__).with_name("left_out.toml")
"""Parameters that no property varies, with the reason or as open."""
FILES = (
    *("test_loss_parameters", "test_metric_parameters", "test_optimizer_parameters", "test_schedule_parameters"),
    *("test_initial_values", "test_hooks_and_logs", "test_fit_parameters", "test_callback_parameters"),
    *("test_layer_parameters", "test_lookup_parameters", "test_iou_parameters"),
)
"""Files of properties with ``SPACES``."""


@dataclass(frozen=True)
class LeftOut:
    """Entry of the file: parameters that no property varies."""

    parameters: tuple[str, ...]
    """Expressions for ``api(parameter)``, which must fit as a whole."""
    reason: str = ""
    """Why no property varies them. Without a reason they are open: somebody must still write a property."""
    tests: tuple[str, ...] = ()
    """Tests of this suite that give them other values, one by one; they are the reason."""

    def fits(self, name: str) -> bool:
        return any(re.fullmatch(one, name) for one in self.parameters)


@dataclass(frozen=True)
class Line:
    """One parameter."""

    api: str
    parameter: str
    values: Sequence[object] = ()
    strategies: tuple[str, ...] = ()
    left_out: LeftOut | None = None

    @property
    def name(self) -> str:
        return f"{self.api}({self.parameter})"

    @property
    def state(self) -> str:
        """``varied``, ``reason``, ``open`` or ``missing``."""
        if len(self.values) > 1:
            return "varied"
        return (
            "missing" if self.left_out is None else "reason" if self.left_out.reason or self.left_out.tests else "open"
        )

    def __str__(self) -> str:
        why = self.left_out and (self.left_out.reason or ", ".join(self.left_out.tests))
        told = ", ".join(map(repr, self.values)) if self.state == "varied" else why
        return f"{self.name:72} {self.state:8} {', '.join(self.strategies) or '-':24} {told or ''}"[:200]


@cache
def left_out() -> tuple[LeftOut, ...]:
    """Return the entries of the file."""
    entries = tomllib.loads(FILE.read_text(encoding="utf-8"))["left_out"]
    return tuple(
        LeftOut(tuple(one["parameters"]), one.get("reason", ""), tuple(one.get("tests", ()))) for one in entries
    )


def spaces() -> Iterator[tuple[Space, tuple[str, ...]]]:
    """Yield the spaces whose cases properties run, with their strategies. The same objects parametrize the tests."""
    for name in FILES:
        yield from importlib.import_module(f"suites.properties.{name}").SPACES.items()


def lines() -> list[Line]:
    """Return a line for each parameter of the installed versions."""
    varied: dict[tuple[str, str], Line] = {}
    for space, strategies in spaces():
        for name, values in space.varied().items():
            if len(values) > 1:
                varied[space.api, name] = Line(space.api, name, tuple(values), strategies)
    found = []
    for api, names in surface().items():
        for name in names:
            line = Line(api, name)
            why = next((one for one in left_out() if one.fits(line.name)), None)
            found.append(varied.get((api, name)) or Line(api, name, left_out=why))
    return found


def counts(found: Sequence[Line]) -> Mapping[str, int]:
    """Return the number of parameters of each state."""
    return {state: sum(line.state == state for line in found) for state in ("varied", "reason", "open", "missing")}


def summary(found: Sequence[Line]) -> str:
    number = counts(found)
    told = ", ".join(f"{many} {state}" for state, many in number.items())
    return f"{number['varied'] + number['reason']} of {len(found)} parameters have two values or a reason: {told}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m suites.parameters.table", description=main.__doc__)
    parser.add_argument(
        "--missing", action="store_true", help="only parameters that nothing covers; 1 if there are any"
    )
    options = parser.parse_args(arguments)
    found = lines()
    missing = [line for line in found if line.state == "missing"]
    return int(options.missing and bool(missing))


if __name__ == "__main__":
    sys.exit(main())
