"""The counters of a measured run: what its graphs hold, how often they were traced, where its variables lie."""

from __future__ import annotations

from collections import Counter

from pytest_ddl.bench.records import Counters
from pytest_ddl.bench.stopwatch import Stopwatch
from pytest_ddl.records import GraphRecord, VariableKind
from pytest_ddl.strategies.base import RankContext


def counters_of(watch: Stopwatch, context: RankContext) -> Counters:
    """Count what one steady step does on one replica."""
    graphs = _steady(watch.graph_records)
    collectives = [item for graph in graphs for item in graph.collectives]
    reductions = [item for item in collectives if item.kind in ("all_reduce", "reduce", "reduce_scatter")]
    before = watch.traces_before or 0
    return Counters(
        collectives=dict(Counter(item.kind for item in collectives)),
        reduced_bytes=sum(graph.reduced_bytes for graph in graphs),
        packs=sum(len(item.parts) > 1 for item in reductions),
        unpacked=sum(len(item.parts) <= 1 for item in reductions),
        nodes=sum(graph.nodes for graph in graphs),
        traces=before,
        retraces=watch.traces - before,
        parameter_bytes=_parameter_bytes(watch),
        eager=not graphs,
        notes=watch.notes,
    )


def _steady(graphs: tuple[GraphRecord, ...]) -> list[GraphRecord]:
    """The last graph of each traced function: what steady steps run."""
    return list({graph.function: graph for graph in graphs}.values())


def _parameter_bytes(watch: Stopwatch) -> int:
    total = 0
    for item in watch.variables():
        if item.record.kind is VariableKind.TRAINABLE:
            parts = item.read()
            total += int(parts[0].nbytes) if parts else 0
    return total
