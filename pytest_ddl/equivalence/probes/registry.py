"""Probes: checks that need the program run differently.

A probe runs if the report of the plain run shows that there is something to find out, or if ``checks=`` names its
check. It adds its findings to the report, and a note about what it did.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from pytest_ddl.equivalence.checks.liveness import CHECK as LIVENESS
from pytest_ddl.equivalence.checks.loss import CHECK as LOSS_EQ
from pytest_ddl.equivalence.checks.replica_equality import CHECK as REPLICA_EQ
from pytest_ddl.equivalence.checks.step_equality import CHECK as STEP_EQ
from pytest_ddl.equivalence.checks.uneven import CHECK as UNEVEN
from pytest_ddl.equivalence.probes import apart, follow, growth, neutralized, nonfinite, one_by_one, stale
from pytest_ddl.equivalence.probes.repeating import CompareOnce as CompareOnce
from pytest_ddl.equivalence.probes.repeating import timed
from pytest_ddl.equivalence.report import Report
from pytest_ddl.training.settings import RunSettings


@dataclass(frozen=True)
class Probe:
    """One way to run a program differently."""

    check: str
    """Name of the check that its findings belong to."""
    wanted: Callable[[Report, Collection[str]], bool]
    """Function that decides whether to run, from the report so far and the checks that the caller named."""
    run: Callable[[Report, RunSettings, CompareOnce], Report]


def named(check: str) -> Callable[[Report, Collection[str]], bool]:
    """Return a condition that holds only if ``checks=`` names the check."""
    return lambda _report, names: check in names


_NEEDED = (LIVENESS, STEP_EQ, UNEVEN, LOSS_EQ, REPLICA_EQ)


def probe_uneven(report: Report, settings: RunSettings, compare_once: CompareOnce) -> Report:
    """Run UNEVEN-EQ again, with a global batch that does not divide and with one smaller than the replicas."""
    replicas = report.distributed.num_replicas if report.distributed is not None else 1
    if settings.global_batch_size is None or replicas < 2:
        return report
    plain = report
    sizes = (settings.global_batch_size // replicas * replicas + 1, 1)
    for position, size in enumerate(sizes):
        again = compare_once(replace(settings, global_batch_size=size), _NEEDED, len(sizes) - position)
        report = report.merged(timed(plain, again), UNEVEN, f"run again with global_batch_size={size}")
    return report


PROBES: tuple[Probe, ...] = (
    # This probe comes first, because what it switches off stays off for the others.
    Probe(STEP_EQ, neutralized.wanted, neutralized.probe),
    Probe(apart.CHECK, apart.wanted, apart.probe),
    Probe(STEP_EQ, follow.wanted, follow.probe),
    Probe(STEP_EQ, stale.wanted, stale.probe),
    Probe(one_by_one.CHECK, one_by_one.wanted, one_by_one.probe),
    Probe(UNEVEN, named(UNEVEN), probe_uneven),
    Probe(nonfinite.CHECK, nonfinite.wanted, nonfinite.probe),
    Probe(growth.CHECK, growth.wanted, growth.probe),
)
"""A probe is added by one entry here and one function."""
