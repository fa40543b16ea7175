"""Items that pass with one package of Keras and fail with the other one, on the same TensorFlow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from packaging.version import Version

from suites.matrix.cells import SUBJECTS
from suites.matrix.numbers import CODES, Numbers, codes_of

_PASS, _WRONG = CODES["pass"], (CODES["xfail"], CODES["fail"])


@dataclass(frozen=True)
class Difference:
    """One item with one TensorFlow."""

    item: str
    cells: tuple[str, str]
    """Names of the cells: Keras 3 and tf_keras."""
    failing: tuple[str, str]
    """For each cell, the letters of the strategies with which it fails and the other cell passes."""

    @property
    def texts(self) -> tuple[str, ...]:
        """For each cell its name and the strategies that fail in it, or an empty text."""
        return tuple(f"{name}: {of}" if of else "" for name, of in zip(self.cells, self.failing, strict=True))


def pairs(cells: Sequence[Numbers]) -> Iterator[tuple[int, int]]:
    """Yield positions of cells to compare, among those that ran: the newest Keras 3 of a TensorFlow, and its tf_keras.

    Both ran the same tier.
    """
    for other, cell in enumerate(cells):
        if cell["subject"] == SUBJECTS[0]:
            continue
        alike = [
            position
            for position, one in enumerate(cells)
            if one["subject"] == SUBJECTS[0]
            and all(one.get(key) == cell.get(key) for key in ("tensorflow", "tier", "oldest", "device"))
        ]
        if alike:
            yield max(alike, key=lambda position: Version(cells[position]["keras"])), other


def differences(numbers: Numbers) -> Iterable[Difference]:
    """Yield the differences, by TensorFlow and item."""
    ran = [cell for cell in numbers["cells"] if cell.get("ran")]
    for pair in pairs(ran):
        for item, text in numbers["items"].items():
            codes = [
                (letter, *(of_letter[position] for position in pair)) for letter, of_letter in codes_of(text).items()
            ]
            failing = (
                "".join(letter for letter, one, other in codes if one in _WRONG and other == _PASS),
                "".join(letter for letter, one, other in codes if other in _WRONG and one == _PASS),
            )
            if any(failing):
                yield Difference(item, (ran[pair[0]]["name"], ran[pair[1]]["name"]), failing)
