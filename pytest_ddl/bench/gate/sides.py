"""The two sides of a launch: their settings, their processes, and the errors that they report."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_ddl.bench.gate.side import SideOrder
from pytest_ddl.bench.gate.target import VersionTarget
from pytest_ddl.bench.launching.pacing import Pacer, PacingError
from pytest_ddl.bench.launching.processes import Processes
from pytest_ddl.bench.launching.ranks import PARTING
from pytest_ddl.bench.launching.records import BenchSpec

SCRIPT = "_ddl_gate_side.py"
"""Name of the script in the instrument's folder that a side's interpreter runs."""


class MeasurementError(RuntimeError):
    """Raised if a launch gives no number (exit status 4). The message names the side, the reason, and the fix."""


@dataclass(frozen=True)
class Side:
    """One version, ready to launch."""

    name: str
    """``BASE`` or ``HEAD``."""
    commit: str
    root: Path
    paths: tuple[Path, ...]
    """Folders in ``root`` from which modules are imported."""
    checkout: Path
    """The user's own checkout. No code may come from there."""
    instrument: Path
    """Folder with the script that starts a side, and with the gate's own pytest-ddl if that one measures."""
    package: Path
    """The ``pytest_ddl/__init__.py`` that measures."""
    python: str = sys.executable

    def command(self, order: Path) -> list[str]:
        return [self.python, str(self.instrument / SCRIPT), str(order)]

    def environ(self, folder: Path, hash_seed: int) -> dict[str, str]:
        """Return the environment of the side's processes."""
        environ = dict(os.environ)
        if not environ.get("PYTHONHASHSEED", "").isdecimal():  # "random" would give each side another seed
            environ["PYTHONHASHSEED"] = str(hash_seed)
        environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        given = environ.get("PYTHONPATH", "").split(os.pathsep)
        kept = [path for path in given if path and not Path(path).resolve().is_relative_to(self.checkout)]
        environ["PYTHONPATH"] = os.pathsep.join([*map(str, (self.instrument, *self.paths)), *kept])
        environ["TMPDIR"] = str(folder)
        return environ


class Running:
    """Interpreter of one side, and the launch that was last requested from it.

    It imports TensorFlow once, for all launches. The ranks of each launch are separate processes, forked from it.
    """

    process: subprocess.Popen[bytes] | None = None
    pacer: Pacer

    def __init__(self, side: Side, folder: Path, processes: Processes, hash_seed: int) -> None:
        self.side = side
        self._folder, self._processes, self._hash_seed = folder, processes, hash_seed
        self._launches = 0

    def ask(
        self,
        pacer: Pacer,
        target: VersionTarget,
        strategy: str,
        bench: BenchSpec,
        cores_per_replica: int,
        canary: bool,
        rotation: int,
    ) -> None:
        """Request a launch from the interpreter. The ranks connect to the pacer when they are warm.

        :raises MeasurementError: if the interpreter cannot be started, or has ended since the last launch.
        """
        self.pacer, self._bench = pacer, bench
        self._launches += 1
        self._folder.mkdir(exist_ok=True)
        file = target.find(self.side.root, self.side.paths)
        assert file is not None
        order = SideOrder(
            target=str(target),
            file=str(file),
            root=str(self.side.root),
            paths=tuple(map(str, self.side.paths)),
            checkout=str(self.side.checkout),
            strategy=strategy,
            address=pacer.address,
            report=str(self._report),
            bench=bench,
            parent=os.getpid(),
            cores_per_replica=cores_per_replica,
            rotation=rotation,
            canary=canary,
        )
        path = self._folder / f"order-{self._launches}.json"
        order.save(path)
        if self.process is None:
            self.process = self._start(path)
        else:
            self._send(self.process, path)

    def _start(self, order: Path) -> subprocess.Popen[bytes]:
        command, environ = self.side.command(order), self.side.environ(self._folder, self._hash_seed)
        try:
            log = self._folder / "log"
            return self._processes.start(command, self.side.root, environ, log, stdin=subprocess.PIPE)
        except OSError as error:
            raise MeasurementError(f"{self.side.name}: {self.side.python} cannot be started: {error}") from None

    def _send(self, process: subprocess.Popen[bytes], order: Path) -> None:
        assert process.stdin is not None
        try:
            process.stdin.write(os.fsencode(order) + b"\n")
        except BrokenPipeError:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1.0)  # the pipe is closed before the status can be read
            raise MeasurementError(f"{self.described} {self.ending()}") from None

    @property
    def _report(self) -> Path:
        return self._folder / f"report-{self._launches}.json"

    @property
    def has_ended(self) -> bool:
        """True if the launch is over: the interpreter has reported, or is gone."""
        return self.is_gone or self._report.exists()

    @property
    def is_gone(self) -> bool:
        return self.process is None or self.process.poll() is not None

    def report(self, deadline: float) -> dict[str, Any]:
        """Wait for the side's report and return it. By then, its ranks have ended.

        :raises MeasurementError: if the report is a failure, or if there is none at ``deadline`` (``time.monotonic``).
        """
        while not self.has_ended and time.monotonic() < deadline:
            time.sleep(0.01)
        report = self.read_report()
        if report is None:
            raise MeasurementError(f"{self.described} {self.ending()}")
        if "error" in report:
            raise MeasurementError(f"{self.described} failed: {report['error']}")
        return report

    def read_report(self) -> dict[str, Any] | None:
        """Return the report of this launch, or ``None`` if there is none yet."""
        with contextlib.suppress(OSError, json.JSONDecodeError):
            report: dict[str, Any] = json.loads(self._report.read_text(encoding="utf-8"))
            return report
        return None

    @property
    def described(self) -> str:
        return f"{self.side.name} ({self.side.commit[:10]})"

    def ending(self) -> str:
        """Describe how the interpreter ended, with the last lines that it printed."""
        status = self.process.poll() if self.process is not None else None
        how = "did not end in time" if status is None else f"ended with status {status} and no report"
        if status is not None and status < 0:
            how = f"was killed by signal {-status}, and left no report"
        with contextlib.suppress(OSError):
            lines = (self._folder / "log").read_text(encoding="utf-8", errors="replace").strip().splitlines()[-15:]
            if lines:
                how += ":\n" + "\n".join(lines)
        return how


class Watch(threading.Thread):
    """Thread that closes the pacers when the launch of a side ends too early, so that nothing waits for its ranks."""

    def __init__(self, runs: Sequence[Running]) -> None:
        super().__init__(name="ddl-gate-watch", daemon=True)
        self._runs, self._over = runs, threading.Event()
        self.start()

    def run(self) -> None:
        while not self._over.wait(0.05):
            if any(run.has_ended for run in self._runs):
                for run in self._runs:
                    run.pacer.close()
                return

    def end(self) -> None:
        self._over.set()
        if threading.current_thread() is not self:
            self.join()


def explained(runs: Sequence[Running], error: PacingError, late: bool) -> MeasurementError:
    """Return the error for a launch that measured nothing: the failed side's own report, or else ``error``."""
    soon = time.monotonic() + (0.0 if late else PARTING)
    while time.monotonic() < soon and not any(run.has_ended for run in runs):
        time.sleep(0.05)
    reports = [run.read_report() for run in runs]
    for run, report in zip(runs, reports, strict=True):
        if report is not None and "error" in report:
            return MeasurementError(f"{run.described} failed: {report['error']}")
    for run, report in zip(runs, reports, strict=True):
        if report is not None:
            return MeasurementError(
                f"the training function of {run.described} ended by itself, after "
                f"{len(report['launch']['ranks'][0]['blocks'])} blocks of steps: "
                "the gate decides when to stop. Remove the steps= or epochs= of its own loop; run.steps, "
                "run.batches and run.fit end when the gate does"
            )
        if run.is_gone:
            return MeasurementError(f"{run.described} {run.ending()}")
    if late:
        return MeasurementError(
            f"a launch of both sides took more than {runs[0]._bench.timeout:g} s ({error}); give a larger --timeout, "
            "or a --strategy with fewer replicas"
        )
    return MeasurementError(f"ranks of a side ended unexpectedly: {error}")


def provenance(side: Side, report: Mapping[str, Any]) -> dict[str, str]:
    """Return the origin of a side's code, as its ranks report it.

    :raises MeasurementError: if that is not the folder of the side's version, or if another pytest-ddl measured it.
    """
    launch = report["launch"]
    programs = sorted({rank["program"] for rank in launch["ranks"]})
    strangers = [program for program in programs if not Path(program).is_relative_to(side.root)]
    if strangers or not programs:
        raise MeasurementError(f"{side.name} ran {', '.join(strangers) or 'no program'}, which is not in {side.root}")
    if Path(report["pytest_ddl_file"]) != side.package:
        raise MeasurementError(
            f"{side.name} was measured by the pytest-ddl of {report['pytest_ddl_file']}, not by that of {side.package}"
        )
    origin = {key: str(report[key]) for key in ("pytest_ddl", "pytest_ddl_file", "interpreter")}
    return {"commit": side.commit, "root": str(side.root), "program": programs[0], **origin, **launch["versions"]}
