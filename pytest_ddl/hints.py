"""Hints: the parts of a message that depend on how its reader has called the comparison.

The author of a test gives ``expect=`` and has a function ``train(run)``. The user of a command gives ``--expect``, and
the author of a script has neither. So a message holds a :class:`Hint` in place of such words, and the front end that
shows the message renders it. :class:`Hint` is the only table of these words.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple

_BEGIN, _NEXT, _END = "\ue000", "\ue001", "\ue002"
"""Marks of a hint within a text, from the private use area of Unicode, so that no other text has them."""
_HINT = re.compile(f"{_BEGIN}(\\w+)((?:{_NEXT}[^{_END}]*)?){_END}")


class FrontEnd(Enum):
    """Way in which a user calls a comparison."""

    TEST = "test"
    """A fixture, the marker, or ``check_training``."""
    CHECK = "check"
    """``pytest-ddl check`` and ``pytest-ddl faults``, which have the same options."""
    TRY = "script"
    """``pytest-ddl try``, whose script has no ``run``, and which has no option for expectations or checks."""

    def render(self, text: str) -> str:
        """Return a message with the words of this front end in place of its hints."""
        if _BEGIN not in text:
            return text  # as it is, because a fix is a string with more in it
        return _HINT.sub(lambda found: self.words(Hint[found[1]], *found[2].split(_NEXT)[1:]), text)

    def words(self, hint: Hint, *values: object) -> str:
        """Return the words of this front end for one hint."""
        words: str = getattr(hint.value, self.value)
        return words.format(*values)

    def option(self, name: str) -> str:
        """Return the name of an option of the plugin as the user of this front end gives it."""
        return f"--{name}" if name in _OWN_OPTIONS.get(self, ()) else f"--ddl-{name}"


_OWN_OPTIONS = {FrontEnd.CHECK: ("strategy", "device"), FrontEnd.TRY: ("strategy", "keras")}
"""Options that a command gives to the plugin under another name."""


class Words(NamedTuple):
    """Words for one hint, by front end. ``{0}`` stands for the first value of the hint."""

    test: str
    check: str
    script: str


def _of_run(text: str, script: str) -> Words:
    """Return words that name the object ``run``, which tests and ``pytest-ddl check`` have."""
    return Words(text, text, script)


_ONLY_KERAS = "this command sees only models and optimizers of Keras"


class Hint(Enum):
    """Part of a message that names what its reader can use. In an f-string it becomes a mark with its name."""

    # Arguments and options.
    TIMEOUT = Words("timeout=", "--timeout", "--timeout")
    STEPS = Words("steps=", "--steps", "--steps")
    PRECISION = Words("precision", "--precision", "the precision")
    GIVEN = Words("{0}={1}", "--{0}={1}", "--{0}={1}")
    GLOBAL_BATCH_SIZE = Words("global_batch_size={0}", "--global-batch-size={0}", "a global batch of {0}")
    EXPECT = Words("expect=", "--expect", "what is declared")
    CHECKS = Words("checks=", "--checks", "the command")
    STRICT = Words("strict=True", "--strict", "--strict")
    STRICT_OPTION = Words("--ddl-strict", "--strict", "--strict")
    LIMIT = Words("steps={0}", "--steps={0}", "the limit of {0} steps")
    RAISE_STEPS = Words("raise steps= or leave it out", "raise --steps or leave it out", "raise --steps")
    LEAVE_STEPS_OUT = Words("leave steps= out", "leave --steps out", "use another strategy")
    MORE_PRECISION = Words(
        'use precision="float64" or fewer steps',
        "use --precision=float64 or fewer steps",
        "use fewer steps (--steps)",
    )
    ONLY_CHECK = Words('checks=["{0}"]', "--checks={0}", "")
    NAME_CHECK = Words("; name {0} in checks= to test it", "; name {0} in --checks to test it", "")
    REASONS = Words(" (reasons: report.results)", "", "")

    # Limits of ``pytest-ddl faults``. A script that is tried meets no faults.
    EXACT = Words("exact=True", "--exact", "")
    ALWAYS_LOADABLE = Words("always_loadable=True", "--always-loadable", "")
    MAX_LOST_STEPS = Words("max_lost_steps={0}", "--max-lost-steps={0}", "")
    FAULTS = Words("faults", "--fault, --tasks or --kind", "")
    RESTART_ON = Words("restart_on={0}", "--restart-on={0}", "")
    DETECTED_WITHIN = Words("detected_within={0}", "--detected-within={0}", "")

    # Differences that are intended.
    ACCEPT = Words('expect={{"{0}": {{"{1}": "{2}"}}}}', "--expect='{0}:{1}={2}'", "")
    EQUAL_EXAMPLES = Words(
        "; if all examples are equal by nature, declare {0!r} in expect=",
        "; if all examples are equal by nature, declare {0!r} by --expect",
        "",
    )
    OF_STRATEGY = Words("expect={{{0!r}: {1}}}", "--expect={0}:...", "what is declared for {0!r}")
    REMOVE = Words("; remove it from expect=", "; remove it from --expect", "")

    # What a program watches and records.
    WATCH = _of_run("call run.watch(model=..., optimizer=...)", _ONLY_KERAS)
    WATCH_ALL = _of_run("call run.watch(model=...) for the whole model, or run.watch(variables=...)", _ONLY_KERAS)
    WATCH_UPDATES = _of_run(
        "call run.watch(optimizer=...) for its count of updates, or watch a variable to which each step adds 1 by "
        "assign_add, and record every step on one device; or let run.steps(train_step, dataset) run one step at a time",
        _ONLY_KERAS,
    )
    WATCH_ALIKE = _of_run(
        "Watch the same objects in the same order in every run: call run.watch(model=..., optimizer=...) "
        "unconditionally.",
        "Create the same models and optimizers in the same order in every run.",
    )
    A_MODEL = _of_run("run.watch(model=...)", "a model of Keras")
    AN_OPTIMIZER = _of_run("run.watch(optimizer=...)", "an optimizer of Keras")
    METRICS = _of_run("run.watch(metrics=...) or run.value(...)", "model.compile(metrics=...)")
    RESTART = _of_run("run.restart()", "")
    WITH_RESTART = _of_run(" with run.restart()", "")
    LOOPS = _of_run("run.steps, run.batches or run.fit", "Model.fit")
    USES_LOOPS = _of_run(": does the program use run.steps, run.batches, run.fit or run.record?", "")
    OF_RUN_STEPS = _of_run(" (run.steps)", "")
    OF_RUN_RECORD = _of_run(" (run.record())", "")
    CALL = _of_run("{0}", "the training")

    # What a program reads.
    LAYOUT_MAP = _of_run("run.layout_map", "the layout map")
    USE_STRATEGY = _of_run("Use run.strategy.", "Use the strategy that the script has made.")

    def __call__(self, *values: object) -> str:
        """Return the hint as a part of a text, with the values that its words show."""
        return f"{_BEGIN}{self.name}{''.join(f'{_NEXT}{value}' for value in values)}{_END}"

    def __str__(self) -> str:
        return self()


class HintedError(ValueError):
    """Error whose message may have hints. ``str`` renders it for the author of a test."""

    def __str__(self) -> str:
        return self.rendered(FrontEnd.TEST)

    def rendered(self, front_end: FrontEnd) -> str:
        """Return the message for the user of a front end."""
        return front_end.render(super().__str__())
