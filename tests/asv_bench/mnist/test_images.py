"""The images: the shape of MNIST, a split that shares nothing, and what is said of a wrong file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from asv_bench.studies.mnist.program import ARRAYS, ImagesError, digits, load, scaled


def test_digits_have_the_shape_of_mnist_and_a_fixed_split() -> None:
    found = digits()
    assert found.x_train.shape == (1438, 28, 28)
    assert found.x_test.shape == (359, 28, 28)
    assert found.x_train.dtype == np.uint8
    assert found.x_train.max() == 255
    assert set(found.y_test) == set(range(10))
    assert not found.x_train[:, :2].any()
    assert np.array_equal(digits().y_train, found.y_train)


def test_every_digit_is_in_one_part_alone() -> None:
    from sklearn.datasets import load_digits

    found = digits()
    drawn = np.concatenate([found.x_train, found.x_test])[:, 3:-2:3, 3:-2:3].reshape(-1, 64)
    original = np.round(load_digits().images * (255 / 16)).astype(np.uint8).reshape(-1, 64)
    assert sorted(map(bytes, drawn)) == sorted(map(bytes, original))


def test_every_batch_size_trains_as_many_images() -> None:
    assert len(digits().trimmed(128).x_train) == 1408
    assert len(digits().trimmed(128).x_test) == 359


def test_fewer_images_than_a_batch_are_refused() -> None:
    with pytest.raises(ImagesError, match="1438 training images are less than one batch of 2000"):
        digits().trimmed(2000)


def test_the_network_is_given_numbers_from_0_to_1() -> None:
    given = scaled(np.array([[[0, 255]]], np.uint8))
    assert given.dtype == np.float32
    assert given.tolist() == [[[[0.0], [1.0]]]]


def mnist(**changed: object) -> dict[str, object]:
    images, labels = np.zeros((4, 28, 28), np.uint8), np.array([0, 1, 2, 9], np.uint8)
    return {**dict(zip(ARRAYS, (images, labels, images, labels), strict=True)), **changed}


@pytest.mark.parametrize("shape", [(4, 28, 28), (4, 28, 28, 1)])
def test_a_file_like_that_of_keras_is_read(tmp_path: Path, shape: tuple[int, ...]) -> None:
    path = tmp_path / "mnist.npz"
    np.savez(path, **mnist(x_train=np.ones(shape, np.uint8)))  # type: ignore[arg-type]
    found = load(path)
    assert found.x_train.shape == (4, 28, 28)
    assert found.y_train.tolist() == [0, 1, 2, 9]
    assert found.source == "mnist.npz"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"x_train": np.zeros((4, 32, 32), np.uint8)}, r"x_train is uint8\[4, 32, 32\], not uint8\[images, 28, 28\]"),
        ({"x_test": np.zeros((4, 28, 28), np.float32)}, "x_test is float32"),
        ({"y_train": np.zeros(3, np.int64)}, r"y_train is int64\[3\], not one whole number for each of 4 images"),
        ({"y_test": np.full(4, 10)}, "y_test has labels from 10 to 10, not from 0 to 9"),
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, changed: dict[str, object], words: str) -> None:
    path = tmp_path / "other.npz"
    np.savez(path, **mnist(**changed))  # type: ignore[arg-type]
    with pytest.raises(ImagesError, match=words):
        load(path)


def test_a_missing_array_is_named(tmp_path: Path) -> None:
    path = tmp_path / "other.npz"
    np.savez(path, x_train=np.zeros(1))
    with pytest.raises(ImagesError, match="has no array y_train; it needs x_train, y_train, x_test, y_test"):
        load(path)


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "text.npz"
    path.write_text("no archive")
    with pytest.raises(ImagesError, match=r"text\.npz cannot be read as \.npz"):
        load(path)
    whole = tmp_path / "whole.npz"
    np.savez(whole, **mnist())  # type: ignore[arg-type]
    path.write_bytes(whole.read_bytes()[:-400])
    with pytest.raises(ImagesError, match=r"text\.npz cannot be read as \.npz"):
        load(path)
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(ImagesError, match=r"is a single array, not an \.npz with x_train"):
        load(path)
    with pytest.raises(ImagesError, match="No such file"):
        load(tmp_path / "absent.npz")
