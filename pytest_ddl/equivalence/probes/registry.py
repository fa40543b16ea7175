"""Probes: checks that need the program run differently.

A probe runs if the report of the plain run shows that there is something to find out, or if ``checks=`` names its
check. It adds its findings to the report, and a note about what it did.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from enum import Flag, auto

from pytest_ddl.equivalence.checks.liveness import CHECK as LIVENESS
from pytest_ddl.equivalence.checks.loss import CHECK as LOSS_EQ
from pytest_ddl.equivalence.checks.replica_equality import CHECK as REPLICA_EQ
from pytest_ddl.equivalence.checks.step_equality import CHECK as STEP_EQ
from pytest_ddl.equivalence.checks.uneven import CHECK as UNEVEN
from pytest_ddl.equivalence.evidence.observe import is_asynchronous
from pytest_ddl.equivalence.probes import apart, follow, growth, neutralized, nonfinite, one_by_one, stale, unseeded
from pytest_ddl.equivalence.probes.repeating import CompareOnce, timed
from pytest_ddl.equivalence.verdict.report import Report
from pytest_ddl.hints import Hint
from pytest_ddl.training.settings import RunSettings


class Needs(Flag):
    """Conditions on the report so far, without which a probe can find nothing."""

    NOTHING = 0
    NAMED = auto()
    """``checks=`` names the check of the probe."""
    NO_FINDINGS = auto()
    IN_ORDER = auto()
    """Steps ran one after the other under the strategy."""
    CONCURRENT = auto()
    """Steps ran concurrently under the strategy."""
    NO_ERRORS = auto()
    """The run under the strategy ended without an error."""

    def met(self, report: Report, named: bool) -> bool:
        """Return whether a report meets all of these conditions."""
        distributed = report.distributed
        concurrent = is_asynchronous(distributed)
        states = (
            (Needs.NAMED, named),
            (Needs.NO_FINDINGS, not report.findings),
            (Needs.IN_ORDER, not concurrent),
            (Needs.CONCURRENT, concurrent),
            (Needs.NO_ERRORS, not distributed.errors),
        )
        return all(state for need, state in states if need in self)


@dataclass(frozen=True)
class Probe:
    """One way to run a program differently."""

    check: str
    """Name of the check that its findings belong to."""
    needs: Needs
    run: Callable[[Report, RunSettings, CompareOnce], Report]
    wanted: Callable[[Report, Collection[str]], bool] | None = None
    """Further condition: a function of the report so far and the checks that the caller named."""

    def applies(self, report: Report, names: Collection[str]) -> bool:
        """Return whether the probe has to run."""
        if not (report.comparable and self.needs.met(report, self.check in names)):
            return False
        return self.wanted is None or self.wanted(report, names)


_NEEDED = (LIVENESS, STEP_EQ, UNEVEN, LOSS_EQ, REPLICA_EQ)


def probe_uneven(report: Report, settings: RunSettings, compare_once: CompareOnce) -> Report:
    """Run UNEVEN-EQ again, with a global batch that does not divide and with one smaller than the replicas."""
    replicas = report.distributed.num_replicas
    if settings.global_batch_size is None or replicas < 2:
        return report
    plain = report
    sizes = (settings.global_batch_size // replicas * replicas + 1, 1)
    for position, size in enumerate(sizes):
        again = compare_once(replace(settings, global_batch_size=size), _NEEDED, len(sizes) - position)
        report = report.merged(timed(plain, again), UNEVEN, f"run again with {Hint.GLOBAL_BATCH_SIZE(size)}")
    return report


PROBES: tuple[Probe, ...] = (
    # This probe comes first, because what it switches off stays off for the others.
    Probe(STEP_EQ, Needs.NOTHING, neutralized.probe, neutralized.wanted),
    Probe(apart.CHECK, Needs.IN_ORDER, apart.probe, apart.wanted),
    Probe(STEP_EQ, Needs.NO_FINDINGS | Needs.IN_ORDER, follow.probe, follow.wanted),
    Probe(STEP_EQ, Needs.IN_ORDER, stale.probe, stale.wanted),
    Probe(
        one_by_one.CHECK,
        Needs.NO_FINDINGS | Needs.NO_ERRORS | Needs.CONCURRENT,
        one_by_one.probe,
        one_by_one.wanted,
    ),
    Probe(UNEVEN, Needs.NAMED, probe_uneven),
    Probe(nonfinite.CHECK, Needs.NO_FINDINGS | Needs.NO_ERRORS, nonfinite.probe, nonfinite.wanted),
    Probe(
        unseeded.CHECK,
        Needs.NO_FINDINGS | Needs.NO_ERRORS | Needs.IN_ORDER,
        unseeded.probe,
        unseeded.wanted,
    ),
    # It is slow: it runs 300 steps, twice.
    Probe(growth.CHECK, Needs.NAMED | Needs.NO_FINDINGS, growth.probe),
)
"""Probes in the order in which they run. A probe is added by one entry here and one function."""
