"""PERF: one trace, one collective for many variables, and no step that runs eagerly without need."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.evidence.observe import of_kind
from pytest_ddl.equivalence.findings import CheckResult, Finding, Symptom
from pytest_ddl.equivalence.outcomes import failed, no_steps, not_applicable, passed
from pytest_ddl.records import CollectiveRecord, GraphRecord, RankRecord, TrainingRecord, VariableKind

CHECK = "PERF"
REPEATS = 2
"""Number of steps in which a cost must repeat before it counts. The first step may warm up."""
SEVERAL = 3
"""Minimum number of variables for which separate reductions count."""


def check_performance(comparison: Comparison) -> CheckResult:
    """Judge counts, never times."""
    distributed = comparison.distributed
    if distributed.num_replicas < 2:
        return not_applicable(CHECK, "there is one replica")
    if distributed.errors:
        return not_applicable(CHECK, "the run did not end")
    if distributed.num_steps == 0:
        return no_steps(CHECK, distributed)
    rank = distributed.ranks[0]
    if not rank.graphs and not any(step.eager for step in rank.steps):
        return not_applicable(CHECK, "neither graphs nor calls of strategy.run outside of one were observed")
    findings = [
        finding for finding in (_retraced(rank), _eager(rank), _per_variable(distributed, rank)) if finding is not None
    ]
    if findings:
        return failed(CHECK, findings)
    most = max((len(graph.collectives) for graph in rank.graphs), default=0)
    return passed(CHECK, f"traced graphs: {len(rank.graphs)}, most collectives of a replica in a graph: {most}")


def _finding(cause: str, step: int, message: str, observed: str, expected: str) -> Finding:
    return Finding(
        check=CHECK,
        message=message,
        cause=cause,
        symptom=Symptom.SLOW.value,
        step=step,
        observed=observed,
        expected=expected,
    )


def _retraced(rank: RankRecord) -> Finding | None:
    """Find a function that is traced again in every step although its inputs have the same shapes."""
    for function in dict.fromkeys(graph.function for graph in rank.graphs):
        graphs = [graph for graph in rank.graphs if graph.function == function]
        first = min(graph.step for graph in graphs)
        again = sorted({g.step for g in graphs if _seen_before(g, graphs)})
        expected = list(range(first + 1, rank.steps[-1].index + 1))
        if len(again) >= REPEATS and again[: len(expected)] == expected:
            message = (
                f"{function!r} is traced again in each of the steps {again[0]} to {again[-1]}, although the shapes and "
                "dtypes that it is given stay the same"
            )
            return _finding("retraced-every-step", again[0], message, f"{len(graphs)} traces", "one trace")
    return None


def _seen_before(graph: GraphRecord, graphs: Sequence[GraphRecord]) -> bool:
    return any(other.step < graph.step and other.signature == graph.signature for other in graphs)


def _eager(rank: RankRecord) -> Finding | None:
    """Find a run in which every step calls ``strategy.run`` outside of any graph, and no graph holds a call."""
    eager = [step for step in rank.steps if step.eager]
    if rank.graphs or len(eager) < REPEATS or len(eager) < len(rank.steps):
        return None
    message = f"strategy.run is called outside of any tf.function in all {len(eager)} steps"
    return _finding("eager-step", eager[0].index, message, "eager execution", "a tf.function around strategy.run")


def _per_variable(record: TrainingRecord, rank: RankRecord) -> Finding | None:
    """Find tensors with the shapes of variables that the program reduces in one call each."""
    shapes: Counter[tuple[int | None, ...] | None] = Counter(
        variable.shape for variable in of_kind(record, VariableKind.TRAINABLE) if variable.shape
    )
    if shapes.total() < SEVERAL:
        return None
    for graph in rank.graphs:
        single = _single(graph)
        issued = sum(item.kind == "all_reduce" for item in graph.collectives)
        for where in dict.fromkeys(item.where for item in single):
            matched = Counter(item.shape for item in single if item.where == where) & shapes
            count = matched.total()
            # Statistics of a layer have the shape of its vectors. Only gradients have the shape of a kernel.
            if count >= SEVERAL and any(len(shape or ()) > 1 for shape in matched) and issued >= count:
                size = sum(math.prod(dim or 0 for dim in shape or ()) * times for shape, times in matched.items())
                message = (
                    f"{count} all-reduces per step, one for each of {shapes.total()} variables ({where}): "
                    f"one all-reduce could take all {size} elements"
                )
                return _finding(
                    "collective-per-variable",
                    graph.step,
                    message,
                    f"{issued} all-reduces in {graph.function!r}",
                    "one for all gradients",
                )
    return None


def _single(graph: GraphRecord) -> list[CollectiveRecord]:
    """Return the tensors that the program reduced in calls of one tensor each."""
    sizes = Counter(item.group for item in graph.asked)
    return [item for item in graph.asked if item.kind == "all_reduce" and sizes[item.group] == 1]
