"""Read ``expected_failures.toml``, which lists the known failures by test, cause, strategy, subject and versions."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet

from pytest_ddl.equivalence.causes import CAUSES
from pytest_ddl.equivalence.known.catalogue import KNOWN
from pytest_ddl.faults.verdict import RecoveryVerdict
from pytest_ddl.items.selection import KERAS
from suites.installed import version_of
from suites.subject import KERAS_3

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE = Path(__file__).with_name("expected_failures.toml")
_RAISE = {"worker-raised", "worker-died", "unsupported-by-framework", "optimizer-not-built"}
"""Causes of failures in which TensorFlow or Keras raises, or ends the process."""

DEVICES = ("", "cpu", "gpu")
"""Valid kinds of devices of an entry."""
VERDICTS = tuple(verdict.value for verdict in RecoveryVerdict)
REPROS = Path(__file__).with_name("repros")
"""Folder of programs that show a failure without pytest-ddl."""


@dataclass(frozen=True)
class KnownFailure:
    """Entry of the file: a test that is expected to fail."""

    test: str
    causes: tuple[str, ...]
    reason: str
    link: str = ""
    repro: str = ""
    """Name of a program in ``suites/repros/``, without its suffix."""
    strategies: tuple[str, ...] = ()
    tensorflow: str = ""
    keras: str = ""
    tf_keras: str = ""
    device: str = ""
    """Kind of device of the replicas, ``cpu`` or ``gpu``; empty for all kinds."""
    file: Path = FILE
    """File with the entry; the programs are in the folder ``repros`` beside it."""
    message: str = ""
    """Pattern that the message of the exception contains. Without one, the test must find a wrong result."""
    verdicts: tuple[str, ...] = ()
    """Verdicts of interruptions that the entry is about; empty if it is not about faults."""
    points: str = ""
    """Pattern of the faults after which there are such verdicts; empty for all faults."""
    known: str = ""
    """Id of the plugin's known behavior that gives causes, versions, reason and link; empty if it is not one."""

    def __str__(self) -> str:
        return f"{self.test!r} under {', '.join(self.strategies) or 'every strategy'}"

    @property
    def explanation(self) -> str:
        """Reason for the failure, and the program or link that shows it."""
        folder = f"{self.file.parent.name}/{REPROS.name}"
        shown = f"{folder}/{self.repro}.py" if self.repro else "not reported yet"
        return f"{self.reason} ({self.link or shown})"

    @property
    def subjects(self) -> tuple[str, ...]:
        """Packages of Keras that the entry is for: those with a range, and all if it has ranges of TensorFlow only."""
        return tuple(name for name in KERAS if getattr(self, name)) or KERAS

    def applies(self, versions: Mapping[str, str], subject: str = KERAS_3) -> bool:
        """Return whether the entry is for a package of Keras, and for these versions of it and of TensorFlow."""
        ranges = {"tensorflow": self.tensorflow, subject: getattr(self, subject)}
        return subject in self.subjects and all(
            SpecifierSet(ranges[name]).contains(versions[name], prereleases=True) for name in ranges
        )

    def matches(self, nodeid: str, strategy: str) -> bool:
        """Return whether the entry is for this test under this strategy."""
        return (not self.strategies or strategy in self.strategies) and re.search(self.test, nodeid) is not None

    def explains(self, faults: str, verdict: str, cause: str | None, message: str) -> bool:
        """Return whether the entry is about the verdict of an interruption, with its cause and its message."""
        told = re.search(self.points, faults) and re.search(self.message, message)
        return verdict in self.verdicts and cause in (None, *self.causes) and told is not None


def load(text: str, file: Path = FILE) -> tuple[KnownFailure, ...]:
    """Parse the entries of a file, given its text.

    :raises ValueError: if an entry has an unknown key or lacks a required one. The message shows the entry.
    """
    valid = [field.name for field in fields(KnownFailure) if field.name != "file"]
    repros = file.parent / REPROS.name
    found = []
    for entry in tomllib.loads(text).get("failure", []):
        of_catalogue = "known" in entry
        unknown = [
            key
            for key in entry
            if key not in (("test", "strategies", "known", "message", "device") if of_catalogue else valid)
        ]
        missing = [key for key in ("test", *(() if of_catalogue else ("causes", "reason"))) if not entry.get(key)]
        proof = entry.get("link") or entry.get("known") or (repros / f"{entry.get('repro')}.py").is_file()
        if unknown or missing:
            raise ValueError(f"{file.name}: {entry}: unknown {unknown}, missing {missing}; keys: {', '.join(valid)}")
        if entry.get("device", "") not in DEVICES:
            raise ValueError(f"{file.name}: {entry}: device must be one of {', '.join(filter(None, DEVICES))}")
        for cause in () if of_catalogue else entry["causes"]:
            if cause not in CAUSES:
                raise ValueError(f"{file.name}: {entry}: {cause!r} is no cause; see docs/causes.md")
        if wrong := [one for one in entry.get("verdicts", ()) if one not in VERDICTS]:
            raise ValueError(f"{file.name}: {entry}: {wrong[0]!r} is no verdict; valid: {', '.join(VERDICTS)}")
        if "points" in entry and "verdicts" not in entry:
            raise ValueError(f"{file.name}: {entry}: points need the verdicts of the faults that strike there")
        if not of_catalogue and "message" not in entry and _RAISE & set(entry["causes"]):
            raise ValueError(f"{file.name}: {entry}: needs the message of the exception, as a pattern")
        if not proof:
            raise ValueError(f"{file.name}: {entry}: needs a link, or the name of a program of {REPROS.name}/ as repro")
        given: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()
        }
        known = _of_catalogue(given["known"], file) if of_catalogue else {}
        found.append(KnownFailure(**given, **known, file=file))
    return tuple(found)


def _of_catalogue(name: str, file: Path) -> dict[str, Any]:
    """Return the fields of an entry that names a known behavior.

    :raises ValueError: if there is no such behavior.
    """
    if name not in KNOWN:
        raise ValueError(f"{file.name}: known = {name!r} is no known behavior; valid: {', '.join(KNOWN)}")
    behavior = KNOWN[name]
    return {"causes": behavior.causes, "reason": behavior.title, "link": behavior.link, **behavior.versions}


@cache
def installed() -> Mapping[str, str]:
    """Return the installed versions of TensorFlow, Keras and tf_keras, without importing TensorFlow."""
    return {name: version_of(name) or "0" for name in ("tensorflow", *KERAS)}


def versions_of(subject: str) -> Mapping[str, str]:
    """Return the installed versions of TensorFlow and of the package of Keras that is tested."""
    return {name: installed()[name] for name in ("tensorflow", subject)}


@cache
def known_failures() -> tuple[KnownFailure, ...]:
    """Return the entries for the installed versions, of both packages of Keras."""
    return of_installed(load(FILE.read_text(encoding="utf-8")))


def of_installed(entries: Iterable[KnownFailure]) -> tuple[KnownFailure, ...]:
    """Return those of some entries that are for the installed versions, of both packages of Keras."""
    return tuple(entry for entry in entries if any(entry.applies(installed(), subject) for subject in KERAS))


def entry_to_paste(nodeid: str, strategy: str, error: BaseException, subject: str) -> str:
    """Return an entry for a test that failed with this exception. The reason and a proof are left to its author."""
    file, _, name = nodeid.partition("::")
    test = rf"{re.escape(Path(file).name)}::{name.partition('[')[0]}"
    report = getattr(error, "report", None)
    causes = [finding.cause for finding in report.findings if finding.cause] if report is not None else []
    told = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    broken = getattr(report, "broken", ())
    raised = report is None and not isinstance(error, AssertionError) and not told.startswith("AssertionError on ")
    lines = [
        "[[failure]]",
        f"test = '{test}'",
        f'strategies = ["{strategy}"]',
        f"causes = {json.dumps(list(dict.fromkeys(causes)) or (['worker-raised'] if raised else ['?']))}",
        *(f'{name} = "=={number}"' for name, number in versions_of(subject).items()),
        *([f"message = {json.dumps(re.escape(told[:80]))}"] if raised else []),
        *_of_faults(broken),
        'reason = "?"',
        'link = "?"  # or: repro = "name of a program in repros/"',
    ]
    return "\n".join(lines)


def _of_faults(broken: Iterable[Any]) -> list[str]:
    """Return the lines of an entry about the interruptions that a program does not recover from."""
    trials = [trial for trial, _why in broken]
    if not trials:
        return []
    points = dict.fromkeys(re.escape(str(trial.schedule[-1].point)) for trial in trials)
    verdicts = dict.fromkeys(trial.verdict.value for trial in trials)
    return [f"verdicts = {json.dumps(list(verdicts))}", f"points = '{'|'.join(points)}'"]
