"""The two sides of a launch: what each is, the process that runs it, and what it says when it fails."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pytest_ddl.bench.answers import PARTING
from pytest_ddl.bench.gate.side import SideOrder
from pytest_ddl.bench.gate.target import Target
from pytest_ddl.bench.pacing import Pacer, PacingError
from pytest_ddl.bench.processes import Processes
from pytest_ddl.bench.spec import BenchSpec

SCRIPT = "_ddl_gate_side.py"
"""In the instrument's folder: what a side's interpreter runs."""


class MeasurementError(RuntimeError):
    """A launch of which there is no number: exit status 4. The message says which side, why, and what to do."""


@dataclass(frozen=True)
class Side:
    """One version as it is launched."""

    name: str
    """``BASE`` or ``HEAD``."""
    commit: str
    root: Path
    """The folder with the version."""
    paths: tuple[Path, ...]
    """Folders in it that modules are imported from."""
    checkout: Path
    """The user's own checkout, from which nothing may come."""
    instrument: Path
    """A folder with the script that starts a side, and with the gate's own pytest-ddl where that is used."""
    package: Path
    """The ``pytest_ddl/__init__.py`` that measures."""
    python: str = sys.executable

    def command(self, order: Path) -> list[str]:
        return [self.python, str(self.instrument / SCRIPT), str(order)]

    def environ(self, folder: Path) -> dict[str, str]:
        """The environment of its processes."""
        environ = dict(os.environ)
        # Both sides are on the same GPUs; by default the first would take all their memory.
        environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
        environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        given = environ.get("PYTHONPATH", "").split(os.pathsep)
        kept = [path for path in given if path and not Path(path).resolve().is_relative_to(self.checkout)]
        environ["PYTHONPATH"] = os.pathsep.join([*map(str, (self.instrument, *self.paths)), *kept])
        environ["TMPDIR"] = str(folder)
        return environ


class Running:
    """A side that has been started."""

    process: subprocess.Popen[bytes]

    def __init__(self, side: Side, folder: Path, processes: Processes, pacer: Pacer, deadline: float) -> None:
        self.side, self.pacer = side, pacer
        self._folder, self._processes, self._deadline = folder, processes, deadline

    def start(self, target: Target, strategy: str, bench: BenchSpec, cores_per_replica: int) -> None:
        """Start it; its ranks come to the pacer when they are warm."""
        self._folder.mkdir()
        file = target.find(self.side.root, self.side.paths)
        assert file is not None
        self._bench = bench
        order = SideOrder(
            target=str(target),
            file=str(file),
            root=str(self.side.root),
            paths=tuple(map(str, self.side.paths)),
            checkout=str(self.side.checkout),
            strategy=strategy,
            address=self.pacer.address,
            report=str(self._folder / "report.json"),
            bench=asdict(bench),
            parent=os.getpid(),
            cores_per_replica=cores_per_replica,
        )
        path = self._folder / "order.json"
        order.save(path)
        try:
            self.process = self._processes.start(
                self.side.command(path), self.side.root, self.side.environ(self._folder), self._folder / "log"
            )
        except OSError as error:
            raise MeasurementError(f"{self.side.name}: {self.side.python} cannot be started: {error}") from None

    def report(self, deadline: float) -> dict[str, Any]:
        """What the side reports; it may still be ending its processes then.

        :raises MeasurementError: where that is a failure, or nothing.
        """
        path = self._folder / "report.json"
        while not path.exists() and self.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        told = self.told()
        if told is None:
            raise MeasurementError(f"{self.described} {self.ending()}")
        if "error" in told:
            raise MeasurementError(f"{self.described} failed: {told['error']}")
        return told

    def told(self) -> dict[str, Any] | None:
        """What it has reported up to now."""
        with contextlib.suppress(OSError, json.JSONDecodeError):
            found: dict[str, Any] = json.loads((self._folder / "report.json").read_text(encoding="utf-8"))
            return found
        return None

    @property
    def described(self) -> str:
        return f"{self.side.name} ({self.side.commit[:10]})"

    def ending(self) -> str:
        """How it ended, with the last lines that it printed."""
        status = self.process.poll()
        how = "did not end in time" if status is None else f"ended with status {status} and no report"
        if status is not None and status < 0:
            how = f"was killed by signal {-status}, and left no report"
        with contextlib.suppress(OSError):
            lines = (self._folder / "log").read_text(encoding="utf-8", errors="replace").strip().splitlines()[-15:]
            if lines:
                how += ":\n" + "\n".join(lines)
        return how


class Watch(threading.Thread):
    """Closes the pacers when a side ends before its time, so that nobody waits for its ranks."""

    def __init__(self, runs: Sequence[Running]) -> None:
        super().__init__(name="ddl-gate-watch", daemon=True)
        self._runs, self._over = runs, threading.Event()
        self.start()

    def run(self) -> None:
        while not self._over.wait(0.05):
            if any(run.process.poll() is not None for run in self._runs):
                for run in self._runs:
                    run.pacer.close()
                return

    def end(self) -> None:
        self._over.set()
        if threading.current_thread() is not self:
            self.join()


def explained(runs: Sequence[Running], error: PacingError, late: bool) -> MeasurementError:
    """Why there are no blocks: what the side that failed says itself, rather than that its ranks are gone."""
    soon = time.monotonic() + (0.0 if late else PARTING)
    while time.monotonic() < soon and not any(run.process.poll() is not None or run.told() for run in runs):
        time.sleep(0.05)
    for run in runs:
        told = run.told()
        if told is not None and "error" in told:
            return MeasurementError(f"{run.described} failed: {told['error']}")
    for run in runs:
        told = run.told()
        if told is not None:
            return MeasurementError(
                f"the training function of {run.described} ended by itself, after {_blocks(told)} blocks of steps: "
                "the gate says when it has enough. Remove the steps= or epochs= of its own loop; run.steps, "
                "run.batches and run.fit end when the gate does"
            )
        if run.process.poll() is not None:
            return MeasurementError(f"{run.described} {run.ending()}")
    if late:
        return MeasurementError(
            f"a launch of both sides took more than {runs[0]._bench.timeout:g} s ({error}); --timeout gives it more, "
            "--strategy with fewer replicas needs less"
        )
    return MeasurementError(f"the ranks of a side went away: {error}")


def _blocks(told: Mapping[str, Any]) -> int:
    return len(told["launch"]["ranks"][0]["blocks"])


def provenance(side: Side, report: Mapping[str, Any]) -> dict[str, str]:
    """Where the code of a side came from, as its ranks say.

    :raises MeasurementError: where that is not the folder of its version.
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
    told = {key: str(report[key]) for key in ("pytest_ddl", "pytest_ddl_file", "interpreter")}
    return {"commit": side.commit, "root": str(side.root), "program": programs[0], **told, **launch["versions"]}
