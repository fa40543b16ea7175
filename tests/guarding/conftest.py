"""Runs guarded programs in the ranks of warm clusters."""

from __future__ import annotations

from tests.training.conftest import in_rank as in_rank
