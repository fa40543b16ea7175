"""METRIC-EQ, run differently: many steps on one batch that change no weight, where metrics may only grow evenly."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_ddl.checks.findings import CheckResult, Outcome, Report
from pytest_ddl.checks.metric import CHECK as CHECK
from pytest_ddl.training.settings import RunSettings

if TYPE_CHECKING:
    from pytest_ddl.comparison.probes import CompareOnce

STEPS = 300
"""State that doubles in every step leaves the range of float64 after 1024 steps, that of float32 after 128; what
is summed once too often shows in the second step, what drifts slowly needs many."""


def wanted(report: Report, names: Collection[str]) -> bool:
    """Only where the check is named: it takes as long as 300 steps take, twice."""
    return CHECK in names and not report.findings


def probe(report: Report, settings: RunSettings, compare_once: CompareOnce) -> Report:
    """Run both again on their first global batch alone, with learning rates of 0."""
    again = compare_once(replace(settings, constant=True, steps=STEPS), (CHECK,))
    reference = again.reference
    if reference is None or reference.num_steps < STEPS:
        return report  # its loop does not take the data of run.steps, run.batches or fit, or ends by itself
    what = f"run again for {STEPS} steps on one batch, learning rate 0"
    findings = [replace(f, message=f"{what}: {f.message}") for f in again.findings if f.check == CHECK]
    inner = next(result for result in again.results if result.check == CHECK)
    outcome = Outcome.FAIL if findings else inner.outcome
    result = CheckResult(CHECK, outcome, f"{what}: {inner.reason}", tuple(findings))
    return replace(
        report,
        results=tuple(result if known.check == CHECK else known for known in report.results),
        findings=[*report.findings, *findings],
    )
