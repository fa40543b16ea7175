"""Checks that need the program run differently: which ones, when, and what they do.

A probe runs where the report of the plain run says that it has something to find out, or where
``checks=`` names its check. It adds to the report what it found, and says what it did.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from pytest_ddl.checks.findings import CheckResult, Finding, Outcome, Report
from pytest_ddl.comparison import growth_probe, neutralised_probe, nonfinite_probe, stale_probe
from pytest_ddl.training.settings import RunSettings

CompareOnce = Callable[[RunSettings, Collection[str] | None], Report]


@dataclass(frozen=True)
class Probe:
    """One way to run a program differently."""

    check: str
    """The check that its findings belong to."""
    wanted: Callable[[Report, Collection[str]], bool]
    """Whether to run, given the report so far and the checks that the caller named."""
    run: Callable[[Report, RunSettings, CompareOnce], Report]


def named(check: str) -> Callable[[Report, Collection[str]], bool]:
    """Run only where ``checks=`` names the check."""
    return lambda _report, names: check in names


UNEVEN = "UNEVEN-EQ"
_NEEDED = ("STEP-EQ", "UNEVEN-EQ", "LOSS-EQ", "REPLICA-EQ")


def probe_uneven(report: Report, settings: RunSettings, compare_once: CompareOnce) -> Report:
    """UNEVEN-EQ: run again with a global batch that does not divide, and with one smaller than the replicas.

    A program that refuses such a batch on one device too is not judged by it.
    """
    replicas = report.distributed.num_replicas if report.distributed is not None else 1
    if settings.global_batch_size is None or replicas < 2:
        return report
    even = settings.global_batch_size // replicas * replicas
    told: list[str] = []
    findings: list[Finding] = []
    approximations: list[Finding] = []
    inconclusive: list[str] = []
    for size in (even + 1, 1):
        again = compare_once(replace(settings, global_batch_size=size), _NEEDED)
        findings += [_of_rerun(finding, size) for finding in again.findings]
        approximations += [_of_rerun(finding, size) for finding in again.approximations]
        inconclusive += [f"{UNEVEN}, run again with global_batch_size={size}: {why}" for why in again.inconclusive]
        told.append(f"{size}: {again.verdict}")
    outcome = Outcome.FAIL if findings else Outcome.INCONCLUSIVE if inconclusive else Outcome.PASS
    result = CheckResult(UNEVEN, outcome, f"run again with global batches of {', '.join(told)}", tuple(findings))
    return replace(
        report,
        results=tuple(result if known.check == UNEVEN else known for known in report.results),
        findings=[*report.findings, *findings],
        approximations=(*report.approximations, *approximations),
        inconclusive=(*report.inconclusive, *inconclusive),
    )


def _of_rerun(finding: Finding, size: int) -> Finding:
    return replace(finding, check=UNEVEN, message=f"run again with global_batch_size={size}: {finding.message}")


PROBES: tuple[Probe, ...] = (
    # First: what it switches off stays off for the others.
    Probe("STEP-EQ", neutralised_probe.wanted, neutralised_probe.probe_neutralised),
    Probe(stale_probe.CHECK, stale_probe.wanted, stale_probe.probe),
    Probe(UNEVEN, named(UNEVEN), probe_uneven),
    Probe(nonfinite_probe.CHECK, nonfinite_probe.wanted, nonfinite_probe.probe),
    Probe(growth_probe.CHECK, growth_probe.wanted, growth_probe.probe),
)
"""A probe is added by one entry here and one function."""
