"""Runs pytest on small projects in a process of its own and says what became of every test, and what was left behind.

A run costs a second, or several if it imports TensorFlow: so a module has one project with many small tests in it, run
once, and its tests look at one behaviour each.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent

import psutil
import pytest

from pytest_ddl.cluster.warm.fitting import Server, key_of
from pytest_ddl.harness import process_harness

MARK = "_PYTEST_DDL_TESTED_RUN"
"""Environment variable that every process of a run inherits."""
PATIENT = {
    "patient.py": """
        from pytest_ddl.cluster import cluster
        from pytest_ddl.items import given, on_ranks

        for module in (cluster, given, on_ranks):
            module.GRACE = 2.0
    """
}
"""Plugin for a project in which all ranks fail: on a busy machine, their answers may come at different times."""
END_PATIENCE = 15.0
"""Seconds until the processes of a run must be gone; the kernel of a busy machine takes its time."""


@dataclass(frozen=True)
class Case:
    """Result of a test in the JUnit report."""

    outcome: str
    """``passed``, ``failed``, ``error`` (set-up or tear-down), ``skipped`` or ``xfailed``."""
    text: str
    """Messages, tracebacks and output."""
    seconds: float


@dataclass(frozen=True)
class Outcome:
    """Results and remains of a run."""

    status: int
    stdout: str
    stderr: str
    cases: Mapping[str, Case]
    processes: list[str]
    """Command lines of processes that outlived it."""
    files: list[str]
    """Files that it left in its temporary folder."""

    def __getitem__(self, name: str) -> Case:
        assert name in self.cases, f"{name} is not among {sorted(self.cases)}\n{self.stdout}\n{self.stderr}"
        return self.cases[name]

    @property
    def outcomes(self) -> dict[str, str]:
        return {name: case.outcome for name, case in self.cases.items()}


@dataclass
class Project:
    """A folder with tests of its own, and a temporary folder of its own."""

    folder: Path
    temporary: Path
    server: Server
    """Server from which the runs fork their zygotes, unless they have another environment."""
    before: set[psutil.Process] = field(init=False)
    """Processes that the server had forked before."""
    marks: list[str] = field(default_factory=list)
    prefix: list[str] = field(default_factory=list)
    """Beginning of the command, such as that of ``nsenter``."""

    def __post_init__(self) -> None:
        self.before = self._forked()

    def write(self, name: str, text: str) -> Project:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
        return self

    def start(self, *args: str, python: bool = False, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Start pytest (or a Python script) in the folder.

        :param env: further environment variables. Those that only the project reads begin with ``PYTEST_``. With any
            other, no warm server fits, and the run imports TensorFlow itself.
        """
        self.marks.append(uuid.uuid4().hex)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
        environ = {**kept, "TMPDIR": str(self.temporary), MARK: self.marks[-1], **(env or {})}
        if not self.prefix and self._server_fits(environ):
            environ.setdefault("PYTEST_DDL_WARM", "1")
        command = [*self.prefix, sys.executable, *([] if python else ["-m", "pytest"]), *args]
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=environ,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # A job in the background of a shell ignores Ctrl-C, and so would what it starts.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )

    def pytest(self, *args: str, env: Mapping[str, str] | None = None, timeout: float = 200.0) -> Outcome:
        """Run pytest to its end."""
        report = self.temporary.parent / f"{uuid.uuid4().hex}.xml"
        options = ["-p", "no:cacheprovider", f"--junitxml={report}", "-ojunit_logging=all", "-ojunit_family=xunit1"]
        return self.finish(self.start(*options, *args, env=env), timeout, report)

    def script(self, name: str, timeout: float = 200.0) -> Outcome:
        """Run a Python script to its end."""
        return self.finish(self.start(name, python=True), timeout)

    def finish(self, process: subprocess.Popen[str], timeout: float = 200.0, report: Path | None = None) -> Outcome:
        """Wait for the end of a run."""
        try:
            stdout, stderr = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            stdout, stderr = process.communicate()
            pytest.fail(f"the run took more than {timeout} s\n{stdout}\n{stderr}")
        cases = _read(report) if report is not None and report.exists() else {}
        return Outcome(process.returncode, stdout, stderr, cases, self.processes(), self.files())

    def processes(self) -> list[str]:
        """Command lines of what still runs, once that is nothing or the patience is at its end."""
        deadline = time.monotonic() + END_PATIENCE
        while (found := self.running()) and time.monotonic() < deadline:
            psutil.wait_procs(found, timeout=0.1)
        return [" ".join(_command(process)) for process in found]

    def running(self) -> list[psutil.Process]:
        """Processes of the runs so far."""
        marked = {process for process in psutil.process_iter() if _environ(process).get(MARK) in self.marks}
        # A run that finds no server that fits leaves one on purpose.
        left = {process for process in marked if "pytest_ddl.cluster.warm.server" not in " ".join(_command(process))}
        return list(left | (self._forked() - self.before))

    def _server_fits(self, environ: Mapping[str, str]) -> bool:
        """Return whether a run can use the server."""
        of_ranks = {**process_harness().worker_environ(), **environ}
        return key_of(of_ranks) == self.server.key

    def _forked(self) -> set[psutil.Process]:
        """Return what the server has forked. It has the server's environment, and so no mark."""
        try:
            return set(psutil.Process(self.server.pid).children(recursive=True))
        except psutil.NoSuchProcess:
            return set()

    def files(self) -> list[str]:
        """Return the contents of the temporary folder, without pytest's own ``tmp_path`` folders."""
        deadline = time.monotonic() + END_PATIENCE
        while True:
            found = [str(path) for path in self.temporary.iterdir() if not path.name.startswith("pytest-of-")]
            if not found or time.monotonic() > deadline:
                return found
            # The zygote removes the folder of a killed run after its workers.
            psutil.wait_procs(self.running(), timeout=0.1)


def _environ(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ() if process.status() != psutil.STATUS_ZOMBIE else {}
    except (psutil.Error, OSError):
        return {}


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _read(report: Path) -> dict[str, Case]:
    cases: dict[str, Case] = {}
    for element in ElementTree.parse(report).iter("testcase"):
        outcome, parts = "passed", []
        for child in element:
            parts += [child.get("message", ""), child.text or ""]
            if child.tag in ("failure", "error", "skipped"):
                outcome = {"failure": "failed"}.get(child.tag, child.tag)
                outcome = "xfailed" if child.get("type") == "pytest.xfail" else outcome
        name = element.get("name", "")
        if name in cases and cases[name].outcome != "passed":
            # A test whose body and whose teardown failed has two entries.
            outcome, parts = f"{cases[name].outcome}+{outcome}", [cases[name].text, *parts]
        cases[name] = Case(outcome, "\n".join(parts), float(element.get("time", 0)))
    return cases


@pytest.fixture(scope="module")
def new_project(tmp_path_factory: pytest.TempPathFactory, warm_server: Server) -> Callable[..., Project]:
    """Make a project of files given as text: ``new_project({"test_x.py": "…"})``."""

    def make(files: Mapping[str, str]) -> Project:
        base = tmp_path_factory.mktemp("project")
        project = Project(base / "project", base / "tmp", warm_server)
        project.temporary.mkdir()
        project.write("pytest.ini", "[pytest]\n")
        for name, text in files.items():
            project.write(name, text)
        return project

    return make
