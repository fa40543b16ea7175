"""Small models with the features that distribution gets wrong: sparse gradients, frozen layers, tied weights."""

from __future__ import annotations

from collections.abc import Collection

from hypothesis import strategies as st

from pytest_ddl.generators.arguments import at_least, some_of
from pytest_ddl.generators.specs import ModelSpec

ACTIVATIONS = ("linear", "tanh", "relu", "sigmoid")
"""Activations, the simplest first."""
INPUT_KINDS = ("dense", "embedding")
"""What a model reads: features, or ids that it embeds."""
_MAX_INPUTS = 4
_MAX_VOCABULARY = 6


def models(
    inputs: Collection[str] = INPUT_KINDS,
    *,
    max_layers: int = 2,
    max_width: int = 4,
    activations: Collection[str] = ACTIVATIONS,
    frozen: bool = True,
    tied: bool = True,
) -> st.SearchStrategy[ModelSpec]:
    """Generate a :class:`ModelSpec`; shrinks towards linear regression of one feature.

    :param inputs: which of ``INPUT_KINDS`` may be drawn.
    :param max_layers: most hidden layers.
    :param max_width: most units of a hidden layer.
    :param activations: which of ``ACTIVATIONS`` may be drawn.
    :param frozen: whether layers that are not trained may be drawn.
    :param tied: whether a layer that is applied twice may be drawn.
    :raises ValueError: for an argument that cannot be used, naming it.
    """
    kinds = some_of("inputs", inputs, INPUT_KINDS)
    chosen = some_of("activations", activations, ACTIVATIONS)
    at_least("max_layers", max_layers, 0)
    at_least("max_width", max_width, 1)

    @st.composite
    def draw_model(draw: st.DrawFn) -> ModelSpec:
        embeds = draw(st.sampled_from(kinds)) == "embedding"
        size = draw(st.integers(1, _MAX_INPUTS))
        width = draw(st.integers(1, 3)) if embeds else 2
        vocabulary = draw(st.integers(2, _MAX_VOCABULARY)) if embeds else None
        layers = draw(st.lists(st.tuples(st.integers(1, max_width), st.sampled_from(chosen)), max_size=max_layers))
        widths = [units for units, _ in layers]
        use_twice = tied and bool(layers) and draw(st.booleans())
        if use_twice:
            # A layer can follow itself only where it is as wide as its input.
            widths[-1] = widths[-2] if len(widths) > 1 else size * (width if embeds else 1)
        fixed = [position for position in range(len(layers)) if frozen and draw(st.booleans())]
        return ModelSpec(
            inputs=size,
            vocabulary=vocabulary,
            embedding_width=width,
            widths=tuple(widths),
            activations=tuple(activation for _, activation in layers),
            frozen=tuple(fixed),
            tied=use_twice,
        )

    return draw_model()
