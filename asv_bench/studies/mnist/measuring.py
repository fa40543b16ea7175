"""Train on 1 and on several replicas in turn, and check that all of them trained."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asv_bench.studies.mnist.epochs import Orders, RankAnswer, run_epochs
from asv_bench.studies.mnist.program import train_mnist
from asv_bench.studies.mnist.results import Training
from pytest_ddl.bench.launching.machine import machine_facts
from pytest_ddl.bench.launching.pinning import pinned_environ
from pytest_ddl.bench.launching.ranks import PARTING, BenchError, fresh_ranks
from pytest_ddl.bench.launching.records import SEED
from pytest_ddl.training.settings import RunSettings

if TYPE_CHECKING:
    from pytest_ddl.equivalence.verdict.report import Report
    from pytest_ddl.harness import Harness

CHECK_STEPS = 3
"""Number of steps in which the training function is compared with one device before it is timed."""
TrainFunction = Callable[..., Any]
"""Training function ``train(run, file=, epochs=)``; the plan binds the images and the epochs."""


class ExperimentError(BenchError):
    """Raised if a training failed, or if a rank or replica did not train."""


@dataclass(frozen=True)
class Plan:
    """Settings of the trainings."""

    file: Path
    """File with the images; see :func:`asv_bench.studies.mnist.program.load`."""
    train_images: int
    single: str = "one_device"
    many: str = "multi_worker_mirrored[workers=2,replicas=1]"
    replicas: int = 2
    """Number of replicas of ``many``."""
    batch: int = 64
    batch_rule: str = "replica"
    epochs: int = 30
    repeats: int = 1
    device: str = "auto"
    cores_per_replica: int = 0
    timeout: float = 1800.0
    """Seconds for one training, everything included."""
    train: TrainFunction = train_mnist

    def global_batch(self, replicas: int) -> int:
        return self.batch * replicas if self.batch_rule == "replica" else self.batch

    @property
    def function(self) -> Callable[[Any], Any]:
        return partial(self.train, file=str(self.file), epochs=self.epochs)


def check(plan: Plan) -> Report:
    """Compare training on several replicas with training on one device, for a few steps."""
    from pytest_ddl.equivalence.runs.api import check_training

    return check_training(
        plan.function,
        plan.many,
        global_batch_size=plan.global_batch(plan.replicas),
        steps=min(CHECK_STEPS, plan.train_images // plan.global_batch(plan.replicas) * plan.epochs),
        device=plan.device,
        timeout=plan.timeout,
    )


def measure(harness: Harness, plan: Plan, tell: Callable[[str], None]) -> list[Training]:
    """Run all trainings in an order that balances a drift of the machine: 1 and N, then N and 1, and so on.

    :raises ExperimentError: if a training failed or cannot be trusted.
    """
    found = []
    for repeat in range(1, plan.repeats + 1):
        order = [plan.single, plan.many] if repeat % 2 else [plan.many, plan.single]
        for variant in order:
            training = train_once(harness, plan, variant, repeat)
            tell(
                f"repeat {repeat}/{plan.repeats}, {training.replicas} replica(s), {variant}: "
                f"{training.total_seconds:.1f} s in {training.epochs} epochs, accuracy {training.accuracy:.4f}"
            )
            found.append(training)
    return found


def train_once(harness: Harness, plan: Plan, variant: str, repeat: int) -> Training:
    """Run one training in fresh processes.

    :raises ExperimentError: see :func:`measure`.
    """
    from pytest_ddl.items.selection import DdlMark

    started = time.monotonic()
    spec = harness.registry.parse_variant(variant)
    mark = DdlMark(device=plan.device, isolation="fresh")
    environ = pinned_environ(harness.registry[spec.name], spec, plan.cores_per_replica)
    with fresh_ranks(harness, spec, plan.device, environ=environ) as ranks:
        batch = plan.global_batch(ranks.num_replicas)
        steps_per_epoch = plan.train_images // batch
        settings = RunSettings(
            global_batch_size=batch, seed=SEED + repeat, tmp_path=str(harness.shared_folder), observe=False
        )
        orders = Orders(str(plan.file), steps_per_epoch, plan.cores_per_replica)
        results: list[RankAnswer] = ranks.call(
            run_epochs,
            plan.function,
            settings,
            orders,
            deadline=started + plan.timeout,
            doing=f"under {variant}",
            patience=lambda _result: PARTING,
        )
        replicas, device = ranks.num_replicas, harness.device_for(spec, mark)
    training = Training(
        strategy=variant,
        replicas=replicas,
        repeat=repeat,
        seed=settings.seed,
        global_batch_size=batch,
        epochs=plan.epochs,
        steps_per_epoch=steps_per_epoch,
        ranks=tuple(result.training for result in results),
        wall_seconds=time.monotonic() - started,
        device=device,
        pinned=plan.cores_per_replica > 0,
        machine=machine_facts(),
        versions=results[0].versions,
    )
    prove(training)
    return training


def prove(training: Training) -> None:
    """Check that every rank and replica did the whole training, and that they agree on its result.

    :raises ExperimentError: if one did not; the message names the rank and the problem.
    """
    wanted = training.epochs * training.steps_per_epoch
    copies = [digest for rank in training.ranks for digest in rank.weights]
    where = f"{training.strategy}, repeat {training.repeat}"
    if len(copies) != training.replicas:
        raise ExperimentError(f"{where}: found weights of {len(copies)} replica(s), not of {training.replicas}")
    for rank in training.ranks:
        if rank.steps != wanted or len(rank.epoch_seconds) != training.epochs:
            raise ExperimentError(
                f"{where}: {rank.task} took {rank.steps} steps in {len(rank.epoch_seconds)} whole epochs, not {wanted} "
                f"in {training.epochs}: its time cannot be used"
            )
        for name in ("losses", "test_losses"):
            wrong = [epoch for epoch, loss in enumerate(getattr(rank, name), 1) if not math.isfinite(loss)]
            if wrong:
                raise ExperimentError(f"{where}: {name} of {rank.task} are not finite from epoch {wrong[0]} on")
        if not rank.moved:
            raise ExperimentError(f"{where}: the training did not change the weights of {rank.task}")
        if rank.retraces:
            raise ExperimentError(
                f"{where}: {rank.task} traced its step {rank.retraces} more time(s) after the first epoch: "
                "the times would include tracing"
            )
    if len(set(copies)) > 1:
        raise ExperimentError(
            f"{where}: the replicas end with {len(set(copies))} different sets of weights: they were not kept in sync"
        )
