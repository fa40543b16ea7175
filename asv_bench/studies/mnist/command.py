"""Study ``mnist-scaling``: its options, and the experiment from the check to its results."""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

from asv_bench.studies.mnist import measuring, pictures, program, table
from asv_bench.studies.mnist.program import train_mnist
from asv_bench.studies.mnist.results import BATCH_PER_REPLICA, PUBLISHED, Experiment
from asv_bench.studies.report import Report
from asv_bench.studies.running import PACKAGES, conduct, tell
from pytest_ddl.bench.launching.pinning import cores_per_replica
from pytest_ddl.bench.launching.ranks import BenchError
from pytest_ddl.bench.outcome import UsageError
from pytest_ddl.harness import Harness, process_harness
from pytest_ddl.items.selection import DdlMark

QUICK_EPOCHS = 3
SYNCHRONOUS = ("mirrored", "multi_worker_mirrored")
"""Strategies with a number of synchronous replicas, for which the program is the same on one device."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--output", default="mnist-scaling", metavar="DIR", help="Folder for results (default: %(default)s).")
    strategy = (
        "Strategy with several replicas: multi_worker_mirrored, mirrored, or a variant such as 'mirrored[replicas=4]'. "
        "auto (default): mirrored on GPUs, as published; on CPUs, one worker with its own core for each replica."
    )
    add("--strategy", default="auto", help=strategy)
    device = "auto (default): GPUs if there are any."
    add("--device", default="auto", choices=["auto", "cpu", "gpu"], help=device)
    epochs = f"Epochs of a training (default: {PUBLISHED.epochs}, as published)."
    add("--epochs", type=int, metavar="N", help=epochs)
    batch = "Examples in a batch (default: %(default)s)."
    add("--batch", type=int, default=BATCH_PER_REPLICA, metavar="N", help=batch)
    rule = "replica (default): --batch examples on each replica, as published; global: on all replicas together."
    add("--batch-rule", default="replica", choices=["replica", "global"], help=rule)
    repeats = "Trainings with each number of replicas (default: %(default)s). Intervals need at least 2."
    add("--repeats", type=int, default=1, metavar="N", help=repeats)
    add("--data", metavar="FILE.npz", help="MNIST as Keras' mnist.npz; default: scikit-learn's digits.")
    add("--quick", action="store_true", help=f"Train only {QUICK_EPOCHS} epochs, to see that it works.")
    add("--no-pin", action="store_true", help="On CPUs: let all replicas use all cores.")
    timeout = "Maximum time of a training in seconds (default: %(default)g)."
    add("--timeout", type=float, default=1800.0, metavar="S", help=timeout)


def main(options: argparse.Namespace) -> int:
    """Run the study and return the exit status."""
    return conduct(options, run, packages=PACKAGES if options.data is None else PACKAGES[:2])


def run(options: argparse.Namespace, train: measuring.TrainFunction = train_mnist) -> Report:
    """Check the training function, time it, and return the results.

    :param train: see :data:`asv_bench.studies.mnist.measuring.TrainFunction`.
    :raises UsageError: if an option cannot be used. Nothing that takes long has started by then.
    :raises BenchError: if the training is wrong, or could not be measured.
    """
    _check(options)
    try:
        images = program.digits() if options.data is None else program.load(Path(options.data))
        harness = process_harness()
        plan, notes = _plan(harness, options, train)
        # So both train on the same number of images in an epoch, and all batches have the same size.
        images = images.trimmed(plan.global_batch(plan.replicas))
    except program.ImagesError as error:
        raise UsageError(str(error)) from None
    if plan.epochs < PUBLISHED.epochs:
        notes.append(
            f"{plan.epochs} epochs instead of {PUBLISHED.epochs}: the first one, with its tracing, has more weight."
        )
    with tempfile.TemporaryDirectory(prefix="mnist-scaling-") as scratch:
        plan = replace(plan, file=Path(scratch) / "images.npz", train_images=len(images.y_train))
        images.save(plan.file)
        tell(f"checking the training function under {plan.many} against one device …")
        checked = measuring.check(plan)
        if not checked.passed:
            raise BenchError(f"the training is wrong, or could not be compared:\n{checked}")
        headline = str(checked).splitlines()[0]
        tell(headline)
        trainings = measuring.measure(harness, plan, tell)
    experiment = Experiment(
        trainings=tuple(trainings),
        batch=plan.batch,
        batch_rule=plan.batch_rule,
        epochs=plan.epochs,
        data=images.source,
        train_images=plan.train_images,
        test_images=len(images.y_test),
        check=headline,
        notes=tuple(notes),
    )
    return report(experiment)


def report(experiment: Experiment) -> Report:
    """Return what is written about an experiment. Accuracies that do not agree are a problem."""
    agreement = experiment.agreement
    wrong = f"the accuracies on 1 and on {experiment.replicas} replicas {agreement}"
    return Report(
        study="mnist-scaling",
        title=table.TITLE,
        headline=table.headline(experiment),
        tables=tuple(table.tables(experiment)),
        figures={
            "accuracy-loss": partial(pictures.accuracy_and_loss, experiment),
            "scaling": partial(pictures.scaling, experiment),
        },
        data=experiment.as_json(),
        notes=experiment.notes,
        problem=wrong if agreement.passed is False else "",
    )


def _plan(
    harness: Harness, options: argparse.Namespace, train: measuring.TrainFunction
) -> tuple[measuring.Plan, list[str]]:
    """Return the settings for this machine, still without images, and notes on their limits.

    :raises UsageError: if the strategy or the batch cannot be used here.
    """
    from pytest_ddl.strategies.registry import UnknownStrategyError

    device = harness.device(DdlMark(device=options.device))
    name = options.strategy
    if name == "auto":
        name = "mirrored" if device == "gpu" else "multi_worker_mirrored"
    try:
        spec = harness.registry.parse_variant(name)
    except UnknownStrategyError as error:
        raise UsageError(f"--strategy={name}: {str(error).splitlines()[0]}") from None
    if spec.name not in SYNCHRONOUS:
        raise UsageError(f"--strategy={name}: only {' and '.join(SYNCHRONOUS)} can be compared with one replica here")
    if reason := harness.unavailable(spec, DdlMark(device=device)):
        raise UsageError(f"--strategy={name} --device={options.device}: {reason}")
    replicas = harness.registry[spec.name].num_replicas(spec)
    if replicas < 2:
        raise UsageError(f"--strategy={name}: has {replicas} replica; scaling needs at least 2")
    if options.batch_rule == "global" and options.batch % replicas:
        raise UsageError(f"--batch={options.batch} cannot be split evenly over {replicas} replicas; give a multiple")
    notes: list[str] = []
    cores = 0
    if device == "cpu" and not options.no_pin:
        try:
            cores = cores_per_replica(harness, spec)
        except ValueError as error:
            found = str(error).removeprefix("pin=True ")
            raise UsageError(
                f"--strategy={name}: {found}; give fewer replicas, or --no-pin to run it without a valid scaling result"
            ) from None
    elif device == "cpu":
        notes.append(f"Replicas were not pinned and share all cores: 1 replica used the same cores as {replicas}.")
    if device == "gpu":
        notes += _gpu_notes(replicas, harness.machine.gpus)
    plan = measuring.Plan(
        file=Path(),
        train_images=0,
        many=str(spec),
        replicas=replicas,
        batch=options.batch,
        batch_rule=options.batch_rule,
        epochs=QUICK_EPOCHS if options.quick else options.epochs or PUBLISHED.epochs,
        repeats=options.repeats,
        device=device,
        cores_per_replica=cores,
        timeout=options.timeout,
        train=train,
    )
    return plan, notes


def _gpu_notes(replicas: int, gpus: int) -> list[str]:
    if gpus < replicas:
        return [f"{replicas} replicas shared {gpus} GPU(s): these times say nothing about scaling."]
    return []


def _check(options: argparse.Namespace) -> None:
    """Check the options that do not depend on the machine's hardware.

    :raises UsageError: if one cannot be used.
    """
    for name in ("epochs", "batch"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name}={value} must be at least 1")
    if options.quick and options.epochs is not None:
        raise UsageError(f"--quick means {QUICK_EPOCHS} epochs; give it or --epochs={options.epochs}, not both")
