"""Find the lines of the program that a finding is about, from the lines that its ranks recorded."""

from __future__ import annotations

import linecache
import os
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from pytest_ddl.equivalence.checks.step_equality import CHECK as STEP_EQ
from pytest_ddl.equivalence.findings import Finding
from pytest_ddl.records import TrainingRecord

_MOST = 2
"""Maximum number of lines of a finding. A longer list is no help."""
_WIDTH = 80
"""Maximum number of characters of the text of a line."""
_OF_LOSS = ("loss", "fit")
_OF_UPDATE = ("apply", "all_reduce", "gradient", "fit")
_OF_OPTIMIZER = ("apply", "fit")
_OF_DATA = ("data", "train", "fit")
_OF_VARIABLE = ("variable",)
_WHAT = {
    "loss": "the loss",
    "gradient": "its gradient",
    "apply": "the update",
    "all_reduce": "the all-reduce",
    "reduce": "the reduction",
    "data": "the data",
    "train": "the loop",
    "fit": "fit",
    "draw": "the draw",
    "variable": "the variable",
    "write": "the write",
    "restore": "the restore",
    "value": "the value",
    "schedule": "the closures",
}
"""Kind of line -> what the program does there."""

KINDS: Mapping[str, tuple[tuple[str, ...], int]] = {
    **dict.fromkeys(
        (
            "mean-of-replica-means",
            "empty-replica",
            "masked-loss-normalised-per-replica",
            "batch-coupled-loss",
            "regularization-scaled-by-replica-count",
            "gradient-scaled-by-inverse-replica-count",
            "gradient-unscaled-without-scale",
        ),
        (_OF_LOSS, 1),
    ),
    # Either the loss or a reduction that is made twice.
    "gradient-scaled-by-replica-count": (("loss", "all_reduce"), 2),
    **dict.fromkeys(
        ("gradient-not-aggregated", "gradient-clipped-before-aggregation", "clipping-lost", "sparse-gradient-mismatch"),
        (_OF_UPDATE, 1),
    ),
    **dict.fromkeys(
        ("non-finite-not-synchronised", "reduction-overflow", "gradient-accumulation-wrong"), (_OF_UPDATE, 1)
    ),
    **dict.fromkeys(
        (
            "loss-scale-not-synchronised",
            "optimizer-state-mismatch",
            "iteration-count-wrong",
            "learning-rate-differs",
            "variable-did-not-move",
            "duplicate-update",
            "lost-update",
        ),
        (_OF_OPTIMIZER, 1),
    ),
    "reported-loss-wrong": (("reduce", "loss", "fit"), 1),
    "metric-wrong": (("variable", "value", "reduce", "fit"), 1),
    **dict.fromkeys(("checkpoint-incomplete", "resume-lost-state", "resume-step-wrong"), (("restore",), 1)),
    **dict.fromkeys(
        (
            "initial-weights-differ",
            "replicas-diverged",
            "workers-diverged",
            "state-not-aggregated",
            "state-scaled-by-replica-count",
            "frozen-variable-moved",
            "variable-outside-scope",
            "layout-wrong",
        ),
        (_OF_VARIABLE, 1),
    ),
    **dict.fromkeys(
        (
            "random-stream-repeated-across-replicas",
            "random-stream-repeated-across-steps",
            "random-stream-differs-across-replicas",
        ),
        (("draw",), 2),
    ),
    **dict.fromkeys(
        ("examples-dropped", "examples-duplicated", "examples-altered", "global-batch-wrong", "unequal-steps"),
        (_OF_DATA, 1),
    ),
    "closures-not-awaited": (("schedule",), 1),
    "resume-data-wrong": (_OF_DATA, 1),
    "unsafe-checkpoint-path": (("write",), 2),
    "collective-per-variable": (("all_reduce", "apply"), 1),
    **dict.fromkeys(("retraced-every-step", "eager-step"), (("train",), 1)),
}
"""Cause -> the kinds of lines at which a program does what the cause is about, the likeliest first, and how many."""


def with_lines(findings: Sequence[Finding], record: TrainingRecord) -> tuple[Finding, ...]:
    """Return the findings with the lines of the program, as far as they are known.

    An exception has its own line, and the log of collectives names lines in its messages.
    """
    recorded: dict[str, tuple[str, ...]] = {}
    for rank in record.ranks:
        for kind, lines in rank.facts.get("lines", {}).items():
            recorded[kind] = tuple(dict.fromkeys((*recorded.get(kind, ()), *lines)))
    if not recorded:
        return tuple(findings)
    return tuple(
        finding if finding.source else replace(finding, lines=tuple(_lines(finding, record, recorded)))
        for finding in findings
    )


def _lines(finding: Finding, record: TrainingRecord, recorded: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    kinds, count = KINDS.get(finding.cause or "", ((), 0))
    if finding.check == STEP_EQ and kinds == _OF_DATA:
        kinds = _OF_LOSS  # the replicas have the right examples, and the replica function counts them wrongly
    found = [(kind, line) for kind in kinds for line in _of_kind(kind, finding, record, recorded)[:_MOST]]
    # All lines of the likeliest kind that is known; with a count of two, also one of the next kind.
    best = list(dict.fromkeys(kind for kind, _line in found))[:count]
    for kind, line in [entry for entry in found if entry[0] in best][:_MOST]:
        yield f"{_shown(line)} ({_WHAT[kind]}){_text(line)}"


def _of_kind(
    kind: str, finding: Finding, record: TrainingRecord, recorded: Mapping[str, tuple[str, ...]]
) -> tuple[str, ...]:
    if kind == "draw":
        keys = [f"draw {position}" for position in finding.operations]
    elif kind == "write":
        keys = [key for key in recorded if key.startswith("write ") and key.removeprefix("write ") in finding.message]
    elif kind == "variable":
        keys = [f"variable {variable.index}" for variable in record.variables if variable.name == finding.variable]
    elif kind == "value":
        keys = [
            key for key in recorded if key.startswith("value ") and _is_part(finding.variable, key[len("value ") :])
        ]
    else:
        keys = [kind]
    return tuple(dict.fromkeys(line for key in keys for line in recorded.get(key, ())))


def _is_part(name: str | None, whole: str) -> bool:
    """Return whether a compared value is a recorded one, or a part of it."""
    return name is not None and re.fullmatch(rf"{re.escape(whole)}([^\w].*)?", name) is not None


def _shown(line: str) -> str:
    """Return ``file:line``, relative to the working directory if the file is in it."""
    return os.path.relpath(line) if line.startswith(os.getcwd() + os.sep) else line


def _text(line: str) -> str:
    file, _colon, number = line.rpartition(":")
    text = linecache.getline(file, int(number)).strip()
    return f": {textwrap.shorten(text, _WIDTH, placeholder=' ...')}" if text else ""
