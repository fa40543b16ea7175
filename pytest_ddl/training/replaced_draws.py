"""Give the result of a random operation with common random numbers, in the distribution that the program asked for."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pytest_ddl.training.common_numbers import Stream
from pytest_ddl.training.places import Shared

_UNIFORM = ("random_uniform", "stateless_random_uniform", "stateless_random_uniform_v2", "stateful_uniform")
_NORMAL = (
    "random_standard_normal",
    "stateless_random_normal",
    "stateless_random_normal_v2",
    "stateful_standard_normal",
    "stateful_standard_normal_v2",
)
_TRUNCATED = (
    "truncated_normal",
    "stateless_truncated_normal",
    "stateless_truncated_normal_v2",
    "stateful_truncated_normal",
)
_BOUNDED = ("parameterized_truncated_normal", "stateless_parameterized_truncated_normal")
_INTEGERS = (
    "random_uniform_int",
    "stateless_random_uniform_int",
    "stateless_random_uniform_int_v2",
    "stateful_uniform_int",
)
SHUFFLES = ("random_shuffle", "stateless_shuffle")
_CATEGORICAL = ("multinomial", "stateless_multinomial")
_GAMMA = ("random_gamma", "stateless_random_gamma_v2", "stateless_random_gamma_v3")
_POISSON = {"random_poisson": "rate", "random_poisson_v2": "rate", "stateless_random_poisson": "lam"}
_BINOMIAL = ("stateless_random_binomial", "stateful_random_binomial")
_CANDIDATES = (
    "fixed_unigram_candidate_sampler",
    "learned_unigram_candidate_sampler",
    "log_uniform_candidate_sampler",
    "thread_unsafe_unigram_candidate_sampler",
    "uniform_candidate_sampler",
)
_BOXES = (
    "sample_distorted_bounding_box",
    "sample_distorted_bounding_box_v2",
    "stateless_sample_distorted_bounding_box",
)
FUNCTIONS = (
    *_UNIFORM, *_NORMAL, *_TRUNCATED, *_BOUNDED, *_INTEGERS, *SHUFFLES, *_CATEGORICAL, *_GAMMA, *_POISSON, *_BINOMIAL,
    *_CANDIDATES, *_BOXES, "random_crop", "random_index_shuffle",
)  # fmt: skip
"""Functions of TensorFlow that add a random operation. Those for seeds (key and counter) are left out."""
_BITS = {"float16": 11, "bfloat16": 8, "float32": 24}
"""Type -> number of bits of a uniform number below 1. Rounding to fewer bits could give 1."""


def replaced(name: str, drawn: Any, original: Callable[..., Any], args: Any, kwargs: Any, stream: Stream) -> Any:
    """Return what a random operation gives with the numbers of a stream; ``None`` for an unknown operation."""
    import tensorflow as tf

    if name in _CANDIDATES or name in _BOXES or name in SHUFFLES or name in ("random_crop", "random_index_shuffle"):
        bound = inspect.signature(original).bind(*args, **kwargs)
        bound.apply_defaults()
        return _chosen(name, drawn, bound.arguments, stream)
    shape = tf.shape(drawn) if drawn.shape.num_elements() is None else tf.constant(drawn.shape.as_list(), tf.int32)
    numbers = stream.uniform(shape)
    if name in _UNIFORM:
        bits = _BITS.get(drawn.dtype.name)
        return tf.cast(numbers if bits is None else tf.floor(numbers * 2.0**bits) / 2.0**bits, drawn.dtype)
    if name in _NORMAL:
        return tf.cast(tf.math.ndtri(numbers), drawn.dtype)
    if name in _TRUNCATED:
        return tf.cast(_between(numbers, -2.0, 2.0), drawn.dtype)
    given = inspect.signature(original).bind(*args, **kwargs).arguments
    if name in _INTEGERS:
        first, end = (tf.cast(given[bound], tf.float64) for bound in ("minval", "maxval"))
        return tf.cast(first + tf.floor(numbers * (end - first)), drawn.dtype)
    if name in _BOUNDED:
        names = ("means", "stdevs", "minvals", "maxvals")
        mean, deviation, low, high = (_broadcast(given[each], drawn, name == _BOUNDED[0]) for each in names)
        inside = _between(numbers, (low - mean) / deviation, (high - mean) / deviation)
        return tf.cast(mean + deviation * inside, drawn.dtype)
    if name in _CATEGORICAL:
        cumulative = tf.cumsum(tf.nn.softmax(tf.cast(given["logits"], tf.float64)), axis=-1)
        # A sum of probabilities may be rounded to less than 1. The last class that is possible is then chosen.
        below = cumulative[:, None, :] < numbers[:, :, None] * cumulative[:, None, -1:]
        return tf.reduce_sum(tf.cast(below, drawn.dtype), axis=-1)
    if name in _POISSON:
        rate = tf.cast(given[_POISSON[name]], tf.float64)
        return tf.cast(tf.maximum(tf.round(rate + tf.sqrt(rate) * tf.math.ndtri(numbers)), 0), drawn.dtype)
    if name in _BINOMIAL:
        count, chance = (tf.cast(given[each], tf.float64) for each in ("counts", "probs"))
        spread = tf.sqrt(count * chance * (1 - chance)) * tf.math.ndtri(numbers)
        return tf.cast(tf.clip_by_value(tf.round(count * chance + spread), 0, count), drawn.dtype)
    if name in _GAMMA:
        return tf.cast(_gamma(tf.cast(given["alpha"], tf.float64), numbers, stream.uniform(shape, 1)), drawn.dtype)
    return None


def _between(numbers: Any, low: Any, high: Any) -> Any:
    """Return standard normal numbers between two bounds."""
    import tensorflow as tf

    first, last = (tf.math.erfc(-tf.cast(bound, tf.float64) / 2**0.5) / 2 for bound in (low, high))
    return tf.clip_by_value(tf.math.ndtri(first + numbers * (last - first)), low, high)


def _broadcast(parameter: Any, drawn: Any, leading: bool) -> Any:
    import tensorflow as tf

    given = tf.cast(parameter, tf.float64)
    if leading and given.shape.rank == 1 and (drawn.shape.rank or 0) > 1:
        return tf.reshape(given, [-1, *[1] * (drawn.shape.rank - 1)])
    return given


def _gamma(alpha: Any, numbers: Any, others: Any) -> Any:
    """Return gamma numbers by the approximation of Wilson and Hilferty (1931), with the boost for an alpha below 1."""
    import tensorflow as tf

    boosted = tf.where(alpha < 1, alpha + 1, alpha)
    cube = 1 - 1 / (9 * boosted) + tf.math.ndtri(numbers) / (3 * tf.sqrt(boosted))
    plain = boosted * tf.maximum(cube, 1e-3) ** 3
    return tf.where(alpha < 1, plain * tf.pow(others, 1 / tf.minimum(alpha, 1)), plain)


def _chosen(name: str, drawn: Any, given: Any, stream: Stream) -> Any:
    """Return the result of an operation that chooses something: an order, classes, or a part of an image."""
    import tensorflow as tf

    if name not in SHUFFLES:
        stream = replace(stream, placement=Shared())

    if name in SHUFFLES:
        value = tf.convert_to_tensor(given["value"])
        return tf.gather(value, stream.order(tf.shape(value)[0]))
    if name == "random_index_shuffle":
        return tf.cast(given["index"], drawn.dtype)
    if name in _BOXES:
        # The whole image satisfies all limits of the operation.
        size = tf.convert_to_tensor(given["image_size"])
        whole = tf.concat([size[:2], tf.constant([-1], size.dtype)], axis=0)
        return type(drawn)(
            tf.zeros_like(drawn[0]), tf.cast(whole, drawn[1].dtype), tf.constant([[[0.0, 0.0, 1.0, 1.0]]])
        )
    if name == "random_crop":
        image, size = tf.convert_to_tensor(given["image"]), tf.cast(given["size"], tf.int32)
        room = tf.cast(tf.shape(image)[:2] - size, tf.float64)
        begin = tf.cast(tf.floor(stream.uniform([2]) * (room + 1)), tf.int32)
        return tf.slice(image, tf.concat([begin, [0]], 0), tf.concat([size, tf.shape(image)[2:]], 0))
    return _candidates(name, drawn, given, stream)


def _candidates(name: str, drawn: Any, given: Any, stream: Stream) -> Any:
    """Return sampled classes, and how often each true and each sampled class is expected."""
    import tensorflow as tf

    count, total, unique = int(given["num_sampled"]), int(given["range_max"]), bool(given["unique"])
    classes = tf.range(total, dtype=tf.float64)
    if name == "log_uniform_candidate_sampler":
        chances = tf.math.log((classes + 2) / (classes + 1)) / tf.math.log(tf.constant(total + 1.0, tf.float64))
    elif len(given.get("unigrams") or ()):
        weights = [0.0] * int(given["num_reserved_ids"]) + [w ** float(given["distortion"]) for w in given["unigrams"]]
        chances = tf.constant([weight / sum(weights) for weight in weights], tf.float64)
    else:
        chances = tf.fill([total], tf.constant(1.0 / total, tf.float64))
    if unique:
        # The classes with the largest sums are a sample without repetition (Gumbel-top-k).
        sums = tf.math.log(chances) - tf.math.log(-tf.math.log(stream.uniform([total])))
        sampled = tf.math.top_k(sums, count).indices
    else:
        sampled = tf.minimum(tf.searchsorted(tf.cumsum(chances), stream.uniform([count])), total - 1)

    def expected(chosen: Any) -> Any:
        chance = tf.gather(chances, chosen)
        often = -tf.math.expm1(count * tf.math.log1p(-chance)) if unique else chance * count
        return tf.cast(often, tf.float32)

    true = expected(tf.convert_to_tensor(given["true_classes"]))
    return type(drawn)(tf.cast(sampled, tf.int64), true, expected(sampled))
