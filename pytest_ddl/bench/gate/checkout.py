"""Check out both versions, and choose the pytest-ddl that measures each of them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest_ddl
from pytest_ddl.bench.gate.plan import GatePlan
from pytest_ddl.bench.gate.side import PROTOCOL
from pytest_ddl.bench.gate.sides import SCRIPT, Side
from pytest_ddl.bench.gate.worktrees import GateUsageError, Repository, Version, held_folder

_START = """import sys
from pytest_ddl.bench.gate.side import main
sys.exit(main())
"""


@contextmanager
def both_sides(
    plan: GatePlan, repository: Repository, base: Version, head: Version
) -> Iterator[tuple[Side, Side, list[str]]]:
    """Check out both versions, and yield their sides with notes for the reader.

    :raises GateUsageError: if the plan does not fit the versions.
    """
    with ExitStack() as stack:
        stack.callback(repository.forget)
        folder = stack.enter_context(held_folder())
        roots = [
            stack.enter_context(repository.checked_out(version, folder / name))
            for name, version in (("base", base), ("head", head))
        ]
        own, notes = _measures_itself(plan.instrument, roots)
        instrument = write_instrument(folder, own)
        package = Path(pytest_ddl.__file__).resolve()
        sides = [
            Side(
                name,
                version.commit,
                root,
                _paths(root, plan.paths, repository.prefix),
                repository.root,
                instrument,
                root / "pytest_ddl" / "__init__.py" if own else package,
                # Made absolute here, because a side starts in another folder. Links are not resolved, because the
                # link in a venv selects its environment.
                str(Path(shutil.which(python) or python).absolute()),
            )
            for name, version, root, python in zip(
                ("BASE", "HEAD"), (base, head), roots, (plan.base_python, plan.head_python), strict=True
            )
        ]
        yield sides[0], sides[1], notes


def write_instrument(folder: Path, own: bool) -> Path:
    """Make a folder with the script that starts a side, and return it.

    :param own: true if each version has its own pytest-ddl. Otherwise the folder also links to the running one.
    """
    instrument = folder / "instrument"
    instrument.mkdir()
    (instrument / SCRIPT).write_text(_START, encoding="utf-8")
    if not own:
        # Only this package: others in the same folder must not shadow those of the side's interpreter.
        (instrument / "pytest_ddl").symlink_to(Path(pytest_ddl.__file__).resolve().parent)
    return instrument


def _measures_itself(instrument: str, roots: Sequence[Path]) -> tuple[bool, list[str]]:
    """Return whether each version is measured by its own pytest-ddl, and notes for the reader.

    :raises GateUsageError: if the user asked for this, but a version has no pytest-ddl with the protocol of this gate.
    """
    spoken = {root.name.upper(): _protocol(root) for root in roots}
    lacking = " and ".join(name for name, protocol in spoken.items() if protocol is None)
    strange = " and ".join(name for name, protocol in spoken.items() if protocol not in (None, PROTOCOL))
    if instrument == "version" and lacking:
        raise GateUsageError(f"--instrument=version: {lacking} does not contain a pytest-ddl with a gate")
    if instrument == "version" and strange:
        raise GateUsageError(f"--instrument=version: the pytest-ddl of {strange} uses another protocol than this one")
    if instrument == "gate" or lacking:
        return False, []
    if strange:
        return False, [f"both versions are measured by this pytest-ddl: that of {strange} uses another protocol"]
    return True, ["each version is measured by its own pytest-ddl"]


def _protocol(root: Path) -> int | None:
    """Return the gate protocol of a version's own pytest-ddl, or ``None`` if it has none."""
    file = root / "pytest_ddl" / "bench" / "gate" / "side.py"
    found = re.search(r"^PROTOCOL = (\d+)$", file.read_text(encoding="utf-8"), re.MULTILINE) if file.is_file() else None
    return int(found[1]) if found else None


def _paths(root: Path, given: Sequence[str], prefix: str) -> tuple[Path, ...]:
    """Return the folders of a version from which modules are imported.

    :raises GateUsageError: if a given path is not a folder of the version.
    """
    if given:
        for path in given:
            if not (root / path).is_dir() or Path(path).is_absolute():
                raise GateUsageError(f"--path={path!r} is no folder of {root.name.upper()} (relative to its root)")
        return tuple((root / path).resolve() for path in given)
    usual = dict.fromkeys([root / prefix, root / prefix / "src", root, root / "src"])
    return tuple(path.resolve() for path in usual if path.is_dir())
