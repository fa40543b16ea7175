"""Generate small models and their optimizers.

The models have features that often fail under distribution: sparse gradients, frozen layers and tied weights. The
optimizers differ in the state that they keep between steps.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from hypothesis import strategies as st

from pytest_ddl.generators.arguments import at_least, some_of
from pytest_ddl.generators.specs import ModelSpec, OptimizerSpec

ACTIVATIONS = ("linear", "tanh", "relu", "sigmoid")
"""Names of activations; the simplest comes first."""
INPUT_KINDS = ("dense", "embedding")
"""Kinds of model inputs: features, or ids that the model embeds."""
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
    """Generate a :class:`ModelSpec`; shrink towards linear regression of one feature.

    :param inputs: names from ``INPUT_KINDS`` that may be drawn.
    :param max_layers: maximum number of hidden layers.
    :param max_width: maximum number of units in a hidden layer.
    :param activations: names from ``ACTIVATIONS`` that may be drawn.
    :param frozen: true if a model may have layers that are not trained.
    :param tied: true if a model may have a layer that is applied twice.
    :raises ValueError: if an argument is not valid; the message contains its name.
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
            # A layer can be applied to its own output only if it is as wide as its input.
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


OPTIMIZERS: Mapping[str, OptimizerSpec] = {
    "sgd": OptimizerSpec("SGD"),
    "momentum": OptimizerSpec("SGD", settings={"momentum": 0.9}),
    "nesterov": OptimizerSpec("SGD", settings={"momentum": 0.9, "nesterov": True}),
    "rmsprop": OptimizerSpec("RMSprop", learning_rate=0.01),
    "adagrad": OptimizerSpec("Adagrad"),
    "adam": OptimizerSpec("Adam", learning_rate=0.01),
    "amsgrad": OptimizerSpec("Adam", learning_rate=0.01, settings={"amsgrad": True}),
    "adamw": OptimizerSpec("AdamW", learning_rate=0.01, settings={"weight_decay": 0.1}),
}
"""Kind -> optimizer that can be drawn; the simplest comes first."""


def optimizers(kinds: Collection[str] = tuple(OPTIMIZERS)) -> st.SearchStrategy[OptimizerSpec]:
    """Generate an :class:`OptimizerSpec`; shrink towards plain SGD.

    To test gradients, include one of ``sgd``, ``momentum`` and ``nesterov``. Optimizers that divide by the
    size of the gradient (Adam, RMSprop, Adagrad) hide a gradient that is too large by a constant factor.

    :param kinds: names from ``OPTIMIZERS`` that may be drawn.
    :raises ValueError: if a name is not one of these.
    """
    return st.sampled_from([OPTIMIZERS[name] for name in some_of("kinds", kinds, OPTIMIZERS)])
