"""Compute random numbers from the operation, the step and the example, in the graph of the program.

All operations here are element by element, so they also run under XLA and in ``tf.vectorized_map``. Random operations
of TensorFlow would not do: their numbers depend on the shape of the whole draw, which is another one on each replica.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pytest_ddl.training.places import Placement, Rows, Shared, Spans, Unplaced

_BITS = 0xFFFFFFFF
_FACTOR = 0x45D9F3B
_ADDED = 0x1E3779B9
_SPREAD = 0x27D4EB2F
_LOW, _HIGH = 0.03125, 0.96875
_GOLDEN = (5**0.5 - 1) / 2


@dataclass(frozen=True)
class Stream:
    """Numbers of one random operation."""

    position: int
    """Index of the operation in the replica function."""
    placement: Placement
    head: Any
    """Step, execution of the operation in the step, number of blocks, and a flag, as an int64 tensor. The flag is 1 if
    the replica's draws that belong to no example differ from those of the first replica, else 0."""
    rows: Any
    """Place, block and index in the block of each example of the replica, as an int64 tensor; empty if unknown."""
    first: Any = 0
    """Place of the first entry of the draw among those of one device; only for :class:`Spans`."""
    entry: Any = None
    """Index of an execution that draws one entry of the dimension of the examples; ``None`` if it draws all of them."""
    in_order: bool = False
    """True if the numbers of each block of examples lie in a range of their own."""

    def uniform(self, shape: Any, salt: int = 0) -> Any:
        """Return float64 numbers between 0 and 1, both excluded."""
        import tensorflow as tf

        asked = shape = tf.cast(shape, tf.int32)
        if self.entry is not None:
            shape = tf.concat([[1], shape], axis=0)
        if isinstance(self.placement, Unplaced) or (isinstance(self.placement, Shared) and _is_one(shape)):
            return tf.fill(asked, self._level(salt))
        placed = self.placement if isinstance(self.placement, Rows) else Rows(0)
        axis = self.placement.axis if isinstance(self.placement, Spans) else placed.axis
        outer, inner = tf.reduce_prod(shape[:axis]), tf.reduce_prod(shape[axis + 1 :])
        index = tf.range(shape[axis]) + (0 if self.entry is None else tf.cast(self.entry, tf.int32))
        columns = tf.cast(tf.reshape(tf.range(outer * inner), [outer, 1, inner]), tf.int64)
        if not isinstance(self.placement, Rows):
            rows = tf.cast(index, tf.int64) + self.first
            parts = None
        else:
            each = placed.each
            # If the rows do not belong to the examples, all rows get the same numbers.
            count = tf.shape(self.rows)[0]
            fitting = tf.equal(count * each, shape[axis] * placed.parts) if self.entry is None else index < count * each
            fits = tf.cast(fitting, tf.int64)
            known = tf.concat([self.rows, tf.zeros([1, 3], tf.int64)], axis=0)
            first = self._part(placed) * shape[axis]
            example = tf.gather(known, tf.minimum((first + index) // each, count)) * fits
            rows = example[:, 0] * each + tf.cast(index % each, tf.int64) * fits
            parts = tf.cast(example[:, 1], tf.float64)[None, :, None]
        base = self._base(salt)
        by_row = _mixed(_mixed(rows + base) + base // 3)[None, :, None]
        by_column = _mixed(_mixed(columns + base // 5) + base // 7)
        bits = _mixed(tf.bitwise.bitwise_xor(by_row, by_column))
        numbers = (tf.cast(bits, tf.float64) + 0.5) / (_BITS + 1)
        if self.in_order and parts is not None:
            numbers = (parts + numbers) / tf.cast(self.head[2], tf.float64)
        return tf.reshape(numbers, asked)

    def order(self, count: Any) -> Any:
        """Return a random order of ``count`` rows. Rows of examples only change places with rows of the same block."""
        import tensorflow as tf

        if isinstance(self.placement, Unplaced):
            return tf.range(count)
        key = tf.reshape(self.uniform([count]), [-1])
        if self.entry is not None or isinstance(self.placement, Shared):
            return tf.argsort(key)
        if self.placement != Rows(0):
            return tf.range(count)
        fits = tf.equal(tf.shape(self.rows)[0], count)
        known = tf.concat([self.rows, tf.zeros([tf.maximum(count - tf.shape(self.rows)[0], 0), 3], tf.int64)], axis=0)
        blocks = tf.cast(known[:count, 1], tf.float64)
        inside = tf.cast(known[:count, 2], tf.float64) / tf.cast(count, tf.float64)
        taken = tf.argsort(blocks * 2 + key)
        places = tf.argsort(blocks * 2 + inside)
        order = tf.scatter_nd(places[:, None], taken, [count])
        return tf.where(fits, order, tf.range(count))

    def _part(self, placed: Rows) -> Any:
        """Return which part of the examples a draw is for."""
        import tensorflow as tf

        return tf.cast(self.head[1] % placed.parts, tf.int32) if placed.part is None else placed.part

    def _base(self, salt: int) -> Any:
        """Return a tensor that differs by operation, by step, and by execution in a loop over all examples."""
        import tensorflow as tf

        placed = self.placement if isinstance(self.placement, Rows) else Rows(0)
        number = self.position if placed.operation is None else placed.operation
        own = _mixed_number(_mixed_number(number + 1) + salt)
        executed = self.head[1] // tf.constant(placed.parts, tf.int64)
        apart = self.head[3] * _SPREAD if isinstance(self.placement, Shared) else 0
        return _mixed(_mixed(self.head[0] + own) + executed * _ADDED + apart)

    def _level(self, salt: int) -> Any:
        """Return one number: a low one in the first step, a high one in the second, then others.

        A few steps thus take all branches of a program. The other numbers are evenly spread over the steps. Those of
        two operations are combined in many ways (additive recurrences; Niederreiter, *Random Number Generation and
        Quasi-Monte Carlo Methods*, 1992, section 3.1).
        """
        import tensorflow as tf

        stride = (self.position + 1 + 7 * salt) * _GOLDEN % 1.0
        time = tf.cast(self.head[0], tf.float64) + 0.3819 * tf.cast(self.head[1], tf.float64)
        spread = tf.clip_by_value((0.5 + time * stride) % 1.0, 2.0**-24, 1.0 - 2.0**-24)
        first = self.head[0] * 4 + tf.minimum(self.head[1], 1)
        level = tf.where(
            tf.equal(first, 4),
            tf.constant(_LOW, tf.float64),
            tf.where(tf.equal(first, 8), tf.constant(_HIGH, tf.float64), spread),
        )
        # A replica apart takes the other branch of almost any threshold. Its number is not symmetric to the first one.
        return tf.where(tf.equal(self.head[3], 1), (level + 0.9) % 1.0, level)


def _is_one(shape: Any) -> bool:
    import tensorflow as tf

    known = tf.get_static_value(shape)
    return known is not None and all(size == 1 for size in known)


def _mixed(numbers: Any) -> Any:
    """Return 32 bits, all of which depend on all bits of the given numbers (the mixer of Thomas Mueller's hash).

    The factor is below 2**31, so no product exceeds an int64.
    """
    import tensorflow as tf

    numbers = tf.bitwise.bitwise_and(numbers, tf.constant(_BITS, tf.int64))
    for _round in range(2):
        shifted = tf.bitwise.right_shift(numbers, tf.constant(16, tf.int64))
        numbers = tf.bitwise.bitwise_xor(numbers, shifted) * _FACTOR
        numbers = tf.bitwise.bitwise_and(numbers, tf.constant(_BITS, tf.int64))
    return tf.bitwise.bitwise_xor(numbers, tf.bitwise.right_shift(numbers, tf.constant(16, tf.int64)))


def _mixed_number(number: int) -> int:
    number = (number + _ADDED) & _BITS
    for _round in range(2):
        number = ((number ^ number >> 16) * _FACTOR) & _BITS
    return number ^ number >> 16
