"""Command ``pytest-ddl doctor``: say whether this machine, or several hosts, can run distributed TensorFlow tests."""

from __future__ import annotations

import argparse
import platform
import sys

from pytest_ddl.bench.outcome import OK, USAGE, WRONG, failed
from pytest_ddl.commands.frame import conducted
from pytest_ddl.doctor.examination import Status, as_json, as_text, count, examine
from pytest_ddl.doctor.registry import PROBES

EPILOG = """\
exit status:
  0    no problem was found; there may be warnings
  1    a problem was found
  2    an option that does not exist, or a wrong value
  4    the command itself failed
  130  interrupted
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tensorflow",
        action="store_true",
        help="also import TensorFlow, list its devices and ask for the state of GPUs, which takes seconds",
    )
    parser.add_argument(
        "--launcher", metavar="NAME", help="examine all hosts of this transport, as pytest's --ddl-launcher names it"
    )
    parser.add_argument("--hosts", metavar="NAME,…", default="", help="hosts of the transport, as for --ddl-hosts")
    parser.add_argument("--json", action="store_true", help="print one JSON object, for programs")


def main(options: argparse.Namespace) -> int:
    """Run the probes, print what they found, and return the exit status."""
    return conducted("doctor", lambda: _on_hosts(options) if options.launcher else _here(options))


def _here(options: argparse.Namespace) -> int:
    if options.hosts:
        return failed("doctor", f"--hosts={options.hosts} needs --launcher, for example --launcher=ssh", USAGE)
    answers = examine(probe for probe in PROBES if options.tensorflow or not probe.on_request)
    sys.stdout.write(as_json(answers, platform.node()) if options.json else as_text(answers))
    sys.stdout.flush()
    return WRONG if count(answers, Status.PROBLEM) else OK


def _on_hosts(options: argparse.Namespace) -> int:
    from pytest_ddl.cluster.obstacles import LaunchError
    from pytest_ddl.doctor.on_hosts import examine_hosts

    if options.tensorflow:
        return failed("doctor", "--tensorflow examines only this machine; leave out --launcher", USAGE)
    try:
        examined = examine_hosts(options.launcher, options.hosts)
    except ValueError as error:
        # The options of this command have no prefix.
        text = str(error).replace("--ddl-", "--")
        return failed("doctor", f"--launcher={options.launcher}: {text}", USAGE)
    except LaunchError as error:
        return failed("doctor", str(error).replace("--ddl-", "--"), WRONG)
    sys.stdout.write(examined.as_json() if options.json else examined.as_text())
    sys.stdout.flush()
    return WRONG if examined.problems else OK
