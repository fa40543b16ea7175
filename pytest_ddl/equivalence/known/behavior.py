"""A known behavior of a framework: what it does, in which versions, and the recomputation that recognizes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet

from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.findings import Finding

Recognize = Callable[[Finding, Comparison], bool]
"""Function of a finding and both runs: whether only the framework caused it."""


@dataclass(frozen=True)
class KnownBehavior:
    """Something that TensorFlow or Keras does by itself under a strategy, and that no correct program can avoid.

    A finding that an entry recognizes is no failure of the test, but no pass either: the test is an expected failure.
    """

    id: str
    title: str
    """One sentence that says what the framework does."""
    causes: tuple[str, ...]
    """Ids of :mod:`pytest_ddl.equivalence.causes` under which the behavior is found."""
    workaround: str
    """One or two sentences that say what a user can do meanwhile."""
    link: str
    """Address at which it is tracked or documented; empty if no report is known."""
    recognize: Recognize
    """Recomputation. It must return False for the same mistake in the program's own code."""
    versions: Mapping[str, str]
    """Package -> version range, as pip understands it."""
    strategies: tuple[str, ...] = ()
    """Names of strategies; empty for all."""

    def applies(self, strategy: str, versions: Mapping[str, str]) -> bool:
        """Return whether the entry is for a strategy and for versions of packages. An absent package never fits."""
        return (not self.strategies or strategy in self.strategies) and all(
            name in versions and SpecifierSet(wanted).contains(versions[name], prereleases=True)
            for name, wanted in self.versions.items()
        )

    @property
    def explanation(self) -> str:
        """Title, and the link to its report."""
        return f"{self.title} ({self.link or 'not reported yet'})"
