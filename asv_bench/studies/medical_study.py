"""Study ``medical``: evaluate a network, a logistic model or an image model under all strategies."""

from __future__ import annotations

import argparse

from pytest_ddl.commands import evaluate as command

MODELS = {
    "mlp": "asv_bench.studies.medical:train_mlp",
    "logistic": "asv_bench.studies.medical:train_logistic",
    "images": "asv_bench.studies.images:train_images",
}
"""Models, with the training function of each."""
QUICK = ("--replicas=1,2", "--seeds=3", "--launches=2", "--batch-sizes=none", "--seconds=0.5")
"""Options of ``pytest-ddl evaluate`` for the quick mode."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    model = (
        "mlp and logistic classify tumors of the breast cancer data, images classifies digits (default: %(default)s)."
    )
    add("--model", default="mlp", choices=list(MODELS), help=model)
    add("--output", default="medical", metavar="DIR", help="Folder for results (default: %(default)s).")
    strategies = "Strategies or variants, separated by commas (default: all)."
    add("--strategies", default="all", metavar="NAMES", help=strategies)
    add("--quick", action="store_true", help=f"Measure less, to see that it works: {' '.join(QUICK)}.")
    add("--restart", action="store_true", help="Start anew, and replace results in the folder.")


def main(options: argparse.Namespace) -> int:
    """Evaluate the model, and return the exit status of ``pytest-ddl evaluate``."""
    given = [MODELS[options.model], f"--output={options.output}", f"--strategy={options.strategies}"]
    given += [*(QUICK if options.quick else ()), *(["--restart"] if options.restart else ())]
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.main(parser.parse_args(given))
