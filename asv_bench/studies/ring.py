"""All-reduce of MirroredStrategy as a ring of copies between devices. Only a rank imports this module."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


class RingOfCopies(tf.distribute.CrossDeviceOps):  # type: ignore[misc]
    """All-reduce in two rounds over a ring of the replicas' devices, written with copies and additions only.

    Each value is split into as many parts as there are replicas. In the first round, each device passes a part to the
    next one, which adds its own; after ``n - 1`` passes, each device holds the sum of one part. In the second round,
    the sums go round in the same way. Each device sends ``2 (n - 1) / n`` of the value, which is the minimum
    (Patarasuk and Yuan 2009).

    Whatever is no all-reduce of dense tensors, such as a sum to one device, is left to ReductionToOneDevice.
    """

    def __init__(self) -> None:
        super().__init__()
        self._simple = tf.distribute.ReductionToOneDevice()

    def reduce_implementation(self, reduce_op: Any, per_replica_value: Any, destinations: Any, options: Any) -> Any:
        strategy = tf.distribute.get_strategy()
        values = strategy.experimental_local_results(per_replica_value)
        if not _is_all_reduce(values, destinations):
            return self._simple.reduce(reduce_op, per_replica_value, destinations, options)
        sums = _ring(values)
        if str(reduce_op.value) == "MEAN":
            sums = [one / tf.cast(len(values), one.dtype) for one in sums]
        return strategy.experimental_distribute_values_from_function(
            lambda context: sums[context.replica_id_in_sync_group]
        )

    def batch_reduce_implementation(self, reduce_op: Any, value_destination_pairs: Any, options: Any) -> Any:
        return [
            self.reduce_implementation(reduce_op, value, destinations, options)
            for value, destinations in value_destination_pairs
        ]

    def broadcast_implementation(self, tensor: Any, destinations: Any) -> Any:
        return self._simple.broadcast(tensor, destinations)


def _is_all_reduce(values: Any, destinations: Any) -> bool:
    """Return whether the sum of dense values goes back to the devices of the values."""
    if isinstance(destinations, str) or not all(tf.is_tensor(value) for value in values):
        return False
    if any(isinstance(value, tf.IndexedSlices) for value in values):
        return False
    there = tf.distribute.get_strategy().experimental_local_results(destinations)
    return len(values) > 1 and [value.device for value in values] == [one.device for one in there]


def _ring(values: Any) -> list[Any]:
    """Return the sum of the values on the device of each."""
    number = len(values)
    devices = [value.device for value in values]
    parts = []
    for value, device in zip(values, devices, strict=True):
        with tf.device(device):
            flat = tf.reshape(value, [-1])
            size = tf.size(flat)
            sizes = [(size + place) // number for place in range(number)]
            parts.append(tf.split(flat, tf.stack(sizes), num=number))
    for shift, keep in ((0, True), (1, False)):
        for step in range(number - 1):
            sent = [(place + shift - step) % number for place in range(number)]
            passed = [parts[place][sent[place]] for place in range(number)]
            for place in range(number):
                index = sent[place - 1]
                with tf.device(devices[place]):
                    copied = tf.identity(passed[place - 1])
                    parts[place][index] = copied + parts[place][index] if keep else copied
    joined = []
    for own, value, device in zip(parts, values, devices, strict=True):
        with tf.device(device):
            joined.append(tf.reshape(tf.concat(own, 0), tf.shape(value)))
    for one, value in zip(joined, values, strict=True):
        # Reshaping to a dynamic shape has lost it.
        one.set_shape(value.shape) if not tf.executing_eagerly() else None
    return joined
