"""Keep an evaluation in a file that is always complete, so that an interrupted evaluation can continue."""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pytest_ddl.bench.evaluating.records import Evaluation, FormatError, Identity
from pytest_ddl.cluster.state.user_files import is_user_file

FILE = "evaluation.json"


class ContinueError(ValueError):
    """Raised if a folder holds results that this evaluation cannot continue. The message is one line."""


def save(evaluation: Evaluation, folder: Path) -> None:
    """Write the file so that a reader finds either the old or the new results, whenever this process ends."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(_finite(evaluation.as_json()), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    temporary = folder / f".{FILE}.{os.getpid()}"
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(folder / FILE)
    finally:
        temporary.unlink(missing_ok=True)


def load(folder: Path) -> Evaluation | None:
    """Return the evaluation of a folder, or ``None`` if it has none.

    :raises FormatError: if the file is no evaluation.
    """
    try:
        data = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise FormatError(f"it cannot be read: {error}") from None
    return Evaluation.from_json(data)


def continued(folder: Path, identity: Identity) -> Evaluation | None:
    """Return the results with which an evaluation continues, or ``None`` if it starts anew.

    :raises ContinueError: if the folder has results of another program, other options, versions or another machine.
    """
    try:
        found = load(folder)
    except FormatError as error:
        raise ContinueError(
            f"--output={folder}: {FILE} is in the way: {error}; give --restart to replace it, or another folder"
        ) from None
    if found is None:
        return None
    differences = found.identity.differences(identity)
    if differences:
        raise ContinueError(
            f"--output={folder} holds another evaluation ({'; '.join(differences)}); give --restart to start anew, or "
            "another folder"
        )
    return found


def digest_of(file: Path) -> str:
    """Return the SHA-256 of a program: its file, and all files of the user that are imported in this process.

    A module that the program imports only while it trains is not included.
    """
    return digest_of_files([file, *(Path(found) for found in _user_files())])


def digest_of_files(files: Iterable[Path]) -> str:
    """Return the SHA-256 of the contents of some files. It does not depend on their folder or their order."""
    parts = sorted({hashlib.sha256(path.read_bytes()).hexdigest() for path in files})
    return hashlib.sha256("".join(parts).encode()).hexdigest()


def _user_files() -> list[str]:
    files = [getattr(module, "__file__", None) for name, module in list(sys.modules.items()) if name != "__main__"]
    return [file for file in files if file and is_user_file(file) and Path(file).is_file()]


def _finite(data: Any) -> Any:
    """Replace numbers that are not finite by ``None``, because JSON has none."""
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return data
