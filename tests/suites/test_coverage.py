"""Table of the items that the suite covers."""

from __future__ import annotations

import pytest

from suites.coverage import Covered, table


@pytest.mark.parametrize(
    "one",
    [
        Covered("metric.Mean", "mirrored", True, False, True, "eager"),
        Covered("metric.Mean", "", False, False, False, ""),
        Covered("metric.Mean", "multi_worker_mirrored", True, True, False, "function"),
    ],
)
def test_what_is_attached_to_a_report_is_read_again(one):
    assert Covered.parse(str(one)) == one


def test_both_modes_count_only_if_each_was_run_under_the_strategy():
    def row(*modes):
        found = [Covered("metric.Mean", strategy, True, False, False, mode) for strategy, mode in modes]
        return next(line for line in table(found) if line.startswith("metric.Mean ")).split()

    assert row(("mirrored", "eager"), ("mirrored", "function"))[1:4] == ["M", "M", "M"]
    assert row(("mirrored", "eager"), ("central_storage", "function"))[1:4] == ["MC", "MC", "parity,"]
