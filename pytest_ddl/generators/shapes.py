"""Generate batch sizes, dtypes and shapes of clusters."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from hypothesis import strategies as st

from pytest_ddl.generators.arguments import at_least, some_of

BATCH_KINDS = ("even", "uneven", "smaller")
"""Kinds of batch sizes: divisible by the number of replicas; larger but not divisible; smaller than that number."""


def global_batch_sizes(
    num_replicas: int, kinds: Collection[str] = BATCH_KINDS, *, max_per_replica: int = 4
) -> st.SearchStrategy[int]:
    """Generate a number of examples for all replicas together; shrink towards the smallest of the first kind.

    :param num_replicas: replicas that share the batch.
    :param kinds: names from ``BATCH_KINDS`` that may be drawn.
    :param max_per_replica: maximum number of examples per replica.
    :raises ValueError: if an argument is not valid, or if no size is of the requested kinds.
    """
    replicas = at_least("num_replicas", num_replicas, 1)
    largest = replicas * at_least("max_per_replica", max_per_replica, 1)
    sizes = {
        "even": list(range(replicas, largest + 1, replicas)),
        "uneven": [size for size in range(replicas + 1, largest) if size % replicas],
        "smaller": list(range(1, replicas)),
    }
    chosen = [st.sampled_from(sizes[kind]) for kind in some_of("kinds", kinds, BATCH_KINDS) if sizes[kind]]
    if not chosen:
        raise ValueError(
            f"kinds={tuple(kinds)!r}: no batch of {num_replicas} replica(s) with at most {max_per_replica} example(s) "
            "each is of these kinds; add 'even', or use more replicas"
        )
    return st.one_of(chosen)


_SHAPES: Mapping[str, tuple[str, ...]] = {
    "one_device": (),
    "mirrored": ("replicas",),
    "central_storage": ("replicas",),
    "model_parallel": ("mesh",),
    "parameter_server": ("workers", "ps"),
    "multi_worker_mirrored": ("workers", "replicas"),
}
"""Strategy -> its settings that are drawn; the cheapest strategy comes first."""


def cluster_shapes(
    strategies: Collection[str] = tuple(_SHAPES), *, max_replicas: int = 4, max_workers: int = 2
) -> st.SearchStrategy[str]:
    """Generate a variant such as ``"mirrored[replicas=4]"``; shrink towards the smallest of the cheapest strategy.

    :param strategies: names of strategies that may be drawn.
    :param max_replicas: maximum number of replicas in one process, and of devices in a mesh.
    :param max_workers: maximum number of worker processes, and of parameter servers.
    :raises ValueError: if an argument is not valid; the message contains its name.
    """
    names = some_of("strategies", strategies, _SHAPES)
    at_least("max_replicas", max_replicas, 1)
    at_least("max_workers", max_workers, 1)
    counts = {
        "replicas": st.integers(1, max_replicas),
        "workers": st.integers(1, max_workers),
        "ps": st.integers(1, max_workers),
        "mesh": _meshes(max_replicas),
    }

    @st.composite
    def draw_shape(draw: st.DrawFn) -> str:
        name = draw(st.sampled_from(names))
        settings = [f"{key}={draw(counts[key])}" for key in _SHAPES[name]]
        return f"{name}[{','.join(settings)}]" if settings else name

    return draw_shape()


def _meshes(devices: int) -> st.SearchStrategy[str]:
    sizes = [(batch, model) for batch in range(1, devices + 1) for model in range(1, devices // batch + 1)]
    # Shrink towards few devices and, for the same number of devices, towards data parallelism.
    sizes.sort(key=lambda axes: (axes[0] * axes[1], axes[1]))
    return st.sampled_from([f"batch:{batch};model:{model}" for batch, model in sizes])


DTYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int64")
"""Names of TensorFlow dtypes that every strategy can reduce on CPUs; the usual dtype comes first."""


def dtypes(names: Collection[str] = DTYPES) -> st.SearchStrategy[str]:
    """Generate the name of a dtype that ``tf.as_dtype`` accepts; shrink towards ``float32``.

    :param names: names from ``DTYPES`` that may be drawn.
    :raises ValueError: if a name is not one of these.
    """
    return st.sampled_from(some_of("names", names, DTYPES))
