"""The parts of the evaluation, each measured by several processes at the same time."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tests.evaluation import false_alarms, page, times
from tests.evaluation.lines import Row, run_missing
from tests.mutation import evaluate as mutants
from tests.planted import run as planted
from tests.planted.planted import Planted

Numbers = dict[str, Any]
Share = tuple[int, int]
"""``(i, n)``: the i-th of n processes."""


def measure_planted(results: Path, minutes: float | None, share: Share = (0, 1)) -> Numbers:
    """Every planted bug under every strategy of its own, and its twin."""
    cases = [(entry, strategy, which) for entry, strategy in planted.selected([]) for which in ("sin", "twin")]

    def key(case: tuple[Planted, str, str]) -> Row:
        entry, strategy, which = case
        return {"name": entry.name, "strategy": strategy, "which": which}

    def check(case: tuple[Planted, str, str]) -> Row:
        row = asdict(planted.evaluate(*case))
        del row["detail"]
        return row

    rows = run_missing(results / "planted.jsonl", cases, key, check, minutes, share)
    outcomes = [planted.Outcome(**{**row, "ids": tuple(row["ids"]), "also": tuple(row["also"])}) for row in rows]
    kept = ("name", "strategy", "which", "verdict", "cause", "symptom", "step", "caught", "diagnosed")
    shown = [{name: row[name] for name in kept} for row in rows]
    return {"planted": shown, "planted rates": planted.rates(outcomes), "planted of": len(cases)}


def measure_mutants(results: Path, minutes: float | None, share: Share = (0, 1)) -> Numbers:
    """Mutations of the programs of ``suites/``."""
    cases = mutants.all_cases()
    rows = mutants.evaluate(results / "mutants.jsonl", minutes, cases, share)
    kept = ("mutation", "program", "strategy", "outcome", "why")
    return {
        "mutants": {
            "of": len(cases),
            "rates": mutants.rates(rows),
            "by mutation": page.by_mutation(rows),
            "survivors": [
                {name: row[name] for name in kept}
                for row in rows
                if row["outcome"] in (mutants.SURVIVED, mutants.INCONCLUSIVE)
            ],
        }
    }


def measure_alarms(results: Path, minutes: float | None, share: Share = (0, 1)) -> Numbers:
    """Correct programs."""
    with tempfile.TemporaryDirectory(prefix="evaluation-") as folder:
        rows = false_alarms.evaluate(results / "false_alarms.jsonl", Path(folder), minutes, share)
    return {"false alarms": false_alarms.summary(rows)}


def measure_times() -> Numbers:
    """Times; worth taking on a machine with nothing else to do."""
    return {
        "checks": times.measure_checks(),
        "random programs": times.measure_random_programs(),
        "recording": times.measure_recording(),
        "machine": times.machine(),
        "versions": times.versions(),
    }


PARTS: dict[str, Callable[[Path, float | None, Share], Numbers]] = {
    "planted": measure_planted,
    "mutants": measure_mutants,
    "alarms": measure_alarms,
}


def in_processes(part: str, results: Path, minutes: float | None, number: int) -> Numbers:
    """Measure a part in several processes, and put together what they wrote."""
    with get_context("spawn").Pool(number) as pool:
        pool.starmap(PARTS[part], [(results, minutes, (i, number)) for i in range(number)], chunksize=1)
        pool.close()
        pool.join()  # each closes its clusters at its own end
    return PARTS[part](results, 0.0, (0, 1))
