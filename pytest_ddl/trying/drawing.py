"""Let what a script draws for its data be the same in each run: augmentation, generators of NumPy, and batches."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pytest_ddl.training.replacing import Replacements


def install(put: Replacements, keras: Any, seed: int) -> None:
    """Replace what depends on the time or on the operating system.

    Parallel calls of ``map`` draw in the order in which they happen to run, and ``prefetch`` draws ahead.

    :param keras: Keras 3, whose random layers keep a state that all iterators of a dataset share.
    """
    import tensorflow as tf

    default_rng, draw = np.random.default_rng, np.random.randint

    def seeded(given: Any = None) -> Any:
        # From the generator that is equal on all workers, and that a comparison repeats with other numbers on each.
        return default_rng(draw(2**31) if given is None else given)

    put.put(np.random, "default_rng", seeded)
    put.put(tf.data.Dataset, "prefetch", lambda dataset, *_size, **_options: dataset)
    in_order, generator = tf.data.Dataset.map, keras.random.SeedGenerator
    following = generator.next
    number: Any = None
    """Number of the element, while a function that makes elements is traced by its number."""
    draws = itertools.count()
    drawn = False

    def next_seed(state: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal drawn
        drawn = True
        if number is None:
            return following(state, *args, **kwargs)
        return tf.cast(tf.stack([number, tf.constant(seed + next(draws), tf.int64)]), state.state.dtype)

    def mapped(dataset: Any, map_func: Any, *_parallel: Any, name: Any = None, **_options: Any) -> Any:
        nonlocal drawn
        drawn = False
        made = in_order(dataset, map_func, name=name)
        if not drawn:
            return made
        several = type(dataset.element_spec) is tuple

        def of_element(index: Any, element: Any) -> Any:
            nonlocal number
            number = index
            made = map_func(*element) if several else map_func(element)
            number = None
            return made

        return in_order(dataset.enumerate(), of_element, name=name)

    put.put(generator, "next", next_seed)
    put.put(tf.data.Dataset, "map", mapped)


def same_items(data: Any, flavors: Sequence[Any]) -> Any:
    """Return a ``PyDataset`` whose batches do not depend on how many were read before, or other data as it is.

    A batch that draws from Python or NumPy would differ between runs, because a strategy reads more batches ahead.

    :param flavors: modules of Keras, of which one has the class of the data.
    """
    base: Any = next((keras.utils.Sequence for keras in flavors if isinstance(data, keras.utils.Sequence)), None)
    if base is None:
        return data
    # From the generator that is equal on all workers, and that a comparison repeats with other numbers on each.
    seed, ended = np.random.randint(2**31), 0
    made: dict[int, Any] = {}

    def drawn(call: Callable[..., Any], *given: int) -> Any:
        states = random.getstate(), np.random.get_state()
        number = hash((seed, ended, *given)) % 2**32
        random.seed(number)
        np.random.seed(number)
        try:
            return call(*given)
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])

    class SameItems(base):  # type: ignore[misc]  # a class of one flavor of Keras
        """The data, one batch after the other."""

        def __len__(self) -> int:
            return len(data)

        def __getitem__(self, index: int) -> Any:
            if index not in made:  # Keras reads the first batches twice, to learn their shapes
                made[index] = drawn(data.__getitem__, index)
            return made[index]

        @property
        def num_batches(self) -> int | None:
            return getattr(data, "num_batches", None) or len(data)

        def on_epoch_begin(self) -> None:
            drawn(getattr(data, "on_epoch_begin", lambda: None))

        def on_epoch_end(self) -> None:
            nonlocal ended
            drawn(data.on_epoch_end)
            made.clear()
            ended += 1

    return SameItems()
