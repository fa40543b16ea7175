"""Changes in the nightly builds of TensorFlow and Keras: known failures that they mend, and new ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from suites.coverage import LETTERS
from suites.matrix.results import Outcome, Result, split

KINDS = NEW, OTHERWISE, FIXED, STILL = "new", "fails in another way", "fixed", "still there"
"""Kinds of news about a defect. ``FIXED`` and ``STILL`` are for the known failures of the newest release."""


def news(test: Outcome, release: Outcome | None) -> str:
    """Return what a test says about defects, or an empty text.

    :param release: the outcome of the same test with the newest release, if it ran there.
    """
    if test.outcome == "fail":
        return FIXED if test.fixed else OTHERWISE if test.defect else NEW
    known = release is not None and release.outcome == "xfail"
    if test.outcome == "xfail":
        return STILL if known or release is None else NEW
    return FIXED if test.outcome == "pass" and known else ""


def compared(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Return an entry for each nightly cell that ran, with its defects: the newest release is that of these results."""
    found = []
    for nightly in (result for result in results if result.cell.nightly and result.tests):
        cell = nightly.cell
        releases = [
            result
            for result in results
            if result.tests
            and not result.cell.nightly
            and (result.cell.subject, result.cell.device, result.tier) == (cell.subject, cell.device, nightly.tier)
        ]
        release = max(releases, key=lambda result: result.cell.order, default=None)
        found.append(
            {
                "cell": cell.id,
                "release": str(release.cell) if release is not None else "",
                "defects": list(_defects(nightly, release)),
            }
        )
    return found


def _defects(nightly: Result, release: Result | None) -> Iterable[dict[str, Any]]:
    before = {test.key: test for test in release.tests} if release is not None else {}
    groups: dict[tuple[str, str, str], list[Outcome]] = defaultdict(list)
    for test in nightly.tests:
        kind = news(test, before.get(test.key))
        if kind == FIXED:
            groups[kind, test.function, test.defect or before[test.key].reason].append(test)
        elif kind:
            # Failures without an entry have messages with numbers, so that they are one for each test.
            groups[kind, test.function, test.reason if test.outcome == "xfail" else ""].append(test)
    for (kind, function, what), tests in sorted(groups.items(), key=lambda group: (KINDS.index(group[0][0]), group[0])):
        said, place = split(what or tests[0].reason)
        letters = {LETTERS.get(test.strategy, "-") for test in tests}
        yield {
            "kind": kind,
            "test": function,
            "what": said,
            "place": place,
            "known": tests[0].outcome != "fail",
            "strategies": "".join(sorted(letters)),
            "number": len(tests),
        }
