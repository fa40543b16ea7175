"""Compare a script with one device, and decide what can be said about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pytest_ddl.equivalence.report import DivergenceError, Report
from pytest_ddl.messages import summary
from pytest_ddl.trying.found import FACT, text_of
from pytest_ddl.trying.program import TriedScript
from pytest_ddl.trying.strategies import Meaning

_OWN_ERRORS = ("NotSeenError", "DownloadRefusedError")
_UNSUPPORTED = "unsupported-by-framework"
_NUMBERS = ("STEP-EQ", "LOSS-EQ", "OPT-STATE", "METRIC-EQ")
"""Checks of numbers, which a wrong hypothesis about the number of replicas makes fail."""
_UNSEEN = (
    "no training step was seen. A step is a call of model.fit, or a call of a tf.function or of strategy.run after "
    "which a Keras optimizer has counted an update. Call the training at the top level of the script, or below "
    "`if __name__ == '__main__':`"
)


_UNCLEAR = (
    "a loss is scaled by the number of replicas, and one device cannot know whether that is right. Divide the sum of "
    "the losses of the examples by the global batch size, and by nothing else: "
    "tf.nn.compute_average_loss(losses, global_batch_size=GLOBAL_BATCH_SIZE)"
)


class UndecidedError(Exception):
    """Error for a script about which nothing can be said. The message has the line to add or to change."""


def compare_script(
    compare: Callable[..., Report],
    script: TriedScript,
    arguments: Mapping[str, Any],
    tell: Callable[[str], None] = lambda _text: None,
) -> Report:
    """Compare a script, and again with other meanings of the number of replicas if these could change the verdict.

    :param compare: the fixture ``ddl_equivalence``.
    :param tell: called with a text about what was found.
    :raises DivergenceError: if the script is wrong, whatever the number of replicas means in it.
    :raises UndecidedError: if the script could not be followed.
    """
    __tracebackhide__ = True
    try:
        report = compare(script, **arguments)
    except DivergenceError as error:
        tell(_summary(error.report))
        _refuse_unseen(error.report)
        first = error.report.findings[0] if error.report.findings else None
        if not _fact(error.report.reference).get("counts_replicas") or first is None or first.check not in _NUMBERS:
            raise
        found = _under(compare, replace(script, meaning=Meaning.NOTHING), arguments)
        if found is None:
            unclear = _under(compare, replace(script, meaning=Meaning.EVERYWHERE), arguments) is not None
            line = script.source.line_with_copied_count()
            if unclear or line is not None:
                place = script.source.file if line is None else f"{script.source.file}:{line}"
                raise UndecidedError(f"{place}: {_UNCLEAR}") from None
            raise
        report = found
    tell(_summary(report))
    return report


def _refuse_unseen(report: Report) -> None:
    """Raise an exception for a report that only shows what could not be followed.

    :raises UndecidedError: with the line to add.
    """
    reference, distributed = report.reference, report.distributed
    if report.findings and report.findings[0].cause == _UNSUPPORTED:
        raise UndecidedError(report.findings[0].message)
    errors = [error for record in (reference, distributed) if record is not None for _rank, error in record.errors]
    if reference is not None and reference.refused is not None:
        errors.append(reference.refused)
    for error in errors:
        if error.type.rpartition(".")[2] in _OWN_ERRORS:
            raise UndecidedError(error.message)
    for _rank, error in reference.errors if reference is not None else ():
        # Without an end on one device, batches in another order are not replayed, and look like a finding.
        place = f"{error.file}:{error.line}: " if error.file else ""
        raise UndecidedError(f"{place}the script fails on one device, too: {summary(error.type, error.message)}")
    if reference is not None and not reference.num_steps:
        left_out = _fact(reference).get("lines", {}).get("not compared", ())
        raise UndecidedError("; ".join(left_out) if left_out else _UNSEEN)
    if report.verdict == "inconclusive":
        raise UndecidedError("; ".join(report.inconclusive))


def _under(compare: Callable[..., Report], script: TriedScript, arguments: Mapping[str, Any]) -> Report | None:
    """Return the report of a comparison, or ``None`` if it fails."""
    try:
        return compare(script, **arguments)
    except DivergenceError:
        return None


def _fact(record: Any) -> Mapping[str, Any]:
    ranks = getattr(record, "ranks", ())
    return dict(ranks[0].facts.get(FACT, {})) if ranks else {}


def _summary(report: Report) -> str:
    fact = _fact(report.distributed) or _fact(report.reference)
    if not fact:
        return ""
    steps = 0 if report.distributed is None else report.distributed.num_steps
    return "\n".join([*text_of(fact), f"{'compared:':<13} {steps} step(s)"])
