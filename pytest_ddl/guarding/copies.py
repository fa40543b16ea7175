"""Read what the replicas hold: a checksum of all copies at each check, and the copies themselves if checksums differ.

A check has to be cheap. So small variables share one checksum, each replica computes its own on its device, and only
one short row of numbers for each replica leaves the devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_ddl.equivalence.evidence.observe import read_locally
from pytest_ddl.records import Array, VariableKind
from pytest_ddl.training import adapter, values
from pytest_ddl.training.fingerprint import salts
from pytest_ddl.training.watching import Watched, Watcher

Rows = NDArray[np.int64]

_SMALL = 2**16
"""Smallest number of elements of a variable that has a checksum of its own."""
_WEIGHTS = 4096
"""Number of factors of a checksum. They are repeated, so that they need no memory of the size of the model."""
_FINITE = (VariableKind.TRAINABLE, VariableKind.SLOT)
"""Kinds that must be finite. Other state may be infinite on purpose, such as the best loss so far."""


@dataclass(frozen=True)
class Bundle:
    """Variables of one dtype with one checksum."""

    items: tuple[Watched, ...]
    alike: bool
    """True if all copies must be equal."""
    finite: bool
    """True if all values must be finite."""


@dataclass(frozen=True)
class Holding:
    """Variable with the copies of all replicas, in their order; with one if no replica has its own."""

    item: Watched
    group: Bundle
    copies: tuple[Array, ...]


class Copies:
    """The variables of a program, with the copies of all replicas of all workers."""

    def __init__(self, strategy: Any, model: Any, optimizer: Any, variables: Any) -> None:
        self._strategy = strategy
        self._watcher = Watcher(strategy, lambda _kind, _text: None)
        self._watcher.add(model=model, optimizer=optimizer, variables=variables)
        self._groups: tuple[Bundle, ...] = ()
        self._rates: tuple[Watched, ...] = ()
        self._compute: Callable[..., Any] | None = None
        self.replicas = int(strategy.num_replicas_in_sync)
        self.local = 1 if self.replicas == 1 else len(strategy.extended.worker_devices)
        """Number of replicas in this process."""
        self._is_alone = self.local == self.replicas

    @property
    def rates(self) -> tuple[Watched, ...]:
        """Learning rates that are not variables. Each worker has its own."""
        return self._rates

    def look(self, numbers: Sequence[Rows]) -> tuple[Rows, list[Bundle]]:
        """Compute the checksums on all replicas.

        Under several workers, every worker must call this after the same step, because it is a collective.

        :param numbers: numbers of this process to exchange, one row for each of its replicas.
        :return: these numbers and the rates for all replicas, and the groups that need a closer look.
        """
        self._scan()
        rates = np.array([float(item.read()[0]) for item in self._rates], np.float64).view(np.int64)
        rows = np.stack([np.concatenate([row, rates]) for row in numbers])
        found = self._with_sums(rows)
        width = rows.shape[1]
        given, sums = found[:, :width], found[:, width:]
        suspects = [group for at, group in enumerate(self._groups) if _is_suspect(group, sums[:, 2 * at : 2 * at + 2])]
        return given, suspects

    def held(self, groups: Sequence[Bundle], tolerance: Callable[[Watched], float]) -> Iterator[Holding]:
        """Yield the variables of some groups with all their copies, but for those that are within their tolerance.

        Under several workers, this is a collective too.

        :param tolerance: returns by how much copies may differ, as a fraction of the largest value of the variable.
        """
        for group in groups:
            for item in group.items:
                if not (group.alike and self._is_within(item, tolerance(item))):
                    yield Holding(item, group, self._copies(item.variable))

    def _scan(self) -> None:
        if not self._watcher.scan() and self._compute is not None:
            return
        watched = [item for item in self._watcher.watched if item.record.kind is not VariableKind.METRIC]
        self._rates = tuple(item for item in watched if item.variable is None)
        own = {id(values.backing(one)) for model in self._watcher.models for one in _of_each_replica(model)}
        self._groups = tuple(_grouped([item for item in watched if item.variable is not None], own))
        self._compute = self._traced()

    def _traced(self) -> Callable[..., Any]:
        import tensorflow as tf

        strategy, groups = self._strategy, self._groups

        def sums() -> Any:
            return tf.concat([part for group in groups for part in _summary(group)], 0)[tf.newaxis]

        @tf.function(autograph=False)  # type: ignore[untyped-decorator]
        def of_this_process() -> Any:
            return tf.concat(strategy.experimental_local_results(strategy.run(sums)), 0) if groups else ()

        def with_numbers(rows: Any) -> Any:
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group % self.local
            row = tf.gather(rows, [replica])
            return tf.concat([row, sums()], 1) if groups else row

        @tf.function(autograph=False)  # type: ignore[untyped-decorator]
        def of_all_workers(rows: Any) -> Any:
            return strategy.gather(strategy.run(with_numbers, args=(rows,)), axis=0)

        compute: Callable[..., Any] = of_this_process if self._is_alone else of_all_workers
        return compute

    def _with_sums(self, rows: Rows) -> Rows:
        """Return the rows of all replicas of all workers, with the checksums behind the numbers."""
        import tensorflow as tf

        assert self._compute is not None
        if not self._is_alone:
            return np.asarray(self._compute(tf.constant(rows)))
        sums = np.asarray(self._compute(), np.int64).reshape(self.local, -1)
        return np.concatenate([rows, sums], axis=1)

    def _is_within(self, item: Watched, tolerance: float) -> bool:
        """Return whether the copies of a variable are near their mean.

        Copies that drift by rounding are seen at each check, and they may be too large to be collected each time.
        """
        if not tolerance or not item.variable.dtype.is_floating:
            return False
        import tensorflow as tf

        def read() -> Any:
            return _sendable(tf.convert_to_tensor(item.variable))

        def away(value: Any, mean: Any) -> Any:
            parts = (tf.reduce_max(tf.abs(value - mean)), tf.reduce_max(tf.abs(value)), tf.reduce_sum(value))
            return tf.stack(parts)[tf.newaxis]

        def of_replicas() -> Any:
            found = self._strategy.run(read)
            mean = self._strategy.reduce(tf.distribute.ReduceOp.MEAN, found, axis=None)
            return self._strategy.run(away, args=(found, mean))

        distance, largest, total = self._joined(of_replicas).T
        # Each comparison with a value that is not finite is false, and the closer look decides.
        return bool(np.all(np.isfinite(total)) and 2 * np.max(distance) <= tolerance * np.max(largest))

    def _joined(self, function: Callable[[], Any]) -> Array:
        """Return the values of all replicas of all workers that a function returns, joined."""
        import tensorflow as tf

        @tf.function(autograph=False)  # type: ignore[untyped-decorator]
        def joined() -> Any:
            found = function()
            if self._is_alone:
                return tf.concat(self._strategy.experimental_local_results(found), 0)
            return self._strategy.gather(found, axis=0)

        return np.asarray(joined())

    def _copies(self, variable: Any) -> tuple[Array, ...]:
        if self._is_alone:
            return values.read(self._strategy, variable)
        import tensorflow as tf

        def read() -> Any:
            return _sendable(tf.convert_to_tensor(variable))[tf.newaxis]

        return tuple(self._joined(lambda: self._strategy.run(read)))


def _is_suspect(group: Bundle, sums: Rows) -> bool:
    return (group.alike and bool(np.any(sums[:, 0] != sums[0, 0]))) or bool(np.any(sums[:, 1]))


def _grouped(items: Sequence[Watched], own: set[int]) -> Iterator[Bundle]:
    """Yield the groups. Each large variable is one of its own.

    :param own: variables of which each replica has its own value on purpose.
    """
    together: dict[tuple[str, bool, bool], list[Watched]] = {}
    for item in items:
        dtype, is_own = item.variable.dtype, id(item.variable) in own
        if not (dtype.is_floating or dtype.is_complex or dtype.is_integer or dtype.is_bool):
            continue  # strings and resources
        alike = not is_own and not read_locally(item.record)
        finite = dtype.is_floating and (is_own or item.record.kind in _FINITE)
        if not (alike or finite):
            continue
        if int(np.prod(item.record.shape)) >= _SMALL:
            yield Bundle((item,), alike, finite)
        else:
            together.setdefault((dtype.name, alike, finite), []).append(item)
    for (_dtype, alike, finite), group in together.items():
        yield Bundle(tuple(group), alike, finite)


def _of_each_replica(model: Any) -> Iterator[Any]:
    """Yield state of Keras that depends on the examples of a replica on purpose.

    Keras 3 gives every replica moving statistics of its own in batch normalization: the known behavior
    ``keras-batch-normalization``. A stateful recurrent layer continues from the last examples of its replica.
    """
    for layer in adapter.flatten_layers(model):
        if getattr(layer, "stateful", False):
            yield from getattr(layer, "non_trainable_variables", ())
        elif any("BatchNormalization" in base.__name__ and _is_of_keras(base) for base in type(layer).__mro__):
            yield from (getattr(layer, name) for name in ("moving_mean", "moving_variance") if hasattr(layer, name))


def _is_of_keras(base: type) -> bool:
    return base.__module__.split(".")[0] in ("keras", "tf_keras")


def _summary(group: Bundle) -> Iterator[Any]:
    """Yield the checksum of a group on this replica, and the number of its sums that are not finite."""
    import tensorflow as tf

    flat = [tf.reshape(tf.convert_to_tensor(item.variable), [-1]) for item in group.items]
    joined = flat[0] if len(flat) == 1 else tf.concat(flat, 0)
    nothing = tf.constant([0], tf.int64)
    yield _checksum(_words(joined))[tf.newaxis] if group.alike else nothing
    if not group.finite:
        yield nothing
        return
    # A sum is not finite if one of its terms is not. It may overflow too, and the closer look finds nothing then.
    wide = tf.cast(joined, tf.float32) if joined.dtype.size < 4 else joined
    yield tf.cast(~tf.math.is_finite(tf.reduce_sum(wide)), tf.int64)[tf.newaxis]


def _words(flat: Any) -> Any:
    """Return the bits of a vector as 64-bit words."""
    import tensorflow as tf

    if flat.dtype.is_bool:
        flat = tf.cast(flat, tf.uint8)
    if flat.dtype.size >= 8:
        return tf.reshape(tf.bitcast(flat, tf.int64), [-1])
    each = 8 // flat.dtype.size
    missing = -int(flat.shape[0]) % each
    if missing:
        flat = tf.concat([flat, tf.zeros([missing], flat.dtype)], 0)
    return tf.bitcast(tf.reshape(flat, [-1, each]), tf.int64)


def _checksum(words: Any) -> Any:
    """Return one number for a vector of words. A change of any word changes it, and so does another order.

    Each word is folded first: a product with an odd factor passes the upper bits on to no other bit, so that a sum
    would not show that two signs have changed.
    """
    import tensorflow as tf

    size = int(words.shape[0])
    factors = tf.constant(salts(size, min(size, _WEIGHTS)).view(np.int64))
    folded = tf.bitwise.bitwise_xor(words, tf.bitwise.right_shift(words, tf.constant(32, tf.int64)))
    if size <= _WEIGHTS:
        return tf.reduce_sum(folded * factors)
    whole = size // _WEIGHTS * _WEIGHTS
    total = _checksum(tf.reduce_sum(tf.reshape(folded[:whole], [-1, _WEIGHTS]) * factors, axis=1))
    return total if whole == size else total + _checksum(words[whole:])


def _sendable(tensor: Any) -> Any:
    """Return a tensor of a dtype that every collective can gather, with the same values."""
    import tensorflow as tf

    dtype = tensor.dtype
    if dtype.is_complex:
        return tf.bitcast(tensor, tf.float32 if dtype.size == 8 else tf.float64)
    if dtype.is_floating:
        return tf.cast(tensor, tf.float32) if dtype.size < 4 else tensor
    return tf.cast(tensor, tf.int64)
