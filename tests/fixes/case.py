"""One mistake of a program, and the fix that the package has for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pytest_ddl.equivalence.causes import CAUSES
from pytest_ddl.equivalence.causes.cause import Fix, Form
from pytest_ddl.equivalence.causes.special import SPECIAL
from tests.fixes.templates import NAMES, Template


@dataclass(frozen=True)
class Case:
    """One mistake, and the hole of a program in which the fix takes its place."""

    fix: str
    """Id of a cause, or name of a special fix."""
    program: Template
    hole: str
    mistake: str
    form: Form | None = None
    """Form for which the fix has a variant of its own; ``None`` for the fix of all others."""
    given: Mapping[str, str] = field(default_factory=dict)
    """Lines of other holes, in both programs."""
    cause: str = ""
    """Cause that the report names, if it is not ``fix``. ``-`` if it names none, and so shows no fix."""
    strategy: str = "mirrored"
    batch: int = 8
    steps: int | None = 3
    verdict: str = "fail"
    expect: tuple[str, ...] = ()
    """Causes that the program with the fix declares."""
    strict: bool = False

    @property
    def id(self) -> str:
        return f"{self.fix}-{NAMES[self.program]}"

    @property
    def shown(self) -> Fix:
        """The fix, as the data of the package has it."""
        fix = CAUSES[self.fix].fix if self.fix in CAUSES else SPECIAL[self.fix]
        return fix if self.form is None else fix.variants[self.form]

    def wrong(self) -> str:
        """Return the program with the mistake."""
        return self.program.filled({**self.given, self.hole: self.mistake})

    def right(self) -> str:
        """Return the program in which the code of the fix has replaced the mistake."""
        return self.program.filled({**self.given, self.hole: self.shown.code})


def every_fix() -> Iterator[tuple[str, Form | None, Fix]]:
    """Yield all fixes of the package, each with its name and form."""
    for name, fix in (*((cause.id, cause.fix) for cause in CAUSES.values()), *SPECIAL.items()):
        yield from ((name, form, variant) for form, variant in fix.all())
