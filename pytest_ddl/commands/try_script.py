"""Command ``pytest-ddl try``: run an unmodified script on one device and under each strategy, and compare."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shlex
import sys
from pathlib import Path

from pytest_ddl.bench.outcome import FAILED, failed
from pytest_ddl.commands.frame import add_strategy, positive, seconds, seed
from pytest_ddl.option_values import given_options
from pytest_ddl.trying.legacy import imports_keras, keras_2_name
from pytest_ddl.trying.source import Script, ScriptError

EPILOG = """\
Options of pytest come last, after --, for example -- -n 2 --ddl-warm.

exit status:
  0    no difference was found under the strategies that could be compared
  1    the training differs from one device, or nothing could be decided
  2    interrupted, or an option that does not exist or has a wrong form
  4    the file cannot be read, or a strategy does not exist

example:
  pytest-ddl try train.py --strategy=mirrored --steps=4 --args="--learning_rate=0.1" -- --ddl-report=pages
"""
STRATEGIES = "mirrored,multi_worker_mirrored,central_storage"
_TIMEOUT = 300.0
"""Seconds for each run. Scripts that were not written as tests make large models and much data."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("script", type=Path, help="a training script (.py) or a notebook (.ipynb)")
    add_strategy(parser, f"comma-separated names or variants; repeatable (default: {STRATEGIES})", STRATEGIES)
    parser.add_argument(
        "--steps", type=positive, default=4, metavar="N", help="batches per epoch and loop (default: 4)"
    )
    parser.add_argument("--epochs", type=positive, default=1, metavar="N", help="epochs of each fit (default: 1)")
    parser.add_argument(
        "--examples", type=positive, metavar="N", help="training examples of synthetic datasets (default: 12000)"
    )
    parser.add_argument(
        "--data", type=Path, action="append", default=[], metavar="PATH",
        help="file or folder that the script reads from its working directory; repeatable",
    )  # fmt: skip
    parser.add_argument(
        "--timeout", type=seconds, default=_TIMEOUT, metavar="SECONDS",
        help=f"deadline of each run of the script (default: {_TIMEOUT:.0f})",
    )  # fmt: skip
    parser.add_argument("--seed", type=seed, metavar="N", help="seed of every run (default: always the same)")
    parser.add_argument("--strict", action="store_true", help="fail on approximations too")
    parser.add_argument(
        "--keras", choices=("keras", "tf_keras"),
        help="package that provides tf.keras (default: tf_keras for a script that uses names of Keras 2, or that fails "
        "with Keras 3)",
    )  # fmt: skip
    parser.add_argument("--args", default="", metavar="TEXT", help="command line arguments of the script, in quotes")


def main(options: argparse.Namespace) -> int:
    """Run pytest on the script in place of this process, or return the exit status of a usage error."""
    try:
        source = Script.read(options.script)
    except ScriptError as error:
        return failed("try", str(error), FAILED)
    missing = [str(path) for path in options.data if not path.exists()]
    if missing:
        return failed("try", f"--data={missing[0]} does not exist", FAILED)
    keras, why = options.keras, ""
    old = keras_2_name(source.code)
    has_choice = keras is None and importlib.util.find_spec("tf_keras") is not None
    if has_choice and old is not None:
        keras, why = "tf_keras", f"tf_keras, because Keras 3 does not have {old[1]} (line {old[0]}); see --keras"
    plan = {
        "file": source.file,
        "code": source.code,
        "left_out": source.left_out,
        "or_tf_keras": has_choice and old is None and not imports_keras(source.code),
        "script": {
            "arguments": shlex.split(options.args),
            "steps": options.steps,
            "epochs": options.epochs,
            "examples": options.examples,
            "keras": why,
            "renews_deadline": True,
            "data": [str(path.absolute()) for path in options.data],
        },
        "arguments": given_options(options, ("timeout", "seed", "strict")),
    }
    command = [sys.executable, "-m", "pytest", "-p", "pytest_ddl.trying.plugin", f"--ddl-try={json.dumps(plan)}"]
    command += [f"--ddl-strategy={options.strategy}", "-rs"]
    command += [] if keras is None else [f"--ddl-keras={keras}"]
    command += [*options.rest, source.file]
    sys.stdout.flush()
    return os.execv(sys.executable, command)
