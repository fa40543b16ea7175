"""The files that ``--ddl-sync`` copies, and how a host takes them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from pytest_ddl.cluster.obstacles import LaunchError
from pytest_ddl.config import UsageError, resolve_without_pytest
from pytest_ddl.harness import Harness
from pytest_ddl.hosts import copies, questions
from pytest_ddl.hosts.project import Project
from pytest_ddl.hosts.transports.registry import built_in_transports
from pytest_ddl.launchers import chosen_launcher
from pytest_ddl.strategies.registry import StrategyRegistry


def write(root: Path, *names: str, size: int = 1) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(bytes(size))


def git(root: Path, *command: str) -> None:
    subprocess.run(["git", "-C", str(root), "-c", "user.name=a", "-c", "user.email=a@b.c", *command], check=True)


def test_git_says_which_files_belong_to_a_work_tree(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    write(tmp_path, "known.py", "gone.py", "sub/other.py", "ignored/data.bin", "__pycache__/known.pyc", ".coveragerc")
    (tmp_path / ".gitignore").write_text("ignored/\n")
    git(tmp_path, "add", "known.py", "gone.py")
    (tmp_path / "gone.py").unlink()
    found = Project.of(tmp_path, 1, ()).files()
    assert found == [".coveragerc", ".gitignore", "known.py", "sub/other.py"]
    # An imported module counts, also if git ignores it, such as one with the version.
    more = [str(tmp_path / "ignored" / "data.bin"), "/elsewhere/module.py"]
    assert "ignored/data.bin" in Project.of(tmp_path, 1, ()).files(more)
    # A folder inside a work tree has its own files only; one that git ignores has all.
    assert Project.of(tmp_path / "sub", 1, ()).files() == ["other.py"]
    assert Project.of(tmp_path / "ignored", 1, ()).files() == ["data.bin"]


def test_a_work_tree_inside_another_is_listed_too(tmp_path: Path) -> None:
    write(tmp_path, "a.py", "inner/b.py")
    for root in (tmp_path, tmp_path / "inner"):
        git(root, "init", "-q")
    git(tmp_path / "inner", "add", ".")
    git(tmp_path / "inner", "commit", "-qm", "first")
    assert Project.of(tmp_path, 1, ()).files() == ["a.py", "inner/b.py"]


def test_a_work_tree_that_git_refuses_is_an_error(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / ".git" / "config").write_text("[core\n")
    with pytest.raises(LaunchError, match=r"^--ddl-sync: git does not list the files of .*: fatal: bad config"):
        Project.of(tmp_path, 1, ()).files()


def test_caches_hidden_folders_and_environments_are_left_out_elsewhere(tmp_path: Path) -> None:
    write(tmp_path, "a.py", "sub/b.txt", ".env.toml", ".cache/c", "__pycache__/d.pyc", "sub/e.pyc", "node_modules/f.js")
    write(tmp_path, "env/pyvenv.cfg", "env/lib/g.py", "kept/h.py")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("sub")
    project = Project.of(tmp_path, 1, [str(tmp_path / "kept"), "/usr", str(tmp_path), str(tmp_path.parent)])
    assert project.kept == (str(tmp_path / "kept"),)
    assert project.files() == [".env.toml", "a.py", "link", "sub/b.txt"]


def test_the_largest_files_are_named_if_all_are_too_large(tmp_path: Path) -> None:
    for index in range(7):
        write(tmp_path, f"data{index}.bin", size=200_000 + index * 100_000)
    assert len(Project.of(tmp_path, 3.6, ()).files()) == 7
    with pytest.raises(LaunchError) as raised:
        Project.of(tmp_path, 3.4, ()).files()
    assert str(raised.value) == (
        f"--ddl-sync: the 7 files in {tmp_path} have 3.5 MB, and --ddl-sync-limit=3.4 is the maximum in MB; the "
        "largest are data6.bin (0.8 MB), data5.bin (0.7 MB), data4.bin (0.6 MB), data3.bin (0.5 MB), data2.bin (0.4 "
        "MB): let .gitignore leave out what tests do not read, or raise --ddl-sync-limit"
    )


def test_a_path_behind_a_link_is_inside_the_folder(tmp_path: Path) -> None:
    write(tmp_path, "real/a.py")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    project = Project.of(tmp_path / "link", 1, ())
    assert project.aliases == (str(tmp_path / "link"), str(tmp_path / "real"))
    assert project.relative(str(tmp_path / "real" / "a.py")) == "a.py"
    assert project.relative(str(tmp_path / "realm" / "a.py")) is None


def test_a_module_behind_a_link_to_a_folder_does_not_take_its_place(tmp_path: Path) -> None:
    write(tmp_path, "src/package/__init__.py")
    (tmp_path / "package").symlink_to("src/package")
    project = Project.of(tmp_path, 1, ())
    assert project.settled(str(tmp_path / "package" / "__init__.py")) == "src/package/__init__.py"
    found = project.files([str(tmp_path / "package" / "__init__.py")])
    assert found == ["package", "src/package/__init__.py"]


def test_a_name_that_no_message_can_carry_is_refused(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"caf\xe9.txt")).write_text("")
    with pytest.raises(LaunchError, match=r"^--ddl-sync: the name of the file 'caf.*\.txt' is not UTF-8"):
        Project.of(tmp_path, 1, ()).files()


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (
            {"PYTEST_DDL_SYNC": "1"},
            r"^--ddl-sync=True \(from PYTEST_DDL_SYNC\): the launcher local runs where the files",
        ),
        ({"PYTEST_DDL_SYNC_LIMIT": "0"}, r"^--ddl-sync-limit='0' .*: '0' is not a positive number of megabytes, for"),
        ({"PYTEST_DDL_SYNC_LIMIT": "much"}, r"'much' is not a positive number of megabytes"),
    ],
)
def test_a_wrong_option_is_named(environ: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Harness(resolve_without_pytest(environ), StrategyRegistry(), {"local": lambda *_: None}).check_launcher()


def test_the_options_say_what_is_copied(tmp_path: Path) -> None:
    settings = resolve_without_pytest({"PYTEST_DDL_SYNC": "1", "PYTEST_DDL_SYNC_LIMIT": "7"})
    harness = Harness(settings, StrategyRegistry(), {}, folder=tmp_path / "session", root=tmp_path)
    project = harness._project()
    assert (project.root, project.limit) == (str(tmp_path), 7.0)
    assert str(tmp_path / "session") in project.kept


@pytest.mark.parametrize("sync", ["", "1"])
def test_a_project_is_copied_only_if_the_user_wants_it(sync: str) -> None:
    asked: list[str] = []
    settings = resolve_without_pytest(
        {"PYTEST_DDL_LAUNCHER": "ssh", "PYTEST_DDL_HOSTS": "a,b", "PYTEST_DDL_SYNC": sync}
    )
    chosen_launcher(settings, {}, built_in_transports(), lambda: asked.append("project"))  # type: ignore[arg-type, return-value]
    assert asked == ["project"] * bool(sync)


def test_one_folder_has_one_fingerprint_and_a_copy_has_another(tmp_path: Path) -> None:
    write(tmp_path, "a/file", "b/file")
    first = copies.fingerprint(str(tmp_path / "a"), ["file"])
    assert first == copies.fingerprint(str(tmp_path / "a"), ["file"])
    assert first != copies.fingerprint(str(tmp_path / "b"), ["file"])
    assert copies.fingerprint(str(tmp_path / "a"), ["file", "missing"]) == ""
    write(tmp_path, "a/file", size=2)
    assert first != copies.fingerprint(str(tmp_path / "a"), ["file"])


def test_a_host_takes_what_it_has_and_lacks_the_rest(tmp_path: Path) -> None:
    here, copy = tmp_path / "here", tmp_path / "copy"
    write(here, "same.py", "sub/other.py")
    write(here, "large.bin", size=3_000_000)
    digests = {name: questions.digest_of(str(here / name)) for name in ("same.py", "sub/other.py", "large.bin")}
    (here / "sub" / "other.py").write_text("an older version")
    (here / "large.bin").unlink()
    assert copies.lacking(str(copy), str(here), digests) == ["sub/other.py", "large.bin"]
    copies.write(str(copy), [("large.bin", 2_000_000, bytes(1_000_000)), ("sub/other.py", 0, b"\0")])
    files = {name: (digest, 0o755) for name, digest in digests.items()}
    files["large.bin"] = (digests["large.bin"], 0o444)
    copies.write(str(copy), [("large.bin", 0, bytes(1_000_000))])
    assert copies.finish(str(copy), files, {"link": "sub/other.py"}) == []
    assert (copy / "link").read_bytes() == b"\0"
    assert os.stat(copy / "same.py").st_mode & 0o777 == 0o755
    # A file that another process changes meanwhile is found.
    (copy / "same.py").write_text("changed")
    assert copies.finish(str(copy), files, {}) == ["same.py"]
    assert copies.lacking(str(copy), str(here), {"same.py": digests["same.py"]}) == []


def test_the_folder_of_a_session_is_removed_with_the_last_agent(tmp_path: Path) -> None:
    session = tmp_path / "pytest-ddl-1"
    copies.begin(str(session), [str(session / "project" / "sub")])
    first = copies._holding.pop()
    copies.begin(str(session), [])
    assert (session / "project" / "sub").is_dir()
    copies.close()
    assert session.is_dir()
    copies._holding.append(first)
    copies.close()
    assert not session.exists()
