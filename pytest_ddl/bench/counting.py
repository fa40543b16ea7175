"""The counters of a measured run: what the graphs of one step hold, how often they were traced, what lies where."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from pytest_ddl.bench.copies import copies_of
from pytest_ddl.bench.placement import misplaced
from pytest_ddl.bench.records import Counters
from pytest_ddl.bench.stopwatch import Stopwatch
from pytest_ddl.records import CollectiveRecord, GraphRecord, VariableKind
from pytest_ddl.strategies.base import RankContext
from pytest_ddl.training import graphs
from pytest_ddl.training.coordinator import uses_coordinator


def wire_bytes(parameter_bytes: int, replicas: int) -> float:
    """Bytes that each replica has to send per step of data-parallel training: ``2 (n - 1) / n * parameter_bytes``.

    The least that any all-reduce can do, and what a ring does (Patarasuk and Yuan 2009, Bandwidth optimal all-reduce
    algorithms for clusters of workstations; the factor of "bus bandwidth" in nccl-tests, doc/PERFORMANCE.md).
    """
    return 2 * (replicas - 1) / replicas * parameter_bytes if replicas > 1 else 0.0


def reduction_ratio(counters: Counters) -> float | None:
    """Bytes reduced over bytes that data-parallel training needs to reduce, those of the trainable variables.

    1 where gradients have the dtype of their variables; ½ where they are reduced in half the precision; above 1
    something else is reduced, or something twice. ``None`` where no model was watched.
    """
    return counters.reduced_bytes / counters.parameter_bytes if counters.parameter_bytes else None


def counters_of(watch: Stopwatch, context: RankContext) -> Counters:
    """Count what one steady step does on one replica: the last of the warm-up stands for them."""
    ran = [(graphs.analyse(graph, 0), times, parts) for graph, times, parts in watch.executions.last_step]
    found = collectives(ran, watch)
    reductions = [item for item in found if item.kind in graphs.REDUCES]
    dtypes: Counter[str] = Counter()
    for item in reductions:
        dtypes[item.dtype] += graphs.bytes_of(item)
        if not graphs.bytes_of(item) and item.shape != (0,):
            watch.note(f"a {item.kind} of {item.dtype} has no static shape: it is not in reduced_bytes")
    if not watch.executions.is_possible:
        watch.note("graphs were not counted: this release of TensorFlow does not let calls of functions be watched")
    if watch.loss is not None and not math.isfinite(watch.loss):
        watch.note(f"the loss is {watch.loss}: a mean over no examples is, and so is a run that diverged")
    variables = watch.variables()
    trainable = [item for item in variables if item.record.kind is VariableKind.TRAINABLE]
    return Counters(
        collectives=dict(Counter(item.kind for item in found)),
        reduced_bytes=dtypes.total(),
        packs=sum(len(item.parts) > 1 for item in reductions),
        unpacked=sum(len(item.parts) <= 1 for item in reductions),
        nodes=sum(record.nodes * times for record, times, _parts in ran),
        traces=watch.traces_before,
        retraces=watch.retraces,
        steady_steps=watch.steady_steps,
        parameter_bytes=sum(sum(part.nbytes for part in item.read()[:1]) for item in trainable),
        reduced_dtypes=dict(+dtypes),
        copies=_copies(ran, watch, context),
        host_calls=sum(record.operations.get(kind, 0) * times for record, times, _ in ran for kind in graphs.ON_HOST),
        misplaced=misplaced(context.strategy, variables),
        eager=_eager(watch),
        notes=(*watch.notes, *_notes(context)),
    )


Ran = Sequence[tuple[GraphRecord, int, list[Any]]]
"""A graph, how often the step executed it, and its parts on the devices."""


def collectives(ran: Ran, watch: Stopwatch) -> list[CollectiveRecord]:
    """Of one step and one replica."""
    found: list[CollectiveRecord] = []
    for record, times, parts in ran:
        of_graph = list(record.collectives) or _inserted(parts)
        found += of_graph * times
    # Keras loops in the graph over steps_per_execution, whose body counts once, and may unroll that.
    unrolled = watch.unrolled_steps
    if unrolled == 1:
        return found
    share = Counter(found)
    if any(number % unrolled for number in share.values()):
        watch.note(f"collectives are those of {unrolled} steps, as unrolled_steps_per_execution does not divide them")
        return found
    return [item for item, number in share.items() for _ in range(number // unrolled)]


def _inserted(parts: list[Any]) -> list[CollectiveRecord]:
    """Collectives that came into a function after it was traced: DTensor cuts it up when it is called."""
    return max((graphs.collectives_of(part.node) for part in parts), key=len, default=[])


def _copies(ran: Ran, watch: Stopwatch, context: RankContext) -> dict[str, int] | None:
    if uses_coordinator(context.strategy):
        watch.note("copies were not counted: the steps of parameter_server run on workers, which tell no graphs")
        return None
    if not watch.executions.is_possible or not any(parts for _record, _times, parts in ran):
        watch.note("copies were not counted: no step told the graphs of its devices")
        return None
    found: Counter[str] = Counter()
    for _record, times, parts in ran:
        for direction, number in copies_of(parts).items():
            found[direction] += number * times
    return dict(found)


def _eager(watch: Stopwatch) -> bool:
    executions = watch.executions
    return executions.was_eager or (executions.is_possible and not executions.last_step)


def _notes(context: RankContext) -> list[str]:
    name = context.spec.name
    if name == "parameter_server":
        return ["parameter_server reduces nothing: workers send gradients to the servers, in no collective"]
    if name == "central_storage":
        return ["central_storage reduces by copies to one device and additions there, not by collectives: see copies"]
    if name == "model_parallel":
        return [
            "DTensor inserts collectives when a function is called, joined and padded: counted as devices have them"
        ]
    return []
