"""Collect the counters of a measured run: content of the graphs of one step, traces, and places of variables."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pytest_ddl.bench.launching.records import Counters
from pytest_ddl.bench.launching.stopwatch import Stopwatch
from pytest_ddl.records import CollectiveRecord, VariableKind
from pytest_ddl.strategies.base import RankContext
from pytest_ddl.training import graphs, values
from pytest_ddl.training.coordinator import uses_coordinator
from pytest_ddl.training.watching import Watched


def wire_bytes(parameter_bytes: int, replicas: int) -> float:
    """Return the bytes that each replica must send per step of data-parallel training.

    The formula is ``2 (n - 1) / n * parameter_bytes``. This is the minimum for any all-reduce, and a ring reaches it
    (Patarasuk and Yuan 2009, Bandwidth optimal all-reduce algorithms for clusters of workstations; the factor of "bus
    bandwidth" in nccl-tests, doc/PERFORMANCE.md).
    """
    return 2 * (replicas - 1) / replicas * parameter_bytes if replicas > 1 else 0.0


def reduction_ratio(counters: Counters) -> float | None:
    """Return reduced bytes divided by the bytes of trainable variables, which data-parallel training must reduce.

    It is 1 if gradients have the dtype of their variables, and ½ if they are reduced in half the precision. Above 1,
    something else is reduced, or something is reduced twice. ``None`` if no model was watched.
    """
    return counters.reduced_bytes / counters.parameter_bytes if counters.parameter_bytes else None


def counters_of(watch: Stopwatch, context: RankContext) -> Counters:
    """Count what one steady step does on one replica; the last step of the warm-up represents all steady steps."""
    ran = [(graphs.executed(graph), times, parts) for graph, times, parts in watch.executions.last_step]
    steps = _steps_of_call(ran, watch)
    counted = collectives(ran, watch, steps)
    reductions = {item: number for item, number in counted.items() if item.kind in graphs.REDUCES}
    dtypes: Counter[str] = Counter()
    for item, number in counted.items():
        if item.kind in graphs.REDUCES:
            dtypes[item.dtype] += graphs.bytes_of(item) * number
        if not graphs.bytes_of(item) and item.shape != (0,):
            watch.remark(f"{item.kind} of {item.dtype} has no static shape: its bytes are not counted")
    if not watch.executions.is_possible:
        watch.remark("graphs were not counted: this release of TensorFlow does not allow function calls to be observed")
    if watch.loss is not None and not math.isfinite(watch.loss):
        watch.remark(f"the loss is {watch.loss}: the run diverged, or a mean is over no examples")
    conditional = _conditional(ran, steps)
    for kind, number in conditional.items():
        watch.remark(f"{number} {kind} are in a branch and counted as if every step took it")
    _note_other_steps(watch)
    variables = watch.variables()
    trainable = [item for item in variables if item.record.kind is VariableKind.TRAINABLE]
    return Counters(
        collectives=dict(_by_kind(counted)),
        reduced_bytes=dtypes.total(),
        packs=sum(number for item, number in reductions.items() if len(item.parts) > 1),
        unpacked=sum(number for item, number in reductions.items() if len(item.parts) <= 1),
        nodes=sum(one.record.nodes * times for one, times, _parts in ran),
        executions=math.ceil(sum(times for _one, times, _parts in ran) / steps),
        kernels=math.ceil(sum(kernels_of(parts) * times for _one, times, parts in ran) / steps),
        traces=watch.traces_before,
        retraces=watch.retraces,
        steady_steps=watch.steady_steps,
        parameter_bytes=sum(sum(part.nbytes for part in item.read()[:1]) for item in trainable),
        reduced_dtypes=dict(+dtypes),
        copies=_copies(ran, watch, context),
        host_calls=math.ceil(sum(one.host_calls * times for one, times, _parts in ran) / steps),
        misplaced=misplaced(context.strategy, variables),
        eager=_eager(watch),
        notes=(*watch.notes, *_notes(context)),
        uncounted=tuple(_uncounted(ran, watch, context)),
        conditional=conditional,
        gathered_bytes=sum(
            graphs.bytes_of(item) * number for item, number in counted.items() if item.kind not in graphs.REDUCES
        ),
        of_steps=_of_steps(watch, context, steps),
    )


def _of_steps(watch: Stopwatch, context: RankContext, steps: int) -> dict[str, tuple[int, ...]]:
    """Return the counters of each counted step.

    :param steps: number of steps in the graphs of one call.
    """
    executions = watch.executions
    if uses_coordinator(context.strategy) or not executions.is_possible:
        return {}
    # Most steps run the same graphs.
    known: dict[frozenset[tuple[int, int]], Counter[str]] = {}
    counts: list[Counter[str]] = []
    for step, is_eager in executions.counted:
        key = frozenset(step.items())
        if key not in known:
            ran = [(graphs.executed(graph), times, parts) for graph, times, parts in executions.content(step)]
            known[key] = of_step(ran, steps)
        counts.append(known[key] + Counter(eager=int(is_eager)))
    names = dict.fromkeys(("eager", *(name for one in counts for name in one)))
    return {name: tuple(one[name] for one in counts) for name in names}


def of_step(ran: Ran, steps: int = 1) -> Counter[str]:
    """Count what one step does, by the names of the counters that are compared.

    :param steps: number of steps that the graphs hold.
    """
    found: Counter[str] = Counter()
    for one, times, parts in ran:
        for item, number in (Counter(one.collectives) or Counter(_inserted(parts))).items():
            found[f"collectives.{item.kind}"] += number * times
            is_reduction = item.kind in graphs.REDUCES
            found["reduced_bytes" if is_reduction else "gathered_bytes"] += graphs.bytes_of(item) * number * times
            found["unpacked"] += number * times if is_reduction and len(item.parts) <= 1 else 0
        found["host_calls"] += one.host_calls * times
        for direction, number in copies_of(parts).items():
            found[f"copies.{direction}"] += number * times
    return Counter({name: math.ceil(number / steps) for name, number in found.items() if number})


Ran = Sequence[tuple[graphs.Executed, int, list[Any]]]
"""Graphs of a step: the content of each, how often the step executed it, and its parts on the devices."""


def _steps_of_call(ran: Ran, watch: Stopwatch) -> int:
    """Return the number of steps in the graphs of one call.

    Keras loops over steps_per_execution in the graph and may unroll this loop.
    """
    # A loop of unknown length counts as one pass, so only the unrolled steps are in the counts.
    return watch.unrolled_steps if any(one.unknown for one, _times, _parts in ran) else watch.steps_per_call


def collectives(ran: Ran, watch: Stopwatch, steps: int) -> Counter[CollectiveRecord]:
    """Count the collectives of one step and one replica.

    :param steps: number of steps that the graphs hold, one after the other or in a loop.
    """
    executed: Counter[CollectiveRecord] = Counter()
    for one, times, parts in ran:
        of_graph = Counter(one.collectives) or Counter(_inserted(parts))
        executed.update({item: number * times for item, number in of_graph.items()})
    if any(number % steps for number in executed.values()):
        watch.remark(f"collectives are those of {steps} steps: their number is not divisible by steps_per_execution")
        return executed
    return Counter({item: number // steps for item, number in executed.items()})


def _by_kind(found: Mapping[CollectiveRecord, int]) -> Counter[str]:
    kinds: Counter[str] = Counter()
    for item, number in found.items():
        kinds[item.kind] += number
    return kinds


def _conditional(ran: Ran, steps: int) -> dict[str, int]:
    kinds: Counter[str] = Counter()
    for one, times, _parts in ran:
        kinds.update({kind: number * times for kind, number in one.conditional.items()})
    # For several steps per call, Keras has each step in a branch, in case the data ends. These branches are normally
    # taken.
    return {kind: number for kind, number in kinds.items() if number} if steps == 1 else {}


def _note_other_steps(watch: Stopwatch) -> None:
    """Add a note if a step of the warm-up had more collectives than the last one, which represents all."""
    known: dict[int, Counter[str]] = {}

    def kinds(step: Mapping[int, int]) -> Counter[str]:
        total: Counter[str] = Counter()
        for key, times in step.items():
            if key not in known:
                known[key] = _by_kind(graphs.executed(watch.executions.graph(key)).collectives)
            total.update({kind: number * times for kind, number in known[key].items()})
        return total

    ran = watch.executions.steps
    if all(step == ran[-1] for step in ran):
        return
    steps = [kinds(step) for step in ran]
    more = [step for step in steps if step - steps[-1]]
    if more:
        shown = ", ".join(f"{number} {kind}" for kind, number in sorted(max(more, key=Counter.total).items()))
        watch.remark(
            f"{len(more)} of {len(steps)} steps of the warm-up had more collectives ({shown}) than the last. The "
            "counters of a step are those of the last, and the sum over all counted steps is compared too"
        )


def _uncounted(ran: Ran, watch: Stopwatch, context: RankContext) -> Iterator[str]:
    if uses_coordinator(context.strategy):
        yield (
            "steps of parameter_server run on workers, which report no graphs: transfers, copies and calls to the host "
            "were not counted"
        )
    # Keras 2 keeps the number of steps per call in a variable, so the length of its loop is never known.
    if watch.steps_per_call == 1:
        names = sorted({name for one, _times, _parts in ran for name in one.unknown})
        if names:
            yield (
                "a loop with a collective or a call to the host is counted as one pass, because its number of passes "
                f"is not known before it runs ({', '.join(names)})"
            )


def _inserted(parts: list[Any]) -> list[CollectiveRecord]:
    """Return collectives that are not in the traced function: DTensor inserts them when the function is called."""
    return max((graphs.collectives_of(part.node) for part in parts), key=len, default=[])


def _copies(ran: Ran, watch: Stopwatch, context: RankContext) -> dict[str, int] | None:
    if uses_coordinator(context.strategy):
        watch.remark("copies were not counted: the steps of parameter_server run on workers, which report no graphs")
        return None
    if not watch.executions.is_possible or not any(parts for _one, _times, parts in ran):
        watch.remark("copies were not counted: no step reported the graphs of its devices")
        return None
    copied: Counter[str] = Counter()
    for _one, times, parts in ran:
        for direction, number in copies_of(parts).items():
            copied[direction] += number * times
    return dict(copied)


def copies_of(partitions: Iterable[Any]) -> Counter[str]:
    """Count the copied tensors in one execution of a function, by direction; the body of a loop counts once.

    TensorFlow splits a graph into one per device, with a ``_Send`` and a ``_Recv`` for each tensor that crosses over.
    With ``_HostSend`` and ``_HostRecv``, the tensor is in host memory at that end (Abadi et al. 2016, TensorFlow: a
    system for large-scale machine learning, section 3.3). ``host_to_device`` and ``device_to_host`` have a CPU at one
    end. ``device_to_device`` has none, or two, as between replicas on virtual CPUs. ``between_tasks`` leaves the
    process. A pair that only orders operations carries no tensor and is not counted.

    :param partitions: the ``GraphDef`` of each device.
    """
    nodes = [node for graph in partitions for node in _all_nodes(graph)]
    # GPUs keep small integers in host memory; a tensor that moves from host memory to host memory is not copied.
    in_host = {_sent_tensor(node) for node in nodes if node.op == "_HostRecv"}
    sent = [node for node in nodes if node.op in ("_Send", "_HostSend") and _carries(node)]
    directions = (_direction(node, _sent_tensor(node) in in_host) for node in sent)
    return Counter(direction for direction in directions if direction)


_NO_KERNELS = frozenset(
    ("Const", "NoOp", "_Arg", "_Retval", "_DeviceArg", "_DeviceRetval", "_Send", "_Recv", "_HostSend", "_HostRecv")
)
"""Operations that compute nothing. Tensors that are sent are in ``copies``."""


def kernels_of(partitions: Iterable[Any]) -> int:
    """Count the operations that devices execute in one execution of a function; the body of a loop counts once.

    :param partitions: the ``GraphDef`` of each device.
    """
    return sum(node.op not in _NO_KERNELS for graph in partitions for node in _all_nodes(graph))


def _all_nodes(graph: Any) -> list[Any]:
    return [*graph.node, *(node for function in graph.library.function for node in function.node_def)]


def _sent_tensor(node: Any) -> tuple[bytes, ...]:
    return tuple(node.attr[name].s for name in ("tensor_name", "send_device", "recv_device"))


def _carries(node: Any) -> bool:
    """Return True if a value is sent; a dummy that only orders operations is named after the one that it waits for."""
    return not any("/ctrl/_" in name for name in node.input)


def _direction(node: Any, to_host: bool) -> str:
    """Return the name of a direction; empty if nothing is copied."""
    sender, receiver = (node.attr[name].s.decode() for name in ("send_device", "recv_device"))
    if sender == receiver:
        return ""
    if sender.rsplit("/device:", 1)[0] != receiver.rsplit("/device:", 1)[0]:
        return "between_tasks"
    from_cpu, to_cpu = (":CPU:" in device for device in (sender, receiver))
    if from_cpu and to_cpu:
        return "device_to_device"
    starts, ends = from_cpu or node.op == "_HostSend", to_cpu or to_host
    if starts and ends:
        return ""
    return "host_to_device" if starts else "device_to_host" if ends else "device_to_device"


def _eager(watch: Stopwatch) -> bool:
    executions = watch.executions
    return executions.was_eager or (executions.is_possible and not executions.last_step)


def _notes(context: RankContext) -> list[str]:
    name, capabilities = context.spec.name, context.capabilities
    if capabilities.coordinator:
        return [f"{name} uses no collectives: workers send gradients to the servers"]
    if capabilities.reduces_by_copies:
        return [f"{name} reduces by copies to one device and additions there, without collectives: see copies"]
    if capabilities.global_view:
        return [
            "DTensor inserts, joins and pads collectives during a call: they are counted in the graphs of the devices"
        ]
    return []


def misplaced(strategy: Any, watched: Iterable[Watched]) -> tuple[str, ...]:
    """List watched variables on devices where their strategy does not keep variables, as ``name: device``.

    Right devices are the strategy's own parameter devices: those of the replicas, the one device of
    ``central_storage``, the servers of ``parameter_server``. If every replica has its own device for parameters, a
    variable that is not distributed lies on only one of them, and the others fetch it. So it is listed too. DTensor
    variables are placed by their layout, which the LAYOUT check verifies. Integer variables are skipped if replicas are
    on GPUs, because TensorFlow has many integer kernels only for the host.
    """
    extended = getattr(strategy, "extended", None)
    if extended is None:
        return ()
    replicas = {_canonical(device) for device in extended.worker_devices}
    allowed = {_canonical(device) for device in extended.parameter_devices}
    on_servers = uses_coordinator(strategy)
    on_cpus = all(device.startswith("CPU:") for device in replicas)
    names = []
    for item in watched:
        variable = item.variable
        if variable is None or not (on_cpus or "float" in item.record.dtype):
            continue
        devices = _devices(strategy, variable)
        if on_servers:
            wrong = [device for device in devices if "/job:ps/" not in f"{device}/"]
        else:
            wrong = [device for device in devices if _canonical(device) not in allowed]
            shared = allowed == replicas and len(replicas) > 1
            if shared and not values.is_distributed(variable):
                wrong = wrong or devices
        if wrong:
            names.append(f"{item.record.name}: {', '.join(_short(device) for device in wrong)}")
    return tuple(names)


def _devices(strategy: Any, variable: Any) -> list[str]:
    if values.is_distributed(variable):
        return [str(part.device) for part in strategy.experimental_local_results(variable)]
    # A partitioned variable has several parts and no device of its own.
    parts = getattr(variable, "variables", None) or [variable]
    return [str(part.device) for part in parts if getattr(part, "device", None)]


def _canonical(device: str) -> str:
    """Return type and number of a device: ``CPU:0`` for ``/job:localhost/replica:0/task:0/device:CPU:0``."""
    import tensorflow as tf

    spec = tf.DeviceSpec.from_string(device if device.startswith("/") else f"/device:{device}")
    return f"{spec.device_type}:{spec.device_index or 0}"


def _short(device: str) -> str:
    job = next((part[4:] for part in device.split("/") if part.startswith("job:")), "")
    return _canonical(device) if job in ("", "localhost", "worker") else f"{job} {_canonical(device)}"
