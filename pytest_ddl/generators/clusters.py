"""Generate shapes of clusters, as text that ``--ddl-strategy`` and ``strategies=`` accept."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from hypothesis import strategies as st

from pytest_ddl.generators.arguments import at_least, some_of

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
