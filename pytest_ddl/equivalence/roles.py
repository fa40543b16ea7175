"""Roles of checks: the part of a training run that each one judges, so that others can treat alike checks alike."""

from __future__ import annotations

from enum import Flag, auto
from typing import Protocol


class Role(Flag):
    """Part of a training run that a check judges. A check of a plugin may take any of them, or none."""

    RUN = auto()
    """Exceptions and missing ranks."""
    LIVENESS = auto()
    """Runs that do not end."""
    SETUP = auto()
    """Strategy and scope. If they are wrong, everything else differs."""
    COLLECTIVES = auto()
    """Collectives and the values that they give."""
    BATCHES = auto()
    """Sizes of batches."""
    EXAMPLES = auto()
    """Examples that the replicas consume."""
    FILES = auto()
    """Files that several ranks write."""
    RESUMPTION = auto()
    """The point from which interrupted training goes on."""
    DRAWS = auto()
    """Random numbers."""
    NONFINITE = auto()
    """Steps that are skipped because a gradient is not finite."""
    GRADIENTS = auto()
    """Processing of gradients before they are applied."""
    UPDATES = auto()
    """Weights after each step, compared with one device."""
    REPLICAS = auto()
    """Components of one variable, compared with each other."""
    SLOTS = auto()
    """State of the optimizer."""
    STATE = auto()
    """Variables that are not trained."""
    MOTION = auto()
    """Movement of variables: whether the trained ones move and the frozen ones do not."""
    LOSS = auto()
    """Losses of the steps."""
    METRICS = auto()
    """Metrics, and other values that are reported."""

    DATA = BATCHES | EXAMPLES
    WEIGHTS = UPDATES | REPLICAS | SLOTS
    """Checks whose findings mean that the weights differ from here on."""
    BY_STEP = UPDATES | SLOTS | STATE | LOSS
    """Checks that compare values with one device after each step."""
    VALUES = BY_STEP | METRICS
    """Checks that compare values with one device."""
    NUMBERS = VALUES | MOTION | GRADIENTS
    """Checks that compare numbers with one device, so that both runs need the same data and the same draws."""
    ORDERED = VALUES | GRADIENTS | NONFINITE
    """Checks that need steps one after another. Steps that run concurrently have no state of their own."""
    FOLLOWING = WEIGHTS | VALUES | MOTION
    """Checks that find something as a consequence of wrong data, wrong weights or wrong collectives."""
    STOPPING = RUN | LIVENESS | SETUP
    """Checks whose findings come first, because the run did not do what the other checks judge."""


NO_ROLE = Role(0)
"""Role of a check whose findings neither explain others nor follow from them."""


class OfCheck(Protocol):
    """Finding or result, with the name of its check."""

    @property
    def check(self) -> str:
        """Name of the check."""
        ...


class Roles(dict[str, Role]):
    """Name of a check -> its role, in the order in which the checks explain each other."""

    def have(self, item: OfCheck, role: Role) -> bool:
        """Return whether the check of a finding or of a result has one of the given roles."""
        return bool(self.get(item.check, NO_ROLE) & role)

    def position(self, item: OfCheck) -> int:
        """Return the place of a check in the order. Unknown checks come last."""
        return list(self).index(item.check) if item.check in self else len(self)
