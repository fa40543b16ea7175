"""Prepare datasets for a run: cast them to its precision, move values by one ulp, replay batches, and distribute them.

A replay gives a reference the global batches that another run consumed. The record of that run has only the
fingerprints of the examples. The examples themselves come from the reference's dataset, so a replay contains no example
that one device would not train on.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_ddl.training import fingerprint
from pytest_ddl.training.settings import RunSettings

MOST_ELEMENTS = 2000
"""Maximum number of dataset elements to search for an example, because a repeated dataset has no end."""
Row = tuple[NDArray[Any], ...]


def prepare(dataset: Any, settings: RunSettings, completed: Callable[[], int] | None = None) -> Any:
    """Return a dataset, or a dataset function, whose elements have the run's precision and perturbation.

    :param completed: returns the number of steps completed so far; given only for training data, which is
        replayed if the settings ask for that.
    """
    import tensorflow as tf

    if isinstance(dataset, tf.data.Dataset):
        return _prepare_dataset(dataset, settings, completed)
    if is_dataset_function(dataset):

        @functools.wraps(dataset)
        def prepared(context: Any) -> Any:
            made = dataset(context)
            return _prepare_dataset(made, settings, completed) if isinstance(made, tf.data.Dataset) else made

        return prepared
    return dataset


def is_dataset_function(dataset: Any) -> bool:
    return callable(dataset) and not hasattr(dataset, "__iter__")


def _prepare_dataset(dataset: Any, settings: RunSettings, completed: Callable[[], int] | None) -> Any:
    if settings.precision == "float64":
        dataset = _map(dataset, _widen)
    if settings.constant:
        dataset = dataset.take(1).repeat()
    elif settings.repeat:
        dataset = dataset.repeat()
    if settings.replay and completed is not None:
        dataset = replayed(dataset, settings.replay, completed)
    if settings.perturbation:
        dataset = _perturb_dataset(dataset, settings)
    if settings.slices and completed is not None:
        dataset = _cut_down(dataset, settings.slices, settings.slice_moved, completed)
    return dataset


def _cut_down(
    dataset: Any,
    slices: tuple[tuple[int, tuple[int, ...]], ...],
    moved: tuple[int, tuple[int, ...]] | None,
    completed: Callable[[], int],
) -> Any:
    """Return the same global batches, but keep only the examples at some rows in the batches of some steps.

    Each iteration starts at the current step of the run, because a later epoch or loop reads the data from its start.

    :param slices: ``(step, rows)`` for each step that is cut.
    :param moved: index of a tensor of which other rows are kept, and these rows.
    """
    import tensorflow as tf

    def cut(index: Any, element: Any) -> Any:
        def examples(position: int, tensor: Any) -> Any:
            chosen = tf.range(tf.shape(tensor, tf.int64)[0])
            for step, rows in slices:
                own = moved[1] if moved is not None and position == moved[0] else rows
                chosen = tf.cond(
                    tf.equal(index, step - 1),
                    functools.partial(tf.constant, own, tf.int64),
                    functools.partial(tf.identity, chosen),
                )
            return tf.gather(tensor, chosen)

        kept = [examples(position, tensor) for position, tensor in enumerate(tf.nest.flatten(element))]
        return tf.nest.pack_sequence_as(element, kept)

    first = tf.data.Dataset.range(1).map(lambda _: tf.numpy_function(lambda: np.int64(completed()), [], tf.int64))
    steps = first.flat_map(lambda start: tf.data.Dataset.range(start, tf.int64.max))
    made = tf.data.Dataset.zip((steps, dataset)).map(tf.autograph.experimental.do_not_convert(cut))
    length = int(dataset.cardinality())
    known = length != tf.data.UNKNOWN_CARDINALITY
    return made.apply(tf.data.experimental.assert_cardinality(length)) if known else made


def _map(dataset: Any, function: Callable[[Any], Any]) -> Any:
    """Apply ``dataset.map`` to every tensor of any structure; ragged and sparse tensors stay whole."""
    import tensorflow as tf

    def mapped(*element: Any) -> Any:
        # Dataset.map unpacks only plain tuples.
        whole = element if type(dataset.element_spec) is tuple else element[0]
        return tf.nest.map_structure(function, whole)

    return dataset.map(tf.autograph.experimental.do_not_convert(mapped))


def _widen(tensor: Any) -> Any:
    import tensorflow as tf

    return tf.cast(tensor, tf.float64) if tensor.dtype in (tf.float16, tf.bfloat16, tf.float32) else tensor


def _perturb_dataset(dataset: Any, settings: RunSettings) -> Any:
    import tensorflow as tf

    def moved(index: Any, element: Any) -> Any:
        flat = tf.nest.flatten(element)
        seeds = [tf.stack([tf.cast(index, tf.int64), tf.constant(position, tf.int64)]) for position in range(len(flat))]
        seeds = [tf.random.experimental.stateless_fold_in(seed, settings.perturbation) for seed in seeds]
        pairs = zip(flat, seeds, strict=True)
        return tf.nest.pack_sequence_as(element, [_moved_tensor(item, seed, settings) for item, seed in pairs])

    return dataset.enumerate().map(tf.autograph.experimental.do_not_convert(moved))


def _moved_tensor(tensor: Any, seed: Any, settings: RunSettings) -> Any:
    import tensorflow as tf

    ulp_of = settings.ulp_of
    if not isinstance(tensor, tf.Tensor) or not tensor.dtype.is_floating:
        return tensor
    if not ulp_of and tensor.dtype not in (tf.float32, tf.float64):
        return tensor
    up = tf.random.stateless_uniform(tf.shape(tensor), seed) < 0.5
    if ulp_of:
        moved = tf.numpy_function(
            lambda values, coins: _step_by_ulp(values, coins, ulp_of), [tensor, up], tensor.dtype, stateful=False
        )
        moved.set_shape(tensor.shape)
    else:
        infinity = tf.constant(np.inf, tensor.dtype)
        moved = tf.math.nextafter(tensor, tf.where(up, infinity, -infinity))
    if settings.ulps > 1:
        moved = tensor + settings.ulps * (moved - tensor)
    # Whole numbers stay: they may be labels or counts, and 0.9999… would be truncated to another label.
    return tf.where(tf.equal(tensor, tf.round(tensor)), tensor, moved)


def prepare_arrays(given: Any, settings: RunSettings) -> Any:
    """Apply precision and perturbation to NumPy arrays and structures of them, as ``fit`` takes them."""
    if isinstance(given, dict):
        return {key: prepare_arrays(value, settings) for key, value in given.items()}
    if isinstance(given, list | tuple) and all(isinstance(item, np.ndarray) for item in given):
        return type(given)(prepare_arrays(item, settings) for item in given)
    if not isinstance(given, np.ndarray) or given.dtype.kind != "f":
        return given
    array = given.astype(np.float64) if settings.precision == "float64" else given
    if settings.perturbation:
        moved = move_by_ulp(array, np.random.default_rng(settings.perturbation), settings.ulp_of, settings.ulps)
        array = np.where(array == np.round(array), array, moved)
    return array


def move_by_ulp(
    array: np.ndarray[Any, Any], generator: np.random.Generator, ulp_of: str = "", ulps: int = 1
) -> np.ndarray[Any, Any]:
    """Move each element to its neighbor above or below, as ``generator`` decides at random.

    :param ulp_of: type that defines the neighbors; empty for the type of the array.
    :param ulps: how many times as far to move.
    """
    up = generator.random(array.shape) < 0.5
    target = np.where(up, np.inf, -np.inf).astype(array.dtype)
    moved: np.ndarray[Any, Any] = _step_by_ulp(array, up, ulp_of) if ulp_of else np.nextafter(array, target)
    return moved if ulps == 1 else (array + ulps * (moved - array)).astype(array.dtype)


_BITS = {"float16": (11, -14), "bfloat16": (8, -126)}
"""Type -> bits of its significand, and exponent of its smallest normal number (IEEE 754-2019, table 3.5)."""


def _step_by_ulp(array: np.ndarray[Any, Any], up: np.ndarray[Any, Any], ulp_of: str) -> np.ndarray[Any, Any]:
    """Move each element by the spacing of ``ulp_of`` at its value, so that a cast to that type keeps the change."""
    bits, smallest = _BITS[ulp_of]
    wide = np.asarray(array, np.float64)
    # frexp gives significands from 1/2 to 1. The exponent for 1 <= significand < 2 is one less.
    spacing = np.ldexp(1.0, np.maximum(np.frexp(wide)[1] - 1, smallest) - (bits - 1))
    moved: np.ndarray[Any, Any] = np.where(up, wide + spacing, wide - spacing).astype(array.dtype)
    return moved


def distribute(strategy: Any, dataset: Any) -> Any:
    """Distribute a dataset, or a dataset function, over the strategy; return a distributed dataset unchanged."""
    import tensorflow as tf

    if isinstance(dataset, tf.data.Dataset):
        return strategy.experimental_distribute_dataset(dataset)
    if is_dataset_function(dataset):
        return strategy.distribute_datasets_from_function(dataset)
    return dataset


def number_of_steps(dataset: Any) -> int | None:
    """Return the number of global batches of a dataset, or ``None`` if it is not known in advance.

    Loops need the number so that they do not call a step after the end of the data. Such a step still runs
    the operations that do not depend on the data, for example Keras' decoupled weight decay.
    """
    import tensorflow as tf

    if not isinstance(dataset, tf.data.Dataset):
        return None
    policy = dataset.options().experimental_distribute.auto_shard_policy
    if policy not in (tf.data.experimental.AutoShardPolicy.AUTO, tf.data.experimental.AutoShardPolicy.DATA):
        # With other policies, workers may take more or fewer steps than there are global batches.
        return None
    number = int(dataset.cardinality())
    return number if number >= 0 else None


class ReplayError(RuntimeError):
    """Error if the global batches of another run cannot be composed of this dataset's examples."""


def replayed(dataset: Any, batches: Sequence[Sequence[int]], completed: Callable[[], int]) -> Any:
    """Return a dataset whose k-th element has the examples with the fingerprints ``batches[completed() + k]``.

    Each iteration starts at the current step of the run, and is as long as an iteration of ``dataset``.
    """
    import tensorflow as tf

    source = _Examples(dataset)
    signature = tf.nest.map_structure(_open_ended, dataset.element_spec)

    def elements() -> Iterator[Any]:
        first = completed()
        for position in range(first, len(batches) if source.length is None else first + source.length):
            yield source.element(batches[position] if position < len(batches) else ())

    made = tf.data.Dataset.from_generator(elements, output_signature=signature)
    return made if source.length is None else made.apply(tf.data.experimental.assert_cardinality(source.length))


def _open_ended(spec: Any) -> Any:
    import tensorflow as tf

    if not isinstance(spec, tf.TensorSpec) or spec.shape.rank == 0:
        raise ReplayError(f"its batches contain {spec}, and only dense tensors of examples can be put together again")
    return tf.TensorSpec(None if spec.shape.rank is None else [None, *spec.shape[1:]], spec.dtype)


class UnknownExampleError(ReplayError):
    """Error if this dataset, read to its end, does not contain an example that the other run consumed."""


class _Examples:
    """Examples of a dataset by their fingerprints, read only as far as needed."""

    def __init__(self, dataset: Any) -> None:
        import tensorflow as tf

        cardinality = int(dataset.cardinality())
        self._structure = dataset.element_spec
        self._rows: dict[int, Row] = {}
        self._unread = islice(iter(dataset), MOST_ELEMENTS)
        self._nest = tf.nest
        self._any: Row | None = None
        self._ended = 0 <= cardinality <= MOST_ELEMENTS
        self.length = cardinality if 0 <= cardinality <= MOST_ELEMENTS else None
        if self.length is None and cardinality != tf.data.INFINITE_CARDINALITY:
            elements = sum(1 for _ in iter(self._read_one, False))
            self._ended = elements < MOST_ELEMENTS
            self.length = elements if self._ended else None

    def element(self, names: Sequence[int]) -> Any:
        """Return the examples with these fingerprints, as one element of the dataset."""
        rows = [self._row(name) for name in names]
        if not rows:
            rows = [self._row(None)]  # beyond the compared steps any example will do
        columns = [np.stack(column) for column in zip(*rows, strict=True)]
        return self._nest.pack_sequence_as(self._structure, columns)

    def _row(self, name: int | None) -> Row:
        while (self._any is None if name is None else name not in self._rows) and self._read_one():
            pass
        row = self._any if name is None else self._rows.get(name)
        if row is None:
            if self._ended:
                raise UnknownExampleError("an example that the strategy consumed is not among those of one device")
            raise ReplayError(f"an example that the strategy consumed is not in the first {MOST_ELEMENTS} batches")
        return row

    def _read_one(self) -> bool:
        element = next(self._unread, None)
        if element is None:
            return False
        columns = [np.asarray(tensor.numpy()) for tensor in self._nest.flatten(element)]
        hashes = fingerprint.combine([fingerprint.hash_rows(column, at) for at, column in enumerate(columns)])
        for row, name in enumerate(hashes):
            self._rows.setdefault(name, tuple(column[row] for column in columns))
            self._any = self._any or self._rows[name]
        return True
