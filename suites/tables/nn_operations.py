"""Operations of ``keras.ops.nn``, with their definitions in NumPy."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from suites.tables.defined_operations import Call, Defined, call, each

Array = np.ndarray[Any, Any]
_DRAW = np.random.default_rng(5)
BLOCK = _DRAW.normal(size=(2, 3, 4)).astype("float32")
PLANE = BLOCK[0]
SERIES, PICTURES = (_DRAW.normal(size=shape).astype("float32") for shape in ((2, 6, 4), (2, 5, 6, 4)))
FIRST = np.ascontiguousarray(np.moveaxis(PICTURES, -1, 1))
WORDS = np.array([[1, 0, 3, 3], [2, 2, -1, 4]], "int32")
SCALE, SHIFT = _DRAW.uniform(0.5, 1.5, (2, 4)).astype("float32")
EPSILON = 1e-7
"""Number that Keras adds if the argument is ``None``."""


def softmax(x: Array, axis: Any = -1) -> Array:
    found = np.exp(x - x.max(axis=axis, keepdims=True))
    return np.asarray(found / found.sum(axis=axis, keepdims=True))


def _log_softmax(x: Array, axis: Any = -1) -> Array:
    return np.asarray(np.log(softmax(x, axis)))


def _one_hot(x: Array, num_classes: int, axis: int = -1, dtype: Any = None, sparse: bool = False) -> Array:
    """Return a one where the class is; a number that is no class has none."""
    found = x[..., None] == np.arange(num_classes)
    return np.moveaxis(found, -1, axis).astype(dtype or "float32")


def _multi_hot(inputs: Array, num_classes: int, axis: int = -1, dtype: Any = None, sparse: bool = False) -> Array:
    """Return a one for each class that is among the numbers of a row."""
    found = (inputs[..., None] == np.arange(num_classes)).any(axis=-2)
    return np.moveaxis(found, -1, axis).astype(dtype or "float32")


def _binary(target: Array, output: Array, from_logits: bool = False) -> Array:
    p = 1 / (1 + np.exp(-output)) if from_logits else output
    return -(target * np.log(p) + (1 - target) * np.log(1 - p))


def _categorical(target: Array, output: Array, from_logits: bool = False, axis: int = -1) -> Any:
    p = softmax(output, axis) if from_logits else output
    return -(target * np.log(p)).sum(axis=axis)


def _sparse(target: Array, output: Array, from_logits: bool = False, axis: int = -1) -> Any:
    p = softmax(output) if from_logits else output
    chosen = target if target.ndim == output.ndim else target[..., None]
    return -np.log(np.take_along_axis(p, chosen, -1))[..., 0]


def _moments(x: Array, axes: Any, keepdims: bool = False, synchronized: bool = False) -> Any:
    axes = tuple(axes)
    return x.mean(axis=axes, keepdims=keepdims), x.var(axis=axes, keepdims=keepdims)


def _along(values: Any, x: Array, axis: int) -> Any:
    if values is None:
        return None
    shape = [1] * x.ndim
    shape[axis] = -1
    return values.reshape(shape)


def _batch_normalization(
    x: Array, mean: Array, variance: Array, axis: int, offset: Any = None, scale: Any = None, epsilon: float = 1e-3
) -> Array:
    mean, variance, offset, scale = (_along(one, x, axis) for one in (mean, variance, offset, scale))
    found = (x - mean) / np.sqrt(variance + epsilon)
    return found * (1 if scale is None else scale) + (0 if offset is None else offset)


def _normalize(x: Array, axis: Any = -1, order: int = 2, epsilon: float | None = None) -> Array:
    length = (np.abs(x) ** order).sum(axis=axis, keepdims=True) ** (1 / order)
    return x / np.maximum(length, EPSILON if epsilon is None else epsilon)


def _rms(x: Array, scale: Any = None, axis: Any = -1, epsilon: float | None = None) -> Array:
    found = x / np.sqrt((x**2).mean(axis=axis, keepdims=True) + (EPSILON if epsilon is None else epsilon))
    return found if scale is None else found * scale


def _layer_normalization(
    x: Array, gamma: Any = None, beta: Any = None, axis: Any = -1, epsilon: float | None = None
) -> Array:
    axes = (axis,) if isinstance(axis, int) else tuple(axis)
    mean, variance = x.mean(axis=axes, keepdims=True), x.var(axis=axes, keepdims=True)
    shape = [length if at in axes or at - x.ndim in axes else 1 for at, length in enumerate(x.shape)]
    found = (x - mean) / np.sqrt(variance + (EPSILON if epsilon is None else epsilon))
    found = found if gamma is None else found * gamma.reshape(shape)
    return found if beta is None else found + beta.reshape(shape)


def _attention(
    query: Array,
    key: Array,
    value: Array,
    bias: Any = None,
    mask: Any = None,
    scale: float | None = None,
    is_causal: bool = False,
    flash_attention: bool | None = None,
) -> Array:
    """Vaswani et al. (2017); several heads of queries may share one of keys and values."""
    shared = query.shape[2] // key.shape[2]
    key, value = (np.repeat(one, shared, axis=2) for one in (key, value))
    scores = np.einsum("btnh,bsnh->bnts", query, key) * (query.shape[-1] ** -0.5 if scale is None else scale)
    scores = scores if bias is None else scores + bias
    allowed = np.ones(scores.shape, bool) if mask is None else np.broadcast_to(mask, scores.shape)
    if is_causal:
        allowed = allowed & np.tri(*scores.shape[-2:], dtype=bool)
    return np.einsum("bnts,bsnh->btnh", softmax(np.where(allowed, scores, -1e30)), value)


def _collapsed(path: Sequence[int], blank: int, merged: bool = True) -> tuple[int, ...]:
    kept = [one for one, _ in itertools.groupby(path)] if merged else path
    return tuple(one for one in kept if one != blank)


def _paths(scores: Array, blank: int) -> dict[tuple[int, ...], float]:
    """Return the probability of each sequence: that of all paths that collapse to it."""
    p, found = softmax(scores), dict[tuple[int, ...], float]()
    for path in itertools.product(range(scores.shape[1]), repeat=len(scores)):
        labels = _collapsed(path, blank)
        found[labels] = found.get(labels, 0.0) + float(np.prod(p[np.arange(len(path)), list(path)]))
    return found


def _ctc_loss(target: Array, output: Array, target_length: Array, output_length: Array, mask_index: int = 0) -> Array:
    each_row = zip(target, output, target_length, output_length, strict=True)
    return np.array([-np.log(_paths(s[:n], mask_index)[tuple(map(int, t[:k]))]) for t, s, k, n in each_row])


def _ctc_decode(
    inputs: Array,
    sequence_lengths: Array,
    strategy: str = "greedy",
    beam_width: int = 100,
    top_paths: int = 1,
    merge_repeated: bool = True,
    mask_index: int = 0,
) -> Any:
    blank = mask_index % inputs.shape[-1]
    if strategy == "greedy":
        top_paths = 1
    decoded = np.full((top_paths, *inputs.shape[:2]), -1)
    scores = np.zeros((len(inputs), top_paths))
    for row, (values, length) in enumerate(zip(inputs, sequence_lengths, strict=True)):
        if strategy == "greedy":
            best = [(_collapsed(values[:length].argmax(-1), blank, merge_repeated), -values[:length].max(-1).sum())]
        else:
            known = sorted(_paths(values[:length], blank).items(), key=lambda one: -one[1])
            best = [(labels, np.log(p)) for labels, p in known]
        for at, (labels, score) in enumerate(best[:top_paths]):
            decoded[at, row, : len(labels)] = labels
            scores[row, at] = score
    return decoded, scores


def _pair(value: Any) -> Any:
    return (value, value) if isinstance(value, int) else value


def _blocks(x: Array, kernel_size: Any, dilation: Any, stride: Any) -> list[tuple[Any, ...]]:
    """Return the rows and columns of each window of images whose channels come first."""
    (k, m), (d, e), (s, t) = _pair(kernel_size), _pair(dilation), _pair(stride)
    return [
        np.ix_(i + d * np.arange(k), j + e * np.arange(m))
        for i in range(0, x.shape[2] - d * (k - 1), s)
        for j in range(0, x.shape[3] - e * (m - 1), t)
    ]


def _unfold(x: Array, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Array:
    p, q = _pair(padding)
    x = np.pad(x, [(0, 0), (0, 0), (p, p), (q, q)])
    found = [x[:, :, rows, columns].reshape(len(x), -1) for rows, columns in _blocks(x, kernel_size, dilation, stride)]
    return np.stack(found, axis=-1)


def _fold(x: Array, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Array:
    """Add up the windows at their places."""
    (h, w), (p, q), (k, m) = _pair(output_size), _pair(padding), _pair(kernel_size)
    found = np.zeros((len(x), x.shape[1] // (k * m), h + 2 * p, w + 2 * q))
    for at, (rows, columns) in enumerate(_blocks(found, kernel_size, dilation, stride)):
        found[:, :, rows, columns] += x[:, :, at].reshape(len(x), -1, k, m)
    return found[:, :, p : p + h, q : q + w]


def _to_space(x: Array, block_size: int, data_format: str = "channels_last") -> Array:
    if data_format == "channels_first":
        return np.moveaxis(_to_space(np.moveaxis(x, 1, -1), block_size), -1, 1)
    n, h, w, _c = x.shape
    found = x.reshape(n, h, w, block_size, block_size, -1).transpose(0, 1, 3, 2, 4, 5)
    return found.reshape(n, h * block_size, w * block_size, -1)


def _to_depth(x: Array, block_size: int, data_format: str = "channels_last") -> Array:
    if data_format == "channels_first":
        return np.moveaxis(_to_depth(np.moveaxis(x, 1, -1), block_size), -1, 1)
    n, h, w, c = x.shape
    found = x.reshape(n, h // block_size, block_size, w // block_size, block_size, c).transpose(0, 1, 3, 2, 4, 5)
    return found.reshape(n, h // block_size, w // block_size, -1)


P = softmax(BLOCK)
LABELS = np.eye(4, dtype="float32")[_DRAW.integers(0, 4, (2, 3))]
CHOSEN = LABELS.argmax(-1).astype("int32")
HEADS = [_DRAW.normal(size=shape).astype("float32") for shape in ((2, 3, 4, 5), (2, 6, 4, 5), (2, 6, 4, 5))]
SHARED = [HEADS[0], *(one[:, :, :2] for one in HEADS[1:])]
ONE_HEAD = [HEADS[0], *(one[:, :, :1] for one in HEADS[1:])]
ALLOWED = _DRAW.random((2, 4, 3, 6)) < 0.7
ALLOWED[..., 0] = True
SPOKEN = (_DRAW.normal(size=(2, 4, 3)) * 3).astype("float32")
SPOKEN_LENGTHS = np.array([4, 3], "int32")
BEAM = {"strategy": ("beam_search",)}
AXES: Sequence[Any] = (-1, 0, 1, (0, 1), (1, 2), (0, 1, 2))


def _pools() -> list[Call]:
    found = [*each(SERIES, pool_size=(2,), strides=(None, 1), padding=("valid", "same"), data_format=(None,))]
    for images, name in ((PICTURES, "channels_last"), (FIRST, "channels_first")):
        found += each(images, pool_size=(2, (2, 3)), strides=(None, 1), padding=("valid", "same"), data_format=(name,))
    return found


def _convolutions(*further: Array, filters: tuple[int, int]) -> list[Call]:
    found = []
    for x, number, name in ((SERIES, 1, None), (PICTURES, 2, "channels_last"), (FIRST, 2, "channels_first")):
        kernel = _DRAW.normal(size=((2, 3)[:number] + filters)).astype("float32")
        for moves in ({"strides": (1, 2), "dilation_rate": (1,)}, {"strides": (1,), "dilation_rate": (2,)}):
            extra = [one.reshape((1,) * number + one.shape) for one in further]
            found += each(x, kernel, *extra, **moves, padding=("valid", "same"), data_format=(name,))
    return found


def _glu(x: Any, axis: int = -1) -> Any:
    half, gate = np.split(x, 2, axis)
    return half / (1 + np.exp(-gate))


NN_OPERATIONS = (
    *(
        Defined(name, model, each(BLOCK, axis=axes), case=case)
        for name, model in (("softmax", softmax), ("log_softmax", _log_softmax))
        for case, axes in (("", AXES), ("of axes from the back", ((-2, -1), (-1, 0), (-1, 0, 1))))
    ),
    Defined("sparsemax", None, each(BLOCK, axis=(-1, 0, 1))),
    Defined(
        "one_hot",
        _one_hot,
        each(WORDS, num_classes=(5,), axis=(-1, 0, 1), dtype=(None, "int32", "bool"), sparse=(False, True))
        + each(WORDS[0], num_classes=(4, 6), axis=(-1, 0)),
        batched=1,
    ),
    Defined(
        "multi_hot",
        _multi_hot,
        each(WORDS, num_classes=(5,), dtype=(None, "int32", "bool"), sparse=(False, True))
        + each(WORDS[0], num_classes=(4, 6), dtype=(None, "int32")),
    ),
    Defined("multi_hot", _multi_hot, each(WORDS, num_classes=(5,), axis=(0, 1)), case="along another axis"),
    Defined(
        "binary_crossentropy",
        _binary,
        each(LABELS, P, from_logits=(False,)) + each(LABELS, BLOCK, from_logits=(True,)),
        batched=2,
    ),
    Defined(
        "categorical_crossentropy",
        _categorical,
        [
            call(np.moveaxis(LABELS, -1, axis), np.moveaxis(values, -1, axis), from_logits=logits, axis=axis)
            for axis in (-1, 2, 1, 0)
            for values, logits in ((P, False), (BLOCK, True))
        ],
    ),
    Defined(
        "sparse_categorical_crossentropy",
        _sparse,
        [
            call(labels, values, from_logits=logits, axis=axis)
            for labels in (CHOSEN, CHOSEN[..., None])
            for axis in (-1, 2)
            for values, logits in ((P, False), (BLOCK, True))
        ],
        batched=2,
    ),
    Defined("moments", _moments, each(BLOCK, axes=([0], [-1], [0, 1], (1, 2), [0, 1, 2]), keepdims=(False, True))),
    Defined(
        "batch_normalization",
        _batch_normalization,
        [
            call(np.moveaxis(BLOCK, -1, axis), SHIFT, SCALE, axis=axis, **more)
            for axis in (-1, 2, 1, 0)
            for more in (
                {},
                {"offset": SHIFT},
                {"scale": SCALE},
                {"offset": SHIFT, "scale": SCALE, "epsilon": 0.1},
            )
        ],
    ),
    Defined(
        "normalize",
        _normalize,
        each(BLOCK, axis=(-1, 0, 1), order=(1, 2, 3), epsilon=(None, 5.0)) + each(BLOCK, axis=((0, 1), (1, 2))),
    ),
    Defined(
        "rms_normalization",
        _rms,
        each(BLOCK, axis=(-1, 0, (1, 2)), epsilon=(None, 0.1)) + each(BLOCK, scale=(SCALE,), epsilon=(None, 0.1)),
    ),
    Defined(
        "layer_normalization",
        _layer_normalization,
        each(BLOCK, gamma=(None, SCALE), beta=(None, SHIFT), epsilon=(None, 0.1))
        + each(BLOCK, gamma=(None, SCALE[:3]), beta=(None, SHIFT[:3]), axis=(1, -2))
        + each(BLOCK, gamma=(None, SCALE[:3, None] * SHIFT), axis=((1, 2), (-1, -2), [1, 2])),
        atol=1e-4,
    ),
    Defined(
        "psnr",
        lambda x1, x2, max_val: 10 * np.log10(max_val**2 / ((x1 - x2) ** 2).mean()),
        each(BLOCK, P, max_val=(1.0, 2.0, 255.0)),
        batched=2,
    ),
    Defined(
        "dot_product_attention",
        _attention,
        [
            *each(*HEADS, scale=(None, 0.3), is_causal=(False, True), mask=(None, ALLOWED, ALLOWED[:1, :1])),
            *each(*HEADS, bias=(np.float32(ALLOWED) * 3,), mask=(None, ALLOWED), flash_attention=(None, False)),
            *each(*SHARED, is_causal=(False, True)),
        ],
    ),
    Defined("dot_product_attention", _attention, each(*ONE_HEAD, is_causal=(False, True)), case="of one head"),
    Defined(
        "ctc_loss",
        _ctc_loss,
        [
            call(np.array(labels, "int32"), SPOKEN, np.array([2, 1], "int32"), SPOKEN_LENGTHS, mask_index=blank)
            for blank, labels in ((0, [[1, 2], [2, 0]]), (2, [[1, 0], [1, 2]]), (1, [[2, 2], [0, 1]]))
        ],
        batched=4,
        rtol=1e-4,
    ),
    Defined(
        "ctc_decode",
        _ctc_decode,
        each(SPOKEN, SPOKEN_LENGTHS, mask_index=(0, 1, 2, -1), merge_repeated=(True, False))
        + each(SPOKEN, SPOKEN_LENGTHS, mask_index=(0, 1, 2), top_paths=(1, 2), beam_width=(100, 200), **BEAM),
        batched=2,
        rtol=1e-4,
    ),
    Defined("ctc_decode", _ctc_decode, each(SPOKEN, SPOKEN_LENGTHS, mask_index=(-1,), **BEAM), case="last in beams"),
    Defined("polar", lambda abs_, angle: abs_ * np.exp(1j * angle), [call(np.abs(PLANE), PLANE)], batched=2),
    Defined(
        "unfold",
        _unfold,
        each(FIRST, kernel_size=(2, (2, 3)), dilation=(1, (2, 1)), padding=(0, (1, 2)), stride=(1, (2, 3))),
        batched=1,
    ),
    Defined(
        "fold",
        _fold,
        [
            call(
                _unfold(FIRST, kernel, dilation, padding, stride).astype("float32"),
                (5, 6),
                kernel,
                dilation,
                padding,
                stride,
            )
            for kernel, dilation, padding, stride in (
                (2, 1, 1, 1),
                ((2, 3), (2, 1), (1, 2), (2, 3)),
            )
        ],
        batched=1,
    ),
    Defined(
        "depth_to_space",
        _to_space,
        [
            call(PICTURES, 2),
            *each(PICTURES, 2, data_format=("channels_last",)),
            *each(FIRST, 2, data_format=("channels_first",)),
        ],
        batched=1,
    ),
    Defined(
        "space_to_depth",
        _to_depth,
        [
            call(PICTURES[:, :4], 2),
            *each(PICTURES[:, :4], 2, data_format=("channels_last",)),
            *each(FIRST[:, :, :4], 2, data_format=("channels_first",)),
            call(PICTURES[:, :3], 3),
        ],
        batched=1,
    ),
    Defined("glu", _glu, each(BLOCK[..., :2], axis=(-1, 0, 2))),
    *(Defined(f"{kind}_pool", None, _pools(), batched=1) for kind in ("max", "average")),
    *(
        Defined(f"adaptive_{kind}_pool", None, each(PICTURES, output_size=(2, (3, 2))), batched=1)
        for kind in ("max", "average")
    ),
    Defined("conv", None, _convolutions(filters=(4, 3)), batched=1),
    Defined(
        "depthwise_conv", None, [one for one in _convolutions(filters=(4, 2)) if one[0][1].shape[0] == 2], batched=1
    ),
    Defined(
        "separable_conv",
        None,
        _convolutions(_DRAW.normal(size=(8, 3)).astype("float32"), filters=(4, 2)),
        batched=1,
    ),
    Defined("conv_transpose", None, _convolutions(filters=(3, 4)), batched=1),
)
"""Operations whose values ``test_convolutions.py`` and ``test_pooling.py`` compare have no definition here."""
