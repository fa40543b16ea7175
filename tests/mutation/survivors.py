"""Why a mutant that is a different program was not caught: one line for each."""

from __future__ import annotations

from collections.abc import Mapping

SURVIVORS: Mapping[tuple[str, str], str] = {
    ("reverse-the-batches", ""): (
        "the same examples in another order, and on these the weights of one device: that is what shuffling does, "
        "and no invariant asks for an order within an epoch"
    ),
}
"""Mutation and a part of the program's name (empty for all) -> why."""


def explanation(mutation: str, program: str) -> str | None:
    """The line for a mutant, if there is one."""
    for (name, part), why in SURVIVORS.items():
        if name == mutation and part in program:
            return why
    return None
