"""Performance gate: measure whether HEAD is slower than BASE.

Both versions run at the same time and take turns. Launches are repeated until there is a verdict, or until the
budget is used up. The names below are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_ddl.lazy import loaded_on_use

if TYPE_CHECKING:
    from pytest_ddl.bench.gate.gating import gate, run_gate
    from pytest_ddl.bench.gate.plan import GatePlan
    from pytest_ddl.bench.gate.result import CellResult, GateResult
    from pytest_ddl.bench.gate.verdict import Decision, Rule, Verdict, decide
    from pytest_ddl.bench.outcome import UsageError

_HOMES = {
    "CellResult": "pytest_ddl.bench.gate.result",
    "Decision": "pytest_ddl.bench.gate.verdict",
    "GatePlan": "pytest_ddl.bench.gate.plan",
    "GateResult": "pytest_ddl.bench.gate.result",
    "Rule": "pytest_ddl.bench.gate.verdict",
    "UsageError": "pytest_ddl.bench.outcome",
    "Verdict": "pytest_ddl.bench.gate.verdict",
    "decide": "pytest_ddl.bench.gate.verdict",
    "gate": "pytest_ddl.bench.gate.gating",
    "run_gate": "pytest_ddl.bench.gate.gating",
}

__all__ = [
    "CellResult",
    "Decision",
    "GatePlan",
    "GateResult",
    "Rule",
    "UsageError",
    "Verdict",
    "decide",
    "gate",
    "run_gate",
]

__getattr__, __dir__ = loaded_on_use(__name__, _HOMES)
