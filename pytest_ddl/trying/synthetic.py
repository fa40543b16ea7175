"""Random data in place of well-known datasets, with their shapes, types and ranges. Refuse all other downloads."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from pytest_ddl.training.replacing import Replacements

Note = Callable[[str], None]
EXAMPLES = 12_000
"""Number of training examples of a synthetic dataset. Scripts often reserve 10,000 of them for validation."""


class DownloadRefusedError(RuntimeError):
    """Error for a script that loads data from the network."""


@dataclass(frozen=True)
class SyntheticKind:
    """Shapes and value ranges of one dataset."""

    shape: tuple[int, ...]
    """Shape of an example; empty for a sequence of words."""
    classes: int
    """Number of classes; 0 for a regression target."""
    column: bool = False
    """True if the labels of Keras are a column."""
    sequence: bool = False


KINDS = {
    "mnist": SyntheticKind((28, 28), 10),
    "fashion_mnist": SyntheticKind((28, 28), 10),
    "cifar10": SyntheticKind((32, 32, 3), 10, column=True),
    "cifar100": SyntheticKind((32, 32, 3), 100, column=True),
    "imdb": SyntheticKind((), 2, sequence=True),
    "reuters": SyntheticKind((), 46, sequence=True),
    "boston_housing": SyntheticKind((13,), 0),
    "california_housing": SyntheticKind((8,), 0),
}


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


def load(name: str, examples: int | None, options: dict[str, Any]) -> tuple[Any, Any]:
    """Return ``(x_train, y_train), (x_test, y_test)`` of a dataset of :data:`KINDS`, as Keras does."""
    kind = KINDS[name]
    rows = examples or EXAMPLES
    return _split(kind, rows, 0, options), _split(kind, max(1, rows // 6), 1, options)


def install(put: Replacements, keras: Any, examples: int | None, note: Note) -> None:
    """Replace the loaders of one flavor of Keras, and everything that downloads."""
    import tensorflow as tf

    for namespace in (keras, tf.keras):  # Keras 3 has two modules of each name
        for name in KINDS:
            module = getattr(namespace.datasets, name, None)
            if module is not None:
                put.put(module, "load_data", _loader(f"keras.datasets.{name}", name, examples, note))
        put.put(namespace.utils, "get_file", _refusing("keras.utils.get_file"))


def install_network(put: Replacements) -> None:
    """Refuse downloads by Python's own modules."""
    import socket
    import urllib.request

    put.put(urllib.request, "urlopen", _refusing("urllib.request.urlopen"))
    put.put(urllib.request, "urlretrieve", _refusing("urllib.request.urlretrieve"))
    put.put(socket, "create_connection", _refusing("a connection to another host"))


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
    raise DownloadRefusedError(f"tfds.{name} needs a download, and only tfds.load is replaced: {_ADVICE}")


_ADVICE = "make the data in the script (NumPy or tf.data, a few hundred examples), or read files that are already there"


def _refusing(what: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        shown = next((str(item) for item in (*args, *kwargs.values()) if "://" in str(item)), "")
        raise DownloadRefusedError(f"{what}({shown}) is refused, because nothing is downloaded here: {_ADVICE}")

    return refuse


def _loader(shown: str, name: str, examples: int | None, note: Note) -> Callable[..., Any]:
    def load_data(*_args: Any, **options: Any) -> Any:
        note(f"{shown}: random data of the same shape and type")
        return load(name, examples, options)

    return load_data


def _tfds_load(examples: int | None, note: Note) -> Callable[..., Any]:
    def tfds_load(name: str, split: Any = None, **options: Any) -> Any:
        import tensorflow as tf

        short = name.partition(":")[0].partition("/")[0]
        if short not in KINDS or not KINDS[short].classes or KINDS[short].sequence:
            raise DownloadRefusedError(f"tfds.load({name!r}) is refused, because nothing is downloaded here: {_ADVICE}")
        note(f"tfds.load({name!r}): random data of the same shape and type")
        parts = dict(zip(("train", "test"), load(short, examples, {}), strict=True))

        def dataset(wanted: str) -> Any:
            x, y = parts["train" if "train" in wanted else "test"]
            x = x[..., None] if x.ndim == 3 else x
            columns = (x, y.reshape(-1).astype("int64"))
            made = {"image": columns[0], "label": columns[1]}
            data = tf.data.Dataset.from_tensor_slices(columns if options.get("as_supervised") else made)
            return data.batch(options["batch_size"]) if options.get("batch_size") else data

        found = tf.nest.map_structure(dataset, split if split is not None else {key: key for key in parts})
        info = SimpleNamespace(
            name=short, splits={key: SimpleNamespace(num_examples=len(value[0])) for key, value in parts.items()}
        )
        return (found, info) if options.get("with_info") else found

    return tfds_load
