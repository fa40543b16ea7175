"""Keep the folder of an evaluation: a file that is always complete, so that it can go on, and the page at its end."""

from __future__ import annotations

import hashlib
import html
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from pytest_ddl.bench.evaluating import pictures, table
from pytest_ddl.bench.evaluating.records import Evaluation, FormatError, Identity
from pytest_ddl.bench.evaluating.table import EvaluationSummary
from pytest_ddl.bench.outcome import UsageError
from pytest_ddl.cluster.state.user_files import is_user_file
from pytest_ddl.web import results

FILE = "evaluation.json"


def save(evaluation: Evaluation, folder: Path) -> None:
    """Write the file so that a reader finds either the old or the new results, whenever this process ends."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(evaluation.as_json(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
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

    :raises UsageError: if the folder has results of another program, other options, versions or another machine.
    """
    try:
        earlier = load(folder)
    except FormatError as error:
        raise UsageError(
            f"--output={folder}: {FILE} is in the way: {error}; give --restart to replace it, or another folder"
        ) from None
    if earlier is None:
        return None
    differences = earlier.identity.differences(identity)
    if differences:
        raise UsageError(
            f"--output={folder} holds another evaluation ({'; '.join(differences)}); give --restart to start anew, or "
            "another folder"
        )
    return earlier


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


INDEX = "index.html"


def write(summary: EvaluationSummary, folder: Path) -> list[Path]:
    """Write all files but the results, which are there already, and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    made = pictures.draw(summary, folder)
    texts = {"table.md": table.markdown(summary), INDEX: page(summary, made)}
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [*made, *(folder / name for name in texts)]


def page(summary: EvaluationSummary, drawings: list[Path]) -> str:
    """Return one HTML page that contains the pictures. It opens from disk and loads nothing."""
    title, notes = table.title_of(summary.evaluation), table.warnings_of(summary)
    return results.page(title, summary.headline, notes, drawings, table.tables(summary), _reports(summary))


def _reports(summary: EvaluationSummary) -> str:
    """Return the whole report of each comparison that did not pass."""
    parts = [
        f"<details><summary>{html.escape(name)}: {html.escape(one.verdict)}</summary>"
        f"<pre>{html.escape(one.report)}</pre></details>"
        for name, one in summary.evaluation.verdicts.items()
        if one.report
    ]
    return "\n".join(["<h2>Reports of comparisons that did not pass</h2>", *parts, ""]) if parts else ""
