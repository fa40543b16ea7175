"""Run the recipes at the points of the catalogue, and keep their verdicts in ``verdicts.json``."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_ddl import DivergenceError, check_training
from suites import subject
from suites.faults.catalogue import RECIPES, Recipe
from suites.faults.training import BATCH
from suites.known_failures import KnownFailure, installed

FILE = Path(__file__).with_name("verdicts.json")
NOT_COMPARED = "not compared"
"""Word in the place of a verdict, for a program that fails without a fault."""
_FOLDER = re.compile(r"/\S*?/run-\w+/")
"""Folder of a run, which is another one each time."""
_ROOT = Path(__file__).parents[2]
_DEADLINE = 600.0

Verdicts = Mapping[str, Any]


def load(file: Path = FILE) -> dict[str, Any]:
    """Return what was recorded: the versions, and for each recipe and strategy its trials and seconds."""
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {"recipes": {}}
    return found


def record(names: Iterable[str], file: Path = FILE) -> None:
    """Run some recipes under all their strategies, and replace what was recorded for them."""
    for name in names:
        for strategy in RECIPES[name].strategies:
            trials = _in_a_process(RECIPES[name], strategy)
            known = load(file)
            known["versions"] = dict(sorted(installed().items()))
            known["recipes"].setdefault(name, {})[strategy] = trials
            known["recipes"] = {one: known["recipes"][one] for one in RECIPES if one in known["recipes"]}
            file.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
            counts = ", ".join(summary(trials["trials"]))
            sys.stdout.write(f"{name} under {strategy}: {counts}; {trials['seconds']} s\n")
            sys.stdout.flush()


def _in_a_process(recipe: Recipe, strategy: str) -> dict[str, Any]:
    """Run a recipe in a new process, because a process has one package of Keras."""
    package = recipe.keras or subject.KERAS_3
    environ = {**os.environ, "PYTEST_DDL_KERAS": package}
    environ[subject.VARIABLE] = "1" if package == subject.TF_KERAS else "0"
    command = [sys.executable, "-m", "suites.faults", "one", recipe.name, strategy]
    done = subprocess.run(
        command, cwd=_ROOT, env=environ, check=True, stdout=subprocess.PIPE, text=True, timeout=_DEADLINE
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def run(recipe: Recipe, strategy: str) -> dict[str, Any]:
    """Return the trials of a recipe at its points, and the seconds that all of them took."""
    try:
        report = check_training(
            recipe.program, strategy, global_batch_size=BATCH, faults=recipe.sweep(strategy), exact=True
        )
    except DivergenceError as error:
        report = error.report
    if not hasattr(report, "trials"):
        finding = report.findings[0]
        trial = {"faults": "", "verdict": NOT_COMPARED, "cause": finding.cause, "message": finding.message}
        return {"trials": [trial], "seconds": 0}
    trials = [
        {
            "faults": "; then ".join(map(str, trial.schedule)),
            "verdict": trial.verdict.value,
            "cause": trial.finding.cause if trial.finding is not None else None,
            "message": _FOLDER.sub("", trial.message),
        }
        for trial in report.trials
    ]
    return {"trials": trials, "seconds": round(report.seconds)}


def summary(trials: Sequence[Verdicts]) -> list[str]:
    """Return the number of trials with each verdict, in the order in which they occur."""
    verdicts = [trial["verdict"] for trial in trials]
    return [f"{verdicts.count(one)} {one}" for one in dict.fromkeys(verdicts)]


def entry_of(trial: Verdicts, recipe: Recipe, strategy: str, entries: Iterable[KnownFailure]) -> KnownFailure | None:
    """Return the known failure that a trial shows, or ``None`` if the documentation allows its verdict."""
    if recipe.allows(trial["verdict"], trial["cause"]):
        return None
    nodeid = f"suites/faults/test_recipes.py::test_{recipe.name}[{strategy}-chosen]"
    for entry in entries:
        if not entry.matches(nodeid, strategy):
            continue
        if trial["verdict"] == NOT_COMPARED:
            if not entry.verdicts and trial["cause"] in entry.causes:
                return entry
        elif entry.explains(trial["faults"], trial["verdict"], trial["cause"], trial["message"]):
            return entry
    return None
