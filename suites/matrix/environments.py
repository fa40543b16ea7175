"""Make the environment of a cell: one of its own for each TensorFlow, and a folder for each Keras in front of it.

Keras is pure Python, and the environment has what Keras requires. A cell therefore costs seconds.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from suites.installed import DISTRIBUTIONS
from suites.matrix.cells import NEWEST, NIGHTLY, Cell

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
LONGEST = 1800.0
"""Most seconds for one call of the installer. TensorFlow is large."""
_IMPORTED = {
    name.replace("-", "_"): package for package, names in DISTRIBUTIONS.items() for name in names if name != package
}
"""Name under which a package is installed -> package that is imported."""
_PROBE = """
import json, sys
from importlib.metadata import distributions, entry_points
found, imported = {}, json.loads(sys.argv[1])
for one in distributions():
    name = one.metadata["Name"].lower().replace("-", "_")
    found.setdefault(imported.get(name, name), one)
print(json.dumps({
    "python": "%d.%d.%d" % sys.version_info[:3],
    "versions": {name: one.version for name, one in found.items()},
    "requires": {name: found[name].requires or [] for name in ("tensorflow", "keras", "tf_keras") if name in found},
    "pythons": {name: one.metadata["Requires-Python"] or "" for name, one in found.items()
                if name in ("tensorflow", "keras", "tf_keras")},
    "plugin": any(one.name == "ddl" for one in entry_points(group="pytest11")),
}))
"""
"""Program that runs in an environment and prints what is in it."""
_NIGHTLY = ("tf-nightly", "keras-nightly", "tf_keras-nightly")
"""Packages of the development versions. They have no releases, so installers take their newest builds."""


class SetUpError(RuntimeError):
    """An environment cannot be made. The message is one line."""


@dataclass(frozen=True)
class Environment:
    """Python environment in which a cell runs."""

    python: Path
    path: tuple[Path, ...]
    """Folders in front of those of the environment: Keras, and the repository."""
    versions: Mapping[str, str]
    """Name of a package -> version, with ``python``."""
    has_plugin: bool
    """True if pytest finds the plugin by itself."""
    forbidden: tuple[str, ...] = ()
    """Requirements of the packages that forbid this pair."""


def requirements(cell: Cell, tools: Sequence[str]) -> list[str]:
    """Return what is installed for a cell, without Keras: TensorFlow's own requirement brings a version of it."""
    own = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    others = [oldest(text) for text in (*own, *tools)] if cell.oldest else [*own, *tools]
    if cell.nightly:
        return [*_NIGHTLY, *others]
    libraries = "[and-cuda]" if cell.device else ""
    return [f"tensorflow{libraries}=={cell.tensorflow}", f"tf_keras=={cell.tensorflow.rpartition('.')[0]}.*", *others]


def oldest(text: str) -> str:
    """Return the requirement of the oldest version that a requirement allows; itself, if it names none."""
    lowest = [one.version for one in Requirement(text).specifier if one.operator in (">=", "==", "~=")]
    return f"{Requirement(text).name}=={lowest[0]}" if lowest else text


def forbidden(probe: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the requirements of TensorFlow, Keras and tf_keras that what is installed does not meet, in words."""
    versions, found = probe["versions"], []
    for name, wanted in probe["pythons"].items():
        if wanted and not SpecifierSet(wanted).contains(probe["python"]):
            found.append(f"{name} {versions[name]} requires Python {wanted}")
    for name, texts in probe["requires"].items():
        for requirement in map(Requirement, texts):
            package = requirement.name.lower().replace("-", "_")
            here = versions.get(_IMPORTED.get(package, package))
            marker = requirement.marker
            if marker is not None and not marker.evaluate({"python_version": _minor(probe["python"]), "extra": ""}):
                continue
            if here is None:
                found.append(f"{name} {versions[name]} requires {requirement.name}")
            elif not requirement.specifier.contains(here, prereleases=True):
                wanted = f"{requirement.name}{requirement.specifier}"
                found.append(f"{name} {versions[name]} requires {wanted}")
    return tuple(found)


def _minor(python: str) -> str:
    return ".".join(python.split(".")[:2])


def prepare(
    cell: Cell, folder: Path, tools: Sequence[str], *, existing: Path | None = None, keras: Path | None = None
) -> tuple[Environment, float]:
    """Return the environment of a cell, and the seconds that it took.

    :param folder: folder in which environments are made, and used again.
    :param existing: interpreter of an environment that already has TensorFlow, to use instead.
    :param keras: folder that already has Keras, to use instead.
    :raises SetUpError: if the installer fails, or an existing environment has other versions.
    """
    begin = time.monotonic()
    python = existing or _base(cell, folder / "environments" / cell.environment, tools)
    path: list[Path] = []
    if cell.keras not in (NEWEST, NIGHTLY) and _probe(python, [])["versions"].get("keras") != cell.keras:
        path.append(_overlay(cell.keras, folder / "keras" / cell.keras, keras))
    path.append(ROOT)
    probe = _probe(python, path)
    versions = {**probe["versions"], "python": probe["python"]}
    here = versions.get("tensorflow"), versions.get("keras")
    wanted = cell.tensorflow, here[1] if cell.keras == NEWEST else cell.keras
    if not cell.nightly and here != wanted:
        raise SetUpError(f"{python} has TensorFlow and Keras {here}, not {wanted}")
    made = Environment(python, tuple(path), versions, probe["plugin"], forbidden(probe))
    return made, time.monotonic() - begin


def _probe(python: Path, path: Sequence[Path]) -> dict[str, Any]:
    program = f"import sys; sys.path[:0] = {[str(folder) for folder in path]!r}\n{_PROBE}"
    given: dict[str, Any] = json.loads(_call([str(python), "-I", "-W", "ignore", "-c", program, json.dumps(_IMPORTED)]))
    return given


def _base(cell: Cell, folder: Path, tools: Sequence[str]) -> Path:
    python, done = folder / "bin" / "python", folder / "requirements.txt"
    # Builds of another day are other versions.
    day = [f"# of {date.today()}"] if cell.nightly else []
    wanted = "\n".join([*requirements(cell, tools), *day]) + "\n"
    if done.is_file() and done.read_text(encoding="utf-8") == wanted:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    make = [*uv(), "venv", "--quiet", "--python", sys.executable] if uv() else [sys.executable, "-m", "venv"]
    _call([*make, str(folder)])
    _call([*_installer(python), *requirements(cell, tools)])
    done.write_text(wanted, encoding="utf-8")
    return python


def _overlay(version: str, folder: Path, existing: Path | None) -> Path:
    # pytest-ddl takes what lies in a folder of this name for an installed package, and not for code of the user.
    packages, done = folder / "site-packages", folder / "done.txt"
    wanted = str(existing or version)
    if done.is_file() and done.read_text(encoding="utf-8") == wanted:
        return packages
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if existing is not None:
        packages.symlink_to(existing, target_is_directory=True)
    else:
        _call([*_installer(Path(sys.executable)), "--no-deps", "--target", str(packages), f"keras=={version}"])
    # Written last: without it, the folder is made anew.
    done.write_text(wanted, encoding="utf-8")
    return packages


def uv() -> list[str]:
    """Return the command of uv, which installs in seconds what it has in its cache; empty if it is not there."""
    if found := shutil.which("uv"):
        return [found]
    return [sys.executable, "-m", "uv"] if find_spec("uv") else []


def _installer(python: Path) -> list[str]:
    if found := uv():
        return [*found, "pip", "install", "--quiet", "--python", str(python)]
    return [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]


def _call(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST, check=False, cwd=ROOT)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SetUpError(f"{type(error).__name__}: {error}") from None
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise SetUpError(f"{command[0]} ended with {done.returncode}: {' '.join(lines)[-300:]}")
    return done.stdout
