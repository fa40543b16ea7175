"""Run the planted bugs and the correct programs, and count: ``python -m tests.planted_recovery.run [--only PART]``."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass

from pytest_ddl import RecoveryError, check_training
from pytest_ddl.faults.report import FaultReport
from tests.planted_recovery import correct, files, loops
from tests.planted_recovery.parts import BATCH, Recovery

PLANTED = [*loops.PLANTED, *files.PLANTED]
CORRECT = correct.CORRECT


@dataclass(frozen=True)
class Outcome:
    """Result of the checks of one entry."""

    caught: bool
    right: bool
    detail: str


def evaluate(entry: Recovery) -> Outcome:
    """Inject the faults of an entry, and compare what is said with what must be said."""
    faults = entry.fault if entry.fault == "every point" else entry.fault.split("; ")
    given = {"global_batch_size": BATCH, "timeout": 120.0, **entry.given}
    try:
        report = check_training(entry.program, entry.strategy, faults=faults, **given)
    except RecoveryError as error:
        report = error.report
    if not isinstance(report, FaultReport):
        causes = [finding.cause for finding in report.findings]
        right = "comparison" in entry.verdicts and (not entry.causes or bool(set(causes) & set(entry.causes)))
        return Outcome(not report.passed, right, f"comparison: {str(report)[:3000]}")
    told = "; ".join(f"{'; '.join(map(str, one.schedule))}: {one.message}" for one in report.trials)
    if report.trials and report.trials[0].finding is not None:
        told += f" [{report.trials[0].finding.check}, {report.trials[0].finding.cause}]"
    if report.notes or any(one.notes for one in report.trials):
        told += f" notes: {report.notes} {[one.notes for one in report.trials if one.notes]}"
    if not entry.broken and entry.verdicts in (("exact",), ("equal",)):
        wrong = [one for one in report.trials if one.verdict.value not in entry.verdicts]
        return Outcome(not report.recovered, report.recovered and not wrong, told)
    (trial,) = report.trials
    cause = trial.finding.cause if trial.finding else None
    right = trial.verdict.value in entry.verdicts and (not entry.causes or cause in entry.causes)
    right = right and (not entry.broken or any(entry.broken in why for _trial, why in report.broken))
    return Outcome(not report.recovered, right, told)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="run the entries whose name has this part")
    parser.add_argument("--from", dest="first", type=int, default=0, help="number of entries to leave out (default: 0)")
    options = parser.parse_args(arguments)
    only = options.only
    outcomes: dict[str, list[Outcome]] = {"planted": [], "correct": []}
    for kind, entries in (("planted", PLANTED[options.first :]), ("correct", CORRECT[options.first :])):
        for entry in entries:
            if only not in f"{kind} {entry.name}":
                continue
            try:
                outcome = evaluate(entry)
            except Exception as error:
                outcome = Outcome(False, False, f"{type(error).__name__}: {error}")
            outcomes[kind].append(outcome)
            print("right" if outcome.right else "WRONG", kind, entry.name, outcome.detail, sep=" | ", flush=True)
    planted, correct_ones = outcomes["planted"], outcomes["correct"]
    print(f"planted: {len(planted)}, caught: {sum(one.caught for one in planted)}", end="")
    print(f", right verdict and cause: {sum(one.right for one in planted)}")
    print(f"correct: {len(correct_ones)}, false verdicts: {sum(not one.right for one in correct_ones)}")
    return int(not all(one.right for one in [*planted, *correct_ones]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
