"""What is raised where a metric has no number: the reason, in words for a user."""

from __future__ import annotations


class NoNumberError(ValueError):
    """A metric that cannot be had from what was measured; the message says why, and what would give it."""
