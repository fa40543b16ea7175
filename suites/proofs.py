"""Prove that tests of the suite can fail: run them with planted defects, and record which tests fail.

``python -m suites.proofs`` runs all defects, and ``python -m suites.proofs NAME ...`` those that are named.
``python -m suites.proofs --report`` prints which tests have a proof.
"""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from suites.defects import DEFECTS
from suites.known_failures import installed

FILE = Path(__file__).with_name("proofs.json")
"""Test, without its parameters -> names of the defects with which it failed."""
EXPECTED = "expected failure with "
"""Begin of what is recorded for a test that the installed versions fail."""
_FOLDER = Path(__file__).parent
_TESTED = ("properties/test_*.py", "test_*.py")
"""Files with tests that need a proof. Old versions prove those of ``regressions/``."""

Proofs = Mapping[str, Sequence[str]]


def load(file: Path = FILE) -> dict[str, list[str]]:
    """Return the recorded proofs."""
    found: dict[str, list[str]] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return found


def save(proofs: Proofs, file: Path = FILE) -> None:
    """Write the proofs of tests that have one."""
    text = json.dumps({test: sorted(names) for test, names in sorted(proofs.items()) if names}, indent=1)
    file.write_text(text + "\n", encoding="utf-8")


def add(test: str, names: Iterable[str], file: Path = FILE) -> None:
    """Record that a test failed with defects."""
    known = load(file)
    save({**known, test: sorted({*known.get(test, ()), *names})}, file)


def without(proofs: Proofs, names: Iterable[str]) -> dict[str, list[str]]:
    """Return the proofs except those by some defects, which run again."""
    return {test: [one for one in found if one not in {*names}] for test, found in proofs.items()}


def expected_failure() -> str:
    """Return what is recorded for a test that fails because of its entry in ``expected_failures.toml``."""
    return EXPECTED + ", ".join(f"{name} {number}" for name, number in installed().items())


def relative(nodeid: str) -> str:
    """Return the id of a test in this folder, from the id that pytest gives it."""
    return nodeid.rpartition("suites/")[2]


def test_of(nodeid: str) -> str:
    """Return the id of a test in this folder, without its parameters."""
    return relative(nodeid.partition("[")[0])


def all_tests(patterns: Iterable[str] = _TESTED) -> list[str]:
    """Return the tests in some files of this folder: those that need a proof, if no files are given."""
    files = sorted(file for pattern in patterns for file in _FOLDER.glob(pattern))
    return [
        f"{file.relative_to(_FOLDER).as_posix()}::{name}"
        for file in files
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        for name in _names(node)
        if name.startswith("test_")
    ]


def _names(node: ast.stmt) -> list[str]:
    """Return the names that a statement gives to a function, or to what a call returns."""
    if isinstance(node, ast.FunctionDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def report() -> str:
    """Return the share of tests with a proof, and the tests without one."""
    tests, proofs = all_tests(), load()
    missing = [test for test in tests if test not in proofs]
    proved = len(tests) - len(missing)
    return "\n".join([f"{proved} of {len(tests)} tests ({proved / len(tests):.1%}) have a proof", *missing]) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run defects, write the proofs, and return 1 if a defect makes no test fail."""
    parser = argparse.ArgumentParser("python -m suites.proofs", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"defects; by default all: {', '.join(DEFECTS)}")
    parser.add_argument("--tests", nargs="+", default=[], metavar="FILE", help="files with tests (default: all)")
    parser.add_argument("--report", action="store_true", help="print which tests have a proof, and run nothing")
    parser.add_argument("--known", action="store_true", help="run no defects, but tests with known failures")
    parser.add_argument("--missing", action="store_true", help="run only tests without a proof, until they have one")
    parser.add_argument("--cases", default="3", help="sets of parameters of each test (default: %(default)s)")
    chosen, others = parser.parse_known_args(arguments)
    if chosen.report:
        sys.stdout.write(report())
        return 0
    unknown = {*chosen.names} - {*DEFECTS}
    if unknown:
        parser.error(f"no defect {', '.join(sorted(unknown))}; valid: {', '.join(DEFECTS)}")
    lost = [name for name in chosen.tests if not (_FOLDER.parent / name).is_file()]
    if lost:
        parser.error(f"--tests={' '.join(lost)}: no such file in {_FOLDER.parent}; for example suites/test_training.py")
    names = [] if chosen.known else chosen.names or [*DEFECTS]
    if not (chosen.missing or chosen.known):
        save(without(load(), names))
    command = [sys.executable, "-m", "pytest", "-p", "suites.proving", f"--ddl-defects={','.join(names)}"]
    command += [f"--ddl-cases={chosen.cases}", *(["--ddl-missing"] if chosen.missing or chosen.known else [])]
    command += [
        "--ddl-strategy=all",
        "--ddl-tier=full",
        "--ddl-timeout=60",
        "-q",
        "--tb=line",
        "-p",
        "no:cacheprovider",
    ]
    files = chosen.tests or ["suites/properties", "suites/test_training.py"]
    status = subprocess.run([*command, *files, *others], cwd=_FOLDER.parent, check=False).returncode
    if status > 1:
        sys.stderr.write(f"pytest ended with status {status}: the other defects are not judged\n")
        return status
    found = {name for of_test in load().values() for name in of_test}
    unseen = [name for name in names if name not in found]
    if unseen:
        sys.stderr.write(f"no test fails with: {', '.join(unseen)}\n")
    return 1 if unseen else 0


if __name__ == "__main__":
    sys.exit(main())
