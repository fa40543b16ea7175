"""Merge the reports of all ranks into one. It passes only if every rank proves that it ran the test's body."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from pytest_ddl.cluster.cluster import Answer, Fate
from pytest_ddl.cluster.explain import explain, name_ranks, sections, without_addresses
from pytest_ddl.cluster.protocol import UNEXPECTED_PASS, ExampleResult


@dataclass
class _RankPhase:
    """Report of one rank for one phase, with the reports of its subtests."""

    answer: Answer
    report: pytest.TestReport
    subtests: list[pytest.TestReport]

    @property
    def outcome(self) -> str:
        """Outcome of the phase: ``passed``, ``failed``, ``skipped``, ``xfailed``, ``xpassed`` or ``rejected``."""
        if isinstance(self.answer.body, ExampleResult) and self.answer.body.rejected:
            return "rejected"
        if hasattr(self.report, "wasxfail"):
            return "xfailed" if self.report.skipped else "xpassed"
        if is_unexpected_pass(self.report):
            return "xpassed"
        return str(self.report.outcome)

    @property
    def proved(self) -> bool:
        return bool(self.answer.body.entered == 1 and self.answer.body.finished == 1)


def merge_phase(item: pytest.Item, when: Any, answers: Sequence[Answer]) -> list[pytest.TestReport]:
    """Merge one phase. Return the reports of subtests first and the phase's own report last.

    The phase fails if a rank failed, died or did not answer, or if the outcomes of the ranks differ. It also fails if
    a rank passed without entering and leaving the body exactly once.

    :raises pytest.fail.Exception: if ranks died or hung. An exception is used because a test may be expected to do so
        (``xfail``).
    """
    subtests, report = _merge(item, when, answers)
    failed = sum(subtest.failed for subtest in subtests)
    if failed and report.passed:
        # pytest counts failed subtests in the process in which they ran, which was a rank.
        report.outcome, report.longrepr = "failed", count_failed(failed)
    return [*subtests, report]


def merge_example(item: pytest.Item, answers: Sequence[Answer]) -> tuple[list[pytest.TestReport], pytest.TestReport]:
    """Merge the reports of one Hypothesis example, by the rules of a phase. Failed subtests do not fail the example.

    :raises pytest.fail.Exception: if ranks died or hung, and no other rank failed.
    """
    return _merge(item, "call", answers)


def count_failed(subtests: int) -> str:
    """Return the message of a test whose body passed, but not its subtests."""
    return f"contains {subtests} failed subtest{'s' if subtests > 1 else ''}"


def _merge(
    item: pytest.Item, when: Any, answers: Sequence[Answer]
) -> tuple[list[pytest.TestReport], pytest.TestReport]:
    total = len(answers)
    # A rank that has not set up the item has nothing to tear down.
    phases = [_read(item, answer, total) for answer in answers if answer.ok and answer.body.reports]
    subtests = _merge_subtests(item, phases, total)
    report = _merge_main(item, when, answers, phases)
    report.duration = max((answer.seconds for answer in answers), default=0.0)
    return subtests, report


def collection_differs(item: pytest.Item, answers: Sequence[Answer]) -> pytest.TestReport | None:
    """Return the failed report of an item that some ranks have not collected, or ``None`` if all have."""
    by_reason: dict[str, list[int]] = {}
    for answer in answers:
        if answer.ok and answer.body.not_collected:
            by_reason.setdefault(answer.body.not_collected, []).append(answer.rank)
    if not by_reason:
        return None
    lines = ["the pytest process has collected this test, but not every rank has"]
    lines += [f"{name_ranks(ranks, len(answers))} did not collect it: {why}" for why, ranks in by_reason.items()]
    lines.append(
        "A file must define the same tests in the pytest process and in all ranks. To skip a test in the ranks, call "
        "pytest.skip in a fixture or in the body"
    )
    return failed_report(item, "setup", "\n".join(lines))


def session_exit(item: pytest.Item, answers: Sequence[Answer]) -> BaseException | None:
    """Return the exception that ends this session as ``pytest.exit`` on a rank asks for.

    It hides the reports of the ranks. If another rank failed by itself, the session ends after its report instead. A
    status of zero counts only if all ranks give it, because a rank that ends early is no pass.
    """
    ends = {answer.rank: answer.body.exit for answer in answers if answer.ok and answer.body.exit is not None}
    if not ends:
        return None
    reason, status = next(iter(ends.values()))
    statuses = [number for _reason, number in ends.values()]
    if len(ends) < len(answers):
        reason += f" ({name_ranks(list(ends), len(answers))})"
    if len(ends) < len(answers) or any(number != status for number in statuses):
        status = next((number for number in statuses if number != 0), pytest.ExitCode.TESTS_FAILED)
    for answer in answers:
        if answer.rank not in ends and (answer.body.failed if answer.ok else answer.fate is not Fate.STOPPED):
            item.session.shouldstop = reason
            return None
    return pytest.exit.Exception(reason, status)


def output_sections(answers: Sequence[Answer], when: str) -> list[tuple[str, str]]:
    """Return report sections with what the pytest of each rank has captured (log records), and with its output."""
    total = len(answers)
    output = []
    for answer in answers:
        captured = answer.body.reports[-1]["sections"] if answer.ok and answer.body.reports else []
        printed = [(f"Captured {name} {when}", getattr(answer, name)) for name in ("stdout", "stderr")]
        output += [(title + _label(answer.rank, total), text) for title, text in [*captured, *printed] if text]
    return output


def is_unexpected_pass(report: pytest.TestReport) -> bool:
    """Return whether a test with a strict ``xfail`` marker passed."""
    return report.failed and hasattr(report, UNEXPECTED_PASS)


def crash_message(report: pytest.TestReport) -> str:
    """Return the message of the exception in a report, or the whole text of the report if it has no exception."""
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message) if crash is not None else report.longreprtext


def _label(rank: int, total: int) -> str:
    return f" [rank {rank}]" if total > 1 else ""


def failed_report(item: pytest.Item, when: Any, text: str) -> pytest.TestReport:
    """Make a failed report of a phase with a message instead of a traceback.

    It is for failures that ``xfail`` must not excuse: the test did not run, or differs between the ranks.
    """
    return _report(item, when, "failed", text)


def _report(
    item: pytest.Item, when: Any, outcome: Literal["passed", "failed"], longrepr: str | None
) -> pytest.TestReport:
    return pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords=dict.fromkeys(item.keywords, 1),
        outcome=outcome,
        longrepr=longrepr,
        when=when,
    )


def _read(item: pytest.Item, answer: Answer, total: int) -> _RankPhase:
    hook = item.config.hook
    reports = [
        hook.pytest_report_from_serializable(config=item.config, data=dict(data)) for data in answer.body.reports
    ]
    for report in reports[:-1]:
        report.sections = [(title + _label(answer.rank, total), text) for title, text in report.sections]
    return _RankPhase(answer, reports[-1], reports[:-1])


def _merge_main(
    item: pytest.Item, when: Any, answers: Sequence[Answer], phases: Sequence[_RankPhase]
) -> pytest.TestReport:
    total = len(answers)
    failed = [phase for phase in phases if phase.outcome == "failed"]
    xfailed = [phase for phase in phases if phase.outcome == "xfailed"]
    lost = [answer for answer in answers if not answer.ok]
    if failed:
        return _failed_like(failed, phases, total, sections(answers))
    declared = _declared_to_fail(item)
    if xfailed and all(answer.fate is Fate.STOPPED for answer in lost) and (declared or len(xfailed) == len(phases)):
        return _failed_as_expected(item, when, xfailed[0].report, phases, total)
    if lost:
        return _failed_with_lost_ranks(item, when, answers, phases, lost)
    if not phases:
        assert when == "teardown"
        return _report(item, when, "passed", None)
    outcomes = {phase.outcome for phase in phases}
    if len(outcomes) > 1:
        return failed_report(item, when, _disagreement(phases, total))
    if when == "call" and outcomes <= {"passed", "xpassed"}:
        proved = {phase.answer.rank for phase in phases if phase.proved}
        idle = [answer for answer in answers if answer.rank not in proved]
        if idle:
            return failed_report(item, when, _not_run(idle, total))
    report = phases[0].report
    for phase in phases[1:]:
        report.user_properties += [pair for pair in phase.report.user_properties if pair not in report.user_properties]
    return report


def _failed_with_lost_ranks(
    item: pytest.Item, when: Any, answers: Sequence[Answer], phases: Sequence[_RankPhase], lost: Sequence[Answer]
) -> pytest.TestReport:
    """Return the report of a strict ``xfail`` that passed on other ranks, which no lost rank may hide.

    :raises pytest.fail.Exception: in all other cases, so that a marker ``xfail`` excuses it.
    """
    total, text = len(answers), explain(answers)
    died = any(answer.fate is Fate.DIED for answer in lost)
    if not died and any(phase.outcome in ("skipped", "rejected") for phase in phases):
        # The others wait for what the rank that skipped the test does not do.
        text = f"{_disagreement(phases, total, lost)}\n\n{text}"
    if any(phase.outcome in ("passed", "xpassed") for phase in phases) and must_fail(item):
        return failed_report(item, when, f"{_disagreement(phases, total)}\n\n{text}")
    raise pytest.fail.Exception(text, pytrace=False)


def _failed_as_expected(
    item: pytest.Item, when: Any, report: pytest.TestReport, phases: Sequence[_RankPhase], total: int
) -> pytest.TestReport:
    """Return the report of a test that failed as expected, perhaps only on some of the ranks. A strict marker says all.

    :param report: that of the first rank on which the test failed.
    """
    if len({phase.outcome for phase in phases}) == 1:
        return report
    if must_fail(item):
        return failed_report(item, when, _disagreement(phases, total))
    by_rank = "; ".join(f"{ranks} {outcome}" for ranks, outcome in _outcomes(phases, total))
    vars(report)["wasxfail"] = f"{vars(report)['wasxfail']} [{by_rank}]".strip()
    return report


def _declared_to_fail(item: pytest.Item) -> bool:
    return next(item.iter_markers("xfail"), None) is not None


def must_fail(item: pytest.Item) -> bool:
    """Return whether a strict ``xfail`` marker says that a test always fails: then on every rank."""
    default = item.config.getini("strict_xfail")
    if default is None:
        default = item.config.getini("strict")
    given = [marker.kwargs.get("strict") for marker in item.iter_markers("xfail")]
    return any(default if strict is None else strict for strict in given)


def _failed_like(
    failed: Sequence[_RankPhase], phases: Sequence[_RankPhase], total: int, ends: Sequence[tuple[str, str]] = ()
) -> pytest.TestReport:
    """Return the report of the first failing rank. Add the results of the other ranks below its traceback.

    :param ends: title and text for each rank that did not report.
    """
    report = failed[0].report
    groups: dict[str, list[_RankPhase]] = {}
    for phase in failed:
        groups.setdefault(_crash(phase.report), []).append(phase)
    first, *others = groups.values()
    if total == 1:
        return report
    who = name_ranks([phase.answer.rank for phase in first], total)
    notes = [(f"this happened on {who}", "")]
    for group in others:
        ranks = name_ranks([phase.answer.rank for phase in group], total)
        notes.append((f"{ranks} failed differently", group[0].report.longreprtext))
    notes += ends
    unfailed = [phase for phase in phases if phase.outcome != "failed"]
    for ranks, outcome in _outcomes(unfailed, total):
        notes.append((f"{ranks} {'did not fail' if outcome == 'passed' else outcome}", ""))
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None and len(first) < total:
        crash.message = f"[{who}] {crash.message}"
    add_section = getattr(report.longrepr, "addsection", None)
    if add_section is not None:
        for title, text in notes:
            add_section(title, text)
    else:
        report.longrepr = "\n".join([report.longreprtext, *(f"--- {title} ---\n{text}" for title, text in notes)])
    return report


def _crash(report: pytest.TestReport) -> str:
    """Return a key that equal failures share: the location and the exception, without the values in the traceback."""
    crash = getattr(report.longrepr, "reprcrash", None)
    where = "" if crash is None else f"{crash.path}:{crash.lineno}:"
    return where + without_addresses(report.longreprtext if crash is None else crash.message)


def _outcomes(phases: Sequence[_RankPhase], total: int) -> list[tuple[str, str]]:
    """Return pairs of ranks and their outcome, both in words."""
    by_outcome: dict[str, list[_RankPhase]] = {}
    for phase in phases:
        by_outcome.setdefault(phase.outcome, []).append(phase)
    outcomes = []
    for outcome, group in by_outcome.items():
        reason = ""
        if outcome == "skipped" and isinstance(group[0].report.longrepr, tuple):
            reason = f" ({group[0].report.longrepr[2]})"
        elif outcome == "xfailed":
            reason = f" ({crash_message(group[0].report)})"
        elif outcome == "rejected":
            reason = " this example (assume)"
        outcomes.append((name_ranks([phase.answer.rank for phase in group], total), f"{outcome}{reason}"))
    return outcomes


def _disagreement(phases: Sequence[_RankPhase], total: int, lost: Sequence[Answer] = ()) -> str:
    parts = [f"{ranks} {outcome}" for ranks, outcome in _outcomes(phases, total)]
    if lost:
        parts.append(f"{name_ranks([answer.rank for answer in lost], total)} did not end")
    return (
        f"the ranks disagree: {'; '.join(parts)}. A distributed test must take the same "
        "branch on all ranks: decide by a value that is equal on all ranks, not by the rank, its files or its "
        "environment"
    )


def _not_run(idle: Sequence[Answer], total: int) -> str:
    counts = {(answer.body.entered, answer.body.finished) for answer in idle}
    seen = ", ".join(f"entered {entered} and finished {finished} times" for entered, finished in sorted(counts))
    who = name_ranks([answer.rank for answer in idle], total)
    return (
        f"{who} reported a pass without having run the test's body once ({seen}). Either a hook of a plugin returned "
        "before the body ran: check pytest_pyfunc_call and pytest_runtest_call. Or the function returned a "
        "generator or a coroutine, which nobody ran"
    )


def _merge_subtests(item: pytest.Item, phases: Sequence[_RankPhase], total: int) -> list[pytest.TestReport]:
    """Merge each subtest over the ranks.

    A subtest fails if it fails on a rank, if it did not run on a rank, or if its outcomes differ.
    """
    by_key: dict[tuple[str, int], list[_RankPhase]] = {}
    for phase in phases:
        for number, report in _numbered(phase.subtests):
            by_key.setdefault((_subtest_key(report), number), []).append(_RankPhase(phase.answer, report, []))
    return [_merge_subtest(item, name, reports, phases, total) for (name, _number), reports in by_key.items()]


def _merge_subtest(
    item: pytest.Item, name: str, found: Sequence[_RankPhase], phases: Sequence[_RankPhase], total: int
) -> pytest.TestReport:
    failed = [phase for phase in found if phase.outcome == "failed"]
    captured = [section for phase in found for section in phase.report.sections]
    if failed:
        report = _failed_like(failed, found, total)
        report.sections = captured
        return report
    report = found[0].report
    report.sections = captured
    ranks = {phase.answer.rank for phase in found}
    missing = [phase.answer.rank for phase in phases if phase.answer.rank not in ranks]
    xfailed = [phase.report for phase in found if phase.outcome == "xfailed"]
    if missing:
        _fail(report, f"subtest {name} did not run on {name_ranks(missing, total)}")
    elif xfailed and _declared_to_fail(item) and not must_fail(item):
        return xfailed[0]
    elif len({phase.outcome for phase in found}) > 1:
        _fail(report, f"in subtest {name} {_disagreement(found, total)}")
    return report


def _fail(report: pytest.TestReport, text: str) -> None:
    report.outcome, report.longrepr = "failed", text
    # pytest does not show a failed report that has the attribute of an expected failure.
    vars(report).pop("wasxfail", None)


def _numbered(subtests: Sequence[pytest.TestReport]) -> Iterator[tuple[int, pytest.TestReport]]:
    """Number the subtests that have the same name, because a loop may give one name to all of them."""
    seen: Counter[str] = Counter()
    for report in subtests:
        yield seen[_subtest_key(report)], report
        seen[_subtest_key(report)] += 1


def _subtest_key(report: Any) -> str:
    """Return the message and the parameters of a subtest as pytest shows them."""
    context = getattr(report, "context", None)
    message, given = getattr(context, "msg", None), dict(getattr(context, "kwargs", {}))
    # Newer versions of pytest already send the values as text.
    shown = ", ".join(f"{name}={value if isinstance(value, str) else repr(value)}" for name, value in given.items())
    parts = [f"[{message}]"] if message is not None else []
    return " ".join([*parts, f"({shown})"] if shown else parts) or "(without a name)"
