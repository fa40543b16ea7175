"""Fetch files from addresses on this machine: which file is kept, when it is fetched again, and what is refused."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from itertools import product
from pathlib import Path

import pytest

from suites.parameters.spaces import Wrong

pytestmark = [
    pytest.mark.ddl(strategies=["one_device"], keras="keras"),
    pytest.mark.ddl_item("fit.fit.numpy", shows="values", keras=">=3.15"),
]

FIRST, SECOND = b"first", b"second"
INSIDE = {"one.txt": b"1", "folder/two.txt": b"22"}
"""Path in an archive -> content."""


def archive(kind: str, file: Path) -> None:
    if kind == "zip":
        with zipfile.ZipFile(file, "w") as packed:
            for name, content in INSIDE.items():
                packed.writestr(name, content)
        return
    with tarfile.open(file, "w:gz") as tar:
        for name, content in INSIDE.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))


def test_a_file_is_fetched_when_it_must_be(tmp_path, ddl_strategy):
    from suites.subject import keras

    wrong = Wrong()
    for number, (known, forced, name) in enumerate(product((None, "md5", "sha256"), (False, True), (None, "own.bin"))):
        with wrong.of(f"hash={known}", f"force_download={forced}", f"fname={name}"):
            folder, origin = tmp_path / f"{number}", tmp_path / f"{number}.bin"
            folder.mkdir()

            def fetch(content: bytes, known=known, forced=forced, name=name, folder=folder, origin=origin) -> bytes:
                checked = {"file_hash": hashlib.new(known, content).hexdigest()} if known else {}
                options = {**checked, "cache_dir": str(folder), "cache_subdir": "in", "force_download": forced}
                path = Path(keras.utils.get_file(name, origin.as_uri(), **options))
                assert path == folder / "in" / (name or origin.name), f"the path {path}"
                return path.read_bytes()

            origin.write_bytes(FIRST)
            assert fetch(FIRST) == FIRST
            origin.write_bytes(SECOND)
            # A file that is there stays, unless it is not the one that the hash names.
            assert fetch(SECOND if known else FIRST) == (SECOND if known or forced else FIRST)
            if known:
                with pytest.raises(ValueError, match="hash"):
                    fetch(b"other")
    wrong.check()


@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_an_archive_is_unpacked(kind, tmp_path, ddl_strategy):
    from suites.subject import keras

    wrong = Wrong()
    origin = tmp_path / f"packed.{kind}"
    archive(kind, origin)
    for form in ("auto", kind.partition(".")[0], ["tar", "zip"]):
        with wrong.of(form):
            folder = tmp_path / f"of {form}"
            folder.mkdir()
            options = {"cache_dir": str(folder), "extract": True, "archive_format": form}
            path = Path(keras.utils.get_file("all", origin.as_uri(), **options))
            found = {one.relative_to(path).as_posix(): one.read_bytes() for one in path.rglob("*") if one.is_file()}
            assert found == INSIDE
    with wrong.of("not unpacked"):
        path = Path(keras.utils.get_file("kept", origin.as_uri(), cache_dir=str(tmp_path)))
        assert path.read_bytes() == origin.read_bytes()
    wrong.check()
