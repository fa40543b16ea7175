"""``pytest-ddl asv run`` measures the checked-out code: stale copies are detected, and correct set-ups work."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pytest_ddl.bench import provenance
from pytest_ddl.bench.launching.remote import source_of
from pytest_ddl.bench.provenance import ForeignCodeError, FromSource, SourceTrees


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with a package in ``python/``, which is not imported from there by itself."""
    folder = tmp_path / "project"
    write(folder / "python" / "mypkg" / "__init__.py", "")
    write(folder / "python" / "mypkg" / "train.py", "slow\n")
    write(folder / "benchmarks" / "models.py", "now\n")
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    subprocess.run(["git", "-C", str(folder), "add", "--all"], check=True)
    return folder


def write(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def module(name: str, file: Path) -> ModuleType:
    made = ModuleType(name)
    made.__file__ = str(file)
    return made


def strangers(tree: Path, name: str, file: Path) -> dict[str, Path]:
    source = SourceTrees((str(tree),), (str(tree),), str(tree / "benchmarks"))
    assert SourceTrees.from_environ(source.as_environ()) == source
    return source.foreign([module(name, file)])


@pytest.mark.parametrize("site", ["elsewhere/site-packages", "project/.venv/lib/site-packages", "second-clone/python"])
def test_a_copy_that_differs_is_a_stranger(tree: Path, site: str) -> None:
    """A copy in an environment within the checkout is a stranger, too."""
    stale = write(tree.parent / site / "mypkg" / "train.py", "fast\n")
    assert strangers(tree, "mypkg.train", stale) == {"mypkg.train": stale}


@pytest.mark.parametrize("site", ["elsewhere/site-packages", "project/.venv/lib/site-packages"])
def test_what_was_installed_from_this_very_source_is_not(tree: Path, site: str) -> None:
    """Installed anew for each commit, generated and compiled modules included."""
    site_packages = tree.parent / site / "mypkg"
    assert strangers(tree, "mypkg.train", write(site_packages / "train.py", "slow\r\n")) == {}
    assert strangers(tree, "mypkg._version", write(site_packages / "_version.py", "1.2.3")) == {}
    assert strangers(tree, "mypkg.fast", write(site_packages / "fast.cpython-311-x86_64-linux-gnu.so", "")) == {}


def test_the_checkout_itself_and_other_projects_are_none(tree: Path) -> None:
    assert strangers(tree, "mypkg.train", tree / "python" / "mypkg" / "train.py") == {}
    other = write(tree.parent / "site-packages" / "other" / "train.py", "")
    assert strangers(tree, "other.train", other) == {}
    assert strangers(tree, "numpy", write(tree / "venv/lib/site-packages/numpy/__init__.py", "")) == {}


def test_benchmarks_may_be_of_another_checkout_than_what_they_measure(tree: Path) -> None:
    later = write(tree.parent / "main" / "benchmarks" / "models.py", "later\n")
    source = SourceTrees((str(tree),), (str(tree),), str(later.parent))
    assert source.foreign([module("benchmarks.models", later)]) == {}


def test_without_pytest_ddl_asv_nothing_is_checked() -> None:
    assert SourceTrees.from_environ({}) is None


def test_a_function_that_imports_a_stranger_fails_and_tells_the_cure(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = write(tree.parent / "site-packages" / "mypkg" / "train.py", "fast\n")
    loaded: dict[str, ModuleType] = {}

    def train(run: Any) -> None:
        # The module is imported by the function, not by the function's module.
        loaded["mypkg.train"] = module("mypkg.train", stale)

    monkeypatch.setattr(provenance, "sys", SimpleNamespace(modules=loaded))
    proven = FromSource(train, SourceTrees((str(tree),), (str(tree),), ""))
    assert source_of(proven) == str(Path(__file__).resolve())
    with pytest.raises(ForeignCodeError, match=r"mypkg.train from .*site-packages.*--path"):
        proven(None)
