"""Random data in place of well-known datasets, with their shapes, types and ranges."""

from __future__ import annotations

import importlib.util
import inspect
import itertools
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from pytest_ddl.training.replacing import Replacements, named_like
from pytest_ddl.trying.downloads import ADVICE, DownloadRefusedError, Note, refused
from pytest_ddl.trying.found import place

EXAMPLES = 12_000
"""Number of training examples of a synthetic dataset. Scripts often reserve 10,000 of them for validation."""


@dataclass(frozen=True)
class SyntheticKind:
    """Shapes and value ranges of one dataset."""

    shape: tuple[int, ...]
    """Shape of an example; empty for a sequence of words."""
    classes: int
    """Number of classes; 0 for a regression target."""
    rows: tuple[int, int]
    """Numbers of examples of the original for training and for tests."""
    column: bool = False
    """True if the labels of Keras are a column."""
    sequence: bool = False


KINDS = {
    "mnist": SyntheticKind((28, 28), 10, (60_000, 10_000)),
    "fashion_mnist": SyntheticKind((28, 28), 10, (60_000, 10_000)),
    "cifar10": SyntheticKind((32, 32, 3), 10, (50_000, 10_000), column=True),
    "cifar100": SyntheticKind((32, 32, 3), 100, (50_000, 10_000), column=True),
    "imdb": SyntheticKind((), 2, (25_000, 25_000), sequence=True),
    "reuters": SyntheticKind((), 46, (8_982, 2_246), sequence=True),
    "boston_housing": SyntheticKind((13,), 0, (404, 102)),
    "california_housing": SyntheticKind((8,), 0, (16_512, 4_128)),
    "tf_flowers": SyntheticKind((64, 64, 3), 5, (3_670, 1)),
    "cats_vs_dogs": SyntheticKind((64, 64, 3), 2, (4_000, 1)),
    "imdb_reviews": SyntheticKind((), 2, (25_000, 25_000), sequence=True),
}
"""Datasets of Keras and of TensorFlow Datasets. Two with the same name have the same content."""
_ROWS = re.compile(r"(?:reshape\(|\[)[^\n\]]*?\b(\d[\d_]{4,})\b")
"""A large number in a shape or in an index of a script, such as ``reshape(60000, 784)`` or ``x[50000:]``."""


def _split(kind: SyntheticKind, rows: int, seed: int, options: dict[str, Any]) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    y: Any
    if kind.sequence:
        words = min(options.get("num_words") or 20_000, 20_000)
        longest = min(options.get("maxlen") or 200, 200)
        x: Any = np.empty(rows, dtype=object)
        for row, length in enumerate(rng.integers(20, max(longest, 21), size=rows)):
            x[row] = [1, *rng.integers(3, words, size=length - 1).tolist()]
        return x, rng.integers(0, kind.classes, size=rows)
    if not kind.classes:
        x = rng.normal(size=(rows, *kind.shape)).astype("float32")
        return x, rng.uniform(5, 50, size=rows).astype("float32")
    x = rng.integers(0, 256, size=(rows, *kind.shape), dtype=np.uint8)
    y = rng.integers(0, kind.classes, size=rows, dtype=np.uint8)
    return x, y[:, None] if kind.column else y


def load(name: str, examples: int | None, options: dict[str, Any], code: str = "") -> tuple[Any, Any]:
    """Return ``(x_train, y_train), (x_test, y_test)`` of a dataset of :data:`KINDS`, as Keras does.

    :param examples: number of training examples; ``None`` for as many as the code needs.
    :param code: script that may name rows of the original, which it then has.
    """
    kind = KINDS[name]
    rows = examples or min(EXAMPLES, kind.rows[0])
    of_test = max(1, rows // 6)
    named = (int(found.group(1)) for found in _ROWS.finditer(code))
    if examples is None and any(EXAMPLES < one <= kind.rows[0] for one in named):
        rows, of_test = kind.rows
    return _split(kind, rows, 0, options), _split(kind, of_test, 1, options)


def install(put: Replacements, keras: Any, examples: int | None, code: str, note: Note) -> None:
    """Replace the loaders of one flavor of Keras, and its trained weights."""
    import tensorflow as tf

    for namespace in (keras, tf.keras):  # Keras 3 has two modules of each name
        for name in KINDS:
            module = getattr(namespace.datasets, name, None)
            if module is not None:
                put.put(module, "load_data", _loader(name, examples, code, note))
        modules = [one for one in vars(namespace.applications).values() if inspect.ismodule(one)]
        for module in (namespace.applications, *modules):
            for name, maker in [*vars(module).items()]:
                if inspect.isfunction(maker) and "weights" in inspect.signature(maker).parameters:
                    put.put(module, name, _untrained(name, maker, note))


@contextmanager
def tensorflow_datasets(examples: int | None, note: Note) -> Iterator[None]:
    """Offer a module ``tensorflow_datasets`` whose ``load`` returns synthetic data, installed or not."""
    name = "tensorflow_datasets"
    stub = ModuleType(name)
    stub.__dict__.update(load=_tfds_load(examples, note), disable_progress_bar=lambda: None, __getattr__=_no_attribute)
    original = sys.modules.get(name)
    sys.modules[name] = stub
    try:
        yield
    finally:
        del sys.modules[name]
        if original is not None:
            sys.modules[name] = original


@contextmanager
def port_picker() -> Iterator[None]:
    """Offer a module ``portpicker`` if it is not installed. The servers that need the ports are not started."""
    name = "portpicker"
    if importlib.util.find_spec(name) is not None:
        yield
        return
    stub = ModuleType(name)
    ports = itertools.count(20_000)
    stub.__dict__["pick_unused_port"] = lambda: next(ports)
    sys.modules[name] = stub
    try:
        yield
    finally:
        del sys.modules[name]


def _no_attribute(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise DownloadRefusedError(f"{place()}: tfds.{name} needs a download, and only tfds.load is replaced: {ADVICE}")


def _loader(name: str, examples: int | None, code: str, note: Note) -> Callable[..., Any]:
    def load_data(*_args: Any, **options: Any) -> Any:
        note(f"keras.datasets.{name}: random data of the same shape and type")
        return load(name, examples, options, code)

    return load_data


def _untrained(name: str, maker: Callable[..., Any], note: Note) -> Callable[..., Any]:
    """Return a maker of a model of ``keras.applications`` that draws the weights in place of a download."""
    signature = inspect.signature(maker)

    def make(*args: Any, **options: Any) -> Any:
        given = signature.bind(*args, **options)
        given.apply_defaults()
        if given.arguments["weights"] == "imagenet":
            note(f"keras.applications.{name}: random weights in place of trained ones")
            given.arguments["weights"] = None
        return maker(*given.args, **given.kwargs)

    return named_like(maker, make)


def _tfds_load(examples: int | None, note: Note) -> Callable[..., Any]:
    def tfds_load(name: str, split: Any = None, **options: Any) -> Any:
        import tensorflow as tf

        short = name.partition(":")[0].partition("/")[0]
        if short not in KINDS or not KINDS[short].classes or short in ("imdb", "reuters"):
            raise refused("tfds.load", repr(name))
        note(f"tfds.load({name!r}): random data of the same shape and type")
        parts = dict(zip(("train", "test"), load(short, examples, {}), strict=True))

        def dataset(wanted: str) -> Any:
            x, y = parts["train" if "train" in wanted else "test"]
            x = x[..., None] if x.ndim == 3 else x
            texts = KINDS[short].sequence
            x = np.array([" ".join(f"word{number}" for number in row) for row in x]) if texts else x
            columns = (x, y.reshape(-1).astype("int64"))
            made = {"text" if texts else "image": columns[0], "label": columns[1]}
            data = tf.data.Dataset.from_tensor_slices(columns if options.get("as_supervised") else made)
            return data.batch(options["batch_size"]) if options.get("batch_size") else data

        datasets = tf.nest.map_structure(dataset, split if split is not None else {key: key for key in parts})
        classes = KINDS[short].classes
        label = SimpleNamespace(num_classes=classes, names=[f"class {n}" for n in range(classes)], int2str=str)
        splits = {key: SimpleNamespace(num_examples=len(value[0])) for key, value in parts.items()}
        info = SimpleNamespace(name=short, splits=splits, features={"label": label})
        return (datasets, info) if options.get("with_info") else datasets

    return tfds_load
