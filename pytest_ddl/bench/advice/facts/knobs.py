"""Knobs: changes that are made to a training function from outside, while it runs on the ranks.

A knob changes what ``run.steps``, ``run.batches`` and ``run.fit`` get, or a public function of TensorFlow, for the time
of one launch. Some knobs are advice that the user can follow. Others are probes that only show what a part costs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pytest_ddl.training.replacing import Replacements, named_like

EVERY = 10
"""Steps of which the knob ``rarely`` gives one to the body of the loop."""
LOOP = 8
"""Steps that the knob ``loop`` puts into one call."""


def _same(value: Any) -> Any:
    return value


def _nothing(_target: Any) -> None:
    return None


@dataclass(frozen=True)
class Knob:
    """Change of a training function from outside."""

    id: str
    title: str
    """Difference from the program as it is."""
    data: Callable[[Any], Any] = _same
    """Function that changes the dataset of the training."""
    step: Callable[[Any], Any] = _same
    """Function that changes the step function of ``run.steps``."""
    model: Callable[[Any], None] = _nothing
    """Function that changes the model of ``run.fit``."""
    patch: Callable[[Replacements], None] = _nothing
    """Function that replaces public functions of TensorFlow while the program runs."""
    every: int = 1
    """The body of the loop, or the callbacks of ``fit``, run once in so many steps."""
    batch: int = 1
    """Factor of the batch size."""
    calls: int = 1
    """Steps of the program in one step that is counted, in loops over ``run.steps``."""


KNOBS: dict[str, Knob] = {}
"""All knobs by id."""


def _knob(knob: Knob) -> None:
    KNOBS[knob.id] = knob


def _of_dataset(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Apply a change to a dataset, or to the result of a dataset function; leave anything else as it is."""

    def changed(given: Any) -> Any:
        import tensorflow as tf

        from pytest_ddl.training.data import is_dataset_function

        if isinstance(given, tf.data.Dataset):
            return change(given)
        if is_dataset_function(given):
            return named_like(given, lambda context: changed(given(context)))
        return given

    return changed


def _prefetched(dataset: Any) -> Any:
    import tensorflow as tf

    return dataset.prefetch(tf.data.AUTOTUNE)


def _parallel(put: Replacements) -> None:
    """Give ``Dataset.map`` parallel calls if the program gives none."""
    import tensorflow as tf

    original = tf.data.Dataset.map

    def map_(self: Any, map_func: Any, num_parallel_calls: Any = None, *args: Any, **kwargs: Any) -> Any:
        return original(self, map_func, num_parallel_calls or tf.data.AUTOTUNE, *args, **kwargs)

    put.put(tf.data.Dataset, "map", named_like(original, map_))


def _graph(step: Any) -> Any:
    import tensorflow as tf

    return step if hasattr(step, "get_concrete_function") else tf.function(step)


def _not_eagerly(model: Any) -> None:
    import tensorflow as tf

    tf.config.run_functions_eagerly(False)
    model.run_eagerly = False


def _looped(step: Any) -> Any:
    import tensorflow as tf

    def several(iterator: Any) -> Any:
        loss = step(iterator)
        for _ in tf.range(LOOP - 1):
            loss = step(iterator)
        return loss

    return tf.function(several)


def _several_steps(model: Any) -> None:
    model.steps_per_execution = LOOP


def _alone(put: Replacements) -> None:
    """Leave out the collectives that the program and its optimizer ask for; each replica keeps its own values."""
    import tensorflow as tf

    context, strategy = tf.distribute.ReplicaContext, tf.distribute.Strategy

    def all_reduce(_self: Any, reduce_op: Any, value: Any, options: Any = None) -> Any:
        return tf.nest.map_structure(tf.identity, value)

    def reduce(self: Any, reduce_op: Any, value: Any, axis: Any) -> Any:
        local = self.experimental_local_results(value)[0]
        return local if axis is None else tf.reduce_mean(local, axis)

    put.put(context, "all_reduce", named_like(context.all_reduce, all_reduce))
    _ungathered(put)
    put.put(strategy, "reduce", named_like(strategy.reduce, reduce))


def _ungathered(put: Replacements) -> None:
    """Leave out all-gathers; each replica gets copies of its own value."""
    import tensorflow as tf

    context = tf.distribute.ReplicaContext

    def all_gather(self: Any, value: Any, axis: int, options: Any = None) -> Any:
        copies = self.num_replicas_in_sync
        return tf.nest.map_structure(lambda one: tf.concat([one] * copies, axis), value)

    put.put(context, "all_gather", named_like(context.all_gather, all_gather))


def _reductions(change: Callable[[Callable[..., Any], Any, Any, Any], Any]) -> Callable[[Replacements], None]:
    """Change each all-reduce: ``change(reduce, op, value, options)`` returns the result."""

    def patch(put: Replacements) -> None:
        import tensorflow as tf

        context = tf.distribute.ReplicaContext
        original = context.all_reduce

        def all_reduce(self: Any, reduce_op: Any, value: Any, options: Any = None) -> Any:
            return change(lambda *args: original(self, *args), reduce_op, value, options)

        put.put(context, "all_reduce", named_like(original, all_reduce))

    return patch


def _default_options(reduce: Callable[..., Any], op: Any, value: Any, _options: Any) -> Any:
    return reduce(op, value)


def _cast(narrower: dict[str, str]) -> Callable[..., Any]:
    """Reduce values of a type in another type, and cast the results back."""

    def reduced(reduce: Callable[..., Any], op: Any, value: Any, options: Any) -> Any:
        import tensorflow as tf

        def to(item: Any) -> Any:
            wanted = narrower.get(getattr(item.dtype, "name", ""))
            return tf.cast(item, wanted) if isinstance(item, tf.Tensor) and wanted else item

        result = reduce(op, tf.nest.map_structure(to, value), *([] if options is None else [options]))
        return tf.nest.map_structure(lambda new, old: tf.cast(new, old.dtype), result, value)

    return reduced


_knob(Knob("base", "no change"))
_knob(Knob("again", "no change, in other processes"))
_knob(Knob("cached", "the first batch, kept in memory", data=_of_dataset(lambda data: data.take(1).cache().repeat())))
_knob(Knob("parallel", "Dataset.map(..., num_parallel_calls=tf.data.AUTOTUNE)", patch=_parallel))
_knob(Knob("prefetch", "Dataset.prefetch(tf.data.AUTOTUNE) at the end", data=_of_dataset(_prefetched)))
_knob(Knob("graph", "the step in a tf.function", step=_graph, model=_not_eagerly))
_knob(Knob("rarely", f"the body of the loop in one of {EVERY} steps", every=EVERY))
_knob(Knob("loop", f"{LOOP} steps in one call", step=_looped, model=_several_steps, calls=LOOP))
_knob(Knob("alone", "no collectives: each replica keeps its own gradients", patch=_alone))
_knob(Knob("ungathered", "copies of a replica's own value in place of all-gathers", patch=_ungathered))
_knob(Knob("packs", "all-reduces without options=", patch=_reductions(_default_options)))
_knob(Knob("narrow", "float64 reduced as float32", patch=_reductions(_cast({"float64": "float32"}))))
_knob(Knob("half", "float32 reduced as float16", patch=_reductions(_cast({"float32": "float16"}))))
_knob(Knob("batch", "twice the batch", batch=2))
