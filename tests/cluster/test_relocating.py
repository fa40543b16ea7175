"""Messages to a rank name the files of its copy, and its answers those of the pytest process."""

from __future__ import annotations

import os
import pickle
import sys
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from pytest_ddl.cluster import pickling, relocating
from pytest_ddl.cluster.relocating import FolderPlaces
from pytest_ddl.cluster.state import user_files
from pytest_ddl.cluster.worker import Worker

PLACES = FolderPlaces(("/home/ada/work", "/data/ada"), "/tmp/pytest-ddl-1/work", ("/home/ada/work/venv",))


@pytest.mark.parametrize(
    ("here", "there"),
    [
        ("/home/ada/work", "/tmp/pytest-ddl-1/work"),
        ("/home/ada/work/a.py", "/tmp/pytest-ddl-1/work/a.py"),
        ("/lib:/home/ada/work:/home/ada/work/b", "/lib:/tmp/pytest-ddl-1/work:/tmp/pytest-ddl-1/work/b"),
        ('File "/home/ada/work/a.py", line 3', 'File "/tmp/pytest-ddl-1/work/a.py", line 3'),
        ("file:///home/ada/work/a.py", "file:///tmp/pytest-ddl-1/work/a.py"),
        ("test_it.py::test[mirrored-/home/ada/work/a.npy]", "test_it.py::test[mirrored-/tmp/pytest-ddl-1/work/a.npy]"),
    ],
)
def test_paths_of_the_folder_change_and_change_back(here: str, there: str) -> None:
    assert PLACES.text_for_rank(here) == there
    assert PLACES.text_of_rank(there) == here


def test_a_folder_behind_a_link_is_the_same_folder() -> None:
    assert PLACES.text_for_rank("/data/ada/a.py") == "/tmp/pytest-ddl-1/work/a.py"


@pytest.mark.parametrize(
    "text",
    [
        "/home/ada/workshop",
        "/home/ada/work-2/a.py",
        "/home/ada/work.old",
        "/mnt/home/ada/work",
        "/home/ada/work/venv/lib/a.py",
        "/home/ada/work/venv",
    ],
)
def test_other_paths_stay(text: str) -> None:
    assert PLACES.text_for_rank(text) == text


def test_a_name_that_begins_like_a_kept_path_belongs_to_the_copy() -> None:
    assert PLACES.text_for_rank("/home/ada/work/venv2") == "/tmp/pytest-ddl-1/work/venv2"


def changed(value: Any) -> Any:
    return pickle.loads(PLACES.for_rank(relocating.dumps(value)))


def test_strings_paths_and_nested_messages_change() -> None:
    value = {
        "text": "/home/ada/work/a.py",
        "path": Path("/home/ada/work/b"),
        "bytes": os.fsencode("/home/ada/work/c"),
        "again": ["/home/ada/work/a.py", Path("/home/ada/work/b")],
        "nested": pickle.dumps(pickle.dumps("/home/ada/work/d")),
    }
    found = changed(value)
    copy = "/tmp/pytest-ddl-1/work"
    assert pickle.loads(pickle.loads(found.pop("nested"))) == f"{copy}/d"
    assert found == {
        "text": f"{copy}/a.py",
        "path": Path(f"{copy}/b"),
        "bytes": os.fsencode(f"{copy}/c"),
        "again": [f"{copy}/a.py", Path(f"{copy}/b")],
    }
    assert PLACES.of_rank(PLACES.for_rank(relocating.dumps(value))) != relocating.dumps(value)  # without frames
    back = pickle.loads(PLACES.of_rank(PLACES.for_rank(relocating.dumps(value))))
    assert back["text"] == value["text"]
    assert back["path"] == value["path"]


def test_other_values_stay_as_they_are() -> None:
    data = np.arange(100_000, dtype=np.float32)
    found = changed(("/home/ada/work", data, b"\x80 no pickle, but /home/ada/work.", 1.5, None, {"x": (1, 2)}))
    assert (found[1] == data).all()
    assert found[2:] == (b"\x80 no pickle, but /home/ada/work.", 1.5, None, {"x": (1, 2)})
    message = relocating.dumps(data)
    assert PLACES.for_rank(message) is message


def test_code_that_travels_by_value_names_its_file() -> None:
    compiled = compile("def function():\n    return PLACE\n", "/home/ada/work/a.py", "exec")
    space: dict[str, Any] = {"PLACE": Path("/home/ada/work/data"), "__name__": "__main__"}
    exec(compiled, space)
    function = pickle.loads(PLACES.for_rank(pickling.dumps(space["function"])))
    assert function.__code__.co_filename == "/tmp/pytest-ddl-1/work/a.py"
    assert function() == Path("/tmp/pytest-ddl-1/work/data")


def test_a_rank_learns_the_places_from_its_environment() -> None:
    assert FolderPlaces.of({relocating.PLACES: PLACES.in_words()}) == PLACES
    assert FolderPlaces.of({}) is None


def test_a_rank_that_runs_an_installed_package_in_place_of_the_copy_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker.__new__(Worker)
    file = str(tmp_path / "work" / "package_of_the_user" / "__init__.py")
    worker._modules = {"package_of_the_user": file, "never_imported": "x.py"}
    module = ModuleType("package_of_the_user")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    installed = f"{sysconfig.get_paths()['purelib']}/package_of_the_user/__init__.py"
    for found, agent, says in ((installed, None, False), (file, tmp_path, False), (installed, tmp_path, True)):
        module.__file__ = found
        monkeypatch.setattr(user_files, "_FOLDER", agent)
        failure = worker._other_code()
        assert (failure is not None) == says
    assert failure is not None
    assert (
        f"imported package_of_the_user from {installed}, an installed package, and not from {file}" in failure.message
    )
