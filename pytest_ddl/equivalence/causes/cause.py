"""Cause of a difference: what happened, what to do, and whether a correct program may do it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum


class Form(Enum):
    """Form of a program. A fix may need other code for another form."""

    LOOP = "a training loop of its own"
    FIT = "Model.fit"
    TRAIN_STEP = "Model.fit with a train_step of its own"
    LAYER = "a layer of Keras that holds the variable"
    MODULE = "a tf.Module, or variables that are updated by hand"


class Fix(str):
    """Repair of a cause: sentences, and code that replaces the lines with the mistake.

    As a string it is both. The code uses the names of TensorFlow's guides: ``strategy``, ``global_batch_size``,
    ``model``, ``optimizer``, ``gradients``, ``dataset``. A fix without code is advice that no test can apply.
    """

    text: str
    code: str
    variants: Mapping[Form, Fix]
    """Other fixes for programs of another form."""

    def __new__(cls, text: str, code: str = "", variants: Mapping[Form, Fix] | None = None) -> Fix:
        code = textwrap.dedent(code).strip("\n")
        fix = super().__new__(cls, f"{text}\n{textwrap.indent(code, '    ')}" if code else text)
        fix.text, fix.code, fix.variants = text, code, variants or {}
        return fix

    def __getnewargs__(self) -> tuple[str, str, dict[Form, Fix]]:  # type: ignore[override]  # of our own __new__
        return self.text, self.code, dict(self.variants)

    def of(self, forms: Sequence[Form]) -> Fix:
        """Return the variant for the first of some forms that has one, or this fix."""
        return next((self.variants[form] for form in forms if form in self.variants), self)

    def between(self, before: str, after: str = "") -> Fix:
        """Return this fix with further text before and after its own."""
        others = {form: fix.between(before, after) for form, fix in self.variants.items()}
        return Fix(f"{before}{self.text}{after}", self.code, others)

    def all(self) -> Iterator[tuple[Form | None, Fix]]:
        """Yield this fix and its variants, each with its form."""
        yield None, self
        yield from self.variants.items()


@dataclass(frozen=True)
class Cause:
    """Cause of a difference, with a sentence that explains it and the API that repairs it."""

    id: str
    title: str
    """One sentence that says what happened."""
    fix: Fix
    """One or two sentences that say what to do, with the concrete API and code."""
    legitimate: bool = False
    """True if a correct program may do this and declares it with ``expect=``."""
    accepted: bool = False
    """True if a user who cannot change it declares it with ``expect=``."""
    gone_without: str = ""
    """Part of a program that this cause needs: ``random`` or ``normalization``. Runs without it cannot show the cause.
    """

    @property
    def declarable(self) -> bool:
        """True if a failure shows the line that declares the cause."""
        return self.legitimate or self.accepted
