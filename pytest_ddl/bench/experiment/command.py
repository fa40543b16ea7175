"""Study ``pytest-ddl experiment mnist-scaling``: its options, and the experiment from the check to the page."""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from pytest_ddl.bench.experiment import measuring, page, program, table
from pytest_ddl.bench.experiment.program import train_mnist
from pytest_ddl.bench.experiment.results import BATCH_PER_REPLICA, PUBLISHED, Experiment
from pytest_ddl.bench.launching.answers import BenchError
from pytest_ddl.bench.launching.pinning import cores_per_replica
from pytest_ddl.bench.machine import load_note
from pytest_ddl.bench.outcome import OK, USAGE, WRONG, failed
from pytest_ddl.bench.studies.running import PACKAGES, UsageError, check_common, ended, tell
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
    """Run the experiment and return the exit status."""
    try:
        return ended(lambda: run(options))
    except program.ImagesError as error:
        return failed("experiment", f"error: {error}", USAGE)


def run(options: argparse.Namespace, train: measuring.TrainFunction = train_mnist) -> int:
    """Check the training function, time it, write the folder, and return the exit status.

    :param train: see :data:`pytest_ddl.bench.experiment.measuring.TrainFunction`.
    :raises UsageError: if an option cannot be used. Nothing that takes long has started by then.
    """
    from pytest_ddl.cluster.cluster import ClusterError

    folder = _checked(options)
    found = program.digits() if options.data is None else program.load(Path(options.data))
    harness = process_harness()
    plan, notes = _plan(harness, options, train)
    # So both train on the same number of images in an epoch, and all batches have the same size.
    found = found.trimmed(plan.global_batch(plan.replicas))
    if load := load_note():
        notes.append(f"The machine was busy at the start ({load}): these times are not reliable.")
    if plan.epochs < PUBLISHED.epochs:
        notes.append(
            f"{plan.epochs} epochs instead of {PUBLISHED.epochs}: the first one, with its tracing, has more weight."
        )
    started = datetime.now(timezone.utc)
    with tempfile.TemporaryDirectory(prefix="mnist-scaling-") as scratch:
        plan = replace(plan, file=Path(scratch) / "images.npz", train_images=len(found.y_train))
        found.save(plan.file)
        tell(f"checking the training function under {plan.many} against one device …")
        try:
            report = measuring.check(plan)
            if not report.passed:
                tell(f"{report}\n\nThe training is wrong, or could not be compared. Scaling was not measured.")
                return WRONG
            headline = str(report).splitlines()[0]
            tell(headline)
            trainings = measuring.measure(harness, plan, tell)
        except (BenchError, ClusterError) as error:
            tell(f"nothing was measured: {error}")
            return WRONG
    experiment = Experiment(
        trainings=tuple(trainings),
        batch=plan.batch,
        batch_rule=plan.batch_rule,
        epochs=plan.epochs,
        data=found.source,
        train_images=plan.train_images,
        test_images=len(found.y_test),
        check=headline,
        command=shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        started=f"{started:%Y-%m-%d %H:%M} UTC",
        notes=tuple(notes),
    )
    return conclude(experiment, folder)


def conclude(experiment: Experiment, folder: Path) -> int:
    """Print the result, write the folder, and return the exit status."""
    sys.stdout.write(table.markdown(experiment))
    sys.stdout.flush()
    judged = experiment.agreement
    try:
        page.write(experiment, folder)
    except OSError as error:
        tell(f"error: --output={folder} could not be written completely: {error}")
        return WRONG
    tell(f"written to {folder}: open {folder / 'index.html'}")
    if judged.passed is False:
        tell(f"error: the accuracies on 1 and on {experiment.replicas} replicas {judged}")
        return WRONG
    return OK


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


def _checked(options: argparse.Namespace) -> Path:
    """Check the options that do not depend on the machine's hardware, and return the output folder."""
    for name in ("epochs", "batch"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name}={value} must be at least 1")
    if options.quick and options.epochs is not None:
        raise UsageError(f"--quick means {QUICK_EPOCHS} epochs; give it or --epochs={options.epochs}, not both")
    return check_common(options, packages=PACKAGES if options.data is None else PACKAGES[:2])
