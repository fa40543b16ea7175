"""Send the numbers of a gate or an evaluation to an experiment tracker: TensorBoard, MLflow, or Weights & Biases.

Each tracker has one function here, which uses only its public API. None of them is imported unless it is asked for.
"""

from __future__ import annotations

import importlib.util
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

from pytest_ddl.bench.outcome import UsageError, check_writable

OPTION = "--export"
_LOGIN_SECONDS = 30
"""Maximum seconds that Weights & Biases waits for somebody who logs in."""
_LONGEST_FACT = 500
"""Most characters of a fact that all versions of MLflow take."""


@dataclass(frozen=True)
class Sheet:
    """Numbers of one result, as trackers take them. Values that are not finite are left out when they are sent."""

    run: str
    """Name of the run."""
    facts: Mapping[str, str]
    """Names and values in words: the program, the versions that were measured, the machine, and the verdicts."""
    numbers: Mapping[str, float]
    curves: Mapping[str, Sequence[tuple[int, float]]] = field(default_factory=dict)
    """Name -> steps, counted from 1, and the value after each."""
    folder: Path | None = None
    """Folder with a report, for trackers that keep files."""

    @property
    def finite(self) -> dict[str, float]:
        """Numbers that are finite."""
        return {name: number for name, number in self.numbers.items() if math.isfinite(number)}

    def by_step(self) -> Iterator[tuple[int, dict[str, float]]]:
        """Yield each step in order, with the values of all curves after it."""
        steps: dict[int, dict[str, float]] = defaultdict(dict)
        for name, curve in self.curves.items():
            for step, value in curve:
                if math.isfinite(value):
                    steps[step][name] = value
        yield from sorted(steps.items())


def run_named(kind: str) -> str:
    """Return a name for a run that no other run has: its kind and the time."""
    return f"{kind}-{datetime.now(timezone.utc):%Y%m%d-%H%M%S-%f}"


class Tracker(NamedTuple):
    """Experiment tracker."""

    package: str
    """Package that must be installed."""
    place: str
    """Kind of the part after the colon in the option."""
    send: Callable[[Sheet, str], None]
    """Sends the numbers to a place; the place is empty if the option names none."""


def _to_tensorboard(sheet: Sheet, place: str) -> None:
    from tensorboard.summary import Writer

    facts = "\n".join(f"* {name}: {value}" for name, value in sheet.facts.items())
    writer = Writer(str(Path(place or "runs") / sheet.run))
    try:
        for name, number in sheet.finite.items():
            writer.add_scalar(name, number, 0, description=facts)
        for step, values in sheet.by_step():
            for name, value in values.items():
                writer.add_scalar(name, value, step)
    finally:
        writer.close()


def _to_mlflow(sheet: Sheet, place: str) -> None:
    import mlflow

    def plain(name: str) -> str:
        return re.sub(r"[^\w\-. /]", "_", name)

    if place:
        mlflow.set_tracking_uri(place)
    with mlflow.start_run(run_name=sheet.run):
        mlflow.log_params({plain(name): value[:_LONGEST_FACT] for name, value in sheet.facts.items()})
        mlflow.log_metrics({plain(name): number for name, number in sheet.finite.items()})
        for step, values in sheet.by_step():
            mlflow.log_metrics({plain(name): value for name, value in values.items()}, step=step)
        if sheet.folder is not None:
            mlflow.log_artifacts(str(sheet.folder))


def _to_wandb(sheet: Sheet, place: str) -> None:
    import wandb

    settings = wandb.Settings(login_timeout=_LOGIN_SECONDS)
    with wandb.init(project=place or None, name=sheet.run, config=dict(sheet.facts), settings=settings) as run:
        for step, values in sheet.by_step():
            run.log(values, step=step)
        run.summary.update(sheet.finite)
        if sheet.folder is not None:
            report = wandb.Artifact(sheet.run, type="report")
            report.add_dir(str(sheet.folder))
            run.log_artifact(report)


TRACKERS: Mapping[str, Tracker] = {
    "tensorboard": Tracker("tensorboard", "FOLDER", _to_tensorboard),
    "mlflow": Tracker("mlflow", "URI", _to_mlflow),
    "wandb": Tracker("wandb", "PROJECT", _to_wandb),
}
"""Name in the option -> tracker. To add one, write its function and add an entry here."""


@dataclass(frozen=True)
class Export:
    """Value of the option: a tracker, and the place to which it writes."""

    tracker: str
    place: str = ""

    def __str__(self) -> str:
        return f"{OPTION}={self.tracker}" + (f":{self.place}" if self.place else "")

    def send(self, sheet: Sheet) -> None:
        """Send the numbers. The tracker may raise anything, for example if a server does not answer."""
        TRACKERS[self.tracker].send(sheet, self.place)


def parse_export(text: str) -> Export:
    """Return what a value of the option asks for.

    :raises UsageError: for an unknown tracker, one that is not installed, or a folder that cannot be written.
    """
    name, _colon, place = text.partition(":")
    tracker = TRACKERS.get(name)
    if tracker is None:
        ways = ", ".join(f"{one}[:{known.place}]" for one, known in TRACKERS.items())
        raise UsageError(f"{text!r} names no tracker; valid: {ways}")
    if importlib.util.find_spec(tracker.package) is None:
        raise UsageError(f"{text!r} needs a package that is not installed here: pip install {tracker.package}")
    if name == "tensorboard":
        check_writable(Path(place or "runs"), OPTION)
    return Export(name, place)
