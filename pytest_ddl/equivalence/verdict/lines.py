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
from pytest_ddl.records import TrainingRecord, VariableKind, VariableRecord

_MOST = 2
"""Maximum number of lines of a finding. A longer list is no help."""
_WIDTH = 80
"""Maximum number of characters of the text of a line."""
_OF_LOSS = ("loss", "fit")
_OF_UPDATE = ("apply", "assign", "all_reduce", "gradient", "fit")
_OF_OPTIMIZER = ("apply", "fit")
_AFTER_TAPE = ("all_reduce", "gather", "assign", "apply", "fit")
"""Kinds of lines with the defect of a program if the gradients of its tape add up to those of one device."""
_OF_WRITING = ("overwrite", "assign")
"""Kinds of lines at which the program itself changes a variable. Neither an optimizer nor a layer has such a line."""
_OF_DATA = ("data", "train", "fit")
_OF_VARIABLE = ("variable",)
_OF_GRADIENT = ("loss", "gradient", "apply", "all_reduce", "gather")
"""Kinds of lines that are also recorded for each variable."""
_WHAT = {
    "loss": "the loss",
    "gradient": "its gradient",
    "apply": "the update",
    "all_reduce": "the all-reduce",
    "gather": "the gather",
    "reduce": "the reduction",
    "reduced": "the reduction",
    "assign": "the assignment",
    "overwrite": "the assignment",
    "start": "the assignment",
    "last": "the assignment",
    "rate": "the learning rate",
    "rate_schedule": "the schedule",
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
            "gathered-positions-wrong",
            "reduced-value-wrong",
            "replica-computes-otherwise",
            "attribute-shared-by-replicas",
            "regularization-scaled-by-replica-count",
            "gradient-scaled-by-inverse-replica-count",
            "gradient-unscaled-without-scale",
        ),
        (_OF_LOSS, 1),
    ),
    # Either the loss or a reduction that is made twice.
    "gradient-scaled-by-replica-count": (("loss", "all_reduce"), 2),
    **dict.fromkeys(
        ("gradient-not-aggregated", "gradient-clipped-before-aggregation", "clipping-lost"), (_OF_UPDATE, 1)
    ),
    "term-added-by-every-replica": (_OF_UPDATE, 1),
    "sparse-gradient-mismatch": (("all_reduce", "gather", "apply", "assign", "gradient", "fit"), 1),
    **dict.fromkeys(
        ("non-finite-not-synchronised", "reduction-overflow", "gradient-accumulation-wrong"), (_OF_UPDATE, 1)
    ),
    **dict.fromkeys(
        (
            "loss-scale-not-synchronised",
            "variable-did-not-move",
        ),
        (_OF_OPTIMIZER, 1),
    ),
    **dict.fromkeys(("duplicate-update", "lost-update"), ((*_OF_WRITING, *_OF_OPTIMIZER), 1)),
    **dict.fromkeys(("optimizer-state-mismatch", "iteration-count-wrong"), (("assign", *_OF_OPTIMIZER), 1)),
    "learning-rate-differs": (("rate_schedule", "rate", "assign", *_OF_OPTIMIZER), 1),
    "reported-loss-wrong": (("reduced", "reduce", "loss", "fit"), 1),
    "metric-wrong": (("variable", "reduced", "value", "reduce", "fit"), 1),
    **dict.fromkeys(("checkpoint-incomplete", "resume-lost-state", "resume-step-wrong"), (("restore",), 1)),
    **dict.fromkeys(
        ("state-not-aggregated", "state-scaled-by-replica-count", "variable-outside-scope", "layout-wrong"),
        (_OF_VARIABLE, 1),
    ),
    "initial-weights-differ": (("start", "variable"), 1),
    **dict.fromkeys(("replicas-diverged", "workers-diverged"), (("assign", "rate_schedule", "apply", "variable"), 1)),
    "frozen-variable-moved": (("assign", "apply", "variable"), 1),
    "changed-after-last-step": (("last",), 1),
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
    variable = next((item for item in record.variables if item.name == finding.variable), None)
    kinds, count = _kinds(finding, variable)
    found = [(kind, line) for kind in kinds for line in _of_kind(kind, finding, variable, record, recorded)[:_MOST]]
    # All lines of the likeliest kind that is known; with a count of two, also one of the next kind.
    best = list(dict.fromkeys(kind for kind, _line in found))[:count]
    for kind, line in [entry for entry in found if entry[0] in best][:_MOST]:
        yield f"{_shown(line)} ({_WHAT[kind]}){_text(line)}"


def _kinds(finding: Finding, variable: VariableRecord | None) -> tuple[tuple[str, ...], int]:
    """Return the kinds of lines at which a finding may be caused, the likeliest first, and how many to name."""
    kinds, count = KINDS.get(finding.cause or "", ((), 0))
    if finding.check == STEP_EQ and kinds == _OF_DATA:
        kinds = _OF_LOSS  # the replicas have the right examples, and the replica function counts them wrongly
    if finding.tape_is_right and (finding.cause is None or "loss" in kinds):
        return _AFTER_TAPE, _MOST
    if finding.tape_is_right is False and finding.cause is None:
        return _OF_LOSS, 1
    if kinds[:2] == _OF_WRITING and variable is not None and variable.kind is VariableKind.STATE:
        return (*_OF_WRITING, *_OF_VARIABLE), 1  # no optimizer moves it
    if "assign" in kinds and "variable" in kinds and variable is not None and not variable.distributed:
        return _OF_VARIABLE, 1  # a variable of the strategy would not differ
    return kinds, count


def _of_kind(
    kind: str,
    finding: Finding,
    variable: VariableRecord | None,
    record: TrainingRecord,
    recorded: Mapping[str, tuple[str, ...]],
) -> tuple[str, ...]:
    if kind == "draw":
        keys = [f"draw {position}" for position in finding.operations]
    elif kind == "write":
        keys = [f"write {path}" for path in finding.paths]
    elif kind == "value":
        names = [key.removeprefix("value ") for key in recorded if key.startswith("value ")]
        parts = [name for name in names if _is_part(finding.variable, name)]
        keys = [f"value {name}" for name in ([_of_value(finding)] if _of_value(finding) in names else parts)]
    elif kind == "reduced":
        keys = [f"reduced {_of_value(finding)}"]
    elif kind == "start":
        return () if variable is None else _deviating(record, f"start {variable.index}")
    elif kind == "rate":
        return _of_rate(variable, record, recorded)
    elif kind == "last":
        return () if variable is None else recorded.get(f"assign {variable.index}", ())[-1:]
    elif kind == "overwrite" and variable is None:
        return _of_rewriting(finding, record)
    elif kind in ("variable", "assign", "overwrite", "rate_schedule"):
        keys = [] if variable is None else [f"{kind} {variable.index}"]
    elif kind in _OF_GRADIENT:
        lines = _of_gradient(kind, variable, recorded)
        if finding.tape_is_right and variable is not None and kind in ("all_reduce", "gather"):
            own = recorded.get(f"{kind} {variable.index}", ())
            return tuple(line for line in lines if line in own)  # not those of other things, for example of a norm
        return lines
    else:
        keys = [kind]
    return tuple(dict.fromkeys(line for key in keys for line in recorded.get(key, ())))


def _of_rewriting(finding: Finding, record: TrainingRecord) -> tuple[str, ...]:
    """Return the lines at which closures compute a variable from its old value, also if nothing watches it."""
    rewritten = [rank.facts.get("rewritten", {}) for rank in record.ranks]
    return tuple(
        line for lines in rewritten for name, line in lines.items() if name.removesuffix(":0") == finding.variable
    )


def _of_gradient(
    kind: str, variable: VariableRecord | None, recorded: Mapping[str, tuple[str, ...]]
) -> tuple[str, ...]:
    """Return the lines that have to do with the gradient of a variable, or all of them if that is not known."""
    every = recorded.get(kind, ())
    tied = {key: lines for key, lines in recorded.items() if key.startswith(f"{kind} ")}
    if variable is None or not tied:
        return every
    own = tied.get(f"{kind} {variable.index if variable.slot_of is None else variable.slot_of}", ())
    if not own:
        return () if variable.kind in (VariableKind.TRAINABLE, VariableKind.FROZEN) else every
    if kind != "loss":
        return own
    # The loss function that Model.fit calls is recorded without variables.
    others = {line for lines in tied.values() for line in lines}.difference(own)
    return tuple(line for line in every if line not in others)


def _of_rate(
    variable: VariableRecord | None, record: TrainingRecord, recorded: Mapping[str, tuple[str, ...]]
) -> tuple[str, ...]:
    """Return the lines that set the learning rate which a finding is about, or those that created its optimizer."""
    if variable is None or variable.kind is VariableKind.STATE:
        return ()
    if variable.kind is not VariableKind.LEARNING_RATE:
        return recorded.get(f"rate {variable.index if variable.slot_of is None else variable.slot_of}", ())
    own = recorded.get(f"assign {variable.index}") or _deviating(record, f"start {variable.index}")
    return own or recorded.get(f"variable {variable.index}", ()) or recorded.get(f"rate {variable.index}", ())


def _deviating(record: TrainingRecord, key: str) -> tuple[str, ...]:
    """Return the line that ran last on each rank, and only those that not all ranks executed if there are any."""
    ranks = [rank.facts.get("lines", {}).get(key, ()) for rank in record.ranks]
    last = tuple(dict.fromkeys(lines[-1] for lines in ranks if lines))
    return tuple(line for line in last if not all(line in lines for lines in ranks)) or last


def _of_value(finding: Finding) -> str:
    """Return the name under which the program reports a value."""
    return "loss" if finding.variable is None else re.sub(r"^value(#\d+)?/", "", finding.variable)


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
