"""Selection of the tests that run only at night: those marked with ``nightly``, without the ids that the mark keeps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import pytest


def left_to_the_night(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """Return the slow tests that do not run for each commit.

    ``nightly(each_commit=("a", "b-2"))`` keeps the parametrized tests with these ids. If no id is equal, it keeps
    those that begin with these parameters.
    """
    functions: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("nightly") and item.get_closest_marker("slow"):
            functions[item.nodeid.partition("[")[0]].append(item)
    return {item for tests in functions.values() for item in _left_out(tests)}


def _left_out(tests: Sequence[pytest.Item]) -> list[pytest.Item]:
    mark = tests[0].get_closest_marker("nightly")
    names: tuple[str, ...] = mark.kwargs.get("each_commit", ()) if mark else ()
    ids = {test: test.nodeid.partition("[")[2].removesuffix("]") for test in tests}
    kept: set[str] = set()
    for name in names:
        found = {name} & set(ids.values()) or {each for each in ids.values() if each.startswith(f"{name}-")}
        if not found:
            # A renamed parameter must not leave a commit without this test.
            return []
        kept |= found
    return [test for test in tests if ids[test] not in kept]
