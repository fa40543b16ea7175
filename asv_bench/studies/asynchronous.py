"""Study ``async``: synchronous against asynchronous training with staleness, with and without one slow worker."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from asv_bench.studies.asynchronous_program import (
    ASYNCHRONOUS,
    DOWNPOUR,
    SYNCHRONOUS,
    Course,
    Images,
    Setting,
    to_target,
    train,
)
from asv_bench.studies.asynchronous_report import Cell, report
from asv_bench.studies.report import Report
from asv_bench.studies.running import add_common, conduct, numbers, tell
from pytest_ddl.bench.launching.ranks import BenchError, fresh_ranks
from pytest_ddl.bench.launching.records import SEED
from pytest_ddl.bench.outcome import UsageError
from pytest_ddl.bench.training_to_target import StepsToTarget, steps_to_target
from pytest_ddl.harness import process_harness
from pytest_ddl.training.settings import RunSettings

NAME = "async"
WORKERS, QUICK_WORKERS = "1,2,3,4", "2"
REPEATS, QUICK_REPEATS = 5, 2
EXAMPLES, QUICK_EXAMPLES = 14_000, 6_000
RATES, QUICK_RATES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6), (0.1, 0.2, 0.4, 0.8)
BATCH, WINDOW = 32, 1024
"""Examples in a gradient of one worker, and those over which the loss is averaged."""
TARGET, DELAY, PUSH = 0.4, 0.01, 5
TEST_SHARE, SPLIT_SEED = 0.2, 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    quick = f"{QUICK_WORKERS} workers, {QUICK_EXAMPLES} examples, {QUICK_REPEATS} runs"
    add_common(parser, NAME, repeats=REPEATS, quick=quick, timeout=300.0)
    add = parser.add_argument
    add("--workers", metavar="N,...", help=f"Numbers of workers, 1 to 4 (default: {WORKERS}).")
    text = f"Examples of a training, over all workers (default: {EXAMPLES})."
    add("--examples", type=int, metavar="N", help=text)
    text = f"Loss whose steps and time are reported, averaged over {WINDOW} examples (default: %(default)g)."
    add("--target", type=float, default=TARGET, metavar="LOSS", help=text)
    text = "Seconds that the slow worker waits before each gradient (default: %(default)g)."
    add("--delay", type=float, default=DELAY, metavar="S", help=text)
    text = "Gradients that a worker of Downpour sums before it pushes them (default: %(default)s)."
    add("--push", type=int, default=PUSH, metavar="N", help=text)
    text = "Gradients after which a worker of Downpour fetches the parameters (default: as --push)."
    add("--fetch", type=int, metavar="N", help=text)


def main(options: argparse.Namespace) -> int:
    """Run the study and return the exit status."""
    return conduct(options, run)


def run(options: argparse.Namespace) -> Report:
    """Tune the learning rates, train in all modes in turn, and report.

    :raises UsageError: if an option cannot be used.
    :raises BenchError: if a training fails, or a worker took no part in it.
    """
    quick = options.quick
    workers = numbers("workers", options.workers or (QUICK_WORKERS if quick else WORKERS), least=1, most=4)
    fetch = options.push if options.fetch is None else options.fetch
    examples = options.examples if options.examples is not None else QUICK_EXAMPLES if quick else EXAMPLES
    for name, value in (("push", options.push), ("fetch", fetch)):
        if not 1 <= value <= 100:
            raise UsageError(f"--{name}={value} must be 1 to 100")
    least = 2 * WINDOW
    if examples < least:
        raise UsageError(f"--examples={examples} must be at least {least}, two windows of the averaged loss")
    if not 0 < options.delay <= 1:
        raise UsageError(f"--delay={options.delay} must be above 0 and at most 1 second")
    if not options.target > 0:
        raise UsageError(f"--target={options.target} must be above 0")
    repeats = options.repeats or (QUICK_REPEATS if quick else REPEATS)
    images = digits()
    base = Setting(SYNCHRONOUS, 1, False, rate=0.0, batch=BATCH, examples=examples, delay=options.delay)
    tuned = tune(images, base, workers, options.target, QUICK_RATES if quick else RATES, options.timeout)
    settings = plan(
        base, workers, {batch: trial.learning_rate for batch, trial in tuned.best.items()}, options.push, fetch
    )
    courses: dict[Setting, list[Course]] = {setting: [] for setting in settings}
    for repeat in range(1, repeats + 1):
        first = repeat % len(settings)
        for setting in (*settings[first:], *settings[:first]):
            course = launch(images, setting, SEED + repeat, options.timeout)
            courses[setting].append(course)
            tell(
                f"run {repeat}/{repeats}, {setting.mode}, {setting.workers} worker(s)"
                f"{', one slow' if setting.slow else ''}: {course.seconds[-1]:.1f} s, accuracy {course.accuracy:.3f}"
            )
    cells = [Cell(setting, tuple(found), options.target, WINDOW) for setting, found in courses.items()]
    return report(cells, tuned)


def plan(base: Setting, workers: Sequence[int], rates: dict[int, float], push: int, fetch: int) -> list[Setting]:
    """Return all trainings. A single worker is not slow, because no other worker waits for it.

    :param rates: examples of an update -> the best learning rate.
    """
    found = []
    for number in workers:
        for slow in (False, True) if number > 1 else (False,):
            for mode, batch, pushes, fetches in (
                (SYNCHRONOUS, base.batch * number, 1, 1),
                (ASYNCHRONOUS, base.batch, 1, 1),
                (DOWNPOUR, base.batch, push, fetch),
            ):
                given = {"workers": number, "rate": rates[batch], "push": pushes, "fetch": fetches}
                found.append(replace(base, mode=mode, slow=slow, **given))  # type: ignore[arg-type]
    return found


def tune(
    images: Images, base: Setting, workers: Sequence[int], target: float, rates: Sequence[float], timeout: float
) -> StepsToTarget:
    """Find the best learning rate of each number of examples in an update, on one device.

    :raises UsageError: if the target is not reached.
    """
    batches = sorted({base.batch, *(base.batch * number for number in workers)})
    tell(f"tuning the learning rate for batches {', '.join(map(str, batches))} …")
    found = steps_to_target(
        partial(to_target, images=images, setting=base),
        target,
        batches,
        rates,
        max_steps=base.examples // base.batch,
        window=WINDOW,
        device="cpu",
        timeout=timeout,
    )
    missing = [batch for batch in batches if batch not in found.best]
    if missing:
        raise UsageError(
            f"--target={target:g} is not reached on one device with a batch of {missing[0]}, whatever the learning "
            "rate; give a larger target, or more --examples"
        )
    return found


def launch(images: Images, setting: Setting, seed: int, timeout: float) -> Course:
    """Train once in fresh processes.

    :raises BenchError: if a rank fails, an update is missing, or a worker took no part.
    """
    harness = process_harness()
    variant = variant_of(setting)
    spec = harness.registry.parse_variant(variant)
    together = setting.workers if setting.mode == SYNCHRONOUS else 1
    settings = RunSettings(setting.batch * together, seed=seed, tmp_path=str(harness.shared_folder), observe=False)
    with fresh_ranks(harness, spec) as ranks:
        doing = f"in {setting.mode} training under {variant}"
        deadline = time.monotonic() + timeout
        courses: list[Course] = ranks.call(train, images, setting, settings, deadline=deadline, doing=doing)
    prove(courses, setting)
    return courses[0]


def prove(courses: Sequence[Course], setting: Setting) -> None:
    """Check that all updates were made, by all workers, and that ranks agree.

    :raises BenchError: if not; the message says what is missing.
    """
    where = f"{setting.mode} training with {setting.workers} worker(s)"
    course = courses[0]
    wanted = setting.rounds if setting.mode == SYNCHRONOUS else setting.rounds * setting.round // setting.push
    if len(course.losses) != wanted:
        raise BenchError(f"{where}: {len(course.losses)} updates instead of {wanted}")
    if not np.isfinite(course.losses).all():
        raise BenchError(f"{where}: a loss is not finite; the training diverged with learning rate {setting.rate:g}")
    if any(other.losses != course.losses for other in courses[1:]):
        raise BenchError(f"{where}: ranks report different losses")
    if setting.mode == SYNCHRONOUS:
        return
    idle = sorted(set(range(setting.workers)) - set(course.workers))
    if idle:
        raise BenchError(f"{where}: worker {idle[0]} made no update")
    if min(course.staleness) < 0:
        raise BenchError(f"{where}: an update was pushed before its parameters were fetched: the counter is wrong")


def variant_of(setting: Setting) -> str:
    """Return the variant of a strategy under which a setting runs. Each worker is a process."""
    if setting.mode != SYNCHRONOUS:
        return f"parameter_server[workers={setting.workers},ps=1,processes=separate]"
    return "one_device" if setting.workers == 1 else f"multi_worker_mirrored[workers={setting.workers},replicas=1]"


def digits() -> Images:
    """Return scikit-learn's digits as 64 numbers in [0, 1]; a fifth of the images is kept for testing."""
    from sklearn.datasets import load_digits

    found = load_digits()
    order = np.random.default_rng(SPLIT_SEED).permutation(len(found.target))
    test, rest = np.split(order, [round(TEST_SHARE * len(order))])
    features, labels = (found.data / 16).astype(np.float32), found.target.astype(np.int64)
    return Images(features[rest], labels[rest], features[test], labels[test])
