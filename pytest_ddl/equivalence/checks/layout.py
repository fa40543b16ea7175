"""LAYOUT: sharded variables are laid out over the mesh as run.layout_map says, and copies of a shard are equal."""

from __future__ import annotations

from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.evidence.observe import WEIGHTS
from pytest_ddl.equivalence.findings import CheckResult, Finding
from pytest_ddl.equivalence.outcomes import failed, inconclusive, not_applicable, passed
from pytest_ddl.hints import Hint
from pytest_ddl.records import LayoutRecord, RankRecord, VariableKind, VariableRecord

CHECK = "LAYOUT"


def check_layout(comparison: Comparison) -> CheckResult:
    """Judge the layouts of the variables at the end of the program. The reference has no layouts."""
    distributed = comparison.distributed
    if not distributed.capabilities.global_view:
        return not_applicable(CHECK, "variables have layouts only under model_parallel")
    findings: list[Finding] = []
    judged = 0
    for rank in distributed.ranks:
        findings += _rules(rank)
        for variable in rank.variables:
            if variable.layout is not None:
                judged += 1
                findings += _variable(rank, variable, variable.layout)
    if findings:
        return failed(CHECK, findings)
    if judged == 0:
        return inconclusive(CHECK, "no watched variable has a layout: make them in strategy.scope()")
    without = [v.name for rank in distributed.ranks for v in rank.variables if v.layout is None]
    if without:
        return inconclusive(CHECK, f"no layout of {', '.join(without[:3])} was recorded")
    sharded = sum(any(_axes(v.layout)) for rank in distributed.ranks for v in rank.variables if v.layout)
    return passed(CHECK, f"{judged} variables, {sharded} of them sharded")


def _axes(layout: LayoutRecord | None) -> tuple[str, ...]:
    return tuple(axis for axis in layout.actual if axis in layout.mesh) if layout else ()


def _rules(rank: RankRecord) -> list[Finding]:
    unmatched = rank.facts.get("unmatched_layout_rules", ())
    return [
        _finding(
            rank,
            f"the rule {pattern!r} of {Hint.LAYOUT_MAP} matches no variable, so the variables that it should shard are "
            "replicated",
            observed="no variable",
            expected="a variable whose path has the pattern",
        )
        for pattern in unmatched
    ]


def _variable(rank: RankRecord, variable: VariableRecord, layout: LayoutRecord) -> list[Finding]:
    findings = []
    # Rules are written for weights. The optimizer chooses the names of its slots.
    ruled = variable.kind in WEIGHTS or variable.kind is VariableKind.STATE
    if ruled and layout.declared is not None and layout.declared != layout.actual:
        findings.append(
            _finding(
                rank,
                f"{variable.name} is not laid out as {Hint.LAYOUT_MAP} says; set the rule before the variable is made",
                str(layout.actual),
                str(layout.declared),
                variable.name,
            )
        )
    divisors = (layout.mesh.get(axis, 1) for axis in layout.actual)
    shape = tuple(size // divisor for size, divisor in zip(variable.shape, divisors, strict=False))
    if shape != layout.shard_shape:
        what = f"a shard of {variable.name} does not have the shape that its layout and the mesh give"
        findings.append(_finding(rank, what, str(layout.shard_shape), str(shape), variable.name))
    if not layout.replicas_equal:
        what = f"devices that hold the same part of {variable.name} hold different values"
        findings.append(_finding(rank, what, "different bits", "the same bits", variable.name))
    return findings


def _finding(rank: RankRecord, message: str, observed: str, expected: str, variable: str | None = None) -> Finding:
    return Finding(
        check=CHECK,
        message=message,
        cause="layout-wrong",
        step=0,
        variable=variable,
        worker=rank.rank,
        observed=observed,
        expected=expected,
        origin="layouts are exact",
    )
