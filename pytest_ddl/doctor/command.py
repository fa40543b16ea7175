"""Command ``pytest-ddl doctor``: say whether this machine can run distributed TensorFlow tests."""

from __future__ import annotations

import argparse
import platform
import sys

from pytest_ddl.bench.outcome import INTERRUPTED, OK, WRONG, failed
from pytest_ddl.doctor.examination import examine
from pytest_ddl.doctor.findings import Status
from pytest_ddl.doctor.registry import PROBES
from pytest_ddl.doctor.report import as_json, as_text, count

EPILOG = """\
exit status:
  0    no problem was found; there may be warnings
  1    a problem was found
  2    an option that does not exist
  130  interrupted
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument(
        "--tensorflow", action="store_true", help="also import TensorFlow, which takes seconds, and list its devices"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, for programs")


def main(options: argparse.Namespace) -> int:
    """Run the probes, print what they found, and return the exit status."""
    try:
        answers = examine(probe for probe in PROBES if options.tensorflow or not probe.on_request)
    except KeyboardInterrupt:
        return failed("doctor", "interrupted", INTERRUPTED)
    sys.stdout.write(as_json(answers, platform.node()) if options.json else as_text(answers))
    sys.stdout.flush()
    return WRONG if count(answers, Status.PROBLEM) else OK
