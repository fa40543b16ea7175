"""Every fix that a report of faults prints can be applied to a program with the mistake, which recovers then."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ddl import check_training
from pytest_ddl.faults.verdict import FIXES, RecoveryVerdict
from tests.fixes.modules import module_of
from tests.fixes.recovery_cases import CASES, RecoveryCase

GIVEN = {"global_batch_size": 8, "timeout": 100, "faults": "kill worker:0 before step 4"}


def test_every_fix_of_a_verdict_has_code_that_a_case_applies() -> None:
    assert {case.verdict for case in CASES} == set(FIXES)
    assert all(fix.code for fix in FIXES.values())


@pytest.mark.nightly(each_commit=("lost",))
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.verdict.value)
def test_a_program_with_the_mistake_recovers_after_its_fix(
    case: RecoveryCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    report = check_training(module_of(tmp_path, "wrong", case.wrong()).train, "mirrored", **GIVEN)
    assert [trial.verdict for trial in report.trials] == [case.verdict], str(report)
    assert f"fix: {FIXES[case.verdict].text}" in str(report)
    mended = check_training(module_of(tmp_path, "mended", case.right()).train, "mirrored", **GIVEN, exact=True)
    assert mended.passed, f"{case.right()}\n{mended}"
    assert [trial.verdict for trial in mended.trials] == [RecoveryVerdict.EXACT], str(mended)
