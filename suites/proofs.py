"""Prove that tests of the suite can fail: run them with planted defects, and record which tests fail.

``python -m suites.proofs`` runs all defects, and ``python -m suites.proofs NAME ...`` those that are named.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from suites.defects import DEFECTS, VARIABLE, Defect

FILE = Path(__file__).with_name("proofs.json")
"""Test, without its parameters -> names of the defects with which it failed."""
_ROOT = Path(__file__).parents[1]
_PATIENCE = 1800.0
"""Seconds for the run of one defect."""

_NO_PROOF = re.compile(r"^\[XPASS\(strict\)\]|deadline exceeded")

Proofs = Mapping[str, Sequence[str]]


def load() -> dict[str, list[str]]:
    """Return the recorded proofs."""
    found: dict[str, list[str]] = json.loads(FILE.read_text(encoding="utf-8")) if FILE.is_file() else {}
    return found


def merged(proofs: Proofs, name: str, failed: Iterable[str]) -> dict[str, list[str]]:
    """Return the proofs after a new run of one defect."""
    failing = set(failed)
    tests = {*proofs, *failing}
    of_tests = {
        test: sorted({*(one for one in proofs.get(test, ()) if one != name), *([name] if test in failing else [])})
        for test in sorted(tests)
    }
    return {test: names for test, names in of_tests.items() if names}


def failed_tests(report: str) -> set[str]:
    """Return the tests with a failure in a JUnit report, as ``file::test``.

    Errors of fixtures do not count, nor does the end of a deadline, which a busy machine can reach too. A test with an
    entry of ``expected_failures.toml`` fails without a planted defect. So its unexpected pass does not count either.
    """
    found = set()
    for case in ET.fromstring(report).iter("testcase"):
        failure = case.find("failure")
        told = "" if failure is None else f"{failure.get('message', '')}\n{failure.text}"
        if failure is not None and not _NO_PROOF.search(told):
            # The class is the path of the file as a module.
            file = case.get("classname", "").rpartition(".")[2]
            found.add(f"{file}.py::{case.get('name', '').partition('[')[0]}")
    return found


def run(defect: Defect, arguments: Sequence[str]) -> set[str]:
    """Run the tests of a defect with the defect, and return those that fail.

    :raises RuntimeError: if the run gives no report.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "suites", "-k", defect.tests, f"--junitxml={report}", "-q"]
        command += ["--ddl-strategy=all", "--ddl-timeout=60", "-p", "no:cacheprovider", *arguments]
        environ = {**os.environ, VARIABLE: defect.name}
        done = subprocess.run(
            command, cwd=_ROOT, env=environ, capture_output=True, text=True, timeout=_PATIENCE, check=False
        )
        if not report.is_file():
            raise RuntimeError(
                f"{defect.name}: pytest ended with status {done.returncode} and no report\n{done.stdout}"
            )
        return failed_tests(report.read_text(encoding="utf-8"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run defects, write the proofs, and return 1 if a defect makes no test fail."""
    parser = argparse.ArgumentParser("python -m suites.proofs", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"defects; by default all: {', '.join(DEFECTS)}")
    parser.add_argument("-n", default="0", metavar="N", help="processes of pytest-xdist (default: %(default)s)")
    parser.add_argument("--tier", default="core", help="tier of the tests (default: %(default)s)")
    chosen = parser.parse_args(arguments)
    unknown = set(chosen.names) - set(DEFECTS)
    if unknown:
        parser.error(f"no defect {', '.join(sorted(unknown))}; valid: {', '.join(DEFECTS)}")
    unseen = []
    for name in chosen.names or DEFECTS:
        failed = run(DEFECTS[name], ["-n", chosen.n, f"--ddl-tier={chosen.tier}"])
        FILE.write_text(json.dumps(merged(load(), name, failed), indent=1) + "\n", encoding="utf-8")
        sys.stdout.write(f"{name}: {len(failed)} test(s) fail\n")
        sys.stdout.flush()
        if not failed:
            unseen.append(name)
    if unseen:
        sys.stderr.write(f"no test fails with: {', '.join(unseen)}\n")
    return 1 if unseen else 0


if __name__ == "__main__":
    sys.exit(main())
