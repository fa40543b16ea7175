"""The file of an evaluation: never half written, continued only if everything is equal."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_ddl.bench.evaluating import store
from pytest_ddl.bench.outcome import UsageError
from tests.bench.evaluating.synthetic import evaluation, identity, options


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    store.save(evaluation(), tmp_path / "new" / "folder")
    assert store.load(tmp_path / "new" / "folder") == evaluation()
    assert [path.name for path in (tmp_path / "new" / "folder").iterdir()] == [store.FILE]


def test_a_write_that_fails_leaves_the_older_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.save(evaluation(), tmp_path)

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        store.save(replace(evaluation(), seconds=999.0), tmp_path)
    assert store.load(tmp_path) == evaluation()
    assert [path.name for path in tmp_path.iterdir()] == [store.FILE]


def test_numbers_that_are_not_finite_are_no_number_in_the_file(tmp_path: Path) -> None:
    one = evaluation()
    broken = replace(one.curves[0], values={"test_loss": ((4, float("nan")),)})
    store.save(replace(one, curves=(broken,)), tmp_path)
    text = (tmp_path / store.FILE).read_text(encoding="utf-8")
    assert json.loads(text, parse_constant=pytest.fail)["curves"][0]["values"] == {"test_loss": [[4, None]]}
    loaded = store.load(tmp_path)
    assert loaded is not None
    assert str(loaded.curves[0].values["test_loss"][0][1]) == "nan"


def test_an_evaluation_continues_if_everything_is_equal(tmp_path: Path) -> None:
    assert store.continued(tmp_path, identity()) is None
    store.save(evaluation(), tmp_path)
    assert store.continued(tmp_path, identity()) == evaluation()


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (identity(digest="def"), "the program has changed"),
        (identity(options=options(batch=64)), "batch 32 → 64"),
        (identity(versions={"tensorflow": "2.20.0", "python": "3.11.2"}), "tensorflow 2.21.0 → 2.20.0"),
        (identity(machine={"host": "there", "cores": "2"}), "host here → there"),
    ],
)
def test_another_evaluation_is_refused_in_one_line(other: store.Identity, words: str, tmp_path: Path) -> None:
    store.save(evaluation(), tmp_path)
    with pytest.raises(UsageError, match=words) as found:
        store.continued(tmp_path, other)
    assert "--restart" in str(found.value)
    assert "\n" not in str(found.value)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / store.FILE).write_text("{")
    with pytest.raises(UsageError, match="--restart to replace it"):
        store.continued(tmp_path, identity())


def test_the_digest_depends_on_the_contents_only(tmp_path: Path) -> None:
    first, second = tmp_path / "a.py", tmp_path / "sub" / "b.py"
    second.parent.mkdir()
    first.write_text("x = 1")
    second.write_text("y = 1")
    digest = store.digest_of_files([first, second])
    assert digest == store.digest_of_files([second, first])
    second.write_text("y = 2")
    assert digest != store.digest_of_files([first, second])
