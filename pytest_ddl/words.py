"""Vocabularies of messages: the arguments and options by which the caller of a comparison can act.

Messages are written for the author of a test, who calls ``ddl_equivalence`` with a function ``train(run)``. The
commands that need no test have other options, and the author of a script has no ``run``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

Value = TypeVar("Value")

_VERBATIM = frozenset({"details", "lines", "source", "variable", "check", "cause", "known"})
"""Fields with ids, or with text of the program, which are never changed."""


@dataclass(frozen=True)
class Words:
    """Vocabulary of one caller."""

    phrases: tuple[tuple[str, str], ...] = ()
    """Patterns of what the author of a test reads, each with what this caller reads. They apply in order."""
    expectation: str = ""
    """Form of the argument or option that declares a cause, with ``{strategy}``, ``{cause}`` and ``{reason}``. Empty
    if the caller has none."""

    def of(self, text: str) -> str:
        """Return a message in the words of this caller."""
        for pattern, own in self.phrases:
            text = re.sub(pattern, own, text)
        return text

    def within(self, value: Value) -> Value:
        """Return a finding, a result or a collection of these with all its messages in the words of this caller."""
        return self._within(value) if self.phrases else value

    def _within(self, value: Any) -> Any:
        if type(value) is str:
            return self.of(value)
        if type(value) in (list, tuple):
            return type(value)(map(self._within, value))
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*map(self._within, value))
        if isinstance(value, dict):
            return {name: self._within(one) for name, one in value.items()}
        if hasattr(value, "__dataclass_fields__"):
            changed = {one.name: self._within(getattr(value, one.name)) for one in fields(value)}
            return replace(value, **{name: one for name, one in changed.items() if name not in _VERBATIM})
        return value


FIXTURE = Words(expectation='expect={{"{strategy}": {{"{cause}": "{reason}"}}}}')
"""Words of the author of a test."""

_BOTH = (
    (r" \(reasons: report\.results\)", ""),
    (r"--ddl-(?=strategy|timeout|strict)", "--"),
    (r"\bstrict=True\b", "--strict"),
    (r"(?<!-)\btimeout=(?=\s|$|[;,.)])", "--timeout"),
    (r"(?<!-)\b(?:leave steps= out|raise steps= or leave it out)", "raise --steps"),
    (r"\bpass steps=, or steps= to the check", "pass steps=, or --steps to the command"),
    (r"\bpass steps=(?!\w)", "pass --steps"),
)

CHECK = Words(
    (
        *_BOTH,
        (r"--ddl-(?=device)", "--"),
        (r"\bexpect=\{'([^']*)': .*\}:", r"--expect=\1:...:"),
        (r"(?<!-)\bexpect=", "--expect"),
        (r'(?<!-)\bchecks=\["([\w-]+)"\]', r"--checks=\1"),
        (r"(?<!-)\bchecks=(?!\w)", "--checks"),
        (r'\bprecision="float64"', "--precision=float64"),
        (r"\bwith global_batch_size=", "with --global-batch-size="),
        (r" in the equivalence test\b", ""),
    ),
    "--expect='{strategy}:{cause}={reason}'",
)
"""Words of ``pytest-ddl check``."""

TRY = Words(
    (
        *_BOTH,
        (r"--ddl-(?=keras)", "--"),
        (r": declare it with expect=, or set the rates to 0 in the equivalence test", ""),
        (r", or declare it with expect= if intended", ""),
        (r"Declare it with expect= and a reason, or use the alternative", "Use the alternative"),
        (r"; name \w+ in checks= to test it|; remove it from expect=", ""),
        (r'use precision="float64" or fewer steps', "use fewer steps (--steps)"),
        (r"\bwith global_batch_size=", "with a global batch of "),
        (r"\brun\.global_batch_size\b", "GLOBAL_BATCH_SIZE"),
        (r"\brun\.seed\b", "SEED"),
        (r"\brun\.layout_map\b", "the layout map"),
        (r" \(run\.rank_path\)", ""),
        (r"\brun\.watch and the training steps", "the training steps"),
        (r"\bUse run\.strategy\.", "Use the strategy that the script has made."),
        (r"\brun\.strategy\b", "strategy"),
        (r": call run\.watch\([^)]*\) unconditionally", ""),
        (r"Watch the same objects\b", "Create the same models and optimizers"),
        (r"Call run\.watch in the same order", "Create models and optimizers in the same order"),
        (r"; call run\.watch\([^;]*", "; this command sees only models and optimizers of Keras"),
        (r": call run\.watch\([^)]*\)", ": this command sees only models and optimizers of Keras"),
        (r"\brun\.watch\(metrics=\.\.\.\) or run\.value\(\.\.\.\)", "model.compile(metrics=...)"),
        (r"\bthe program does not interrupt itself with run\.restart\(\)", "the script is not interrupted"),
        (r"^run\.restart\(\)(?: in the program)?$", ""),
        (r"^checks=\[.*\]$", ""),
        (r": does the program use run\.steps, run\.batches, run\.fit or run\.record\?", ""),
        (r"\bThe train_step of run\.steps gets", "A step that takes its own data gets"),
        (r" \(run\.steps\)", ""),
    ),
)
"""Words of ``pytest-ddl try``, whose script has no ``run`` and which has no option for expectations."""
