"""METRIC-EQ, run differently: run many steps on one batch with learning rate 0, so metrics may only grow evenly."""

from __future__ import annotations

from dataclasses import replace

from pytest_ddl.equivalence.checks.liveness import CHECK as LIVENESS
from pytest_ddl.equivalence.checks.metric import CHECK as CHECK
from pytest_ddl.equivalence.checks.step_equality import CHECK as STEP_EQ
from pytest_ddl.equivalence.findings import Finding
from pytest_ddl.equivalence.probes.repeating import CompareOnce, fails_on_one_device, timed
from pytest_ddl.equivalence.verdict.report import Report
from pytest_ddl.training.settings import RunSettings

STEPS = 300
"""Number of steps on one batch.

State that doubles in every step leaves the range of float64 after 1024 steps, and that of float32 after 128. State that
is summed once too often shows in the second step. State that drifts slowly needs many steps.
"""
_JUDGED = (LIVENESS, STEP_EQ, CHECK)


def probe(report: Report, settings: RunSettings, compare_once: CompareOnce) -> Report:
    """Run both again on only their first global batch, with learning rates of 0, and judge them like other runs."""
    again = timed(report, compare_once(replace(settings, constant=True, steps=STEPS), _JUDGED))
    refused = fails_on_one_device(again)
    if refused is not None:
        note = f"{CHECK} is judged only by the program's own steps: in a run of {STEPS} steps on one batch {refused}"
        return report.noted(note)
    reference = again.reference
    if not reference.errors and reference.num_steps < STEPS:
        note = f"{CHECK} is judged by few steps: one device ran {reference.num_steps} of {STEPS} steps on one batch"
        report = report.noted(note)
    # Weights stand still on purpose here, so a doubt about them does not count. Weights that differ are findings.
    doubts = tuple(doubt for doubt in again.doubts if doubt.check != STEP_EQ)
    findings = [_without_cause(finding) for finding in again.findings]
    what = f"run again for {STEPS} steps on one batch, learning rate 0"
    return report.merged(replace(again, findings=findings, doubts=doubts), CHECK, what)


def _without_cause(finding: Finding) -> Finding:
    """Return a finding on weights without its cause. Causes explain updates, and there are none here."""
    if finding.check != STEP_EQ or not finding.step or finding.variable is None:
        return finding
    evidence = "something other than the optimizer changed it, because the optimizer's learning rate is 0"
    return replace(finding, cause=None, fix=None, evidence=evidence, also=())
