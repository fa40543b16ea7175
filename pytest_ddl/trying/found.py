"""Objects found in a script while it ran on one rank, and errors about those that could not be seen."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from pytest_ddl.equivalence.diagnosis.mistakes import known_mistake
from pytest_ddl.messages import shortened, summary
from pytest_ddl.records import ErrorRecord
from pytest_ddl.run_facts import FailedCell, ScriptRecord
from pytest_ddl.tracebacks import own_frame
from pytest_ddl.training import frames

OWN_ERRORS = ("NotSeenError", "DownloadRefusedError")
"""Names of the exceptions about scripts that cannot be followed."""


class NotSeenError(RuntimeError):
    """Error for a script whose training cannot be followed. The message has the line to add or to change."""


class EnoughSteps(BaseException):
    """Exception that ends a script after its last compared step; a BaseException, so that no script catches it."""


@dataclass
class Found:
    """Objects, loops and replacements in the order in which the script used them, each once."""

    lines: dict[str, dict[str, None]] = field(default_factory=dict)
    counts_replicas: bool = False
    """True if the script reads the number of replicas."""
    told: dict[str, None] = field(default_factory=dict)
    """Places at which the script got the number of the strategy in place of its own, each once."""
    wants_default: bool = False
    """True if the script asks for the default strategy of TensorFlow, which the strategy of the run replaces."""
    failed: list[FailedCell] = field(default_factory=list)
    cut: bool = False
    """True if a dataset may have more batches than the script gets."""
    unrun: str = ""
    """Place of training that has not run, because the script was ended before; empty if there is none."""

    def add(self, heading: str, text: str) -> None:
        """Add a line under a heading, unless it is there."""
        self.lines.setdefault(heading, {}).setdefault(text)

    def record(self) -> ScriptRecord:
        """Return everything that was found so far."""
        return ScriptRecord(
            lines={heading: tuple(texts) for heading, texts in self.lines.items()},
            failed=tuple(self.failed),
            counts_replicas=self.counts_replicas,
            told=tuple(self.told),
            cut=self.cut,
            unrun=self.unrun,
        )


def explained(error: ErrorRecord) -> str:
    """Return class and message of an exception in one line, or what to change in the script if this is known."""
    mistake = known_mistake(error)
    if mistake is not None and mistake.cause == "variable-outside-scope":
        return (
            "a variable was created outside strategy.scope(), which TensorFlow refuses. Create model, optimizer and "
            "metrics in `with strategy.scope():`, and call model.compile there, too: it may create the optimizer"
        )
    said = summary(error.type, error.message)
    if error.wants_file:
        # TensorFlow raises the same error for a name that a checkpoint lacks.
        return (
            f"{said}. If a file or folder is missing: the script runs in an empty folder. Make the folders that it "
            "writes to in the script, and give what it reads with --data=PATH"
        )
    if error.type.rpartition(".")[2] == "ModuleNotFoundError":
        return f"{said}. Install it in the environment of pytest-ddl, or put its file beside the script"
    return said


def told_at_exit(ended: SystemExit) -> str:
    """Return what to do about a script that ended itself before it trained, such as one that lacks an argument."""
    why = ended.__cause__ or ended.__context__
    frame = own_frame(ended)
    where = f"{Path(frame.file).name}:{frame.line}: " if frame is not None else ""
    said = shortened(" ".join(str(why).split())).rstrip(".") if why is not None else f"status {ended.code!r}"
    return (
        f"{where}the script ended before it trained: {said}. Give the arguments of its command line in quotes: "
        '--args="--name=value"'
    )


def place() -> str:
    """Return the name of the file and the line of the script that runs now."""
    path, _, line = frames.user_frames(1).rpartition(":")
    return f"{Path(path).name}:{line}"


def text_of(script: ScriptRecord) -> list[str]:
    """Return the lines to print for what was found."""
    lines = [f"{heading + ':':<13} {'; '.join(texts)}" for heading, texts in script.lines.items()]
    if script.failed:
        failed = "; ".join(f"{text_of_cell(cell)} (on one device, too)" for cell in script.failed)
        lines.append(f"{'failed:':<13} {failed}")
    return lines


def text_of_cell(cell: FailedCell) -> str:
    """Return a line about a cell that failed."""
    return f"cell {cell.cell} at {cell.place}: {cell.text}"
