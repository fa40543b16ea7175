"""Generate optimizers that differ in the state that they keep between steps."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from hypothesis import strategies as st

from pytest_ddl.generators.arguments import some_of
from pytest_ddl.generators.specs import OptimizerSpec

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
