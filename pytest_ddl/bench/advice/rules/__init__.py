"""Rules of the advice, by what limits a step. Importing this package fills the registry."""

from __future__ import annotations

from pytest_ddl.bench.advice.rules import communication, compute, host, memory, pipeline, stragglers, tracing
from pytest_ddl.bench.advice.rules.registry import LIMITS, RULES, AdviceRule, RuleFinding

__all__ = [
    "LIMITS",
    "RULES",
    "AdviceRule",
    "RuleFinding",
    "communication",
    "compute",
    "host",
    "memory",
    "pipeline",
    "stragglers",
    "tracing",
]
