"""Files that stand in for downloads, and downloads that are refused."""

from __future__ import annotations

import csv
import io
import tarfile
import urllib.request
import zipfile
from pathlib import Path

import pytest

from pytest_ddl.training.replacing import Replacements
from pytest_ddl.trying import downloads

WITHOUT_IMAGES = sorted(
    name for name in downloads.FILES if name not in ("flower_photos.tgz", "cats_and_dogs_filtered.zip")
)


@pytest.mark.parametrize("name", WITHOUT_IMAGES)
def test_a_file_has_the_same_content_each_time(name: str) -> None:
    assert downloads.FILES[name]() == downloads.FILES[name]()


@pytest.mark.parametrize(
    ("name", "columns"), [("titanic/train.csv", 10), ("heart.csv", 14), ("jena_climate_2009_2016.csv.zip", 15)]
)
def test_a_table_has_the_columns_of_the_original(name: str, columns: int) -> None:
    content = downloads.FILES[name]()
    if name.endswith(".zip"):
        content = zipfile.ZipFile(io.BytesIO(content)).read(name.removesuffix(".zip"))
    head, *rows = csv.reader(content.decode().splitlines())
    assert {len(row) for row in (head, *rows)} == {columns}
    assert len(rows) >= 400


def test_cars_end_with_a_name_that_is_a_comment() -> None:
    lines = downloads.FILES["auto-mpg.data"]().decode().splitlines()
    assert {len(line.partition("\t")[0].split(" ")) for line in lines} == {8}


def test_reviews_are_in_folders_of_their_classes() -> None:
    with tarfile.open(fileobj=io.BytesIO(downloads.FILES["aclImdb_v1.tar.gz"]())) as archive:
        folders = {name.rpartition("/")[0] for name in archive.getnames()}
    assert folders == {f"aclImdb/{part}" for part in ("train/pos", "train/neg", "train/unsup", "test/pos", "test/neg")}


def test_a_known_address_gives_a_file_and_others_are_refused(tmp_path: Path) -> None:
    told: list[str] = []
    with Replacements() as put:
        downloads.install(put, tmp_path, told.append)
        with urllib.request.urlopen(urllib.request.Request("https://example.org/data/heart.csv")) as answer:
            assert answer.read().startswith(b"age,sex")
            assert answer.headers.get("Content-Encoding") is None
        path, _headers = urllib.request.urlretrieve("https://example.org/titanic/eval.csv", tmp_path / "eval.csv")
        assert Path(path).read_text().startswith("survived,sex")
        with pytest.raises(
            downloads.DownloadRefusedError, match=r"urlopen\(https://example.org/my_heart.csv\) is refused"
        ):
            urllib.request.urlopen("https://example.org/my_heart.csv")
    assert len(told) == 2
