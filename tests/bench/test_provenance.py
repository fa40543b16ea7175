"""Imported code: code that should come from a version but does not, and code that belongs to no version."""

from __future__ import annotations

import json
import sysconfig
from importlib.metadata import Distribution, PathDistribution
from pathlib import Path
from types import ModuleType

import pytest

from pytest_ddl.bench.provenance import foreign_modules

SITE = Path("/env/lib/python3.11/site-packages")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "version"
    folder.mkdir()
    return folder


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return tmp_path / "checkout"


def write(*files: Path) -> None:
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")


def foreign(root: Path, checkout: Path, name: str, file: Path, installed: list[Distribution] | None = None) -> bool:
    made = ModuleType(name)
    made.__file__ = str(file)
    found = foreign_modules([made], root, [root], checkout, installed or [])
    assert found in ({}, {name: file})
    return bool(found)


def distribution(
    site: Path, name: str, url: str = "", editable: bool = False, files: tuple[str, ...] = ()
) -> PathDistribution:
    """Write the files that an installer leaves of a distribution, and return the distribution."""
    folder = site / f"{name}-1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Name: {name}\nVersion: 1.0\n")
    (folder / "RECORD").write_text("".join(f"{file},,\n" for file in files))
    for file in files:
        write(site / file)
    if url:
        (folder / "direct_url.json").write_text(json.dumps({"url": url, "dir_info": {"editable": editable}}))
    return PathDistribution(folder)


def test_code_of_the_checkout_and_installed_copies_are_foreign(root: Path, checkout: Path) -> None:
    write(root / "bench" / "training.py")
    assert not foreign(root, checkout, "bench.training", root / "bench" / "training.py")
    assert foreign(root, checkout, "bench.training", SITE / "bench" / "training.py")
    assert foreign(root, checkout, "helpers", checkout / "helpers.py")
    assert not foreign(root, checkout, "numpy", checkout / ".venv/lib/site-packages/numpy/__init__.py")
    assert not foreign(root, checkout, "pytest_ddl.bench", checkout / "pytest_ddl" / "bench.py")


@pytest.mark.parametrize("folder", ["python", "packages/core/src", "lib"])
@pytest.mark.parametrize("elsewhere", [SITE, Path("/home/u/second-clone/python")])
def test_a_package_anywhere_in_the_version_is_its_own(root: Path, checkout: Path, folder: str, elsewhere: Path) -> None:
    write(root / folder / "mypkg" / "__init__.py", root / folder / "single.py")
    assert foreign(root, checkout, "mypkg", elsewhere / "mypkg" / "__init__.py")
    assert foreign(root, checkout, "single", elsewhere / "single.py")
    assert not foreign(root, checkout, "other", elsewhere / "other.py")


def test_a_compiled_module_is_known_by_its_source(root: Path, checkout: Path) -> None:
    write(root / "ext" / "fast.pyx")
    assert foreign(root, checkout, "ext.fast", SITE / "ext" / "fast.cpython-311-x86_64-linux-gnu.so")
    assert not foreign(root, checkout, "ext.slow", SITE / "ext" / "slow.cpython-311-x86_64-linux-gnu.so")


@pytest.mark.parametrize(
    "file", ["mypkg/tensorflow/__init__.py", "examples/tensorflow/mnist.py", "vendor/tensorflow/__init__.py"]
)
def test_a_folder_of_the_same_name_does_not_make_a_dependency_foreign(root: Path, checkout: Path, file: str) -> None:
    write(root / "mypkg" / "__init__.py", root / file)
    assert not foreign(root, checkout, "tensorflow", SITE / "tensorflow" / "__init__.py")


def test_the_standard_library_is_nobodys(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The standard library of a Conda environment within the checkout is not foreign either."""
    library = tmp_path / "checkout" / "env" / "lib" / "python3.11"
    assert foreign(root, tmp_path / "checkout", "json", library / "json" / "__init__.py")
    monkeypatch.setattr(sysconfig, "get_path", lambda _kind: str(library))
    assert not foreign(root, tmp_path / "checkout", "json", library / "json" / "__init__.py")
    write(root / "mypkg.py")
    assert foreign(root, tmp_path / "checkout", "mypkg", library / "site-packages" / "mypkg.py")


def test_all_of_an_installation_from_the_checkout_is_foreign(root: Path, checkout: Path, tmp_path: Path) -> None:
    """The name does not matter: nothing in the version shows that ``_fast`` is built from it."""
    site = tmp_path / "site-packages"
    (checkout / "core").mkdir(parents=True)
    own = distribution(site, "core", (checkout / "core").as_uri(), files=("_fast.so",))
    other = distribution(site, "numpy", files=("numpy/__init__.py",))
    assert foreign(root, checkout, "_fast", site / "_fast.so", [own, other])
    assert not foreign(root, checkout, "numpy", site / "numpy" / "__init__.py", [own, other])


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("pyproject.toml", '[build-system]\nname = "no"\n[project]\nversion = "1"\nname = "My.Pkg"\n'),
        ("core/pyproject.toml", "[tool.poetry]\nname='my_pkg'\n"),
        ("setup.cfg", "[metadata]\nname = my-pkg\n"),
    ],
)
def test_an_installation_of_the_same_project_is_foreign(root: Path, checkout: Path, file: str, text: str) -> None:
    """The installation may come from an index, a wheel or a second clone."""
    write(root / file)
    (root / file).write_text(text)
    site, clone = root.parent / "site-packages", root.parent / "clone"
    installed = distribution(site, "my_pkg", files=("_fast.so",))
    assert foreign(root, checkout, "_fast", site / "_fast.so", [installed])
    other = distribution(site, "no", files=("no.py",))
    assert not foreign(root, checkout, "no", site / "no.py", [installed, other])
    editable = distribution(root.parent / "b", "my_pkg", clone.as_uri(), editable=True, files=("_my_pkg_loader.py",))
    assert foreign(root, checkout, "_fast", clone / "build" / "_fast.so", [editable])
    assert not foreign(root, checkout, "_my_pkg_loader", root.parent / "b" / "_my_pkg_loader.py", [editable])


def test_an_editable_dependency_is_none_of_the_projects_own(root: Path, checkout: Path, tmp_path: Path) -> None:
    clone = tmp_path / "dependency"
    editable = distribution(tmp_path / "site-packages", "dependency", clone.as_uri(), editable=True)
    assert not foreign(root, checkout, "dependency", clone / "dependency.py", [editable])
