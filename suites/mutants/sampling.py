"""Draw mutants, each file by the number of its mutants, and count what became of them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from suites.mutants.making import FOLDERS, Mutant, files, of_file
from suites.mutants.planting import is_possible

OUTCOMES = ("caught", "by new tests", "missed", "not reached")


def sample(seed: int, number: int) -> list[Mutant]:
    """Return some mutants: of all mutants in the order of their files, each one after as many others."""
    draw = random.Random(seed)
    every: list[Mutant] = []
    for file in files():
        mutants = [*of_file(file)]
        draw.shuffle(mutants)
        every += mutants
    apart = len(every) / number
    begin = draw.random() * apart
    chosen = []
    for at in range(number):
        # One that cannot be planted gives its place to the next one.
        rest = every[int(begin + at * apart) :]
        chosen.append(next(one for one in rest if one not in chosen and is_possible(one)))
    draw.shuffle(chosen)  # so that a run that is cut has mutants of all folders
    return chosen


def table(found: Iterable[Mapping[str, str]]) -> str:
    """Return the numbers of each folder as a Markdown table."""
    counts: dict[str, Counter[str]] = {}
    for one in found:
        counts.setdefault(one["folder"], Counter())[one["outcome"]] += 1
    total = sum(counts.values(), Counter())
    folders = [(folder, counts[folder]) for folder in FOLDERS if folder in counts]
    rows = [_row(f"`{folder}`", of_folder) for folder, of_folder in folders]
    head = ["| folder | mutants | " + " | ".join(OUTCOMES) + " |", "|" + " --- |" * (2 + len(OUTCOMES))]
    return "\n".join([*head, *rows, _row("all", total)]) + "\n"


def _row(name: str, counts: Mapping[str, int]) -> str:
    numbers: Sequence[int] = [counts.get(outcome, 0) for outcome in OUTCOMES]
    return f"| {name} | {sum(numbers)} | " + " | ".join(map(str, numbers)) + " |"
