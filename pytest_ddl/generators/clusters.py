"""Shapes of clusters, as the text of a variant that ``--ddl-strategy`` and ``strategies=`` understand."""

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
"""Strategies, the cheapest first, with the settings that are drawn."""


def cluster_shapes(
    strategies: Collection[str] = tuple(_SHAPES), *, max_replicas: int = 4, max_workers: int = 2
) -> st.SearchStrategy[str]:
    """Generate a variant such as ``"mirrored[replicas=4]"``; shrinks towards the smallest of the cheapest strategy.

    :param strategies: names of strategies that may be drawn.
    :param max_replicas: most replicas of one process, and most devices of a mesh.
    :param max_workers: most worker processes, and most parameter servers.
    :raises ValueError: for an argument that cannot be used, naming it.
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
    # Few devices first; of equally many, data parallelism before model parallelism.
    sizes.sort(key=lambda axes: (axes[0] * axes[1], axes[1]))
    return st.sampled_from([f"batch:{batch};model:{model}" for batch, model in sizes])
