"""Causes that a finding can name: what happened, what to do, and whether a correct program may do it.

Cause ids are part of the contract with users, because ``expect=`` names them. Add ids, but never rename one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pytest_ddl.equivalence.causes.cause import Cause, Fix
from pytest_ddl.equivalence.causes.data import CHECKPOINTS, DATA
from pytest_ddl.equivalence.causes.gradients import GRADIENTS
from pytest_ddl.equivalence.causes.runs import COLLECTIVES, PARAMETER_SERVER, RUN
from pytest_ddl.equivalence.causes.values import RANDOM, VALUES

CAUSES: Mapping[str, Cause] = {
    cause.id: cause
    for group in (GRADIENTS, VALUES, RANDOM, DATA, CHECKPOINTS, PARAMETER_SERVER, COLLECTIVES, RUN)
    for cause in group
}
"""All causes by id, in the order of the documentation."""


def fix_of(cause: str | None) -> Fix | None:
    """Return what to do about a cause, or ``None`` if there is no cause."""
    return CAUSES[cause].fix if cause is not None else None


def is_possible(cause: str | None, neutralized: Collection[str]) -> bool:
    """Return whether a cause can act in runs in which some things were switched off."""
    return cause is None or CAUSES[cause].gone_without not in neutralized
