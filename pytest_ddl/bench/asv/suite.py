"""Create asv benchmarks for the metrics of a training function over strategies and replicas, in one line.

asv imports this module in every process that it starts, several hundred in a run. So heavy imports wait until something
is measured.
"""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType

    from pytest_ddl.bench.asv.tracked import Tracked
    from pytest_ddl.bench.launching.records import BenchSpec

QUICK = "DDL_BENCH_QUICK"
"""Environment variable; 1 makes the run short. This shows only that everything works; numbers are not comparable."""
RECORDS = "DDL_BENCH_RECORDS"
"""Environment variable with a folder to which each suite writes its launches too, one JSON file per commit."""
_OVERHEAD = 60.0
"""Seconds for everything except launches, mainly one import of TensorFlow."""
_made: dict[str, tuple[object, dict[str, int]]] = {}
"""Module -> its spec, which is new if the module is imported again, and suite name -> line of the suite's cache."""


def training_suite(
    train: str | Callable[[Any], Any],
    strategies: Sequence[str] = ("one_device", "mirrored", "multi_worker_mirrored"),
    *,
    replicas: Sequence[int] = (1, 2),
    name: str = "",
    launches: int = 1,
    version: str = "1",
    metrics: Sequence[str] | None = None,
    **how: Any,
) -> tuple[type, type]:
    """Create the classes for a file of benchmarks: ``Gate, Dash = training_suite("my.module:train", …)``.

    Their ``track_`` methods have the parameters ``strategy`` and ``replicas``. One ``setup_cache`` measures all cells
    in turns, and both classes read it. ``Gate`` has the metrics that are better when lower (step time, scaling
    overhead, memory, joules per example, counters). ``Dash`` has metrics for people (throughput, efficiency,
    communication, examples per joule). A cell that cannot run here is skipped with the reason. If a launch fails, the
    benchmarks of its cell fail.

    :param train: location of the training function ``train(run)``, as ``"module:name"`` (a leading dot: from the
        package of the calling module). It is imported only if it is measured, because asv starts a process for every
        number, and importing TensorFlow in each would take minutes. A function is accepted too.
    :param strategies: names, each measured with every number of replicas, or variants such as
        ``"multi_worker_mirrored[workers=2,replicas=4]"``, each measured with its own number.
    :param name: required for a second suite in the same file. The classes are then ``GateName`` and ``DashName``. asv
        finds them faster if they are assigned to variables of the same names.
    :param launches: launches of each cell; use 1 for a history, because asv makes one run per commit.
    :param version: change it to start a new history; edits of the suite's source do not start one.
    :param metrics: names of the metrics to track (default: all); see :func:`pytest_ddl.bench.asv.tracked.tracked`.
    :param how: fields of :class:`~pytest_ddl.bench.BenchSpec`: ``batch_per_replica=`` or ``global_batch_size=``,
        ``seconds=``, ``pin=`` …
    :raises ValueError: if an argument is invalid, or the module already has a suite of that name.
    """
    spec = _spec(train, launches, how)
    caller = sys._getframe(1)
    module = str(caller.f_globals["__name__"])
    caller_package = caller.f_globals.get("__package__") or module.rpartition(".")[0]
    wanted = _wanted(metrics, spec)
    cells = [(strategy, count) for strategy in strategies for count in replicas]

    def measured() -> dict[str, Any]:
        function = _imported(train, caller_package) if isinstance(train, str) else train
        return measure_cells(function, cells, spec, launches, title=f"{module.rpartition('.')[2]}{name}")

    setup_cache = _found_by_asv(measured, module, _line_of_cache(caller, name))
    setup_cache.timeout = len(cells) * launches * spec.timeout + _OVERHEAD

    shared = {
        "__module__": module,
        "params": (tuple(strategies), tuple(replicas)),
        "param_names": ("strategy", "replicas"),
        "version": version,
        "timeout": 60,
        "setup_cache": setup_cache,
    }
    gated, others = ([metric for metric in wanted if metric.gated is which] for which in (True, False))
    return (
        _class(f"Gate{name}", {"__doc__": f"Gate of {train}.", **shared}, gated, launches),
        _class(f"Dash{name}", {"__doc__": f"Dash of {train}.", **shared}, others, launches),
    )


def _class(title: str, shared: dict[str, Any], metrics: Sequence[Tracked], launches: int) -> type:
    """Return a class of benchmarks with a method for each metric."""
    module = shared["__module__"]
    tracks = {f"track_{one.name}": _track(one, module, f"{title}.track_{one.name}", launches) for one in metrics}
    return type(title, (), {**shared, **tracks})


def _spec(train: object, launches: int, how: dict[str, Any]) -> BenchSpec:
    """Return the settings of the measurement.

    :raises ValueError: if an argument is invalid.
    """
    from pytest_ddl.bench.launching.records import BenchSpec

    if isinstance(train, str) and not all(train.partition(":")):
        raise ValueError(f'train={train!r} must be of the form "module:function", or a function')
    if launches < 1:
        raise ValueError(f"launches={launches!r} must be at least 1")
    return BenchSpec(**how)


def _wanted(metrics: Sequence[str] | None, spec: BenchSpec) -> list[Tracked]:
    """Return the metrics with these names, or all.

    :raises ValueError: if there is no metric of a name.
    """
    from pytest_ddl.bench.asv.tracked import tracked

    known = {one.name: one for one in tracked(spec)}
    unknown = sorted(set(metrics or ()) - set(known))
    if unknown:
        raise ValueError(f"metrics={metrics!r}: no {', '.join(unknown)} here; there are {', '.join(known)}")
    return [known[name] for name in metrics or known]


def is_quick() -> bool:
    """Return True if this run only shows that everything works (``pytest-ddl asv run --quick``)."""
    return os.environ.get(QUICK, "0") not in ("", "0")


def measure_cells(
    train: Callable[[Any], Any], cells: Sequence[tuple[str, int]], spec: Any, launches: int = 1, title: str = "suite"
) -> dict[str, Any]:
    """Measure each (strategy, replicas) and return plain data for a ``setup_cache``; see :func:`read`.

    :param spec: a :class:`~pytest_ddl.bench.BenchSpec`; ``DDL_BENCH_QUICK=1`` makes it shorter.
    :raises BenchError: if none of the cells can run here.
    """
    from dataclasses import replace

    from pytest_ddl.bench.matrix import measure, sized_variant
    from pytest_ddl.bench.provenance import FromSource, SourceTrees
    from pytest_ddl.harness import process_harness

    source = SourceTrees.from_environ()
    if source is not None:
        train = FromSource(train, source)
    if is_quick():
        spec, launches = replace(spec, warm_up=3, steps_per_block=2, blocks=5, seconds=0.05), 1
    registry = process_harness().registry
    variants = {(strategy, count): sized_variant(registry, strategy, count) for strategy, count in cells}
    chosen = list(dict.fromkeys(variant for variant in variants.values() if variant is not None))
    matrix = measure(train, chosen, spec, launches=launches, go_on=True)
    # The number of replicas of a TPU is known only after a launch; num_replicas is 0 until then.
    launched = {one.strategy: one.replicas for one in matrix.launches}
    for (strategy, count), variant in variants.items():
        own = registry.parse_variant(strategy)
        if registry[own.name].num_replicas(own) == 0 and launched.get(variant or "", count) != count:
            variants[strategy, count] = None
    folder = os.environ.get(RECORDS)
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        matrix.save(Path(folder) / f"{os.environ.get('ASV_COMMIT', 'no-commit')[:12]}-{title}.json")
    return {"cells": {_key(*at): variant for at, variant in variants.items()}, "matrix": matrix.as_json()}


def read(cache: dict[str, Any], metric: Tracked, strategy: str, replicas: int) -> Any:
    """Return the result of a ``track_`` method for a cell, from the data of :func:`measure_cells`.

    :raises BenchError: if a launch of the cell failed.
    :raises NoNumberError: if the cell cannot run here, does not exist, or has no such metric; it gives the reason.
    """
    from pytest_ddl.bench.launching.ranks import BenchError
    from pytest_ddl.bench.matrix import Matrix
    from pytest_ddl.bench.metrics import NoNumberError

    variant = cache["cells"][_key(strategy, replicas)]
    if variant is None:
        raise NoNumberError(f"{strategy} has no variant with {replicas} replica(s)")
    matrix = Matrix.from_json(cache["matrix"])
    if variant in matrix.failed:
        raise BenchError(matrix.failed[variant])
    if variant in matrix.skipped:
        raise NoNumberError(matrix.skipped[variant])
    return metric.read(matrix, variant)


def _imported(where: str, package: str) -> Callable[[Any], Any]:
    from importlib import import_module

    module, _, name = where.partition(":")
    found: Any = import_module(module, package)
    for part in name.split("."):
        found = getattr(found, part)
    function: Callable[[Any], Any] = found
    return function


def _track(metric: Tracked, module: str, name: str, launches: int) -> Callable[..., Any]:
    def track(self: Any, cache: dict[str, Any], strategy: str, replicas: int) -> Any:
        from pytest_ddl.bench.metrics import NoNumberError

        try:
            return read(cache, metric, strategy, replicas)
        except NoNumberError as reason:
            from asv_runner.benchmarks.mark import SkipNotImplemented

            # asv stores this output with the result, and it explains the n/a.
            sys.stderr.write(f"skipped: {reason}\n")
            raise SkipNotImplemented(str(reason)) from None

    function: Any = track
    function.__name__ = name.rpartition(".")[2]
    function.__qualname__, function.__module__, function.__doc__ = name, module, metric.meaning
    # asv reads the first two. It stores the others in its benchmarks.json: asv has no notion of direction yet
    # (asv#1617), and `pytest-ddl history` needs to know how to divide samples and which metrics are exact.
    function.unit, function.pretty_source = metric.unit, metric.meaning
    function.higher_is_better, function.deterministic = metric.higher_is_better, metric.exact
    function.launches = launches
    checked: Callable[..., Any] = function
    return checked


def _key(strategy: str, replicas: int) -> str:
    return f"{strategy} {replicas}"


def _line_of_cache(caller: FrameType, name: str) -> int:
    """Return the line at which asv finds the ``setup_cache`` of a suite; it differs for each suite in a module.

    :raises ValueError: if the module already has a suite of that name.
    """
    module, spec = str(caller.f_globals["__name__"]), caller.f_globals.get("__spec__")
    if module not in _made or _made[module][0] is not spec:
        _made[module] = (spec, {})
    lines = _made[module][1]
    if name in lines:
        raise ValueError(
            f"name={name!r}: {module} already has a suite with this name (line {caller.f_lineno} makes it again). asv "
            "would mix up their results. Give this suite another name: "
            'GateCnn, DashCnn = training_suite(train, …, name="Cnn")'
        )
    line = caller.f_lineno
    if line in lines.values():
        # In a loop, several suites have the same line. Lines after the end of the file are not used by anything else.
        line = max(*lines.values(), len(linecache.getlines(caller.f_code.co_filename))) + 1
    lines[name] = line
    return line


def _found_by_asv(measured: Callable[[], dict[str, Any]], module: str, line: int) -> Any:
    """Return a ``setup_cache`` method whose source is at a line of the suite's own module.

    asv keeps one cache for each (module, line) of a ``setup_cache``. If it were a function of this file, all suites
    would read the cache of the first one. So the function gets its own source, as ``attrs`` does for generated methods.
    """
    file = f"<pytest-ddl suite {module}:{line}>"
    source = "\n" * (line - 1) + "def setup_cache(self):\n    return measured()\n"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    names: dict[str, Any] = {"measured": measured, "__name__": module}
    exec(compile(source, file, "exec"), names)
    return names["setup_cache"]
