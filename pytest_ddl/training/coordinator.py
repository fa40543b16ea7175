"""Run steps under a parameter server strategy, with TensorFlow's coordinator.

Steps to compare are scheduled one by one. TensorFlow chooses the worker that runs a step, and each
worker has its own iterator. All these iterators take their elements from one shared source in this
process. So the worker that runs step k consumes global batch k, whichever worker it is. Concurrent steps
also use the shared source, except with a dataset function: then TensorFlow calls the function for each
worker.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from pytest_ddl.notes import NoteKind
from pytest_ddl.strategies.adapter import number_of_workers
from pytest_ddl.training import data
from pytest_ddl.training.listener import StepListener, traces_of
from pytest_ddl.training.stepping import own_iterator_ended

STALENESS = "staleness"
"""Name of the number of a step that counts the other steps that ended while it ran."""
IN_FLIGHT = 2
"""Steps for each worker that are scheduled and have not ended: one runs, and one waits, so that no worker is idle."""

_KEPT: list[Any] = []
"""Shared sources, which are kept for the life of the process.

The deletion of a source calls Python from a server's thread, while TensorFlow holds the interpreter's
lock and deletes functions on that server. If servers are in this process (TF 2.21), this is a deadlock.
"""


def uses_coordinator(strategy: Any) -> bool:
    import tensorflow as tf

    return isinstance(strategy, tf.distribute.experimental.ParameterServerStrategy)


def coordinator_of(strategy: Any) -> Any:
    """Return the coordinator of a strategy. TensorFlow keeps one per strategy."""
    import tensorflow as tf

    return tf.distribute.coordinator.ClusterCoordinator(strategy)


def schedulable(train_step: Any) -> Any:
    """Return the step as a ``tf.function``, which the coordinator requires."""
    import tensorflow as tf

    return train_step if hasattr(train_step, "get_concrete_function") else tf.function(train_step)


def one_by_one(
    listener: StepListener, strategy: Any, train_step: Any, dataset: Any, more: Callable[[], bool]
) -> Iterator[Any]:
    """Schedule each step, wait until it ends and record it."""
    import tensorflow as tf

    coordinator = coordinator_of(strategy)
    if not more():
        return
    source, has_data = _shared_source(coordinator, dataset)
    iterator = iter(source)
    _KEPT.append((source, iterator))
    step = schedulable(train_step)
    while more() and has_data():
        listener.begin_step()
        try:
            pending = coordinator.schedule(step, args=(iterator,))
            coordinator.join()
        except tf.errors.OutOfRangeError as error:
            if source is not dataset and has_data():
                raise own_iterator_ended(listener.completed + 1) from error
            listener.end_of_data()
            return
        loss = pending.fetch()
        listener.step_done()
        number = listener.end_step(loss, traces=traces_of(step))
        yield loss if number is None else number


def concurrently(
    listener: StepListener, strategy: Any, train_step: Any, dataset: Any, steps: int | None
) -> Iterator[Any]:
    """Schedule all steps, wait until all end, and record them in the order of scheduling.

    Only the last step has a snapshot, because before its end the variables belong to no single step.
    """
    import tensorflow as tf

    listener.begin_asynchronous()
    if steps is None:
        raise ValueError(
            "run.steps(..., concurrent=True) schedules all steps at once, so it needs their number: pass steps= here, "
            "or give the comparison a number of steps."
        )
    coordinator = coordinator_of(strategy)
    there = data.number_of_steps(dataset)
    steps = steps if there is None else min(steps, there)
    source, has_data = _per_worker(coordinator, strategy, dataset)
    iterator = iter(source)
    _KEPT.append((source, iterator))
    step = schedulable(train_step)
    pending = [coordinator.schedule(step, args=(iterator,)) for _ in range(steps)]
    try:
        coordinator.join()
    except tf.errors.OutOfRangeError as error:
        if has_data is not None and has_data():
            raise own_iterator_ended() from error
        listener.note(NoteKind.DATA_ENDED, "the data of a worker ended before all scheduled steps had run")
    losses = [value for value in map(_fetched, pending) if value is not None]
    for position, (loss,) in enumerate(losses, 1):
        number = listener.end_step(loss, traces=traces_of(step), left=len(losses) - position)
        yield loss if number is None else number


def overlapping(
    listener: StepListener,
    strategy: Any,
    train_step: Any,
    dataset: Any,
    more: Callable[[int], bool],
    staleness: bool = False,
) -> Iterator[Any]:
    """Schedule steps without waiting for earlier ones, and record each when it has ended, in the order of scheduling.

    Unlike :func:`concurrently`, only a few steps are in flight, so the loop can end after any step. Variables belong to
    no single step. All scheduled steps have ended when the loop ends.

    :param staleness: count the other steps that end between the begin and the end of each step. Its gradient misses at
        most their updates. The count costs the step two more requests to a parameter server.
    """
    import tensorflow as tf

    coordinator = coordinator_of(strategy)
    source, reserve = _reserving(coordinator, dataset)
    iterator = iter(source)
    _KEPT.append((source, iterator))
    step = schedulable(train_step)
    called = _counted(step, strategy) if staleness else step
    in_flight = IN_FLIGHT * number_of_workers(strategy)
    pending: deque[Any] = deque()
    started = False

    def ended() -> Any:
        found = pending.popleft().fetch()
        loss, stale = found if staleness else (found, None)
        shown = None if stale is None else {STALENESS: float(stale)}
        number = listener.end_step(loss, shown, traces=traces_of(step))
        return loss if number is None else number

    try:
        while more(0):
            # The first step is traced, and makes the iterators of its worker, before others run beside it.
            while len(pending) < (in_flight if started else 1) and more(len(pending)) and reserve():
                listener.begin_step()
                pending.append(coordinator.schedule(called, args=(iterator,)))
            if not pending:
                break
            yield ended()
            started = True
        coordinator.join()
    except tf.errors.OutOfRangeError:
        listener.note(NoteKind.DATA_ENDED, "the data of a worker ended before all scheduled steps had run")


def _counted(step: Any, strategy: Any) -> Any:
    """Return a step that returns its result and the number of other steps that ended between its begin and its end."""
    import tensorflow as tf

    with strategy.scope():
        ended = tf.Variable(0, trainable=False, dtype=tf.int64, name="ended_steps")
    _KEPT.append(ended)

    @tf.function  # type: ignore[untyped-decorator]
    def counted(iterator: Any) -> Any:
        before = ended.read_value()
        graph = tf.compat.v1.get_default_graph()
        known = len(graph.get_operations())
        with tf.control_dependencies([before]):
            result = step(iterator)
        # All operations of the step, because its result may not depend on its updates.
        with tf.control_dependencies(graph.get_operations()[known:]):
            after = ended.assign_add(1, read_value=True)
        return result, after - before - 1

    return counted


def _fetched(pending: Any) -> tuple[Any] | None:
    """Return the result of a step in a tuple, or ``None`` if it was canceled or its data ended."""
    import tensorflow as tf

    try:
        return (pending.fetch(),)
    except (tf.errors.OutOfRangeError, tf.errors.CancelledError):
        return None


def _per_worker(coordinator: Any, strategy: Any, dataset: Any) -> tuple[Any, Callable[[], bool] | None]:
    """Return the data of all workers, and a function that returns True if data is left.

    The function is ``None`` if that is not known.
    """
    if data.is_dataset_function(dataset):
        # TensorFlow calls the function for each worker, with an input context of a single pipeline.
        return coordinator.create_per_worker_dataset(lambda: strategy.distribute_datasets_from_function(dataset)), None
    source, has_data = _shared_source(coordinator, dataset)
    return source, None if source is dataset else has_data


class _SharedElements:
    """Source of the elements of a dataset, which threads take in turn; it reads elements ahead.

    A thread that takes an element that was read ahead waits for no lock. Servers in this process share few threads. If
    all of them waited here while the reading thread needs one of them for its dataset, nothing would go on.
    """

    def __init__(self, dataset: Any) -> None:
        self._reading = threading.Lock()
        self._iterator = iter(dataset)
        self._ahead: deque[Any] = deque()

    def has_more(self) -> bool:
        if self._ahead:
            return True
        with self._reading:
            return bool(self._ahead) or self._read()

    def reserve(self) -> bool:
        """Read one more element ahead, and return False if there is none."""
        with self._reading:
            return self._read()

    def take(self) -> Any:
        try:
            return self._ahead.popleft()
        except IndexError:
            with self._reading:
                return next(self._iterator)

    def _read(self) -> bool:
        try:
            self._ahead.append(next(self._iterator))
        except StopIteration:
            return False
        return True


def _shared_source(coordinator: Any, dataset: Any) -> tuple[Any, Callable[[], bool]]:
    """Return datasets per worker that take elements of one dataset in turn, and a function like ``has_more``.

    The function returns True if elements are left. A step that is scheduled after the end of the data would
    fail, and the coordinator reports each failure at length.
    """
    dataset = _one_pipeline(dataset)
    elements = _elements_of(dataset)
    return (dataset, lambda: True) if elements is None else (_in_turn(coordinator, *elements), elements[0].has_more)


def _reserving(coordinator: Any, dataset: Any) -> tuple[Any, Callable[[], bool]]:
    """Return the same datasets, and a function that reserves an element for a step and returns False if none is left.

    Several steps are scheduled before the first takes its element, so it is not enough that an element is left.
    """
    dataset = _one_pipeline(dataset)
    elements = _elements_of(dataset)
    return (dataset, lambda: True) if elements is None else (_in_turn(coordinator, *elements), elements[0].reserve)


def _one_pipeline(dataset: Any) -> Any:
    """Call a dataset function for one pipeline with the whole global batch, as one device has it."""
    import tensorflow as tf

    if not data.is_dataset_function(dataset):
        return dataset
    return dataset(tf.distribute.InputContext(num_input_pipelines=1, input_pipeline_id=0, num_replicas_in_sync=1))


def _elements_of(dataset: Any) -> tuple[_SharedElements, Any] | None:
    """Return the elements of a dataset and their specification; ``None`` for a distributed dataset of the program."""
    import tensorflow as tf

    return (_SharedElements(dataset), dataset.element_spec) if isinstance(dataset, tf.data.Dataset) else None


def _in_turn(coordinator: Any, source: _SharedElements, element_spec: Any) -> Any:
    import tensorflow as tf

    def elements() -> Iterator[Any]:
        while source.has_more():
            yield source.take()

    def per_worker() -> Any:
        made = tf.data.Dataset.from_generator(elements, output_signature=element_spec)
        options = tf.data.Options()
        # Prefetching is off, because an element in the buffer of one worker is lost for the others.
        options.autotune.enabled = False
        options.experimental_optimization.apply_default_optimizations = False
        options.experimental_optimization.inject_prefetch = False
        return made.with_options(options)

    return coordinator.create_per_worker_dataset(per_worker)
