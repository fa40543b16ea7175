"""Compares again with the randomness off and batch normalisation synchronised, in both runs.

Dropout with a stream per replica, and batch normalisation by each replica's own statistics, make a correct program
differ from one device. That excuses nothing: whatever remains with both off is a defect, and what vanishes is a
difference that is understood.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from pytest_ddl.checks.causes import fix_of
from pytest_ddl.checks.findings import CheckResult, Finding, Outcome, Report
from pytest_ddl.checks.root_causes import root_causes
from pytest_ddl.records import LayerRecord, TrainingRecord
from pytest_ddl.training.neutral import NORMALIZATION, RANDOM, REFUSED
from pytest_ddl.training.settings import RunSettings

COMPARED = (
    "STEP-EQ", "UNEVEN-EQ", "LOSS-EQ", "OPT-STATE", "STATE-EQ", "METRIC-EQ", "MOVES", "ACCUM", "CLIP",
)  # fmt: skip
"""Checks whose numbers are compared with one device, so that draws and statistics count."""

_CAUSES = {NORMALIZATION: "per-replica-normalization", RANDOM: "random-stream-differs-across-replicas"}
_DONE = {NORMALIZATION: "batch normalisation synchronised", RANDOM: "every random number replaced by a constant"}


def wanted(report: Report, _names: Collection[str]) -> bool:
    """Say whether numbers differ in a program that draws random numbers or normalises per replica."""
    differs = any(
        result.check in COMPARED and result.outcome in (Outcome.FAIL, Outcome.INCONCLUSIVE) for result in report.results
    )
    return differs and bool(kinds(report))


def kinds(report: Report) -> tuple[str, ...]:
    """What can be switched off in the program of a report."""
    reference, distributed = report.reference, report.distributed
    if reference is None or distributed is None or distributed.errors:
        return ()
    if "model_parallel" in distributed.strategy or any(rank.asynchronous for rank in distributed.ranks):
        return ()
    found = []
    # Draws differ under one replica too: of a parameter server's workers, each has generators of its own.
    if distributed.num_replicas > 1 and any(_is_plain(layer) for rank in distributed.ranks for layer in rank.layers):
        found.append(NORMALIZATION)
    if any(step.draws for record in (reference, distributed) for rank in record.ranks for step in rank.steps):
        found.append(RANDOM)
    return tuple(found)


def _is_plain(layer: LayerRecord) -> bool:
    return layer.settings.get("synchronized") is False and bool(layer.settings.get("trainable", True))


def probe_neutralised(
    report: Report, settings: RunSettings, compare_once: Callable[[RunSettings, Collection[str] | None], Report]
) -> Report:
    """Replace what compares numbers with the verdict of the runs without randomness, and say so."""
    off = kinds(report)
    names = [result.check for result in report.results]
    again = compare_once(replace(settings, neutralise=off), names)
    told = " and ".join(_DONE[kind] for kind in off)
    if not _is_comparable(again):
        note = f"tried again with {told}, which this program does not allow"
        return replace(report, notes=(*report.notes, note))
    remaining = [replace(f, message=f"with {told}: {f.message}") for f in again.findings if f.check in COMPARED]
    kept = [finding for finding in report.findings if not _is_understood(finding)]
    tolerated = () if remaining else _tolerated(report, off, told)
    causes = {*(f.cause for f, _reason in report.expected), *report.unused_expectations}
    declared = [f for f in tolerated if f.cause in causes]
    approximations = [f for f in tolerated if f not in declared]
    approximations += [f for f in report.approximations if f.check not in COMPARED]
    approximations += [f for f in again.approximations if f.check in COMPARED]
    findings = [*remaining, *(f for f in root_causes(kept) if f.cause not in {r.cause for r in remaining})]
    expected = [(f, reason) for f, reason in report.expected if not _is_understood(f) or f.cause in _CAUSES.values()]
    expected += [(f, reason) for f, reason in again.expected if f.check in COMPARED]
    expected += [(f, why) for f in declared if (why := report.unused_expectations.get(f.cause or ""))]
    used = {f.cause for f, _reason in expected}
    strict = [f for f in approximations if report.strict]
    return replace(
        report,
        results=_results(report, again, told),
        findings=[*findings, *strict],
        approximations=tuple(f for f in approximations if f not in strict),
        expected=tuple(expected),
        unused_expectations={c: why for c, why in report.unused_expectations.items() if c not in used},
        inconclusive=(
            *(why for why in report.inconclusive if why.split(":")[0] not in COMPARED),
            *(f"{why} (with {told})" for why in again.inconclusive if why.split(":")[0] in COMPARED),
        ),
        notes=(*report.notes, f"weights, state and losses were compared in runs with {told}"),
        neutralised=off,
    )


def _is_comparable(again: Report) -> bool:
    """Whether both runs went through, with everything off that was to be."""
    records = [again.reference, again.distributed]
    return again.comparable and all(record is not None and _is_off(record) for record in records)


def _is_off(record: TrainingRecord) -> bool:
    notes = [note for rank in record.ranks for note in rank.notes]
    plain = [layer for rank in record.ranks for layer in rank.layers if _is_plain(layer)]
    return not record.errors and not plain and not any(note.startswith(REFUSED) for note in notes)


def _is_understood(finding: Finding) -> bool:
    """Whether the runs without randomness judge the same thing; copies that differ are a defect either way."""
    return finding.check in COMPARED and finding.cause != "state-not-aggregated"


def _tolerated(report: Report, off: tuple[str, ...], told: str) -> tuple[Finding, ...]:
    """The difference that vanished, once for each thing that was switched off, unless that is a defect itself."""
    gone = [f for result in report.results for f in result.findings if _is_understood(f)]
    if not gone:
        return ()
    first = min(gone, key=lambda f: (COMPARED.index(f.check), f.step or 0))
    random_is_wrong = any(f.check == "SEED" for f in report.findings)
    return tuple(
        replace(
            first,
            cause=_CAUSES[kind],
            fix=fix_of(_CAUSES[kind]),
            evidence=f"both runs were repeated with {told}: they are equal then",
            approximation=True,
            exact=True,
            also=(),
        )
        for kind in off
        if not (kind == RANDOM and random_is_wrong)
    )


def _results(report: Report, again: Report, told: str) -> tuple[CheckResult, ...]:
    repeated = {result.check: result for result in again.results}
    return tuple(
        replace(repeated[result.check], reason=f"{repeated[result.check].reason} (with {told})")
        if result.check in COMPARED
        and result.check in repeated
        and not any(not _is_understood(finding) for finding in result.findings)
        else result
        for result in report.results
    )
