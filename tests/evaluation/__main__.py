"""Measures what the checks are worth: ``python -m tests.evaluation``; writes the numbers and the page of the docs.

Results are kept one by one in ``--results``: a run that was cut off, or that ``--minutes`` ended, goes on
where it stopped. Remove the folder to measure anew.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
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


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.evaluation", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=["times", *PARTS], default=["times", *PARTS])
    parser.add_argument("--minutes", type=float, help="at most so long for each part")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="how many check at the same time")
    parser.add_argument("--results", type=Path, default=Path("build/evaluation"), help="where single results are kept")
    parser.add_argument("--page", action="store_true", help="measure nothing, write the page anew")
    options = parser.parse_args(arguments)
    numbers = json.loads(page.NUMBERS.read_text(encoding="utf-8")) if page.NUMBERS.exists() else {}
    for part in [] if options.page else options.only:
        print(f"{part} …", flush=True)
        if part == "times":
            numbers.update(measure_times())
        else:
            numbers.update(in_processes(part, options.results, options.minutes, options.processes))
        _write(numbers)
    _write(numbers)
    print(page.page(numbers).split("## Planted")[0])
    return 0


def _write(numbers: Numbers) -> None:
    page.NUMBERS.write_text(json.dumps(numbers, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    page.PAGE.write_text(page.page(numbers), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
