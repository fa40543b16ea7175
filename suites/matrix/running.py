"""Run the suite in a cell, in a process of its own with a deadline, and end all that it started."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_ddl.bench.launching.processes import Processes
from suites.matrix.cells import ONE_GPU, SUBJECTS, Cell
from suites.matrix.environments import ROOT, Environment, SetUpError, prepare
from suites.matrix.recording import KEPT, OPTION
from suites.matrix.results import STRUCK, Outcome, Result, judged, lines_of, write
from suites.tiers import TIERS

DEADLINES = dict(zip(TIERS, (600.0, 3600.0, 14400.0), strict=True))
"""Tier -> seconds that a cell may take. A cell that takes longer is an error."""


@dataclass(frozen=True)
class Settings:
    """Settings for running the cells."""

    folder: Path
    """Folder for the environments and the results."""
    tier: str
    tools: tuple[str, ...] = ()
    processes: int = 1
    """Number of processes of pytest in a cell."""
    deadline: float | None = None
    """Seconds that a cell may take; by default as ``DEADLINES`` says."""
    existing: Path | None = None
    """Folder with environments ``tf-VERSION`` and folders ``keras-VERSION``; those that it has are used."""
    arguments: tuple[str, ...] = ()
    """Further arguments for pytest."""
    rest: bool = False
    """True to run only what failed or did not run, and to keep the other outcomes of the result that is there."""

    @property
    def results(self) -> Path:
        """Folder of the results."""
        return self.folder / "results"

    @property
    def before(self) -> Path:
        """Folder of the results that were there before."""
        return self.folder / "before"


def run(cell: Cell, given: Settings) -> Result:
    """Run the tier in a cell, and write its result. The result that was there is kept as the one before."""
    old = given.results / f"{cell.id}.json"
    earlier = result_of(cell, given) if given.rest else None
    if earlier is None:
        if old.is_file():
            given.before.mkdir(parents=True, exist_ok=True)
            old.replace(given.before / old.name)
        # This result stays if the command itself is killed.
        write(given.results, judged(cell, given.tier, [], problem="the command ended before the cell"))
    result = _run(cell, given, earlier)
    write(given.results, result)
    return result


def result_of(cell: Cell, given: Settings) -> Result | None:
    """Return the result of the cell that is there, if it is one of this tier."""
    path = given.results / f"{cell.id}.json"
    found = Result.from_json(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None
    return found if found is not None and found.tier == given.tier else None


def _run(cell: Cell, given: Settings, earlier: Result | None) -> Result:
    try:
        environment, seconds = prepare(cell, given.folder, given.tools, **_existing(cell, given.existing))
    except SetUpError as error:
        return judged(cell, given.tier, [], problem=f"set-up: {error}")
    spent = {"set-up": round(seconds, 1)}
    if environment.forbidden:
        reason = "; ".join(environment.forbidden)
        return Result(cell, given.tier, STRUCK, reason, _shown(environment), seconds=spent)
    lines, log = (given.folder / "runs" / f"{cell.id}{suffix}" for suffix in (".jsonl", ".log"))
    lines.parent.mkdir(parents=True, exist_ok=True)
    for path in (lines, log):
        path.unlink(missing_ok=True)
    shown = _shown(environment)
    known: Sequence[Outcome] = ()
    if earlier is not None and earlier.versions == shown:
        known = earlier.tests
        spent["run"] = earlier.seconds.get("run", 0.0)
    keys = lines.with_suffix(".kept.json")
    keys.write_text(json.dumps([test.key for test in known if test.outcome != "fail"]), encoding="utf-8")
    begin = time.monotonic()
    words = [*command(cell, environment, given, lines), *([f"{KEPT}={keys}"] if known else [])]
    problem = _pytest(words, environment, log, _deadline(given))
    spent["run"] = round(spent.get("run", 0.0) + time.monotonic() - begin, 1)
    told = {"problem": problem, "versions": shown, "seconds": spent}
    return judged(cell, given.tier, lines_of(lines), earlier=known, **told)


def _existing(cell: Cell, folder: Path | None) -> dict[str, Path]:
    """Return what a folder of environments has for a cell."""
    if folder is None or cell.oldest:
        return {}
    python, keras = folder / cell.environment / "bin" / "python", folder / f"keras-{cell.keras}"
    found = {"existing": python} if python.is_file() else {}
    return found | ({"keras": keras} if keras.is_dir() else {})


def _shown(environment: Environment) -> dict[str, str]:
    names = ("python", "tensorflow", "tensorflow_cpu", "keras", "tf_keras", "numpy", "pytest", "hypothesis")
    return {name: environment.versions[name] for name in names if name in environment.versions}


def _deadline(given: Settings) -> float:
    return DEADLINES[given.tier] if given.deadline is None else given.deadline


def command(cell: Cell, environment: Environment, given: Settings, lines: Path) -> list[str]:
    """Return the command that runs the tier in an environment."""
    plugin = [] if environment.has_plugin else ["-p", "pytest_ddl.plugin"]
    subject = [] if cell.subject == SUBJECTS[0] else [f"--ddl-keras={cell.subject}"]
    places = [f"--ddl-strategy={ONE_GPU}", f"--ddl-device={cell.device}"] if cell.device else ["--ddl-strategy=all"]
    processes = ["-n", str(given.processes)] if given.processes > 1 else ["-p", "no:xdist"]
    return [
        *(str(environment.python), "-m", "pytest", str(ROOT / "suites"), "-q", "-p", "no:cacheprovider", *plugin),
        *("-p", "suites.matrix.recording", f"{OPTION}={lines}"),
        *(*places, f"--ddl-tier={given.tier}", *subject, *processes, *given.arguments),
    ]


def _pytest(command: Sequence[str], environment: Environment, log: Path, deadline: float) -> str:
    """Run the command, and return what ended it before its end."""
    # Sockets of warm servers are in this folder, and need a short path. No server of another cell may be found.
    with tempfile.TemporaryDirectory(prefix="ddl-") as own, Processes(f"matrix-{uuid.uuid4().hex}") as processes:
        path = os.pathsep.join(map(str, environment.path))
        environ = {name: text for name, text in os.environ.items() if not name.startswith(("PYTEST_", "VIRTUAL_ENV"))}
        process = processes.start(command, ROOT, {**environ, "PYTHONPATH": path, "XDG_RUNTIME_DIR": own}, log)
        try:
            status = process.wait(deadline)
        except subprocess.TimeoutExpired:
            return f"it took longer than {deadline:.0f} s"
    return f"pytest was ended by signal {-status}" if status < 0 else ""
