"""Let a test of a defect fail on the versions that have the defect, and only with the signs of the defect."""

from __future__ import annotations

from pathlib import Path

import pytest

from suites import subject
from suites.installed import version_of
from suites.regressions.table import FILE, MARKER, regressions

FOLDER = Path(__file__).parent


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{MARKER}(number): entry of {FILE.name} that a test is about")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(FOLDER):
            _expect(item)


def _expect(item: pytest.Item) -> None:
    """Mark a test that must be red with the installed versions, or that is about the package that is not tested.

    :raises pytest.UsageError: if the test names no entry, or one that has no signs.
    """
    mark = item.get_closest_marker(MARKER)
    given = mark.args[0] if mark is not None and mark.args else None
    regression = regressions().get(str(given))
    if regression is None or not regression.has_test:
        raise pytest.UsageError(f"{item.nodeid}: {MARKER}({given!r}) names no entry of {FILE.name} that has signs")
    tested = subject.of_test(item)
    if regression.package in subject.KERAS and regression.package != tested:
        item.add_marker(pytest.mark.skip(reason=f"it is about {regression.package}, and {tested} is tested"))
        return
    installed = version_of(regression.package)
    if installed is None:
        item.add_marker(pytest.mark.skip(reason=f"{regression.package} is not installed"))
    elif regression.is_in(installed):
        # A check of the exception, because an old version may fail for another reason, which is not the defect.
        raises = pytest.RaisesExc(check=regression.is_shown_by)
        item.add_marker(pytest.mark.xfail(reason=regression.reason, raises=raises, strict=True))
