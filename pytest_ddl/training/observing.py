"""Observe the replica functions of a program without changing what they compute.

``strategy.run`` is replaced on the *instance* during a run. Each replica function then also passes
its batch and its loss to one ``tf.numpy_function`` (in eager mode: to plain NumPy). The result of
that operation is not used. It runs as often as the replica function, whichever thread traced it.

AutoGraph must convert the wrapper of a replica function. TensorFlow converts the user's function
through its caller, so an unconverted wrapper would switch off the conversion of the user's code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from pytest_ddl.training import adapter
from pytest_ddl.training.observation import Observations, Part, as_ids, digest
from pytest_ddl.training.observers import Observer

EXAMPLE_ID = "example_id"


@contextmanager
def observed(strategy: Any, observations: Observations, observers: Sequence[Observer] = ()) -> Iterator[None]:
    """Observe every ``strategy.run`` while the context is open."""
    original = strategy.run

    def before() -> None:
        for observer in observers:
            observer.before_dispatch()

    def after() -> None:
        for observer in observers:
            observer.after_dispatch()

    # AutoGraph would convert every function that the hooks call, and this takes longer than the hooks.
    before, after = _unconverted(before), _unconverted(after)
    is_own = _unconverted(adapter.is_of_strategy)

    def run(fn: Any, args: Any = (), kwargs: Any = None, options: Any = None) -> Any:
        if is_own(fn):
            return original(fn, args=args, kwargs=kwargs, options=options)
        before()
        result = original(wrap(fn, observations, observers), args=args, kwargs=kwargs, options=options)
        after()
        return result

    with ExitStack() as stack:
        for observer in observers:
            stack.enter_context(observer.installed())
        strategy.run = run
        try:
            yield
        finally:
            del strategy.run


def wrap(
    function: Callable[..., Any], observations: Observations, observers: Sequence[Observer] = ()
) -> Callable[..., Any]:
    """Return a replica function that also reports what it consumed, and returns the result of ``function``."""

    def begin() -> list[Any]:
        return [observer.before_replica() for observer in observers]

    def end(given: Any, tokens: list[Any], result: Any) -> None:
        for observer, token in zip(observers, tokens, strict=True):
            observer.after_replica(token, result)
        observe_call(observations, given, result)

    begin, end = _unconverted(begin), _unconverted(end)

    def observed_function(*args: Any, **kwargs: Any) -> Any:
        tokens = begin()
        result = function(*args, **kwargs)
        end((args, kwargs), tokens, result)
        return result

    return observed_function


def _unconverted(function: Callable[..., Any]) -> Callable[..., Any]:
    import tensorflow as tf

    decorated: Callable[..., Any] = tf.autograph.experimental.do_not_convert(function)
    return decorated


def replica_id() -> Any:
    """Return the global id of the replica that runs here: a number, or a tensor while tracing."""
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    return 0 if context is None else context.replica_id_in_sync_group


def observe_call(observations: Observations, given: Any, result: Any) -> None:
    """Record one call of a replica function: its batch, and its loss if it returned one."""
    parts, tensors = describe(given)
    loss = _loss_of(result)
    if not parts and loss is None:
        return

    def record(replica: Any, *arrays: Any) -> None:
        has_loss = loss is not None
        value = float(arrays[-1]) if has_loss else None
        try:
            size, fingerprints, ids = digest(parts, list(arrays[: len(arrays) - has_loss]))
        except Exception as error:  # an exception here would be raised in the user's step
            observations.failed(f"a batch could not be observed: {type(error).__name__}: {error}")
            return
        observations.batch(int(replica), size, fingerprints, ids, value)

    tell(record, [*tensors, *([] if loss is None else [loss])])


def observe_ids(observations: Observations, ids: Any) -> None:
    """Record the ids of the examples that this replica consumes in this step."""
    import tensorflow as tf

    def record(replica: Any, values: Any) -> None:
        observations.tell(int(replica), as_ids(values))

    tell(record, [tf.convert_to_tensor(ids)])


def tell(record: Callable[..., None], tensors: list[Any]) -> None:
    """Call ``record`` with the id of the replica and the values of the tensors, now or each time the graph runs."""
    import tensorflow as tf

    replica = replica_id()
    if tf.executing_eagerly() and all(hasattr(tensor, "numpy") for tensor in tensors):
        record(replica, *[tensor.numpy() for tensor in tensors])
        return
    # Observing must not change gradients: numpy_function has none, and stop_gradient cuts off its inputs too.
    inputs = [tf.cast(replica, tf.int32), *[tf.stop_gradient(tensor) for tensor in tensors]]
    tf.numpy_function(record, inputs, [], stateful=True)


def describe(given: Any) -> tuple[tuple[Part, ...], list[Any]]:
    """Return the tensors of a batch, and a description of how to read them."""
    import tensorflow as tf

    parts: list[Part] = []
    tensors: list[Any] = []
    ids = _find_ids(given)
    for position, item in enumerate(tf.nest.flatten(given)):
        if isinstance(item, tf.SparseTensor):
            _add(parts, tensors, Part("sparse", position, 3), [item.indices, item.values, item.dense_shape])
        elif isinstance(item, tf.RaggedTensor):
            if item.ragged_rank == 1:
                _add(
                    parts,
                    tensors,
                    Part("ragged", position, 3),
                    [item.values, item.value_rowids(), item.nrows()],
                )
        elif isinstance(item, tf.Tensor) and item.dtype not in (tf.resource, tf.variant):
            _add(parts, tensors, Part("dense", position, 1, is_ids=item is ids), [item])
    return tuple(parts), tensors


def _add(parts: list[Part], tensors: list[Any], part: Part, values: list[Any]) -> None:
    parts.append(part)
    tensors.extend(values)


def _find_ids(given: Any) -> Any:
    """Return the first entry with the key ``example_id`` in nested dicts, lists and tuples."""
    if isinstance(given, dict):
        if EXAMPLE_ID in given:
            return given[EXAMPLE_ID]
        given = list(given.values())
    if isinstance(given, list | tuple):
        for item in given:
            found = _find_ids(item)
            if found is not None:
                return found
    return None


def _loss_of(result: Any) -> Any:
    """Return the floating scalar that a replica function returned, by itself or as the first of several."""
    import tensorflow as tf

    first = result[0] if isinstance(result, list | tuple) and result else result
    if not isinstance(first, tf.Tensor) or not first.dtype.is_floating:
        return None
    return first if first.shape.rank == 0 else None


def refuses_observing(error: BaseException) -> bool:
    """Return True if the observing operation caused an error: PyFunc has no kernel under XLA, for example."""
    text = f"{type(error).__name__}: {error}"
    return "PyFunc" in text or "pyfunc_" in text or "numpy_function" in text
