"""Losses of Keras with all of their parameters, and a NumPy model of the loss of each element from its definition."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from suites import subject
from suites.parameters.spaces import Arguments, Space

Array = np.ndarray[Any, Any]
Model = Callable[..., Any]
"""Takes labels and predictions, and the parameters of the loss. It returns the losses before the reduction."""
TIMES, CLASSES = 2, 4


@dataclass(frozen=True)
class Loss:
    """A loss with the values of its parameters, its model, and the data that it takes."""

    space: Space
    model: Model
    data: str
    rtol: float = 1e-12
    """Relative bound; 3e-6 if Keras adds 1e-7 that the definition does not have."""
    whole: bool = False
    """True if an element needs the other examples, so that weights of elements mean nothing."""
    counts: Callable[[Array, Array, Arguments], Array | None] = lambda _truth, _losses, _case: None
    """Takes labels, losses and a case, and returns the elements that count; ``None`` for all."""


REDUCTIONS = ("sum_over_batch_size", "sum", "none", None, "mean", "mean_with_sample_weight")
COMMON: Mapping[str, Any] = {"reduction": REDUCTIONS, "name": ("one", "another"), "dtype": ("float64", "float32")}
SMOOTHING = {"from_logits": (False, True), "label_smoothing": (0.0, 0.25)}
EPSILON = 3e-6


def examples(kind: str, rows: int, *, logits: bool = False, axis: Any = -1, flat: bool = False) -> tuple[Array, Array]:
    """Return labels and predictions of a kind, with shape ``(rows, TIMES, CLASSES)``, the classes on an axis.

    :param flat: without an axis for times.
    """
    if flat and kind != "embeddings":
        truth, predicted = examples(kind, rows, logits=logits)
        return truth[:, 0], predicted[:, 0]
    draw = np.random.default_rng([rows, len(kind)])
    scores = draw.normal(0, 1.5, (rows, TIMES, CLASSES)) * np.linspace(0.5, 1.5, rows)[:, None, None]
    chosen = draw.integers(0, CLASSES, (rows, TIMES))
    along = axis if isinstance(axis, int) else -1
    if kind == "sparse":
        return chosen, np.moveaxis(scores if logits else softmax(scores), -1, along)
    if kind == "embeddings":
        return chosen[:, 0] % 2, scores[:, 0] / np.linalg.norm(scores[:, 0], axis=-1, keepdims=True)
    truth, predicted = {
        "real": (draw.normal(1, 2, scores.shape), scores),
        "positive": (np.abs(draw.normal(1, 2, scores.shape)) + 0.1, np.abs(scores) + 0.1),
        "signs": (draw.choice([-1.0, 1.0], scores.shape), scores),
        "binary": ((draw.random(scores.shape) < 0.4).astype(float), scores if logits else 1 / (1 + np.exp(-scores))),
        "classes": (np.eye(CLASSES)[chosen], scores if logits else softmax(scores)),
        "one_of": (np.eye(CLASSES)[chosen], softmax(scores)),
    }[kind]
    return np.moveaxis(truth, -1, along), np.moveaxis(predicted, -1, along)


def softmax(scores: Array, axis: int = -1) -> Array:
    shifted = np.exp(scores - scores.max(axis=axis, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=axis, keepdims=True))


def mean_of(function: Callable[..., Array]) -> Model:
    """Return the model of a loss that is the mean of a function over the last axis."""
    return lambda truth, predicted, **given: function(truth, predicted, **given).mean(axis=-1)


def _huber(truth: Array, predicted: Array, delta: float = 1.0) -> Array:
    error = np.abs(predicted - truth)
    return np.where(error <= delta, error**2 / 2, delta * error - delta**2 / 2)


def _cosine(truth: Array, predicted: Array, axis: int = -1) -> Any:
    lengths = np.linalg.norm(truth, axis=axis) * np.linalg.norm(predicted, axis=axis)
    return -(truth * predicted).sum(axis=axis) / lengths


def _probability(predicted: Array, from_logits: bool) -> Array:
    return 1 / (1 + np.exp(-predicted)) if from_logits else predicted


def _entropy(truth: Array, p: Array) -> Array:
    return -(truth * np.log(p) + (1 - truth) * np.log(1 - p))


def _binary(
    truth: Array, predicted: Array, from_logits: bool = False, label_smoothing: float = 0, axis: int = -1
) -> Any:
    smoothed = truth * (1 - label_smoothing) + label_smoothing / 2
    return _entropy(smoothed, _probability(predicted, from_logits)).mean(axis=axis)


def _binary_focal(
    truth: Array,
    predicted: Array,
    apply_class_balancing: bool = False,
    alpha: float = 0.25,
    gamma: float = 2.0,
    from_logits: bool = False,
    label_smoothing: float = 0,
    axis: int = -1,
) -> Any:
    """Lin et al. (2018)."""
    truth = truth * (1 - label_smoothing) + label_smoothing / 2
    p = _probability(predicted, from_logits)
    found = (1 - (truth * p + (1 - truth) * (1 - p))) ** gamma * _entropy(truth, p)
    balance = truth * alpha + (1 - truth) * (1 - alpha) if apply_class_balancing else 1.0
    return (balance * found).mean(axis=axis)


def _categorical(
    truth: Array, predicted: Array, from_logits: bool = False, label_smoothing: float = 0, axis: int = -1
) -> Any:
    p = softmax(predicted, axis) if from_logits else predicted
    return -((truth * (1 - label_smoothing) + label_smoothing / CLASSES) * np.log(p)).sum(axis=axis)


def _categorical_focal(
    truth: Array,
    predicted: Array,
    alpha: float = 0.25,
    gamma: float = 2.0,
    from_logits: bool = False,
    label_smoothing: float = 0,
    axis: int = -1,
) -> Any:
    p = softmax(predicted, axis) if from_logits else predicted
    smoothed = truth * (1 - label_smoothing) + label_smoothing / CLASSES
    return (alpha * (1 - p) ** gamma * -smoothed * np.log(p)).sum(axis=axis)


def _sparse(truth: Array, predicted: Array, ignore_class: int | None = None, **given: Any) -> Any:
    """Return the loss of the classes as rows of the unit matrix."""
    found = _categorical(np.moveaxis(np.eye(CLASSES)[truth], -1, given.get("axis", -1)), predicted, **given)
    return np.where(truth == ignore_class, 0.0, found)


def _sparse_focal(truth: Array, predicted: Array, ignore_class: int | None = None, **given: Any) -> Any:
    found = _categorical_focal(np.moveaxis(np.eye(CLASSES)[truth], -1, given.get("axis", -1)), predicted, **given)
    return np.where(truth == ignore_class, 0.0, found)


def _generalized(truth: Array, predicted: Array, q: float = 0.5) -> Any:
    """Zhang and Sabuncu (2018)."""
    p = np.take_along_axis(predicted, truth[..., None], -1)[..., 0]
    return (1 - p**q) / q


def _categorical_hinge(truth: Array, predicted: Array) -> Any:
    return np.maximum(0, ((1 - truth) * predicted).max(axis=-1) - (truth * predicted).sum(axis=-1) + 1)


def _divergence(truth: Array, predicted: Array) -> Any:
    """Return the divergence after Keras' documented clipping of both arguments to at most 1."""
    truth, predicted = np.minimum(truth, 1), np.minimum(predicted, 1)
    return (truth * np.log(truth / predicted)).sum(axis=-1)


def _dice(truth: Array, predicted: Array, axis: Any = None) -> Any:
    both, either = (truth * predicted).sum(axis=axis), truth.sum(axis=axis) + predicted.sum(axis=axis)
    return 1 - 2 * both / either


def _tversky(truth: Array, predicted: Array, alpha: float = 0.5, beta: float = 0.5, axis: Any = None) -> Any:
    """Salehi et al. (2017), as Keras documents it: alpha weighs what is no label, beta labels that are missed."""
    both = (truth * predicted).sum(axis=axis)
    missed, extra = (truth * (1 - predicted)).sum(axis=axis), (predicted * (1 - truth)).sum(axis=axis)
    return 1 - both / (both + alpha * extra + beta * missed)


def _circle(
    truth: Array, predicted: Array, gamma: float = 80, margin: float = 0.4, remove_diagonal: bool = True
) -> Any:
    """Sun et al. (2020), with cosine distances."""
    distance = np.maximum(1 - predicted @ predicted.T, 0)
    same = truth[:, None] == truth[None, :]
    positive = same & ~np.eye(len(truth), dtype=bool) if remove_diagonal else same
    near = np.exp(gamma * (distance + margin) * (distance - margin))
    far = np.exp(gamma * np.maximum(1 + margin - distance, 0) * (1 - margin - distance))
    return np.log(1 + (near * positive).sum(axis=1) * (far * ~same).sum(axis=1))


def smoothing_goes(case: Arguments) -> bool:
    """Return whether labels are smoothed correctly; a test of its own has the other cases, with entries."""
    return (subject.name() == subject.TF_KERAS and "alpha" not in case) or (
        case.get("axis", -1) == -1 or not case.get("label_smoothing")
    )


def _goes(case: Arguments) -> bool:
    """Return whether Keras weighs both kinds of mistakes alike, or as documented; there is a test of its own, too."""
    return smoothing_goes(case) and case.get("beta", case.get("alpha")) == case.get("alpha", case.get("beta"))


def _loss(name: str, model: Model, data: str, rtol: float = 1e-12, **further: Any) -> Loss:
    own = {key: further.pop(key) for key in ("whole", "counts") if key in further}
    documented = _goes if name.startswith("Categorical") or name == "Tversky" else lambda _case: True

    def goes(case: Arguments) -> bool:
        return documented(case) and subject.reduces(case.get("reduction", "sum"))

    return Loss(Space(f"losses.{name}", {**further, **COMMON}, allowed=goes), model, data, rtol, **own)


def _not_ignored(truth: Array, _losses: Array, case: Arguments) -> Array | None:
    return None if case["ignore_class"] is None else truth != case["ignore_class"]


AXES = (-1, 1)

LOSSES = (
    _loss("MeanSquaredError", mean_of(lambda t, p: (t - p) ** 2), "real"),
    _loss("MeanAbsoluteError", mean_of(lambda t, p: np.abs(t - p)), "real"),
    _loss("MeanAbsolutePercentageError", mean_of(lambda t, p: 100 * np.abs(t - p) / t), "positive"),
    _loss("MeanSquaredLogarithmicError", mean_of(lambda t, p: np.log((1 + t) / (1 + p)) ** 2), "positive"),
    _loss("LogCosh", mean_of(lambda t, p: np.log(np.cosh(p - t))), "real", 1e-6),
    _loss("Huber", mean_of(_huber), "real", delta=(1.0, 0.25)),
    _loss("CosineSimilarity", _cosine, "real", axis=AXES),
    _loss("Hinge", mean_of(lambda t, p: np.maximum(0, 1 - t * p)), "signs"),
    _loss("SquaredHinge", mean_of(lambda t, p: np.maximum(0, 1 - t * p) ** 2), "signs"),
    _loss("CategoricalHinge", _categorical_hinge, "classes"),
    _loss("KLDivergence", _divergence, "positive", EPSILON),
    _loss("Poisson", mean_of(lambda t, p: p - t * np.log(p)), "positive", EPSILON),
    _loss("BinaryCrossentropy", _binary, "binary", EPSILON, axis=AXES, **SMOOTHING),
    _loss(
        "BinaryFocalCrossentropy",
        _binary_focal,
        "binary",
        EPSILON,
        apply_class_balancing=(False, True),
        alpha=(0.25, 0.75),
        gamma=(2.0, 1.5),
        axis=AXES,
        **SMOOTHING,
    ),
    _loss("CategoricalCrossentropy", _categorical, "classes", EPSILON, axis=AXES, **SMOOTHING),
    _loss(
        "CategoricalFocalCrossentropy",
        _categorical_focal,
        "classes",
        EPSILON,
        alpha=(0.25, 0.75),
        gamma=(2.0, 1.5),
        axis=AXES,
        **SMOOTHING,
    ),
    _loss(
        "SparseCategoricalCrossentropy",
        _sparse,
        "sparse",
        EPSILON,
        ignore_class=(None, 1),
        counts=_not_ignored,
        **SMOOTHING,
    ),
    _loss(
        "SparseCategoricalFocalCrossentropy",
        _sparse_focal,
        "sparse",
        EPSILON,
        alpha=(0.25, 0.75),
        gamma=(2.0, 1.5),
        from_logits=(False, True),
        ignore_class=(None, 1),
        axis=AXES,
        counts=_not_ignored,
    ),
    _loss("CategoricalGeneralizedCrossEntropy", _generalized, "sparse", EPSILON, q=(0.5, 0.75)),
    _loss("Dice", _dice, "one_of", EPSILON, whole=True, axis=(None, (1, 2))),
    _loss("Tversky", _tversky, "one_of", EPSILON, whole=True, alpha=(0.5, 0.25), beta=(0.5, 0.25), axis=(None, (1, 2))),
    _loss(
        "Circle",
        _circle,
        "embeddings",
        EPSILON,
        whole=True,
        counts=lambda _truth, losses, _case: losses > 0,
        gamma=(80, 20),
        margin=(0.4, 0.25),
        remove_diagonal=(True, False),
    ),
)


FORMS = ("none", "one", "of rows", "of rows, as a column", "of first axis", "of elements", "of second axis")
"""Shapes of weights. Losses have the shape ``(rows,)`` for those of rows, and else ``(rows, times)``."""
FLAT_WEIGHTS = "of first axis, without the second"
"""Metrics accept it too: the weight of a row is that of all its elements."""
OF_ROWS = FORMS[:4]
WHOLE = FORMS[:2]


def is_flat(form: str) -> bool:
    """Return whether the losses of a form of weights have no axis beside that of the examples."""
    return "of rows" in form


def weights_of(form: str, shape: tuple[int, ...]) -> Array | None:
    """Return weights for losses of a shape."""
    if form == "none":
        return None
    draw = np.random.default_rng([len(form), *shape])
    column = (*shape[:1], 1)
    wanted: dict[str, tuple[int, ...]] = {
        "one": (),
        "of rows": shape[:1],
        "of rows, as a column": column,
        FLAT_WEIGHTS: shape[:1],
        "of first axis": column,
        "of elements": shape,
        "of second axis": (1, *shape[1:]),
    }
    return np.asarray(draw.integers(1, 9, wanted[form]) / 4)


def broadcast(weights: Array | None, losses: Array) -> Array:
    """Return the weight of each element."""
    if weights is None:
        return np.ones_like(losses)
    if losses.ndim == 1 and weights.ndim == 2:
        weights = weights[:, 0]
    if losses.ndim == 2 and weights.ndim == 1:
        weights = weights[:, None]
    return np.asarray(np.broadcast_to(weights, losses.shape))


def reduced(losses: Array, weights: Array | None, reduction: str | None, counts: Array | None = None) -> Any:
    """Return what a reduction makes of the losses of the elements.

    :param counts: which elements count. The others are as if they were not there.
    """
    if counts is not None and reduction not in (None, "none", "sum"):
        weights = None if weights is None else broadcast(weights, losses)[counts]
        return reduced(losses[counts], weights, reduction)
    weighted = losses * broadcast(weights, losses)
    if reduction in (None, "none"):
        return weighted
    if reduction == "sum":
        return weighted.sum()
    if reduction == "mean_with_sample_weight" and weights is not None:
        return weighted.sum() / weights.sum()  # as documented, also for weights that broadcast
    return weighted.mean()


LABELS: Mapping[str, Sequence[str]] = {
    "binary": ("float64", "int32", "bool"),
    "classes": ("float64", "int64", "bool"),
    "one_of": ("float64", "int32"),
    "sparse": ("int64", "int32", "float64", "uint8"),
    "signs": ("float64", "int32"),
}
"""Kind of data -> dtypes of its labels, if they are whole numbers. A dtype does not change the value."""


def labels_of(kind: str) -> Sequence[str]:
    """Return the dtypes that a property gives to labels."""
    return LABELS.get(kind, ("float64",))
