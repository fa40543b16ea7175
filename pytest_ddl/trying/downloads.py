"""Give a script the files of well-known tutorials, with random content, and files that it has already downloaded."""

from __future__ import annotations

import inspect
import io
import sys
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from pytest_ddl.training.replacing import Replacements, named_like
from pytest_ddl.trying.found import place

Note = Callable[[str], None]
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


class DownloadRefusedError(RuntimeError):
    """Error for a script that loads data from the network."""


ADVICE = "make the data in the script (NumPy or tf.data, a few hundred examples), or read files that are already there"


def _text(lines: int) -> bytes:
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice([*_LETTERS], size)) for size in rng.integers(2, 9, 200)]
    return "\n".join(" ".join(rng.choice(words, 8)).capitalize() + "." for _ in range(lines)).encode()


def _images(*folders: str, each: int = 20) -> dict[str, bytes]:
    import tensorflow as tf

    rng = np.random.default_rng(0)
    names = [f"{folder}/{number}.jpg" for folder in folders for number in range(each)]
    return {name: bytes(tf.io.encode_jpeg(rng.integers(0, 256, (40, 48, 3), dtype=np.uint8)).numpy()) for name in names}


def _reviews(*folders: str, each: int = 40) -> dict[str, bytes]:
    lines = _text(each * len(folders)).splitlines()
    names = [f"{folder}/{number}_7.txt" for folder in folders for number in range(each)]
    return dict(zip(names, lines, strict=True))


def _rows(columns: Mapping[str, Any], rows: int = 400, separator: str = ",", header: bool = True) -> bytes:
    """Return lines of random values: of a list one of its items, of a pair of numbers one between them."""
    rng = np.random.default_rng(0)

    def column(values: Any) -> list[str]:
        if isinstance(values, list):
            return [str(values[at]) for at in rng.integers(0, len(values), rows)]
        if all(isinstance(end, int) for end in values):
            return [str(one) for one in rng.integers(values[0], values[1] + 1, rows)]
        return [f"{one:.2f}" for one in rng.uniform(values[0], values[1], rows)]

    lines = [separator.join(row) for row in zip(*map(column, columns.values()), strict=True)]
    return "\n".join([separator.join(columns), *lines] if header else lines).encode() + b"\n"


def _tar(members: Mapping[str, bytes]) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return target.getvalue()


def _zip(members: Mapping[str, bytes]) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return target.getvalue()


_TITANIC = {
    "survived": [0, 1], "sex": ["male", "female"], "age": (1.0, 80.0), "n_siblings_spouses": (0, 5), "parch": (0, 4),
    "fare": (0.0, 200.0), "class": ["First", "Second", "Third"], "deck": ["A", "B", "C", "unknown"],
    "embark_town": ["Southampton", "Cherbourg", "Queenstown"], "alone": ["y", "n"],
}  # fmt: skip
_HEART = {
    "age": (29, 77), "sex": [0, 1], "cp": (0, 4), "trestbps": (94, 200), "chol": (126, 564), "fbs": [0, 1],
    "restecg": (0, 2), "thalach": (71, 202), "exang": [0, 1], "oldpeak": (0.0, 6.2), "slope": (1, 3), "ca": (0, 3),
    "thal": ["fixed", "normal", "reversible"], "target": [0, 1],
}  # fmt: skip
_CARS = {
    "MPG": (9.0, 46.0), "Cylinders": [4, 6, 8], "Displacement": (68.0, 455.0), "Horsepower": (46.0, 230.0),
    "Weight": (1613.0, 5140.0), "Acceleration": (8.0, 24.0), "Model Year": (70, 82),
    "Origin": [f'{number}\t"a car"' for number in (1, 2, 3)],
}  # fmt: skip
_WEATHER = {
    "Date Time": ["01.01.2009 00:10:00"], "p (mbar)": (913.0, 1015.0), "T (degC)": (-23.0, 37.0),
    "Tpot (K)": (250.0, 311.0), "Tdew (degC)": (-25.0, 23.0), "rh (%)": (12.0, 100.0), "VPmax (mbar)": (0.9, 63.0),
    "VPact (mbar)": (0.7, 28.0), "VPdef (mbar)": (0.0, 46.0), "sh (g/kg)": (0.5, 18.0), "H2OC (mmol/mol)": (0.8, 28.0),
    "rho (g/m**3)": (1059.0, 1393.0), "wv (m/s)": (0.0, 14.0), "max. wv (m/s)": (0.0, 23.0), "wd (deg)": (0.0, 360.0),
}  # fmt: skip
_PETS = ("cats", "dogs")
_FLOWERS = ("daisy", "dandelion", "roses", "sunflowers", "tulips")

FILES: dict[str, Callable[[], bytes]] = {
    "shakespeare.txt": lambda: _text(400),
    "nietzsche.txt": lambda: _text(400),
    "flower_photos.tgz": lambda: _tar(_images(*(f"flower_photos/{name}" for name in _FLOWERS))),
    "cats_and_dogs_filtered.zip": lambda: _zip(
        _images(*(f"cats_and_dogs_filtered/{part}/{name}" for part in ("train", "validation") for name in _PETS))
    ),
    "aclImdb_v1.tar.gz": lambda: _tar(
        _reviews(
            "aclImdb/train/pos", "aclImdb/train/neg", "aclImdb/train/unsup", "aclImdb/test/pos", "aclImdb/test/neg"
        )
    ),
    "auto-mpg.data": lambda: _rows(_CARS, separator=" ", header=False),
    "titanic/train.csv": lambda: _rows(_TITANIC),
    "titanic/eval.csv": lambda: _rows(_TITANIC),
    "heart.csv": lambda: _rows(_HEART),
    "jena_climate_2009_2016.csv.zip": lambda: _zip({"jena_climate_2009_2016.csv": _rows(_WEATHER, rows=6000)}),
}
"""Content of a file, by the end of its address. The files are those of tutorials of TensorFlow and Keras."""


def install(put: Replacements, folder: Path, note: Note) -> None:
    """Refuse downloads by Python's own modules, except those of :data:`FILES`."""
    import socket
    import urllib.request

    def retrieve(url: str, filename: Any = None, *_more: Any, **_options: Any) -> Any:
        content = _content(url, "urllib.request.urlretrieve", note)
        target = Path(filename or folder / Path(urlsplit(url).path).name)
        target.write_bytes(content)
        return str(target), {}

    def opened(url: Any, *_more: Any, **_options: Any) -> Any:
        return _Answer(_content(getattr(url, "full_url", url), "urllib.request.urlopen", note))

    put.put(urllib.request, "urlopen", opened)
    put.put(urllib.request, "urlretrieve", retrieve)
    put.put(socket, "create_connection", refusing("a connection to another host"))


class _Answer(io.BytesIO):
    """Answer of a server: the content of a file, without headers."""

    headers: Mapping[str, str] = {}


def install_cache(put: Replacements, keras: Any, folder: Path, note: Note) -> None:
    """Let ``get_file`` of one flavor of Keras find what it has downloaded before, and the files of :data:`FILES`."""
    import tensorflow as tf

    original = keras.utils.get_file
    signature = inspect.signature(original)
    asked = ""

    def retrieve(url: str, filename: str, *_more: Any) -> None:
        Path(filename).write_bytes(_content(url, asked, note))

    def get_file(*args: Any, **options: Any) -> Any:
        nonlocal asked
        given = signature.bind(*args, **options).arguments
        asked = ""
        try:
            return original(**given)  # the file may be there
        except DownloadRefusedError:
            # In another folder, because later runs of the script would take this file for the real one.
            hashes = ("md5_hash", "file_hash")
            made = {name: value for name, value in given.items() if name not in hashes} | {"cache_dir": str(folder)}
            asked = "keras.utils.get_file"
            return original(**made)

    put.put(sys.modules[original.__module__], "urlretrieve", retrieve)
    for namespace in (keras, tf.keras):  # Keras 3 has two modules of this name
        if namespace.utils.get_file is original:
            put.put(namespace.utils, "get_file", named_like(original, get_file))


def _content(url: str, asked: str, note: Note) -> bytes:
    """Return the random content of a file.

    :param asked: function that the script calls; empty to refuse all files.
    :raises DownloadRefusedError: if there is none.
    """
    make = next((make for name, make in FILES.items() if urlsplit(url).path.endswith(f"/{name}")), None)
    if make is None or not asked:
        raise refused(asked, url)
    note(f"{asked}({url}): random content of the same form")
    return make()


def refused(what: str, url: str = "") -> DownloadRefusedError:
    """Return the error for a call that needs the network."""
    return DownloadRefusedError(f"{place()}: {what}({url}) is refused, because nothing is downloaded here: {ADVICE}")


def refusing(what: str) -> Callable[..., Any]:
    """Return a function that raises this error."""

    def refuse(*_args: Any, **_kwargs: Any) -> Any:
        raise refused(what)

    return refuse
