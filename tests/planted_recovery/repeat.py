"""Sweep programs again and again, and count the points whose verdict differs from the one of the first sweep.

``python -m tests.planted_recovery.repeat [--programs NAMES] [--strategies NAMES] [--times N]``
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_ddl import RecoveryError, Sweep, check_training
from pytest_ddl.faults.report import FaultReport
from tests.planted_recovery.parts import BATCH, WORKERS
from tests.planted_recovery.run import CORRECT, PLANTED

Verdicts = Mapping[str, str]
"""Schedule of one sweep -> its verdict, with the cause of the finding if there is one."""
PROGRAMS: dict[str, tuple[Callable[[Any], None], Mapping[str, Any]]] = {
    entry.program.__name__: (
        entry.program,
        {key: entry.given[key] for key in entry.given if key in ("expect", "steps")},
    )
    for entry in [*CORRECT, *PLANTED]
}
"""Name -> program, with the arguments that its comparison needs."""
DEFAULT = (
    "saves_every_second_step",
    "shuffles_with_a_seed_and_skips",
    "has_a_schedule",
    "step_is_not_saved",
    "optimizer_is_not_saved",
)
"""Programs that run under all strategies: three that recover, and two whose verdicts are bad at most points."""


@dataclass
class Repetition:
    """Counts of the compared sweeps of all programs, and a line for each difference."""

    compared: int = 0
    """Number of points of repeated sweeps that the first sweep has too."""
    differing: int = 0
    missing: int = 0
    """Number of points that only one of two sweeps has."""

    def add(self, name: str, first: Verdicts, again: Verdicts) -> Iterable[str]:
        """Compare a repeated sweep with the first one, and yield a line for each difference."""
        for schedule in sorted(first.keys() & again.keys()):
            self.compared += 1
            if first[schedule] != again[schedule]:
                self.differing += 1
                yield f"DIFFERS | {name} | {schedule} | {first[schedule]} | {again[schedule]}"
        for schedule in sorted(first.keys() ^ again.keys()):
            self.missing += 1
            yield f"POINTS | {name} | {schedule} | only in the {'first' if schedule in first else 'repeated'} sweep"

    @property
    def same(self) -> bool:
        """True if something was compared, and all sweeps of a program had the same points and verdicts."""
        return bool(self.compared) and not self.differing and not self.missing

    def __str__(self) -> str:
        return f"points compared: {self.compared}, verdict differs: {self.differing}, only in one sweep: {self.missing}"


def sweep(program: Callable[[Any], None], strategy: str, given: Mapping[str, Any], wanted: Sweep) -> Verdicts:
    """Return the verdicts of one sweep.

    :raises RuntimeError: if the comparison without faults fails, so that nothing is swept.
    """
    try:
        report = check_training(program, strategy, faults=wanted, global_batch_size=BATCH, timeout=120.0, **given)
    except RecoveryError as error:
        report = error.report
    if not isinstance(report, FaultReport):
        raise RuntimeError(f"the comparison without faults failed: {report}")
    found = {}
    for trial in report.trials:
        cause = f", {trial.finding.cause}" if trial.finding is not None else ""
        found["; ".join(map(str, trial.schedule))] = f"{trial.verdict.value}{cause}"
    return found


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", default=",".join(DEFAULT), help="comma-separated (default: %(default)s)")
    parser.add_argument("--strategies", default=f"mirrored,{WORKERS}", help="comma-separated (default: %(default)s)")
    parser.add_argument("--times", type=int, default=2, help="number of sweeps of each program (default: 2)")
    parser.add_argument("--kind", default="kill", help="kind of fault (default: kill)")
    parser.add_argument("--phases", default="", help="comma-separated (default: all)")
    parser.add_argument("--no-writes", action="store_true", help="do not strike at single writes of a save")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.programs.split(",") if name not in PROGRAMS]
    if unknown:
        parser.error(f"--programs: there is no {unknown[0]!r}; {', '.join(PROGRAMS)}")
    given: dict[str, Any] = {"phases": options.phases.split(",")} if options.phases else {}
    wanted = Sweep(options.kind, writes=not options.no_writes, **given)
    total = Repetition()
    for strategy in options.strategies.split(","):
        for name in options.programs.split(","):
            program, own = PROGRAMS[name]
            first: Verdicts | None = None
            for number in range(1, options.times + 1):
                found = sweep(program, strategy, own, wanted)
                title = f"{name}, {strategy}"
                lines = [] if first is None else list(total.add(title, first, found))
                first = found if first is None else first
                print(f"{title}, sweep {number}: {len(found)} points", *lines, total, sep="\n", flush=True)
    return int(not total.same)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
