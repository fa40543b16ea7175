"""Render a report as plain text: the verdict in the first line, then each finding with its cause and its fix."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from pytest_ddl.equivalence.causes import CAUSES
from pytest_ddl.equivalence.causes.cause import Fix
from pytest_ddl.equivalence.findings import CheckResult, Doubt, Finding, Grounds, Outcome, Symptom
from pytest_ddl.equivalence.known.behavior import KnownBehavior
from pytest_ddl.equivalence.known.catalogue import KNOWN
from pytest_ddl.equivalence.ledger import Ledger
from pytest_ddl.hints import FrontEnd, Hint
from pytest_ddl.messages import listed
from pytest_ddl.notes import Note
from pytest_ddl.records import TrainingRecord

WIDTH = 100
HEADLINE = 200
"""Maximum length of the first line. pytest shows that line as its summary, so it needs space for the cause."""

_SHOWN = 6
"""Maximum number of names of excused variables."""
_EQUAL = 0.005
"""Largest difference of a ratio from 1 that two decimals do not show."""
_LABELS = {
    Outcome.PASS: "pass",
    Outcome.FAIL: "FAIL",
    Outcome.INCONCLUSIVE: "inconclusive",
    Outcome.NOT_APPLICABLE: "n.a.",
}


class Rendered(Protocol):
    """Part of a :class:`~pytest_ddl.equivalence.verdict.report.Report` that a text shows."""

    @property
    def strategy(self) -> str: ...

    @property
    def verdict(self) -> str: ...

    @property
    def results(self) -> Sequence[CheckResult]: ...

    @property
    def findings(self) -> Sequence[Finding]: ...

    @property
    def distributed(self) -> TrainingRecord | None: ...

    @property
    def expected(self) -> Sequence[tuple[Finding, str]]: ...

    @property
    def expected_end(self) -> str | None: ...

    @property
    def expectations(self) -> Mapping[str, str]: ...

    @property
    def unused_expectations(self) -> Mapping[str, str]: ...

    @property
    def excused(self) -> Sequence[Finding]: ...

    @property
    def approximations(self) -> Sequence[Finding]: ...

    @property
    def known(self) -> Sequence[Finding]: ...

    @property
    def known_behaviors(self) -> Sequence[KnownBehavior]: ...

    @property
    def doubts(self) -> Sequence[Doubt]: ...

    @property
    def notes(self) -> Sequence[Note]: ...

    @property
    def ledger(self) -> Ledger: ...

    @property
    def front_end(self) -> FrontEnd: ...


def render_report(report: Rendered) -> str:
    """Return the report for a terminal; its first line can be understood without the rest."""
    lines = [headline(report)]
    for position, finding in enumerate(report.findings):
        lines.append("")
        lines.extend(_in_full(finding) if position == 0 else _in_short(finding))
        lines.extend(_declaration(finding, report))
    for result in report.results:
        if result.details:
            lines.extend(["", *_wrapped(f"{result.check}: {result.reason}", indent=""), *_indented(result.details)])
    lines.extend(["", *_table(report)])
    if report.ledger.entries:
        lines.extend(_wrapped(str(report.ledger)))
    rows = {(result.check, result.reason) for result in report.results if result.outcome is Outcome.INCONCLUSIVE}
    for doubt in report.doubts:
        if (doubt.check, doubt.reason) not in rows:
            lines.extend(_wrapped(f"not decided: {doubt}"))
    for finding, reason in report.expected:
        lines.extend(_wrapped(f"expected: {_place(finding)}{_cause(finding)}{_of_things(finding, report)}: {reason}"))
    for finding in report.approximations:
        text = f"{_place(finding)}{_cause(finding)}: {finding.message} ({_numbers(finding)})"
        lines.extend(_wrapped(f"approximation: {text}; {_strict(report)}"))
        lines.extend(_field("  because", finding.evidence))
    for finding in report.known:
        lines.extend(_of_framework(finding, report))
    for cause, reason in report.unused_expectations.items():
        text = f"unused expectation: {cause} did not occur ({reason})"
        lines.extend(_wrapped(text + report.front_end.words(Hint.REMOVE)))
    for note in report.notes:
        lines.extend(_wrapped(f"note: {note}"))
    return "\n".join(line.rstrip() for line in lines)


def headline(report: Rendered) -> str:
    """Return one line that sums up the verdict. A failure starts with its cause, as narrow terminals cut the line."""
    if report.findings:
        return _shortened(_failure(report.strategy, report.findings[0]))
    if report.verdict == "pass":
        steps = report.distributed.num_steps if report.distributed else 0
        compared = [r.check for r in report.results if r.outcome is Outcome.PASS]
        text = f"{report.strategy} {_agreement(report)}: {steps} step(s), {len(compared)} checks passed"
        tolerated = len(report.excused)
        return text + (f", {tolerated} tolerated difference(s)" if tolerated else "")
    if report.verdict == "known":
        first = report.known_behaviors[0]
        what = (
            "ends by what a framework is known to do, nothing was compared"
            if _ended(report)
            else (f"{_agreement(report)} except for what a framework is known to do")
        )
        return _shortened(f"{first.id}: {report.strategy} {what}: {first.title}")
    if report.expected_end is not None:
        return _shortened(f"{report.strategy} ended as expected, nothing was compared: {report.expected_end}")
    reason = str(report.doubts[0]) if report.doubts else "no check could compare anything"
    return _shortened(f"{report.strategy} is inconclusive: {reason}")


def _agreement(report: Rendered) -> str:
    """Return what a pass means: after concurrent steps, no weight is compared with one device."""
    ranks = report.distributed.ranks if report.distributed else ()
    return "applies its updates" if any(rank.asynchronous for rank in ranks) else "matches one device"


def _failure(strategy: str, finding: Finding) -> str:
    cause = " and ".join((_cause(finding), *finding.besides))
    if finding.symptom == Symptom.HANG.value:
        return f"{cause}: {strategy} hangs at step {finding.step} ({finding.observed or finding.message})"
    if finding.check == "RUN":
        return f"{cause}: {strategy} fails at step {finding.step} ({finding.observed or finding.message})"
    if finding.symptom == Symptom.SLOW.value:
        return f"{cause}: {strategy} is slower than it needs to be ({finding.message})"
    when = "before the first step" if finding.step == 0 else f"at step {finding.step}"
    what = "differs from one device"
    if finding.cause == "closures-not-awaited":
        what = "reads or assigns weights that running closures still use"
    elif finding.check == "REPLICA-EQ":
        what = "has copies of one variable that differ"
    parts = [finding.variable or finding.message]
    # Adam and RMSprop hide the scale of a gradient: their updates are as large as on one device. If the cause is known
    # and is no factor, then the ratio of one variable says nothing, and looks like one.
    other = finding.grounds in (Grounds.RECOMPUTED, Grounds.PATTERN, Grounds.EXCLUSION) and finding.variable != "loss"
    scaled = finding.ratio is not None and abs(finding.ratio - 1) > _EQUAL
    if finding.ratio is not None and finding.variable is not None and scaled and not (other and finding.cause):
        parts.append(f"{finding.ratio:.2f}x the {'loss' if finding.variable == 'loss' else 'update'}")
    elif finding.error is not None and finding.variable is not None:
        parts.append(f"max difference {finding.error:.3g}")
    return f"{cause}: {strategy} {what} {when} ({', '.join(parts)})"


def _in_full(finding: Finding) -> Iterator[str]:
    yield from _wrapped(f"{finding.check}: {finding.message}", indent="")
    where = [
        f"step {finding.step}" if finding.step is not None else "",
        f"variable {finding.variable}" if finding.variable else "",
        f"replica {finding.replica}" if finding.replica is not None else "",
        f"worker {finding.worker}" if finding.worker is not None else "",
    ]
    if any(where):
        yield from _field("where", ", ".join(part for part in where if part))
    yield from _field("waits in" if finding.symptom == Symptom.HANG.value else "raised in", finding.source)
    for line in finding.lines:
        yield from _field("line", line)
    yield from _field("ACTUAL", finding.observed)
    yield from _field("DESIRED", finding.expected)
    if finding.error is not None:
        yield from _field("difference", _numbers(finding))
    if finding.ratio is not None:
        yield from _field("ratio", f"{finding.ratio:.6g}x the single-device {_unit(finding)}")
    yield from _field("bound from", finding.origin)
    cause = CAUSES.get(finding.cause or "")
    yield from _field("cause", f"{finding.cause}: {cause.title}" if cause else finding.cause or "not known")
    for other in finding.besides:
        yield from _field("and also", f"{other}: {CAUSES[other].title}")
    if finding.grounds is not None and cause is not None:
        yield from _field("grounds", finding.grounds.value)
    yield from _field("evidence", finding.evidence)
    yield from _field("look at", "; or ".join(finding.look_at))
    if finding.also:
        yield from _field("also fits", ", ".join(finding.also))
    yield from _fix(finding.fix)
    if finding.details:
        yield "  details:"
        yield from _indented(finding.details)


def _strict(report: Rendered) -> str:
    return f"fails with {report.front_end.words(Hint.STRICT)}"


def _of_framework(finding: Finding, report: Rendered) -> Iterator[str]:
    """Yield the lines about a known behavior of a framework, and how to declare or avoid it."""
    behavior = KNOWN[finding.known or ""]
    yield from _wrapped(f"known behavior: {_place(finding)}{behavior.id}: {behavior.explanation}; {_strict(report)}")
    yield from _field("  found", f"{finding.check}: {_cause(finding)}: {finding.message}")
    yield from _field("  meanwhile", report.front_end.render(behavior.workaround))
    yield from _accepting("    to accept:", finding.cause, report, behavior.id)


def _of_things(finding: Finding, report: Rendered) -> str:
    """Name all that a key of ``expect=`` excuses if the key names nothing, so that no second thing stays unseen."""
    if finding.cause not in report.expectations:
        return ""
    alike = [one for result in report.results for one in result.findings if one.cause == finding.cause]
    left = {(one.variable, *one.others) for one in report.findings}
    excused = [one for one in alike if (one.variable, *one.others) not in left]
    names = list(dict.fromkeys(name for one in (finding, *excused) for name in (one.variable, *one.others) if name))
    return f" ({listed(names, _SHOWN)})" if names else ""


def _declaration(finding: Finding, report: Rendered) -> Iterator[str]:
    """Yield what a failure shows if its cause is one that a user may want to declare."""
    behavior = KNOWN.get(finding.known or "")
    if behavior is not None:
        yield from _field("known as", f"{behavior.id}: {behavior.explanation}")
        yield from _field("meanwhile", report.front_end.render(behavior.workaround))
        yield from _accepting("  to accept:  ", finding.cause, report, behavior.id)
    elif finding.cause is not None and finding.exact and finding.cause in CAUSES and CAUSES[finding.cause].declarable:
        # A cause that was not recomputed may be another one. A line to copy would invite the reader to accept a bug.
        yield from _accepting("  to accept:  ", _key(finding, report), report, "the reason")


def _key(finding: Finding, report: Rendered) -> str | None:
    """Return the key of ``expect=`` for a finding. It names the variable if the cause is declared for another thing."""
    if finding.cause not in report.expectations or finding.variable is None or not finding.owner:
        return finding.cause
    name = finding.variable.rpartition("/")[0] if finding.others else finding.variable
    return f"{finding.cause}[{name or finding.variable}]"


def _accepting(label: str, cause: str | None, report: Rendered, reason: str) -> Iterator[str]:
    """Yield what declares a cause for one strategy, in one line to paste into a test or a command."""
    name = report.strategy.partition("[")[0]
    if line := report.front_end.words(Hint.ACCEPT, name, cause, reason):
        yield f"{label} {line}"


def _ended(report: Rendered) -> bool:
    return any(finding.symptom in (Symptom.CRASH.value, Symptom.HANG.value) for finding in report.known)


def _indented(text: str) -> Iterator[str]:
    """Indent a text and keep its line breaks, so that editors can follow tracebacks."""
    yield from (f"    {line}" for line in text.splitlines())


def _in_short(finding: Finding) -> Iterator[str]:
    yield from _wrapped(f"{finding.check}: {_place(finding)}{_cause(finding)}: {finding.message}", indent="")
    numbers = _numbers(finding)
    if numbers:
        yield from _field("difference", numbers)
    yield from _fix(finding.fix)


def _unit(finding: Finding) -> str:
    return "loss" if finding.variable == "loss" else "update"


def _numbers(finding: Finding) -> str:
    if finding.error is None:
        return ""
    text = f"max absolute difference {finding.error:.4g}"
    return text if finding.tolerance is None else f"{text}, bound {finding.tolerance:.4g}"


def _place(finding: Finding) -> str:
    return f"step {finding.step}, " if finding.step is not None else ""


def _cause(finding: Finding) -> str:
    return finding.cause or "cause not known"


def _table(report: Rendered) -> Iterator[str]:
    idle = [result for result in report.results if result.outcome is Outcome.NOT_APPLICABLE]
    unable: dict[str, list[str]] = {}
    for result in report.results:
        if result.outcome is Outcome.INCONCLUSIVE:
            unable.setdefault(result.reason, []).append(result.check)
    for result in report.results:
        alike = unable.get(result.reason, []) if result.outcome is Outcome.INCONCLUSIVE else []
        if result not in idle and len(alike) < 2:
            reason = result.reason if result.outcome is not Outcome.FAIL else _first_cause(result, report)
            yield from _wrapped(f"{result.check:<11} {_label(result, report):<13} {reason}", indent=" " * 26)
    for reason, checks in unable.items():
        if len(checks) > 1:
            yield from _wrapped(f"inconclusive: {', '.join(checks)}: {reason}")
    if idle:
        # Most checks do not apply to most programs. Those that the user could make apply are named.
        named = [f"{result.check} (needs {result.needs})" for result in idle if result.needs]
        others = len(idle) - len(named)
        if others:
            named.append(f"{others}{' others' if named else ''}{report.front_end.words(Hint.REASONS)}")
        yield from _wrapped(f"not applicable: {', '.join(named)}")


def _label(result: CheckResult, report: Rendered) -> str:
    """Return the label of a check. A FAIL is "tolerated" if the report tolerates its findings or their cause."""
    if result.outcome is Outcome.FAIL and not report.findings and report.excused:
        return "tolerated"
    return _LABELS[result.outcome]


def _first_cause(result: CheckResult, report: Rendered) -> str:
    """Return the cause of a check's first finding, with its message unless the report shows the message elsewhere."""
    first = result.findings[0]
    shown = {(finding.check, finding.message) for finding in (*report.findings, *report.approximations, *report.known)}
    text = f"{_place(first)}{_cause(first)}"
    return text if (first.check, first.message) in shown else f"{text}: {first.message}"


def _field(name: str, text: str | None) -> Iterator[str]:
    if text:
        yield from _wrapped(f"  {name + ':':<12} {text}", indent=" " * 15)


def _fix(fix: str | None) -> Iterator[str]:
    """Yield what to do, and the code as it is written, so that it can be copied."""
    if not isinstance(fix, Fix):
        yield from _field("fix", fix)
        return
    yield from _field("fix", fix.text)
    yield from textwrap.indent(fix.code, " " * 6).splitlines()


def _wrapped(text: str, indent: str = "  ") -> list[str]:
    flat = text if text.startswith(" ") or len(indent) > 2 else " ".join(text.split())
    wrapped = textwrap.wrap(
        flat, WIDTH, subsequent_indent=indent or "  ", break_long_words=False, break_on_hyphens=False
    )
    return wrapped or [""]


def _shortened(text: str) -> str:
    flat = " ".join(text.split()) if "\n" in text else text
    return flat if len(flat) <= HEADLINE else flat[: HEADLINE - 3] + "..."
