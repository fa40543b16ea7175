"""Both versions as they are launched: each in a folder, with the pytest-ddl that measures it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest_ddl
from pytest_ddl.bench.gate.folders import held_folder, remove_left_over
from pytest_ddl.bench.gate.plan import GatePlan
from pytest_ddl.bench.gate.side import PROTOCOL
from pytest_ddl.bench.gate.sides import SCRIPT, Side
from pytest_ddl.bench.gate.worktrees import GateUsageError, Repository, Version

_START = """import sys
from pytest_ddl.bench.gate.side import main
sys.exit(main())
"""


@contextmanager
def both_sides(
    plan: GatePlan, repository: Repository, base: Version, head: Version
) -> Iterator[tuple[Side, Side, list[str]]]:
    """Both versions in folders of their own, as sides, with what the reader should know of them.

    :raises GateUsageError: where the plan does not fit them.
    """
    with ExitStack() as stack:
        remove_left_over()
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
                # Found from here, as sides are started in folders of their own; links, such as a venv's, are kept.
                str(Path(shutil.which(python) or python).absolute()),
            )
            for name, version, root, python in zip(
                ("BASE", "HEAD"), (base, head), roots, (plan.base_python, plan.head_python), strict=True
            )
        ]
        yield sides[0], sides[1], notes


def write_instrument(folder: Path, own: bool) -> Path:
    """A folder with the script that starts a side, and the running pytest-ddl unless each version has its own."""
    instrument = folder / "instrument"
    instrument.mkdir()
    (instrument / SCRIPT).write_text(_START, encoding="utf-8")
    if not own:
        # Alone: what else lies beside it must not shadow what a side's interpreter has.
        (instrument / "pytest_ddl").symlink_to(Path(pytest_ddl.__file__).resolve().parent)
    return instrument


def _measures_itself(instrument: str, roots: Sequence[Path]) -> tuple[bool, list[str]]:
    """Whether each version is measured by its own pytest-ddl, and what the reader should know of that.

    :raises GateUsageError: where that is asked for, and a version has none that this gate can talk to.
    """
    spoken = {root.name.upper(): _protocol(root) for root in roots}
    lacking = " and ".join(name for name, protocol in spoken.items() if protocol is None)
    strange = " and ".join(name for name, protocol in spoken.items() if protocol not in (None, PROTOCOL))
    if instrument == "version" and lacking:
        raise GateUsageError(f"--instrument=version: {lacking} has no pytest-ddl with a gate in it")
    if instrument == "version" and strange:
        raise GateUsageError(f"--instrument=version: the pytest-ddl of {strange} speaks another protocol than this one")
    if instrument == "gate" or lacking:
        return False, []
    if strange:
        return False, [f"both versions are measured by this pytest-ddl: that of {strange} speaks another protocol"]
    return True, ["each version is measured by the pytest-ddl in it"]


def _protocol(root: Path) -> int | None:
    """The protocol of the gate that a version's own pytest-ddl speaks; ``None`` where it has none."""
    file = root / "pytest_ddl" / "bench" / "gate" / "side.py"
    found = re.search(r"^PROTOCOL = (\d+)$", file.read_text(encoding="utf-8"), re.MULTILINE) if file.is_file() else None
    return int(found[1]) if found else None


def _paths(root: Path, given: Sequence[str], prefix: str) -> tuple[Path, ...]:
    """Folders of a version that modules are imported from.

    :raises GateUsageError: for one that is not there.
    """
    if given:
        for path in given:
            if not (root / path).is_dir() or Path(path).is_absolute():
                raise GateUsageError(f"--path={path!r} is no folder of {root.name.upper()}, relative to the repository")
        return tuple((root / path).resolve() for path in given)
    usual = dict.fromkeys([root / prefix, root / prefix / "src", root, root / "src"])
    return tuple(path.resolve() for path in usual if path.is_dir())
