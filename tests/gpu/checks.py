"""Run all checks that need a GPU one after the other, within 9 minutes, and print a table: ``tests/gpu/run.sh FOLDER``.

What a check leaves of its time goes to the later ones. A check that fails or hangs stops no other one. Without a GPU
that computes, only the first one runs. Name single checks to give them all the time, for example ``core``, which goes
on where an earlier run in the same folder ended.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_ddl.bench.launching.processes import GRACE, Processes
from suites.matrix.cells import ONE_GPU
from suites.matrix.recording import KEPT, OPTION
from suites.matrix.results import lines_of, merged

ROOT = Path(__file__).parents[2]
SECONDS = 540.0
"""Most time for all checks. What lends GPUs for a short time often ends a command after 10 minutes."""
PATIENCE = 8.0
"""Seconds that an interrupted check has for its summary, before it is killed."""
_ENDING = PATIENCE + GRACE + 1
"""Seconds between the limit of a check and its end at the latest."""
_COMPUTES = """
import tensorflow as tf
from pytest_ddl.strategies.gpu_check import check_gpus
gpus = tf.config.list_physical_devices("GPU")
assert gpus, "TensorFlow sees no GPU"
check_gpus(len(gpus))
print(f"TensorFlow {tf.__version__}: a product, a sum and random numbers are right on {len(gpus)} GPU")
"""


@dataclass(frozen=True)
class Check:
    """One line of the table."""

    name: str
    stage: int
    """Checks of one stage run at the same time."""
    weight: int
    """Share of the time, in seconds if all checks run. Checks of one stage have the same."""
    command: Callable[[Path, float], Sequence[str]]
    """Makes the command from the folder for results and the seconds that it may take."""
    told: Callable[[Path], str] = lambda _folder: ""
    """Returns what the results say, if the last line of the log does not."""


def _pytest(*words: str) -> list[str]:
    # Other plugins of the machine are not what is checked, and pytest-benchmark warns beside pytest-xdist.
    return [sys.executable, "-m", "pytest", "-q", "-p", "no:benchmark", "-p", "no:cacheprovider", *words]


def _suite(folder: Path, tier: str, processes: int) -> list[str]:
    """Return the command of a tier, without the tests that earlier runs in this folder have settled.

    The lines of all runs give a cell: ``python -m suites.matrix read CELL FOLDER/core-*.jsonl``.
    """
    before = sorted(folder.glob(f"{tier}-[0-9].jsonl"))
    outcomes = {test.key: test.outcome for path in before for test in merged(_of_tests(path))}
    settled = [key for key, outcome in outcomes.items() if outcome in ("pass", "xfail")]
    kept, lines = folder / f"{tier}.kept.json", folder / f"{tier}-{len(before) + 1}.jsonl"
    kept.write_text(json.dumps(settled), encoding="utf-8")
    lines.write_text(json.dumps({"left_out": settled}) + "\n", encoding="utf-8")
    where = ("suites", f"--ddl-tier={tier}", "--ddl-device=gpu", f"--ddl-strategy={ONE_GPU}")
    return _pytest(*where, "-n", str(processes), "-p", "suites.matrix.recording", f"{OPTION}={lines}", f"{KEPT}={kept}")


def _of_tests(path: Path) -> list[Mapping[str, Any]]:
    return [line for line in lines_of(path) if "test" in line]


def _planted(folder: Path, seconds: float) -> list[str]:
    minutes = str(round(max(seconds - 30, seconds / 2) / 60, 2))
    only = ("-m", "tests.evaluation", "--only", "planted", "--no-page", "--processes", "7")
    return [sys.executable, *only, "--minutes", minutes, "--results", str(folder / "evaluation")]


def _told_of_planted(folder: Path) -> str:
    rows = lines_of(folder / "evaluation" / "planted.jsonl")
    bugs, twins = ([row for row in rows if row["which"] == which] for which in ("sin", "twin"))
    caught, passed = sum(row["caught"] for row in bugs), sum(row["verdict"] == "pass" for row in twins)
    return f"{caught} of {len(bugs)} bugs caught, {passed} of {len(twins)} correct twins pass"


def _speed(folder: Path, _seconds: float) -> list[str]:
    words = ("--device", "gpu", "--only", "starts", "tests", "equivalence", "--rounds", "5", "--tests", "50")
    return [sys.executable, "asv_bench/harness.py", *words, "--json", str(folder / "speed.json")]


def _gate(folder: Path, seconds: float) -> list[str]:
    minutes = str(round(max(seconds - 20, seconds / 2) / 60, 2))
    words = ("--device", "gpu", "--launches", "20", "--cell", "one_device", "--minutes", minutes)
    return [sys.executable, "asv_bench/gate_power.py", *words, "--results", str(folder / "gate")]


CHECKS = (
    Check("gpu", 0, 60, lambda _folder, _seconds: [sys.executable, "-c", _COMPUTES]),
    Check(
        "doctor", 1, 50, lambda _folder, _seconds: [sys.executable, "-m", "pytest_ddl.cli", "doctor", "--tensorflow"]
    ),
    Check("tests", 2, 100, lambda _folder, _seconds: _pytest("-n", "4", "tests/strategies/test_gpus.py")),
    Check("smoke", 2, 100, lambda folder, _seconds: _suite(folder, "smoke", 4)),
    Check("planted", 3, 80, _planted, _told_of_planted),
    # Times are worth something only while nothing else runs.
    Check("speed", 4, 50, _speed),
    Check("gate", 5, 80, _gate),
    Check("core", 6, 120, lambda folder, _seconds: _suite(folder, "core", min(11, os.cpu_count() or 1))),
)
"""All checks, in their order. The first one decides whether the others run."""


@dataclass
class Row:
    """Result of one check."""

    name: str
    result: str
    seconds: float = 0.0
    told: str = ""

    def __str__(self) -> str:
        return f"{self.name:<8} {self.result:<10} {self.seconds:4.0f} s  {self.told}".rstrip()


@dataclass
class Runner:
    """Runs checks within a time."""

    folder: Path
    seconds: float = SECONDS
    rows: list[Row] = field(default_factory=list)

    def run(self, checks: Sequence[Check]) -> bool:
        """Run checks, stage by stage, and write the table. Return whether all of them passed."""
        end = time.monotonic() + self.seconds
        stages = sorted({check.stage for check in checks})
        refused = ""
        for stage in stages:
            now = [check for check in checks if check.stage == stage]
            left = end - time.monotonic() - _ENDING
            weights = sum({check.stage: check.weight for check in checks if check.stage >= stage}.values())
            limit = left * now[0].weight / weights
            # The end of each stage is on account of the later ones, and that of the last one is set aside.
            limit -= 0 if stage == stages[-1] else _ENDING
            if refused or limit <= 0:
                self._add([Row(check.name, "not run", told=refused or "no time was left") for check in now])
                continue
            self._add(list(self._stage(now, limit)))
            if stage == CHECKS[0].stage and self.rows[-1].result != "ok":
                refused = "no GPU computes here"
        return all(row.result == "ok" for row in self.rows)

    def _stage(self, checks: Sequence[Check], limit: float) -> Iterator[Row]:
        environ = {**os.environ, "PYTHONUNBUFFERED": "1"}
        with ExitStack() as stack:
            begun = time.monotonic()
            running = []
            for check in checks:
                processes = stack.enter_context(Processes(f"gpu-{os.getpid()}-{check.name}"))
                log = self.folder / f"{check.name}.log"
                log.unlink(missing_ok=True)
                process = processes.start(list(check.command(self.folder, limit)), ROOT, environ, log)
                running.append((check, process, processes, log))
            for check, process, processes, log in running:
                result = _result(process, begun + limit)
                processes.end()
                yield Row(check.name, result, time.monotonic() - begun, self._told(check, log))

    def _told(self, check: Check, log: Path) -> str:
        with contextlib.suppress(Exception):  # results that a killed process left are no reason to lose the table
            if told := check.told(self.folder):
                return told
        lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        return lines[-1].strip()[:150] if lines else ""

    def _add(self, rows: Sequence[Row]) -> None:
        self.rows += rows
        text = "\n".join(map(str, self.rows)) + "\n"
        (self.folder / "table.txt").write_text(text, encoding="utf-8")


def _result(process: subprocess.Popen[bytes], end: float) -> str:
    """Wait for a process, interrupt it at the end of its time, and return its result."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        status = process.wait(max(0.0, end - time.monotonic()))
        return "ok" if status == 0 else f"status {status}"
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(PATIENCE)
    return "cut off"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen checks. Return 0 if each of them passed."""
    names = [check.name for check in CHECKS]
    parser = argparse.ArgumentParser(prog="tests/gpu/run.sh", description=__doc__)
    parser.add_argument("folder", type=Path, help="for the table, and for the logs and figures of each check")
    parser.add_argument("checks", nargs="*", metavar="CHECK", help=f"of {', '.join(names)} (default: all)")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for all checks (default: %(default).0f)")
    options = parser.parse_args(arguments)
    if unknown := set(options.checks) - set(names):
        parser.error(f"there is no check {', '.join(sorted(unknown))}; valid: {', '.join(names)}")
    # A shell starts what runs in the background with interrupts ignored, and so would all checks.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    chosen = [check for check in CHECKS if check is CHECKS[0] or not options.checks or check.name in options.checks]
    passed = Runner(folder, options.seconds).run(chosen)
    print((folder / "table.txt").read_text(encoding="utf-8"), end="", flush=True)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
