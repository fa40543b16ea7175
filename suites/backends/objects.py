"""Call each loss and metric of Keras as the tables of the properties have it, in the backend of this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from suites import subject
from suites.parameters.spaces import Arguments, Space, find
from suites.tables import metrics
from suites.tables.loss_values import (
    FORMS,
    LOSSES,
    OF_ROWS,
    REDUCTIONS,
    WHOLE,
    examples,
    is_flat,
    labels_of,
    weights_of,
)
from suites.tables.metric_values import MEASURES, data_of

ROWS, FIRST = 6, slice(4)
"""Examples, and those of the first of two updates."""
BASES = {"losses": "Loss", "metrics": "Metric", "layers": "Layer"}
TYPE = {"dtype": "float32"}
"""Keras promotes float64 to float32, except with TensorFlow."""


@dataclass(frozen=True)
class Call:
    """A call of an object with some configuration."""

    api: str
    function: Callable[..., Any]
    given: tuple[Any, ...]
    """Arguments of the function, in this process or another one."""
    options: Arguments = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.api}: {self.options}"

    def marks(self) -> frozenset[str]:
        """Return the properties by which a row of known differences names it."""
        return frozenset({"always", *(f"{name}={value!r}" for name, value in self.options.items())})


def public(kind: str) -> list[str]:
    """Return the classes of a module of Keras that are derived from its base class, each once."""
    module = find(kind)
    base = getattr(module, BASES[kind])
    classes = {name: one for name, one in vars(module).items() if isinstance(one, type) and issubclass(one, base)}
    own = {one: one.__name__ if one.__name__ in classes else name for name, one in classes.items() if one is not base}
    return sorted(f"{kind}.{name}" for name in own.values())


def loss(api: str, options: Mapping[str, Any], truth: Any, predicted: Any, weights: Any) -> Any:
    """Return a loss."""
    return find(api)(**options)(truth, predicted, sample_weight=weights)


def metric(api: str, options: Mapping[str, Any], parts: Sequence[tuple[Any, ...]]) -> Any:
    """Return the result of a metric after its updates, and its variables."""
    made = find(api)(**options)
    for *given, weights in parts:
        made.update_state(*given, sample_weight=weights)
    return [made.result(), *(one.value for one in made.variables)]


def _options(space: Space, case: Arguments) -> Arguments:
    varied = space.varied()
    return {**space.fixed, **{name: value for name, value in case.items() if name in varied}, **TYPE}


def losses(api: str) -> Iterator[Call]:
    """Yield calls of a loss with all pairs of options, forms of weights and types of labels."""
    for one in (one for one in LOSSES if one.space.api == api):
        forms = OF_ROWS if one.data == "embeddings" else WHOLE if one.whole else FORMS
        for case in one.space.cases(weights=forms, labels=labels_of(one.data)):
            options = _options(one.space, case)
            flat, logits = is_flat(case["weights"]), options.get("from_logits", False)
            truth, predicted = examples(one.data, ROWS, logits=logits, axis=options.get("axis", -1), flat=flat)
            own = {name: value for name, value in options.items() if name not in ("reduction", "name", "dtype")}
            weights = weights_of(case["weights"], np.shape(one.model(truth, predicted, **own)))
            yield Call(api, loss, (api, options, truth.astype(case["labels"]), predicted, weights), case)
    if api == "losses.CTC":  # which has no table
        truth, predicted = examples("sparse", ROWS)
        for reduction in filter(subject.reduces, REDUCTIONS):
            options = {"reduction": reduction, **TYPE}
            for weights in (None, weights_of("of rows", (ROWS,))):
                yield Call(api, loss, (api, options, truth, np.repeat(predicted, 3, axis=1), weights), options)


def measured(api: str) -> Iterator[Call]:
    """Yield calls of a metric with all pairs of options and forms of weights, or with those of its definition."""
    found = [one for one in MEASURES if one.space.api == api]
    for one in found:
        for case in one.space.cases(weights=one.forms):
            *arrays, weights = data_of(one, case, ROWS)
            yield Call(api, metric, (api, _options(one.space, case), _parts(arrays, weights)), case)
    for other in metrics.CASES if not found else ():
        if f"metrics.{other.metric}" == api:
            for weights in (None, np.arange(1.0, ROWS + 1)):
                parts = _parts(metrics.DATA[other.data](ROWS), weights)
                options = {**other.arguments, **TYPE}
                yield Call(api, metric, (api, options, parts), {**options, "weights": weights})


def _parts(arrays: Sequence[Any], weights: Any) -> list[tuple[Any, ...]]:
    """Return the arguments of two updates."""
    each = weights is None or weights.ndim == 0 or len(weights) == 1
    return [
        (*(one[rows] for one in arrays), weights if each else weights[rows])
        for rows in (FIRST, slice(FIRST.stop, None))
    ]
