"""Compare two runs that an overflow parted: up to that step, and again with a smaller loss scale."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pytest_ddl.equivalence.checks.step_equality import CHECK as STEP_EQ
from pytest_ddl.equivalence.findings import Doubt, Outcome
from pytest_ddl.equivalence.runs.alignment import Aligned, Runner, align
from pytest_ddl.equivalence.verdict.overflows import Parting, parting
from pytest_ddl.equivalence.verdict.own_steps import up_to
from pytest_ddl.equivalence.verdict.report import Report
from pytest_ddl.notes import Note, NoteKind

_TRIES = 3
"""Most comparisons with smaller and smaller loss scales. A scale that grows fast may reach an overflow again."""


def judged_without_overflow(
    runs: Aligned, parted: Parting, program: Runner, judged: Callable[[Aligned], Report]
) -> Report:
    """Return the report of all steps with a smaller loss scale, and of the steps before the overflow as they were.

    If the runs part again and no gradient is large enough to overflow, the difference is judged like any other.

    :param judged: function that judges two runs, and measures rounding if it has to.
    """
    again, left = runs, parted
    for _try in range(_TRIES):
        if not left.scales:
            break
        factor = again.settings.loss_scale_factor * left.factor
        settings = replace(again.settings, loss_scale_factor=factor, loss_scales=left.scales)
        again = align(program.reference(settings), program.distributed(settings), settings, program)
        found = parting(again.reference, again.distributed)
        if found is None:
            return _joined(runs, parted, again, judged)
        left = found
    if not left.near or left.step == 1:
        return judged(runs)
    report = _joined(runs, parted, _before(again, left.step), judged)
    why = f"a gradient overflows, and the weights after step {left.step - 1} cannot be compared for this reason"
    return replace(report, doubts=(*report.doubts, Doubt(STEP_EQ, why)))


def _joined(runs: Aligned, parted: Parting, again: Aligned, judged: Callable[[Aligned], Report]) -> Report:
    """Return the second report, or the first one if the steps before the overflow already differ."""
    before = judged(_before(runs, parted.step)) if parted.step > 1 else None
    if before is not None and before.findings:
        return before
    factor = again.settings.loss_scale_factor
    how = (
        f"a gradient overflows on one side only, or in every step; all steps were compared in runs with {factor:g} "
        "times the loss scale"
    )
    report = again.explained(judged(again)).noted(Note(NoteKind.HOW, how))
    if before is None:
        return report
    # The second comparison has the same steps, so a check that passes there leaves nothing open.
    passed = {result.check for result in report.results if result.outcome is Outcome.PASS}
    left = tuple(doubt for doubt in before.doubts if doubt.check not in passed)
    return report.joined(replace(before, doubts=left, notes=()))


def _before(runs: Aligned, step: int) -> Aligned:
    return replace(
        runs, reference=up_to(runs.reference, step - 1), distributed=up_to(runs.distributed, step - 1)
    )  # fmt: skip
