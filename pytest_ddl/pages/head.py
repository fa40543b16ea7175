"""Write the top of a page: the defect, its place, its fix, and the reasons for this diagnosis."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from pytest_ddl.equivalence.causes import CAUSES
from pytest_ddl.equivalence.findings import Finding
from pytest_ddl.equivalence.verdict.report import Report
from pytest_ddl.equivalence.verdict.text import headline
from pytest_ddl.pages.facts import place_of
from pytest_ddl.web.units import TIMES, shown

_LONG = 60
"""Length from which a value is a sentence, which is not printed in bold."""
_SYMPTOMS = {
    "silent": "differs silently",
    "crash": "ends with an error",
    "hang": "hangs",
    "slow": "is slower than it needs to be",
}


def title(report: Report) -> str:
    """Return the title as plain text: the cause, or that the comparison decided nothing."""
    if report.findings:
        cause = report.findings[0].cause
        return cause or "cause not known"
    return "inconclusive" if report.verdict == "inconclusive" else report.verdict


def head(report: Report) -> str:
    """Return the first section: the worst finding in full, or why there is no verdict."""
    if not report.findings:
        reasons = "".join(f"<li>{escape(text)}</li>" for text in report.inconclusive)
        return f'<section class="notice serious"><p>{escape(headline(report))}</p><ul>{reasons}</ul></section>'
    worst = report.findings[0]
    return f'<section class="worst" aria-label="What is wrong">{_full(worst)}</section>'


def _full(finding: Finding) -> str:
    cause = CAUSES.get(finding.cause or "")
    meaning = f'<p class="meaning">{escape(cause.title)}</p>' if cause else ""
    facts = "".join(
        f"<div><dt>{name}</dt><dd{' class=long' if len(value) > _LONG else ''}>{value}</dd></div>"
        for name, value in _facts(finding)
    )
    fix = f'<p class="fix"><b>Fix</b> {escape(finding.fix)}</p>' if finding.fix else ""
    return (
        f'{meaning}<p class="message"><code>{escape(finding.check)}</code> {escape(finding.message)}</p>'
        f'<dl class="facts">{facts}</dl>{fix}{_grounds(finding)}{_details(finding)}'
    )


def _facts(finding: Finding) -> Iterator[tuple[str, str]]:
    """Yield names and values, the values as HTML."""
    if finding.step is not None:
        yield "step", str(finding.step) if finding.step else "0 <small>before training</small>"
    if finding.variable:
        yield "variable", f"<code>{escape(finding.variable)}</code>"
    if finding.replica is not None:
        yield "replica", str(finding.replica)
    if finding.worker is not None:
        yield "worker", str(finding.worker)
    if finding.symptom != "silent":
        yield "symptom", _SYMPTOMS.get(finding.symptom, escape(finding.symptom))
    file, line = place_of(finding)
    if file:
        yield "line", f"<code>{escape(file)}:{line}</code>"
    if finding.observed:
        yield "under the strategy", escape(finding.observed)
    if finding.expected:
        yield "on one device", escape(finding.expected)
    if finding.error is not None and finding.tolerance is not None:
        bound = f"<small>bound {shown(finding.tolerance)}</small>"
        yield "difference", f"{shown(finding.error)} {bound}"
    if finding.ratio is not None:
        unit = "loss" if finding.variable == "loss" else "update"
        yield "ratio", f"{finding.ratio:.4g} {TIMES} <small>the {unit} of one device</small>"


def _grounds(finding: Finding) -> str:
    """Return why the cause is named, or places to look for it, and the origin of the bound."""
    items = []
    if finding.evidence:
        items.append(escape(finding.evidence))
    if finding.grounds is not None and finding.cause is not None:
        items.append(escape(f"{finding.grounds.value[0].upper()}{finding.grounds.value[1:]}."))
    elif finding.cause is not None and not finding.exact:
        items.append("The cause was not recomputed; the records are consistent with it.")
    if finding.besides:
        items.append(f"And also: {', '.join(f'<code>{escape(cause)}</code>' for cause in finding.besides)}.")
    if finding.also:
        items.append(f"Also fits: {', '.join(f'<code>{escape(cause)}</code>' for cause in finding.also)}.")
    items += [f"Line: <code>{escape(line)}</code>" for line in finding.lines]
    if finding.look_at:
        items.append(f"Look at: {escape('; or '.join(finding.look_at))}.")
    if finding.origin:
        items.append(f"Bound from: {escape(finding.origin)}.")
    return (
        f'<div class="grounds"><h3>Grounds</h3><ul>{"".join(f"<li>{i}</li>" for i in items)}</ul></div>'
        if items
        else ""
    )


def _details(finding: Finding) -> str:
    if not finding.details:
        return ""
    return f"<details><summary>Traceback and output</summary><pre>{escape(finding.details)}</pre></details>"


def others(report: Report) -> str:
    """Return the other findings as cards, and what the report tolerated."""
    cards = [_card(finding, "") for finding in report.findings[1:]]
    cards += [_card(finding, f"expected: {reason}") for finding, reason in report.expected]
    cards += [_card(finding, "named approximation") for finding in report.approximations]
    cards += [_card(finding, f"known behavior {finding.known}") for finding in report.known]
    if not cards:
        return ""
    return (
        '<section aria-labelledby="others-title"><h2 id="others-title">Other findings</h2>'
        f'<ul class="changes">{"".join(cards)}</ul></section>'
    )


def _card(finding: Finding, tolerated: str) -> str:
    badge = f'<span class="badge">{escape(tolerated)}</span>' if tolerated else ""
    fix = f'<p class="why">{escape(finding.fix)}</p>' if finding.fix else ""
    where = f"step {finding.step}: " if finding.step is not None else ""
    kind = "" if tolerated else " class=confirmed"
    return (
        f"<li{kind}><p>{badge}<b>{escape(finding.cause or 'cause not known')}</b></p>"
        f"<p>{where}{escape(finding.message)}</p>{fix}</li>"
    )
