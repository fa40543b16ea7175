"""Read what each replica gets from a distributed dataset, and say by arithmetic what it must get."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

MODES = ("eager", "function")
"""Values of the parameter ``how``: read in Python, or in a ``tf.function`` for each step."""


def epoch(strategy: Any, distributed: Any, how: str = "eager", limit: int | None = None) -> list[list[Any]]:
    """Return one list per step with what each replica of this rank got, as NumPy arrays and lists.

    :param limit: read only this number of steps. The iterator of an infinite dataset has no end.
    """
    iterator = iter(distributed)
    steps = []
    for value in _eagerly(iterator) if how == "eager" else _in_functions(strategy, iterator):
        steps.append([plain(part) for part in strategy.experimental_local_results(value)])
        if len(steps) == limit:
            break
    return steps


def _eagerly(iterator: Iterator[Any]) -> Iterator[Any]:
    yield from iterator


def _in_functions(strategy: Any, iterator: Any) -> Iterator[Any]:
    import tensorflow as tf

    def copy(part: Any) -> Any:
        return None if part is None else tf.identity(part)

    def replica_function(value: Any) -> Any:
        return tf.nest.map_structure(copy, value, expand_composites=True)

    @tf.function
    def step(iterator: Any) -> Any:
        return strategy.run(replica_function, args=(next(iterator),))

    while True:
        try:
            yield step(iterator)
        except tf.errors.OutOfRangeError:
            return


def plain(value: Any) -> Any:
    """Return a nest of tensors as Python and NumPy objects, which a rank can send."""
    import tensorflow as tf

    if isinstance(value, tf.RaggedTensor):
        return value.to_list()
    if isinstance(value, tf.SparseTensor):
        return {name: getattr(value, name).numpy().tolist() for name in ("indices", "values", "dense_shape")}
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(part) for part in value]
    return value if value is None else value.numpy()


def ids(steps: Sequence[Sequence[Any]]) -> list[list[list[int]]]:
    """Return the examples of each replica in each step as lists."""
    return [[np.asarray(part).tolist() for part in parts] for parts in steps]


def joined(ranks: Sequence[Sequence[Sequence[Any]]]) -> list[list[Any]]:
    """Return the steps of the whole cluster from those of its ranks: the replicas of rank 0, then those of rank 1.

    All ranks must have made the same number of steps.
    """
    assert len({len(steps) for steps in ranks}) == 1, [len(steps) for steps in ranks]
    return [[part for parts in step for part in parts] for step in zip(*ranks, strict=True)]


def flat(steps: Sequence[Sequence[Any]]) -> list[int]:
    """Return all examples in the order of steps and replicas."""
    return [example for parts in steps for part in parts for example in np.asarray(part).tolist()]


def batches(examples: Sequence[int], size: int, drop_remainder: bool = False) -> list[list[int]]:
    """Return the global batches of a dataset."""
    number = len(examples) // size if drop_remainder else -(-len(examples) // size)
    return [list(examples[index * size : (index + 1) * size]) for index in range(number)]


def pieces(batch: Sequence[int], replicas: int) -> list[list[int]]:
    """Return a batch in consecutive pieces of the same length; the last ones are shorter, or empty.

    TensorFlow splits this way if it shards by data. With one worker, the policy AUTO does so too.
    """
    length = -(-len(batch) // replicas)
    return [list(batch[replica * length : (replica + 1) * length]) for replica in range(replicas)]


def even_sizes(batch: int, parts: int) -> list[int]:
    """Return sizes that differ by one at most, the larger ones first."""
    return [batch // parts + (part < batch % parts) for part in range(parts)]
