"""Types that users annotate with: an editor completes them, and a wrong use is an error."""

from __future__ import annotations

from pathlib import Path

import pytest
from mypy import api

pytestmark = pytest.mark.slow

TYPED = """
import pytest_ddl

def train(run: pytest_ddl.Run) -> None:
    reveal_type(run.num_replicas)
    run.watch(models=1)

def test_train(ddl_equivalence: pytest_ddl.Equivalence, ddl_cluster: pytest_ddl.ClusterHandle) -> None:
    report = ddl_equivalence(train, global_batch_size=12)
    reveal_type(report.findings[0].cause)
    ddl_equivalence(train, batch_size=12)
    reveal_type(ddl_cluster.tasks)

def check(reference: pytest_ddl.TrainingRecord, distributed: pytest_ddl.TrainingRecord,
          tolerance: pytest_ddl.Tolerance) -> pytest_ddl.CheckResult:
    return pytest_ddl.CheckResult("OWN", pytest_ddl.Outcome.PASS)

pytest_ddl.Check("OWN", check, "title", "nothing", pytest_ddl.Role.STATE)
"""


def test_programs_and_checks_of_users_are_typed(tmp_path: Path) -> None:
    (tmp_path / "typed.py").write_text(TYPED)
    text, error, _status = api.run([str(tmp_path / "typed.py"), "--no-incremental", "--follow-imports=silent"])
    revealed = [line.partition("Revealed type is ")[2] for line in text.splitlines() if "Revealed type" in line]
    assert revealed[:2] == ['"int"', '"str | None"'], text + error
    assert len(revealed) == 3
    assert "Any" not in revealed[2]
    wrong = [line for line in text.splitlines() if "error:" in line]
    assert len(wrong) == 2, text
    assert "models" in wrong[0]
    assert "batch_size" in wrong[1]
