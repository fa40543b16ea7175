"""The list of live defects: entries of one cause are one defect, and the worst harm comes first."""

from __future__ import annotations

import pytest

from suites.known_failures import KnownFailure
from suites.live_defects import Defect, Harm, live


def entry(cause: str, **given: object) -> KnownFailure:
    return KnownFailure("test_it", (cause,), "a sum is wrong", **given)


@pytest.mark.parametrize(
    ("entries", "harm"),
    [
        ([entry("gradient-not-aggregated")], Harm.TRAINS_WRONGLY),
        ([entry("metric-wrong")], Harm.REPORTS_WRONGLY),
        ([entry("worker-raised", message="no")], Harm.STOPS),
        ([entry("gradient-not-aggregated", message="no")], Harm.STOPS),
        ([entry("layout-wrong")], Harm.IS_NOT_AS_DOCUMENTED),
        ([entry("resume-data-wrong")], Harm.RESUMES_WRONGLY),
        ([entry("worker-died", verdicts=("lost",), message="no")], Harm.RESUMES_WRONGLY),
        ([entry("worker-raised", message="no"), entry("metric-wrong")], Harm.REPORTS_WRONGLY),
    ],
)
def test_a_defect_has_the_worst_harm_of_its_entries(entries, harm):
    assert Defect(tuple(entries)).harm is harm


def test_a_defect_has_the_strategies_and_versions_of_all_its_entries():
    found = Defect(
        (
            entry("metric-wrong", strategies=("mirrored",), keras=">=3.5"),
            entry("metric-wrong", strategies=("central_storage", "mirrored"), tensorflow=">=2.16", keras=">=3.5"),
        )
    )
    assert found.strategies == ("central_storage", "mirrored")
    assert found.versions == ("keras >=3.5", "tensorflow >=2.16")
    assert Defect((entry("metric-wrong", strategies=("mirrored",)), entry("metric-wrong"))).strategies == ()


def test_each_live_defect_is_there_once_with_what_shows_it():
    found = live()
    assert found
    order = list(Harm)
    assert [defect.harm for defect in found] == sorted((one.harm for one in found), key=order.index)
    assert all(defect.program is not None or defect.links or defect.entries[0].known for defect in found)
    programs = [defect.program.path for defect in found if defect.program is not None]
    assert len(programs) == len(set(programs))
