"""Write, for each defect that nobody has reported yet, the text of a report: ``python -m suites.reports [NAME ...]``.

A text is the docstring of a program in ``repros/``, the program, and what it prints with the installed versions.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_ddl.items.selection import KERAS
from suites.known_failures import FILE, REPROS, installed, load
from suites.matrix.cells import newest

EXPECTED = "Expected:"
"""Line of a docstring after which it says what should happen."""
_LOG = re.compile(r"(\s|WARNING|[IWE]\d{4})")


@dataclass(frozen=True)
class Program:
    """Program that shows a defect."""

    path: Path
    title: str
    expected: str
    code: str

    @classmethod
    def read(cls, path: Path) -> Program:
        """Read a program of ``repros/``.

        :raises ValueError: if it has no docstring.
        """
        text = path.read_text(encoding="utf-8")
        module = ast.parse(text)
        docstring = ast.get_docstring(module)
        if not docstring:
            raise ValueError(f"{path.name} has no docstring")
        title, _, expected = docstring.partition(EXPECTED)
        code = "\n".join(text.splitlines()[module.body[0].end_lineno :]).strip()
        return cls(path, title.strip().removeprefix("Show that ").rstrip("."), " ".join(expected.split()), code)

    @property
    def needs_gpu(self) -> bool:
        """True if CPUs do not have the defect."""
        entries = load(FILE.read_text(encoding="utf-8"))
        return any(entry.repro == self.path.stem and entry.device == "gpu" for entry in entries)

    def run(self) -> tuple[int, list[str]]:
        """Return the exit status, and the lines that are not of TensorFlow's log."""
        environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
        if not self.needs_gpu:
            environ["CUDA_VISIBLE_DEVICES"] = "-1"
        given = [sys.executable, "-W", "ignore", str(self.path)]
        return told(subprocess.run(given, capture_output=True, text=True, timeout=300, check=False, env=environ))

    def report(self, line: str, versions: str) -> str:
        """Return the text of a report, with the line that the program prints."""
        title = self.title[0].upper() + self.title[1:]
        devices = "One GPU is needed." if self.needs_gpu else "CPUs suffice."
        return (
            f"# {title}\n\nVersions: {versions}. {devices}\n\n```python\n{self.code}\n```\n\n"
            f"The program ends with status 1 and prints:\n\n```text\n{line}\n```\n\n"
            f"## What I expect\n\n{self.expected}\n"
        )


def told(done: subprocess.CompletedProcess[str]) -> tuple[int, list[str]]:
    """Return the exit status of a process, and the lines that are not of TensorFlow's log."""
    return done.returncode, [line for line in done.stderr.splitlines() if line.strip() and not _LOG.match(line)]


def unreported() -> list[str]:
    """Return the names of the programs whose entries have no link, if the newest versions have the defect."""
    here = newest()
    found = (entry for entry in load(FILE.read_text(encoding="utf-8")) if entry.repro)
    entries = [entry for entry in found if any(entry.applies(here, subject) for subject in KERAS)]
    linked = {entry.repro for entry in entries if entry.link}
    return sorted({entry.repro for entry in entries} - linked)


def main(names: Sequence[str] = ()) -> None:
    """Run these programs, by default all, and write the texts beside them."""
    versions = ", ".join(
        f"{name} {number}" for name, number in {**installed(), "Python": sys.version.split()[0]}.items()
    )
    for name in names or unreported():
        program = Program.read(REPROS / f"{name}.py")
        status, lines = program.run()
        if status == 1 and len(lines) == 1:
            program.path.with_suffix(".md").write_text(program.report(lines[0], versions), encoding="utf-8")
        else:
            sys.stderr.write(f"{name}: left as it is, because the program ended with status {status} and {lines}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
