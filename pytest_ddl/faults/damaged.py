"""Say what a program did after a file of its save was damaged: refused it by its name, or continued with its values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath

from pytest_ddl.faults.rank.fault import KINDS
from pytest_ddl.faults.trials import TrialRun
from pytest_ddl.messages import WHOLE
from pytest_ddl.records import ErrorRecord, RankRecord, TrainingRecord
from pytest_ddl.training import lineage

_OF_CHECKPOINT = re.compile(r"\.(index|data-\d+-of-\d+)$")
"""Ends of the names of TensorFlow's checkpoint files. Its errors name the prefix before them."""


def damaged_files(run: TrialRun) -> tuple[str, ...]:
    """Return the files that the faults of a trial have damaged, relative to the folder of the run."""
    struck = [one for attempt in run.attempts for one in attempt.struck]
    return tuple(one.file for one in struck if one.struck is not None and KINDS[one.struck.kind].only_in == "file")


def named(files: Sequence[str], ranks: Iterable[RankRecord]) -> str:
    """Return the error of a rank that names a damaged file, or an empty text."""
    errors = [rank.error for rank in ranks if rank.error is not None]
    return next((_shown(error) for error in errors if any(_names(error.message, file) for file in files)), "")


def unnamed(files: Sequence[str], ranks: Iterable[RankRecord]) -> str:
    """Return the words about a program whose error does not name the damaged file."""
    errors = [rank.error for rank in ranks if rank.error is not None and rank.error.traceback]
    said = f": {_shown(errors[0])}" if errors else ""
    return f"the error does not name the damaged file {', '.join(files)}{said}"


def unknown_values(ranks: Iterable[RankRecord], baseline: TrainingRecord) -> list[str]:
    """Return the names of the variables with whose values a program continued, and which no step has."""
    known = {digest for rank in baseline.ranks for _step, names in lineage.lineage_of(rank) for digest in names}
    names: dict[str, None] = {}
    for rank in ranks:
        resumed = next(iter(rank.resumed.values()), {})
        for variable in rank.variables:
            if not lineage.digests([(variable, resumed)]) <= known:
                names[variable.name] = None
    return list(names)


def _names(message: str, file: str) -> bool:
    """Return whether a message has the name of a file, or the path of the checkpoint or the folder that it belongs to.

    The folder of the run itself is no such folder.
    """
    path = PurePosixPath(file)
    parents = [str(parent) for parent in path.parents if len(parent.parts) > 1 or parent.suffix]
    names = [path.name, _OF_CHECKPOINT.sub("", file), *parents]
    return any(re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", message) for name in names)


def _shown(error: ErrorRecord) -> str:
    return f"{error.type}: {' '.join(error.message.split())[:WHOLE]}"
