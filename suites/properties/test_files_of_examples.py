"""Write images, texts and sounds into folders, and compare the datasets of ``keras.utils`` with the files by hand."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from suites.parameters.spaces import Wrong

pytestmark = [
    pytest.mark.ddl(strategies=["one_device"], keras="keras"),
    pytest.mark.ddl_item("fit.fit.numpy", shows="values", keras=">=3.15"),
]

FOLDERS = {"a": 3, "b": 4, "c": 3}
"""Name of a folder, which is a class, and its number of files."""
NUMBERS = range(sum(FOLDERS.values()))
KINDS = ("image", "text", "audio")


def content(kind: str, number: int) -> Any:
    """Return what the file with a number has."""
    if kind == "text":
        return f"text {number}".encode()
    if kind == "audio":
        return np.arange(4.0)[:, None] / 8 + number / 32
    return np.arange(18.0).reshape(2, 3, 3) + 10 * number


def written(kind: str, folder: Path) -> None:
    """Write a file of each number, in the order of their paths. Other files are no examples."""
    import tensorflow as tf

    number = 0
    for name, size in FOLDERS.items():
        (folder / name).mkdir()
        (folder / name / "notes.doc").write_text("no example")
        for _ in range(size):
            one = content(kind, number)
            if kind == "text":
                data = one
            elif kind == "audio":
                data = tf.audio.encode_wav(tf.constant(one, "float32"), 8000).numpy()
            else:
                data = tf.io.encode_png(tf.constant(one, "uint8")).numpy()
            suffix = {"text": "txt", "audio": "wav", "image": "png"}[kind]
            (folder / name / f"{number:02}.{suffix}").write_bytes(data)
            number += 1


def read(kind: str, folder: Path, **options: Any) -> Any:
    from suites.subject import keras

    own = {"text": {}, "audio": {"output_sequence_length": 4}, "image": {"image_size": (2, 3)}}[kind]
    read_all = getattr(keras.utils, f"{kind}_dataset_from_directory")
    return read_all(str(folder), verbose=False, **own, **options)


def rows(dataset: Any, batch_size: int | None, *, labels: bool) -> tuple[list[Any], list[Any]]:
    """Return the examples and the labels of a dataset, whose batches are as large as they can be."""
    parts = [part if labels else (part, None) for part in dataset.as_numpy_iterator()]
    if batch_size is None:
        return [x for x, _ in parts], [y for _, y in parts]
    sizes = [len(x) for x, _ in parts]
    assert all(size == batch_size for size in sizes[:-1]), f"batches of {sizes} examples"
    assert 0 < sizes[-1] <= batch_size, f"batches of {sizes} examples"
    return [one for x, _ in parts for one in x], [one for _, y in parts for one in (y if labels else ())]


def numbers(kind: str, examples: Sequence[Any]) -> list[int]:
    """Return the number of the file of each example."""
    found = []
    for one in examples:
        alike = [number for number in NUMBERS if same(kind, one, content(kind, number))]
        assert len(alike) == 1, f"an example is that of {len(alike)} files: {one!r}"
        found += alike
    return found


def same(kind: str, one: Any, other: Any) -> bool:
    if kind == "text":
        return bool(one == other)
    return np.shape(one) == np.shape(other) and np.allclose(one, other, atol=1e-4)


def classes_of(names: Sequence[str]) -> list[int]:
    """Return the class of each file, if the classes are in the order of the names."""
    return [names.index(name) for name, size in FOLDERS.items() for _ in range(size)]


def label(kind: str, one: int) -> Any:
    return {"int": one, "categorical": np.eye(len(FOLDERS))[one], "binary": [float(one)]}[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_each_file_is_an_example_with_its_class(kind, tmp_path, ddl_strategy):
    written(kind, tmp_path)
    wrong = Wrong()
    names = [*FOLDERS]
    for form, batch, shuffle, order in product(
        ("int", "categorical", None), (None, 4), (False, True), (None, names[::-1])
    ):
        with wrong.of(f"label_mode={form}", f"batch_size={batch}", f"shuffle={shuffle}", f"class_names={order}"):
            known = order if form else None
            options = {"label_mode": form, "batch_size": batch, "shuffle": shuffle, "class_names": known, "seed": 3}
            dataset = read(kind, tmp_path, labels="inferred" if form else None, **options)
            assert dataset.class_names == (known or names if form else None)
            examples, labels = rows(dataset, batch, labels=form is not None)
            found = numbers(kind, examples)
            if shuffle:
                assert found != [*NUMBERS], "the order of the files"
            elif known:
                assert found == sorted(NUMBERS, key=lambda number: (classes_of(known)[number], number))
            assert sorted(found) == [*NUMBERS]
            if form:
                wanted = [label(form, classes_of(known or names)[number]) for number in found]
                np.testing.assert_array_equal(labels, wanted)
    for form in ("int", "binary"):
        with wrong.of("labels of a list", f"label_mode={form}"):
            given = [number % 2 for number in NUMBERS]
            examples, labels = rows(read(kind, tmp_path, labels=given, label_mode=form, shuffle=False), 32, labels=True)
            assert numbers(kind, examples) == [*NUMBERS]
            np.testing.assert_array_equal(labels, [label(form, one) for one in given])
    wrong.check()


@pytest.mark.parametrize("share", [0.3, 0.5, 0.05])
@pytest.mark.parametrize("kind", KINDS)
def test_each_file_is_for_training_or_for_validation(kind, share, tmp_path, ddl_strategy):
    written(kind, tmp_path)
    wrong = Wrong()
    number = int(share * len(NUMBERS))
    for shuffle in (False, True):
        options = {"validation_split": share, "shuffle": shuffle, "seed": 5, "batch_size": 3}
        alone = {}
        for subset in ("training", "validation"):
            with wrong.of(subset, f"shuffle={shuffle}"):
                if number or subset == "training":
                    examples, labels = rows(read(kind, tmp_path, subset=subset, **options), 3, labels=True)
                    alone[subset] = sorted(numbers(kind, examples))
                    np.testing.assert_array_equal(
                        labels, [classes_of([*FOLDERS])[one] for one in numbers(kind, examples)]
                    )
                    assert len(examples) == (number if subset == "validation" else len(NUMBERS) - number)
        if not number:
            continue
        with wrong.of("both", f"shuffle={shuffle}"):
            assert sorted(alone["training"] + alone["validation"]) == [*NUMBERS]
            both = [rows(one, 3, labels=True)[0] for one in read(kind, tmp_path, subset="both", **options)]
            assert [sorted(numbers(kind, one)) for one in both] == [alone["training"], alone["validation"]]
            if not shuffle:
                assert alone["validation"] == [*NUMBERS][-number:]
    wrong.check()


def test_images_have_the_channels_and_the_size_that_are_asked_for(tmp_path, ddl_strategy):
    written("image", tmp_path)
    wrong = Wrong()
    for mode, form in product(("rgb", "rgba", "grayscale"), ("channels_last", "channels_first")):
        with wrong.of(mode, form):
            found = next(iter(read("image", tmp_path, color_mode=mode, data_format=form, shuffle=False)))[0].numpy()
            found = found if form == "channels_last" else found.transpose(0, 2, 3, 1)
            wanted = np.stack([content("image", number) for number in NUMBERS])
            if mode == "grayscale":
                wanted = wanted @ np.array([[0.2989], [0.587], [0.114]])
            elif mode == "rgba":
                wanted = np.concatenate([wanted, np.full((*wanted.shape[:3], 1), 255.0)], -1)
            assert found.shape == wanted.shape
            assert np.abs(found - wanted).max() <= (1 if mode == "grayscale" else 0)
    wrong.check()


def test_sounds_have_the_length_that_is_asked_for(tmp_path, ddl_strategy):
    written("audio", tmp_path)
    from suites.subject import keras

    wrong = Wrong()
    for length in (2, 4, 7):
        with wrong.of(length):
            dataset = keras.utils.audio_dataset_from_directory(
                str(tmp_path), output_sequence_length=length, shuffle=False, verbose=False
            )
            found = next(iter(dataset))[0].numpy()
            wanted = np.stack([content("audio", number) for number in NUMBERS])[:, :length]
            wanted = np.pad(wanted, ((0, 0), (0, length - wanted.shape[1]), (0, 0)))
            np.testing.assert_allclose(found, wanted, atol=1e-4)
    wrong.check()
