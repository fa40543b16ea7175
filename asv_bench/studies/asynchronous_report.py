"""Tables and pictures of the study ``async``, from the courses of all trainings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from asv_bench.studies.asynchronous_program import ASYNCHRONOUS, DOWNPOUR, SYNCHRONOUS, Course, Setting
from asv_bench.studies.comparing import LEVEL, joint, ratio, shown, written
from asv_bench.studies.published import BATCHES, SLOW_AND_STALE, published_table
from asv_bench.studies.published import DOWNPOUR as PUBLISHED_DOWNPOUR
from asv_bench.studies.published import SYNCHRONOUS as PUBLISHED_SYNCHRONOUS
from asv_bench.studies.report import Report
from pytest_ddl.bench.launching.course import steps_to
from pytest_ddl.bench.metrics.estimates import interval
from pytest_ddl.bench.training_to_target import StepsToTarget
from pytest_ddl.web.results import NONE, Table

NOT_SEPARATED = "not separated"


@dataclass(frozen=True)
class Cell:
    """All runs of one setting; run k of all settings followed each other and began with the same parameters."""

    setting: Setting
    courses: tuple[Course, ...]
    target: float
    window: int
    """Examples over which the loss is averaged."""

    @property
    def reached(self) -> list[tuple[int, float] | None]:
        """Steps of a worker's time line to the target: updates and seconds of each run; ``None`` if never reached."""
        return [at_target(course, self.target, self.window) for course in self.courses]

    @property
    def target_seconds(self) -> list[float]:
        """Seconds to the target of each run; infinite if it was never reached."""
        return [math.inf if found is None else found[1] for found in self.reached]

    @property
    def accuracies(self) -> list[float]:
        return [course.accuracy for course in self.courses]

    @property
    def throughputs(self) -> list[float]:
        return [course.throughput for course in self.courses]

    @property
    def staleness(self) -> list[int]:
        """Staleness of all updates of all runs; empty for synchronous training."""
        return [one for course in self.courses for one in course.staleness]


def at_target(course: Course, target: float, window: int) -> tuple[int, float] | None:
    """Return updates and seconds until the averaged loss was at the target, or ``None``.

    :param window: examples over which the loss is averaged, so that all modes average over the same number.
    """
    reached = steps_to(course.losses, target, max(1, -(-window // course.examples_per_update)))
    return None if reached is None else (reached, course.seconds[reached - 1])


def faster(cell: Cell, other: Cell, *, level: float = LEVEL) -> str:
    """Say which of two settings needs less time to the target, if an interval separates them."""
    times = (cell.target_seconds, other.target_seconds)
    if not all(map(math.isfinite, (*times[0], *times[1]))):
        return "not compared: a run did not reach the target"
    found = ratio(*times, level=level)
    verdicts = {"less": "faster", "more": "slower"}
    return f"{verdicts.get(found.verdict, NOT_SEPARATED)}: {found}"


def accuracy_change(cell: Cell, other: Cell, *, level: float = LEVEL) -> str:
    """Say whether the accuracies of two settings differ, by the interval of the differences of paired runs."""
    pairs = zip(cell.accuracies, other.accuracies, strict=True)
    mean, low, high = interval([one - two for one, two in pairs], level=level, ratio_scale=False)
    if low is None or high is None:
        return f"{mean:+.4f}"
    verdict = "higher" if low > 0 else "lower" if high < 0 else NOT_SEPARATED
    return f"{verdict}: {mean:+.4f} ({low:+.4f} to {high:+.4f})"


def report(cells: Sequence[Cell], tuned: StepsToTarget) -> Report:
    """Make tables and a picture of all trainings."""
    compared = [(cell, _partner(cells, cell, SYNCHRONOUS)) for cell in cells if cell.setting.mode != SYNCHRONOUS]
    level = joint(len(compared))
    verdicts = [faster(cell, partner, level=level).partition(":")[0] for cell, partner in compared]
    headline = (
        f"Time to a loss of {cells[0].target:g}: asynchronous modes are faster than synchronous training in "
        f"{verdicts.count('faster')} of {len(compared)} comparisons, slower in {verdicts.count('slower')}, "
        f"and not separated or not compared in the others"
    )
    setting = next((cell.setting for cell in cells if cell.setting.mode == DOWNPOUR), cells[0].setting)
    runs = len(cells[0].courses)
    tables = (
        _results(cells),
        _comparisons(compared),
        _stragglers(cells),
        _staleness(cells),
        published_table(
            (PUBLISHED_DOWNPOUR, PUBLISHED_SYNCHRONOUS, SLOW_AND_STALE, BATCHES),
            headline,
            [
                ("hardware", "clusters; parameter servers on machines of their own", "one machine, a process for each"),
                ("Downpour's updates", "Adagrad, fetches and pushes in the background", "SGD; a worker waits for both"),
                ("slow worker", "real stragglers", f"one worker waits {setting.delay * 1e3:g} ms before a gradient"),
                ("data", "16 million images; speech", "scikit-learn's digits: 1438 images, 64 inputs"),
            ],
        ),
    )
    notes = [f"Learning rate: {note}." for note in tuned.notes]
    if runs == 1:
        notes.append("One run: there are no intervals, so nothing is called faster or slower.")
    notes.append("All workers share the cores of one machine: their number does not add hardware.")
    rates = ", ".join(f"{batch}: {trial.learning_rate:g}" for batch, trial in tuned.best.items())
    return Report(
        study="async",
        title="Synchronous against asynchronous training with staleness",
        headline=headline,
        tables=tables,
        figures={"async": partial(draw, cells)},
        data={
            "target": cells[0].target,
            "window": cells[0].window,
            "rates": {str(batch): trial.learning_rate for batch, trial in tuned.best.items()},
            "cells": [
                {
                    **asdict(cell.setting),
                    "to_target": cell.reached,
                    "throughput": cell.throughputs,
                    "accuracy": cell.accuracies,
                    "staleness": np.bincount(cell.staleness).tolist() if cell.staleness else [],
                    "losses": [list(course.losses) for course in cell.courses],
                    "seconds": [list(course.seconds) for course in cell.courses],
                }
                for cell in cells
            ],
        },
        notes=tuple(notes),
        settings={
            "network": "64 inputs, 32 hidden units, 10 classes; SGD without momentum",
            "batch": f"{setting.batch} examples in a gradient of one worker",
            "synchronous": "multi_worker_mirrored: the mean gradient of all workers (one_device for one worker)",
            "asynchronous": "parameter_server with run.steps(concurrent=True): a worker fetches, and pushes a gradient",
            "downpour": f"parameter_server: a worker pushes the sum of {setting.push} gradients, and fetches every "
            f"{setting.fetch}; between them it moves its own copy",
            "staleness": "updates of others between a fetch and its push, from a counter beside the parameters",
            "learning rates": f"the best of those tried on one device, by examples in an update ({rates}); both "
            "asynchronous modes use that of one worker's batch",
            "intervals": f"t intervals at {LEVEL:.0%} over {runs} run(s) of each, which took turns; comparisons are of "
            f"runs with the same first parameters, and those of a table have a joint level of {LEVEL:.0%}",
        },
    )


def _partner(cells: Sequence[Cell], cell: Cell, mode: str) -> Cell:
    wanted = (mode, cell.setting.workers, cell.setting.slow)
    return next(one for one in cells if (one.setting.mode, one.setting.workers, one.setting.slow) == wanted)


def _name(cell: Cell) -> tuple[str, str, str]:
    return cell.setting.mode, str(cell.setting.workers), "one" if cell.setting.slow else "none"


def _results(cells: Sequence[Cell]) -> Table:
    head = ("updates to the target", "seconds to the target", "examples/s", "final accuracy")
    rows = [("mode", "workers", "slow", *head)]
    for cell in cells:
        reached = [found for found in cell.reached if found is not None]
        steps = seconds = f"{len(reached)} of {len(cell.courses)} runs reached it"
        if len(reached) == len(cell.courses):
            steps, seconds = (shown([float(found[place]) for found in reached]) for place in (0, 1))
        accuracy = shown(cell.accuracies, ratio_scale=False)
        rows.append((*_name(cell), steps, seconds, shown(cell.throughputs), accuracy))
    return Table("Results", tuple(rows))


def _comparisons(compared: Sequence[tuple[Cell, Cell]]) -> Table:
    rows = [("mode", "workers", "slow", "time to the target / synchronous", "accuracy - synchronous")]
    # Each row has two comparisons.
    level = joint(2 * len(compared))
    rows += [
        (*_name(cell), faster(cell, partner, level=level), accuracy_change(cell, partner, level=level))
        for cell, partner in compared
    ]
    return Table("Against synchronous training", tuple(rows))


def _stragglers(cells: Sequence[Cell]) -> Table:
    """Compare the throughput with one slow worker with that without."""
    rows = [("mode", "workers", "throughput with one slow worker / without")]
    level = joint(sum(cell.setting.slow for cell in cells))
    for cell in cells:
        if cell.setting.slow:
            wanted = (cell.setting.mode, cell.setting.workers)
            calm = next(
                one for one in cells if not one.setting.slow and (one.setting.mode, one.setting.workers) == wanted
            )
            found = ratio(cell.throughputs, calm.throughputs, level=level)
            words = {"less": "lower", "more": "higher"}.get(found.verdict, NOT_SEPARATED)
            rows.append((*_name(cell)[:2], f"{words}: {found}"))
    return Table("Effect of one slow worker", tuple(rows))


def _staleness(cells: Sequence[Cell]) -> Table:
    head = ("mean", "median", "95 % of updates up to", "largest", "updates")
    rows: list[tuple[str, ...]] = [("mode", "workers", "slow", *head)]
    for cell in cells:
        found = cell.staleness
        if found:
            means = [float(np.mean(course.staleness)) for course in cell.courses]
            quantiles = (written(float(np.quantile(found, share))) for share in (0.5, 0.95))
            rows.append((*_name(cell), shown(means, ratio_scale=False), *quantiles, str(max(found)), str(len(found))))
    if len(rows) == 1:
        rows.append((NONE,) * len(rows[0]))
    return Table("Staleness: updates of others between a fetch and its push", tuple(rows))


def draw(cells: Sequence[Cell], figure: Any) -> None:
    """Draw the time to the target over workers (left), and the distribution of staleness (right)."""
    from pytest_ddl.web.drawing import ALL, MANY, SINGLE

    left, right = figure.subplots(1, 2)
    colors = {SYNCHRONOUS: SINGLE, ASYNCHRONOUS: MANY, DOWNPOUR: ALL}
    places = iter((-0.1, -0.06, -0.02, 0.02, 0.06, 0.1))
    for mode, color in colors.items():
        for slow, style in ((False, "-o"), (True, "--s")):
            # Bars of one number of workers stand beside each other.
            beside = next(places)
            own = [cell for cell in cells if (cell.setting.mode, cell.setting.slow) == (mode, slow)]
            reached = [cell for cell in own if all(map(math.isfinite, cell.target_seconds))]
            found = [interval(cell.target_seconds, level=LEVEL) for cell in reached]
            if not found:
                continue
            below = [0.0 if low is None else mean - low for mean, low, _high in found]
            above = [0.0 if high is None else high - mean for mean, _low, high in found]
            label = f"{mode}{', one slow' if slow else ''}"
            workers = [cell.setting.workers + beside for cell in reached]
            means = [mean for mean, _low, _high in found]
            left.errorbar(workers, means, [below, above], fmt=style, color=color, label=label, capsize=3, markersize=4)
    left.set(title=f"Seconds to a loss of {cells[0].target:g}", xlabel="workers", yscale="log")
    numbers = sorted({cell.setting.workers for cell in cells})
    left.set(xticks=numbers, xlim=(numbers[0] - 0.5, numbers[-1] + 0.5))
    left.legend(fontsize=8)
    most = max(cell.setting.workers for cell in cells)
    for cell in cells:
        if cell.setting.workers == most and cell.staleness:
            counts = np.bincount(cell.staleness)
            label = f"{cell.setting.mode}{', one slow' if cell.setting.slow else ''}"
            style = "--" if cell.setting.slow else "-"
            shares = counts / counts.sum()
            right.plot(range(len(counts)), shares, style, marker=".", color=colors[cell.setting.mode], label=label)
    right.set(title=f"Staleness with {most} workers", xlabel="updates of others", ylabel="share of updates")
    right.xaxis.get_major_locator().set_params(integer=True)
    right.legend(fontsize=8)
