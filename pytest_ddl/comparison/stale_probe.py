"""STEP-EQ, run differently: hold the weights of one device at an older step, to find gradients of older weights."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_ddl.checks.findings import Report
from pytest_ddl.checks.parameter_server import is_asynchronous
from pytest_ddl.checks.staleness import stale_update
from pytest_ddl.checks.step_equality import CHECK as CHECK
from pytest_ddl.training.settings import RunSettings

if TYPE_CHECKING:
    from pytest_ddl.comparison.probes import CompareOnce

_FOLLOWS = (CHECK, "UNEVEN-EQ", "LOSS-EQ", "METRIC-EQ", "STATE-EQ", "OPT-STATE")
_VAGUE = (None, "reported-loss-wrong", "optimizer-state-mismatch")


def wanted(report: Report, _names: Collection[str]) -> bool:
    """Return whether weights agree for a step, then differ alike on all replicas, and no known cause explains it."""
    step = _step(report)
    if step is None or step < 2 or report.distributed is None or is_asynchronous(report.distributed):
        return False
    first = all((finding.step or 0) >= step for finding in report.findings)
    return first and all(f.cause in _VAGUE and f.check in _FOLLOWS for f in report.findings)


def _step(report: Report) -> int | None:
    return next((f.step for f in report.findings if f.check == CHECK and f.cause is None), None)


def probe(report: Report, settings: RunSettings, compare_once: CompareOnce) -> Report:
    """Run again with weights held one step before the last right one, and with the initial weights."""
    step, reference, distributed = _step(report), report.reference, report.distributed
    if step is None or reference is None or distributed is None:
        return report
    for hold in dict.fromkeys((step - 2, 0)):
        again = compare_once(replace(settings, precision=reference.precision, hold=hold, steps=step), (CHECK,))
        held = again.reference
        found = stale_update(reference, distributed, held, hold, step) if held is not None else None
        if found is None:
            continue
        rest = [f for f in report.findings if f.check not in _FOLLOWS or (f.step or 0) < step]
        results = tuple(replace(r, findings=(found,)) if r.check == CHECK else r for r in report.results)
        unused = dict(report.unused_expectations)
        why = unused.pop(found.cause or "", None)
        return replace(
            report,
            findings=rest if why is not None else [found, *rest],
            expected=report.expected if why is None else (*report.expected, (found, why)),
            unused_expectations=unused,
            results=results,
        )
    return report
