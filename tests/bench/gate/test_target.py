"""The training function is found at its place, and loaded from no other place."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_ddl.bench.gate import side
from pytest_ddl.bench.gate.target import FromVersion, VersionTarget, VersionTargetError
from pytest_ddl.bench.launching.ranks import BenchError
from pytest_ddl.bench.launching.remote import source_of
from pytest_ddl.bench.outcome import UsageError
from pytest_ddl.cluster.protocol import Failure

PROGRAM = "def train(run):\n    run.append('ran')\n\nnumber = 3\n"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "version"
    (folder / "gate_bench").mkdir(parents=True)
    (folder / "gate_bench" / "training.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(str(folder))
    before = set(sys.modules)
    yield folder
    for name in set(sys.modules) - before:
        del sys.modules[name]


def program(text: str, root: Path) -> FromVersion:
    target = VersionTarget.parse(text)
    file = target.find(root, (root,))
    assert file is not None
    return FromVersion(target, file, root, (root,), root.parent / "checkout")


@pytest.mark.parametrize("text", ["gate_bench.training:train", "gate_bench/training.py:train"])
def test_both_forms_are_found_and_run(root: Path, text: str) -> None:
    function = program(text, root)
    calls: list[str] = []
    pickle.loads(pickle.dumps(function))(calls)
    assert calls == ["ran"]
    assert source_of(function) == str((root / "gate_bench" / "training.py").resolve())


@pytest.mark.parametrize("text", ["train", "a b:train", "module:", ":train", "module:a-b", "path/file:train"])
def test_what_is_no_target_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="must be MODULE:FUNCTION"):
        VersionTarget.parse(text)


def test_a_version_that_lacks_the_file_has_none(root: Path) -> None:
    assert VersionTarget.parse("gate_bench.missing:train").find(root, (root,)) is None
    assert VersionTarget.parse("gate_bench/missing.py:train").find(root, (root,)) is None


def test_a_missing_function_is_named_with_those_that_there_are(root: Path) -> None:
    with pytest.raises(VersionTargetError, match=r"gate_bench/training\.py has no 'trian'; it has train"):
        program("gate_bench.training:trian", root)([])


def test_what_is_no_function_is_named(root: Path) -> None:
    with pytest.raises(VersionTargetError, match="is a int, not a training function"):
        program("gate_bench.training:number", root)([])


def test_a_module_from_elsewhere_is_refused(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = tmp_path / "installed" / "gate_bench"
    installed.mkdir(parents=True)
    (installed / "training.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(str(installed.parent))
    with pytest.raises(VersionTargetError, match="of the version to be measured"):
        program("gate_bench.training:train", root)([])


def test_a_program_that_runs_code_of_the_checkout_fails(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    (checkout / "gate_helpers.py").write_text("")
    (root / "late.py").write_text("def train(run):\n    import gate_helpers\n")
    monkeypatch.syspath_prepend(str(checkout))
    with pytest.raises(VersionTargetError, match=r"gate_helpers from .*Both versions would run the same code"):
        program("late:train", root)([])


def test_a_program_that_runs_an_installed_copy_fails(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source is in a folder of the version from which nothing is imported, so both sides would run the copy."""
    for folder in (root / "python" / "gate_package", tmp_path / "site-packages" / "gate_package"):
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("TIMES = 1\n")
    (root / "late.py").write_text("def train(run):\n    import gate_package\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site-packages"))
    with pytest.raises(VersionTargetError, match=r"gate_package from .*site-packages.*Uninstall the package.*--path"):
        program("late:train", root)([])


def test_a_problem_with_the_target_is_shown_without_what_the_rank_printed() -> None:
    failure = Failure(f"{VersionTargetError.__module__}.VersionTargetError", "train.py has no 'trian'", "Traceback ...")
    assert side._error_text(BenchError("worker:0 failed: Traceback ...", failure)) == "train.py has no 'trian'"
    other = replace(failure, type="ValueError")
    assert side._error_text(BenchError("worker:0 failed: Traceback ...", other)) == "worker:0 failed: Traceback ..."
