"""The numbers of an evaluation as experiment trackers take them."""

from __future__ import annotations

import statistics
from pathlib import Path

from pytest_ddl.bench.evaluating import judging
from pytest_ddl.bench.evaluating.records import EvaluatedCell
from pytest_ddl.bench.evaluating.table import EvaluationSummary
from pytest_ddl.bench.trackers import Sheet, run_named

_MEASURED = ("throughput", "communication_share", "joules_per_example")
"""Metrics of launches that each cell may have. The scaling efficiency is added by its rule."""


def sheet_of(summary: EvaluationSummary, folder: Path) -> Sheet:
    """Return verdicts, speed, results and steps to the target of each cell that ran, and the losses of each seed.

    :param folder: folder of the report.
    """
    evaluation = summary.evaluation
    identity = evaluation.identity
    facts = {"target": identity.target, "command": evaluation.command, "result": summary.headline}
    facts |= {**identity.versions, **identity.machine}
    numbers: dict[str, float] = {}
    for cell in summary.in_order:
        if not cell.reason:
            numbers |= _numbers(summary, cell)
            verdict = evaluation.verdicts.get(cell.variant)
            facts[f"{cell.variant} verdict"] = (
                "reference" if cell.is_reference else verdict.verdict if verdict else "none"
            )
    curves = {
        f"{one.variant}/seed {one.seed}/loss": [
            (step, loss) for step, loss in enumerate(one.losses, 1) if loss is not None
        ]
        for one in evaluation.curves
        if not one.moved
    }
    return Sheet(run_named("evaluation"), facts, numbers, curves, folder)


def _numbers(summary: EvaluationSummary, cell: EvaluatedCell) -> dict[str, float]:
    """Return the numbers of a cell that were measured, with the bounds of those that have an interval."""
    evaluation = summary.evaluation
    found: dict[str, float | None] = {}
    for name in (*_MEASURED, f"{evaluation.scaling}_scaling_efficiency"):
        measured = summary.estimate(name, cell)
        if measured is not None:
            found |= {name: measured.value, f"{name}/low": measured.low, f"{name}/high": measured.high}
    curves = evaluation.curves_of(cell.variant, cell.batch)
    results = [value for curve in curves if (value := judging.final(curve, summary.metric)) is not None]
    if results:
        found[f"final {summary.metric}"] = statistics.fmean(results)
    to_target = summary.time_to(cell)
    if to_target.steps:
        found["steps to the target"] = statistics.geometric_mean(to_target.steps)
    found["seconds to the target"] = to_target.seconds
    return {f"{cell.variant}/{name}": value for name, value in found.items() if value is not None}
