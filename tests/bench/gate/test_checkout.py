"""Choice of the pytest-ddl that measures the two versions."""

from __future__ import annotations

from pathlib import Path

import pytest

import pytest_ddl
from pytest_ddl.bench.gate.plan import GatePlan
from pytest_ddl.bench.gate.side import PROTOCOL
from pytest_ddl.bench.gate.worktrees import Repository, both_sides
from pytest_ddl.bench.outcome import UsageError
from tests.bench.gate.repositories import git


def sides(project: Path, base: int | None, head: int | None, instrument: str) -> tuple[list[Path], list[str]]:
    """Return the pytest-ddl that measures each side, relative to its version. One with a protocol brings its own."""
    for name, protocol in (("base", base), ("head", head)):
        git(project, "checkout", "-q", "-b", name, "main")
        if protocol is not None:
            file = project / "pytest_ddl" / "bench" / "gate" / "side.py"
            file.parent.mkdir(parents=True)
            file.write_text(f"import json\n\nPROTOCOL = {protocol}\n")
            git(project, "add", "-A")
            git(project, "commit", "-qm", name)
    repository = Repository(project)
    plan = GatePlan("base", "head", ("train:one",), instrument=instrument, repository=project)
    with both_sides(plan, repository, repository.version("base"), repository.version("head")) as (one, other, notes):
        found = [
            side.package.relative_to(side.root) if side.root in side.package.parents else side.package
            for side in (one, other)
        ]
        return found, notes


GATES = [Path(pytest_ddl.__file__).resolve()] * 2
OWN = [Path("pytest_ddl/__init__.py")] * 2


@pytest.mark.parametrize(
    ("base", "head", "instrument", "expected", "note"),
    [
        (PROTOCOL, PROTOCOL, "auto", OWN, "each version is measured by its own pytest-ddl"),
        (PROTOCOL, PROTOCOL, "gate", GATES, ""),
        (None, PROTOCOL, "auto", GATES, ""),
        (None, None, "auto", GATES, ""),
        (PROTOCOL - 1, PROTOCOL, "auto", GATES, "both versions are measured by this pytest-ddl: that of BASE uses"),
        (PROTOCOL - 1, PROTOCOL - 1, "auto", GATES, "that of BASE and HEAD uses another protocol"),
    ],
)
def test_each_version_measures_itself_where_the_gate_can_talk_to_both(
    project: Path, base: int | None, head: int | None, instrument: str, expected: list[Path], note: str
) -> None:
    found, notes = sides(project, base, head, instrument)
    assert found == expected
    assert note in "".join(notes)
    assert len(notes) == bool(note)


@pytest.mark.parametrize(
    ("base", "words"),
    [
        (None, "BASE does not contain a pytest-ddl with a gate"),
        (PROTOCOL - 1, "pytest-ddl of BASE uses another protocol"),
    ],
)
def test_what_cannot_measure_itself_is_refused_where_that_is_asked_for(
    project: Path, base: int | None, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        sides(project, base, PROTOCOL, "version")
