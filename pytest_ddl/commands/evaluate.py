"""Command ``pytest-ddl evaluate``: its options, and the evaluation from the first part to the page."""

from __future__ import annotations

import argparse
import importlib
import shlex
import sys
from datetime import datetime, timezone
from pathlib import Path

from pytest_ddl.bench.evaluating import store, table
from pytest_ddl.bench.evaluating.exporting import sheet_of
from pytest_ddl.bench.evaluating.plan import SWEEP, EvaluationPlan, cells_of
from pytest_ddl.bench.evaluating.records import EvaluatedCell, Evaluation, Identity
from pytest_ddl.bench.evaluating.running import EvaluationError, EvaluationRunner
from pytest_ddl.bench.launching.machine import load_note, machine_facts
from pytest_ddl.bench.launching.pinning import available_cores
from pytest_ddl.bench.outcome import OK, WRONG, UsageError, check_writable, failed
from pytest_ddl.cluster.obstacles import LaunchError
from pytest_ddl.commands.frame import (
    add_export,
    add_strategy,
    close_clusters,
    conducted,
    exported,
    fields_of,
    find_target,
    former,
    numbers,
    positive,
    seconds,
    tell,
    without_start_messages,
)
from pytest_ddl.harness import Harness, process_harness
from pytest_ddl.installing import install_line
from pytest_ddl.target import Target

_MACHINE = ("host", "cpu", "cores", "gpu")
BATCH = 32
_PACKAGES = ("numpy", "keras")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    target = "The training function, train(run), or path/to/file.py:function."
    add("target", metavar="MODULE:FUNCTION", help=target)
    strategies = "Strategies or variants such as 'mirrored[replicas=4]', with commas; repeatable (default: all)."
    former(add_strategy(parser, strategies, "all"), "--strategies", parser)
    replicas = "Numbers of replicas, separated by commas (default: 1, 2 and 4, as far as there are cores or GPUs)."
    add("--replicas", metavar="N,N", help=replicas)
    add("--output", default="evaluation", metavar="DIR", help="Folder for results (default: %(default)s).")
    add_export(parser)
    add("--restart", action="store_true", help="Start anew, and replace results in the folder.")
    batches = parser.add_mutually_exclusive_group()
    of_replica = f"Examples per step on each replica (default: {BATCH}). The global batch grows with the replicas."
    batch = batches.add_argument("--batch-per-replica", type=positive, metavar="N", help=of_replica)
    together = "Examples per step on all replicas together, for any number of replicas."
    batches.add_argument("--global-batch-size", type=positive, metavar="N", help=together)
    former(batch, "--batch", parser)
    add("--batch-rule", choices=["replica", "global"], help=argparse.SUPPRESS)
    sizes = (
        "Global batch sizes of the sweep of steps to the target, or none (default: 1, 2, 4 and 8 times the size that "
        "one replica has)."
    )
    add("--batch-sizes", metavar="N,N", help=sizes)
    target = (
        "Training loss whose steps and time are counted (default: that of one device halfway through its training)."
    )
    former(add("--target-loss", dest="loss", type=float, metavar="LOSS", help=target), "--target", parser)
    metric = "Reported number that is compared with one device (default: an accuracy, else a loss)."
    add("--metric", default="", metavar="NAME", help=metric)
    seeds = "Trainings of each cell (default: %(default)s). A test needs at least 3."
    add("--seeds", type=positive, default=5, metavar="N", help=seeds)
    launches = "Launches in which the speed of each cell is measured (default: %(default)s). Ranks need at least 2."
    add("--launches", type=positive, default=3, metavar="N", help=launches)
    measured = "Least seconds of measured steps in a launch (default: %(default)g)."
    add("--seconds", type=seconds, default=1.0, metavar="S", help=measured)
    steps = "Steps of a training on one replica (default: all its data). Larger global batches take fewer steps."
    add("--steps", type=positive, metavar="N", help=steps)
    check = "Steps of the comparison with one device (default: all its data)."
    add("--check-steps", type=positive, metavar="N", help=check)
    add("--device", default="auto", choices=["auto", "cpu", "gpu"], help="auto (default): GPUs if there are any.")
    timeout = "Maximum seconds of one comparison, training or launch (default: %(default)g)."
    add("--timeout", type=seconds, default=300.0, metavar="S", help=timeout)


def main(options: argparse.Namespace) -> int:
    """Evaluate and return the exit status."""
    folder = Path(options.output)

    def interrupted() -> str:
        kept = (folder / store.FILE).exists()
        return f"interrupted: {f'the same command continues in {folder}' if kept else 'nothing was kept'}"

    return conducted(
        "evaluate",
        lambda: run(options, folder),
        [
            ((EvaluationError,), WRONG, "error: "),
            ((LaunchError,), WRONG, "error: nothing was evaluated: "),
        ],
        interrupted=interrupted,
        clean_up=close_clusters,
    )


def run(options: argparse.Namespace, folder: Path) -> int:
    """Evaluate, write the folder, and return the exit status.

    :raises UsageError: if an option cannot be used. Nothing that takes long has started by then.
    :raises TargetError: if the training function does not exist.
    :raises UsageError: if the folder holds another evaluation.
    :raises EvaluationError: if the program does not train on one device.
    """
    plan, replicas = _plan(options)
    target = find_target(options.target)
    check_writable(folder)
    harness = process_harness()
    sizes = replicas or _default_sizes(harness, plan.device)
    cells = cells_of(harness, options.strategy, sizes, plan)
    if cells[0].reason:
        raise UsageError(f"--device={plan.device}: {cells[0].variant} {cells[0].reason}")
    # The processes that train import TensorFlow in the meantime.
    harness.warm_up()
    with without_start_messages():
        train = target.load()
    identity = _identity(options, plan, sizes, target)
    found = None if options.restart else store.continued(folder, identity)
    if found is None:
        evaluation = _new(identity, cells, _gpu_notes(harness, cells, plan))
    else:
        evaluation = found
        state = "is complete" if found.complete else "goes on"
        tell(f"the evaluation in {folder}, started {found.started}, {state}")
    runner = EvaluationRunner(harness, train, plan, tell, lambda results: store.save(results, folder))
    if not evaluation.complete:
        evaluation = runner.run(evaluation)
    summary = table.EvaluationSummary(evaluation)
    status = _conclude(summary, folder)
    sent = exported("evaluate", options.export, lambda: sheet_of(summary, folder))
    return status or sent


def _gpu_notes(harness: Harness, cells: tuple[EvaluatedCell, ...], plan: EvaluationPlan) -> list[str]:
    """Return a note if replicas share GPUs. The workers of parameter servers share the first one."""
    from pytest_ddl.items.selection import DdlMark

    if harness.device(DdlMark(device=plan.device)) != "gpu":
        return []
    several = [cell for cell in cells if cell.replicas > 1 and not cell.reason]
    shared = [
        cell.variant for cell in several if cell.replicas > harness.machine.gpus or cell.strategy == "parameter_server"
    ]
    return [f"{', '.join(shared)}: replicas share GPUs, so their speed says nothing about scaling."] if shared else []


def _new(identity: Identity, cells: tuple[EvaluatedCell, ...], notes: list[str]) -> Evaluation:
    load = load_note()
    if load:
        notes = [*notes, f"The machine was busy at the start ({load}): these times are not reliable."]
    return Evaluation(
        identity,
        cells,
        f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC",
        shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        notes=tuple(notes),
    )


def _conclude(summary: table.EvaluationSummary, folder: Path) -> int:
    """Print the result, write the page, and return the exit status."""
    sys.stdout.write(table.text(summary))
    sys.stdout.flush()
    try:
        store.write(summary, folder)
    except OSError as error:
        return failed("evaluate", f"error: --output={folder} could not be written completely: {error}", WRONG)
    tell(f"written to {folder}: open {folder / store.INDEX}")
    if summary.wrong:
        return failed("evaluate", f"error: the training is wrong under {', '.join(summary.wrong)}", WRONG)
    return OK if summary.evaluation.matrix.launches else failed("evaluate", "error: nothing could be measured", WRONG)


def _identity(options: argparse.Namespace, plan: EvaluationPlan, sizes: tuple[int, ...], target: Target) -> Identity:
    import pytest_ddl
    from pytest_ddl.installing import installed
    from pytest_ddl.strategies.machine import tensorflow_version

    versions = {"python": sys.version.split()[0], "pytest-ddl": pytest_ddl.__version__}
    versions["tensorflow"] = tensorflow_version() or "none"
    versions |= {name: installed(name) or "none" for name in _PACKAGES}
    facts = machine_facts()
    chosen = {**plan.as_json(), "strategies": options.strategy, "replicas": list(sizes)}
    machine = {name: facts[name] for name in _MACHINE if facts.get(name)}
    return Identity(options.target, store.digest_of(target.file), chosen, versions, machine)


def _plan(options: argparse.Namespace) -> tuple[EvaluationPlan, tuple[int, ...]]:
    """Check the options that do not depend on the machine, and return the plan and the numbers of replicas.

    :raises UsageError: if an option cannot be used.
    """
    batch, rule = _batch(options)
    if options.loss is not None and not -1e300 < options.loss < 1e300:
        raise UsageError(f"--target-loss={options.loss} must be a finite number")
    for name in ("matplotlib", "scipy"):
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise UsageError(
                f"{name} cannot be imported ({error}), but this command needs it: {install_line('bench')}"
            ) from None
    sizes = tuple(factor * batch for factor in SWEEP)
    if options.batch_sizes is not None:
        sizes = () if options.batch_sizes == "none" else numbers("--batch-sizes", options.batch_sizes)
    worked_out = {"batch": batch, "batch_rule": rule, "target": options.loss, "batch_sizes": sizes}
    plan = EvaluationPlan(**fields_of(EvaluationPlan, {**vars(options), **worked_out}))
    return plan, () if options.replicas is None else numbers("--replicas", options.replicas)


def _batch(options: argparse.Namespace) -> tuple[int, str]:
    """Return the examples of a step, and whether they are those of each replica or of all replicas.

    :raises UsageError: if the options contradict each other.
    """
    if options.batch_rule is not None:
        tell("pytest-ddl evaluate: --batch-rule is accepted until version 1.0; give --global-batch-size=N instead")
    if options.global_batch_size is not None:
        if options.batch_rule is not None or options.batch_per_replica is not None:
            raise UsageError("give either --global-batch-size or --batch-per-replica")
        return options.global_batch_size, "global"
    batch = BATCH if options.batch_per_replica is None else options.batch_per_replica
    return batch, options.batch_rule or "replica"


def _default_sizes(harness: Harness, device: str) -> tuple[int, ...]:
    """Return 1, 2 and 4, as far as each replica gets a core or a GPU of its own."""
    from pytest_ddl.items.selection import DdlMark

    most = harness.machine.gpus if harness.device(DdlMark(device=device)) == "gpu" else available_cores(harness)
    return tuple(size for size in (1, 2, 4) if size <= max(1, most))
