"""Compute fingerprints of examples: one 64-bit hash per row of a batch, vectorized, without TensorFlow.

The hash of a row depends only on its bytes, on the tensor's position in the batch, and on its dtype.
It depends neither on the other rows nor on the number of rows. So the same example has the same
fingerprint in a batch of 12 on one device and in a batch of 6 on a replica.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def mix(values: Hashes) -> Hashes:
    """Apply the finalizer of splitmix64, which spreads every input bit over the whole word."""
    with np.errstate(over="ignore"):
        values = (values ^ (values >> np.uint64(30))) * _MIX_1
        values = (values ^ (values >> np.uint64(27))) * _MIX_2
        mixed: Hashes = values ^ (values >> np.uint64(31))
    return mixed


def salts(start: int, count: int) -> Hashes:
    """Return ``count`` pseudo-random odd words; the i-th depends only on ``start + i``."""
    with np.errstate(over="ignore"):
        words = mix(np.arange(start, start + count, dtype=np.uint64) * _GOLDEN + _GOLDEN)
    odd: Hashes = words | np.uint64(1)
    return odd


def _salt_of(position: int, dtype: np.dtype[Any]) -> int:
    digest = hashlib.blake2b(f"{position}:{dtype.kind}{dtype.itemsize}".encode(), digest_size=6).digest()
    return int.from_bytes(digest, "little")


def _words(rows: NDArray[Any]) -> Hashes:
    """Return the bytes of each row as 64-bit words, padded with zeros at the end."""
    flat = np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), -1)
    missing = -flat.shape[1] % 8
    if missing:
        flat = np.pad(flat, ((0, 0), (0, missing)))
    words: Hashes = np.ascontiguousarray(flat).view(np.uint64)
    return words


def _texts(rows: NDArray[Any]) -> Hashes:
    """Return one word for each string (of an array of ``bytes`` objects)."""
    flat = rows.reshape(len(rows), -1)
    hashed = [
        [int.from_bytes(hashlib.blake2b(_as_bytes(item), digest_size=8).digest(), "little") for item in row]
        for row in flat
    ]
    return np.array(hashed, dtype=np.uint64).reshape(flat.shape)


def _as_bytes(item: Any) -> bytes:
    return item if isinstance(item, bytes) else str(item).encode()


def hash_rows(rows: NDArray[Any], position: int) -> Hashes:
    """Return one hash per row of the dense tensor at ``position`` in its batch."""
    if len(rows) == 0:
        return np.zeros(0, dtype=np.uint64)
    salt = _salt_of(position, rows.dtype)
    if rows.size == 0:
        return np.full(len(rows), salt, dtype=np.uint64)
    words = _texts(rows) if rows.dtype.kind in "OSU" else _words(rows)
    with np.errstate(over="ignore"):
        # Words are mixed before the weighted sum, so that a swap of two columns changes the hash.
        total = (mix(words + salts(salt, words.shape[1])) * salts(salt + 1, words.shape[1])).sum(axis=1)
        hashed: Hashes = mix(total.astype(np.uint64))
    return hashed


def hash_entries(values: NDArray[Any], rows: NDArray[Any], places: NDArray[Any], count: int, position: int) -> Hashes:
    """Return one hash per row of a tensor that is given by its entries, such as a sparse or ragged tensor.

    ``values[i]`` is in row ``rows[i]``, at ``places[i]`` (one or more coordinates) within the row.
    """
    total = np.zeros(count, dtype=np.uint64)
    if len(values):
        where = hash_rows(places.reshape(len(values), -1).astype(np.int64), position)
        with np.errstate(over="ignore"):
            np.add.at(total, rows, mix(hash_rows(values, position) ^ (where * _GOLDEN)))
    return mix(total)


def combine(parts: Sequence[Hashes]) -> tuple[int, ...]:
    """Return the fingerprints of the examples of a batch, from the row hashes of its tensors."""
    total = np.zeros(len(parts[0]), dtype=np.uint64)
    with np.errstate(over="ignore"):
        for part in parts:
            total = mix(total * _GOLDEN + part)
    return tuple(int(value) for value in total)
