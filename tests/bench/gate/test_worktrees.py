"""Versions from a repository: found, checked out and removed again, or refused with the fix."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ddl.bench.gate.worktrees import Repository, check_different
from pytest_ddl.bench.git import GitError
from pytest_ddl.bench.outcome import UsageError
from tests.bench.gate.repositories import git


def test_commits_are_found_by_branch_tag_and_hash(project: Path) -> None:
    repository = Repository(project)
    main = repository.version("main")
    assert repository.version("v2").commit == main.commit == repository.version(main.commit[:8]).commit
    assert repository.version("main~1").tree != main.tree


def test_a_version_is_checked_out_and_removed(project: Path, tmp_path: Path) -> None:
    repository = Repository(project)
    with repository.checked_out(repository.version("main~1"), tmp_path / "base") as root:
        assert (root / "train.py").read_text() == "one = 1\n"
    assert not (tmp_path / "base").exists()
    assert len(git(project, "worktree", "list").splitlines()) == 1


def test_it_is_removed_after_an_error_with_what_was_written_there(project: Path, tmp_path: Path) -> None:
    repository = Repository(project)

    def fail() -> None:
        with repository.checked_out(repository.version("main"), tmp_path / "base") as root:
            (root / "train.py").write_text("changed\n")
            (root / "cache").mkdir()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert not (tmp_path / "base").exists()
    assert len(git(project, "worktree", "list").splitlines()) == 1


def test_what_is_staged_stays_so_in_a_hook_of_git(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "new.py").write_text("staged = 1\n")
    git(project, "add", "new.py")
    with monkeypatch.context() as hook:
        # As pre-commit has it of "git commit -a"; it is relative of a plain "git commit".
        hook.setenv("GIT_INDEX_FILE", str(project / ".git" / "index"))
        repository = Repository(project)
        with repository.checked_out(repository.version("main"), tmp_path / "head") as root:
            assert (root / "train.py").exists()
    assert git(project, "status", "--porcelain") == "A  new.py"


def test_hooks_of_the_repository_do_not_run(project: Path, tmp_path: Path) -> None:
    hook = project / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)
    repository = Repository(project)
    with repository.checked_out(repository.version("main"), tmp_path / "head") as root:
        assert (root / "train.py").exists()


def test_a_version_that_cannot_be_checked_out_is_named(project: Path, tmp_path: Path) -> None:
    """A full disk, or a filter that is not installed, can prevent a checkout."""
    (project / ".gitattributes").write_text("train.py filter=gate\n")
    git(project, "add", "-A")
    git(project, "commit", "-qm", "filtered")
    git(project, "config", "filter.gate.required", "true")
    git(project, "config", "filter.gate.smudge", "false")
    repository = Repository(project)
    with (
        pytest.raises(GitError, match=r"git cannot check out main \(\w+\) into .*smudge"),
        repository.checked_out(repository.version("main"), tmp_path / "head"),
    ):
        pass
    assert len(git(project, "worktree", "list").splitlines()) == 1


@pytest.mark.parametrize("name", ["WORKTREE", "."])
def test_the_working_tree_is_measured_as_it_is(project: Path, tmp_path: Path, name: str) -> None:
    (project / "train.py").write_text("three = 3\n")
    (project / "new.py").write_text("new = 1\n")
    (project / "secret.txt").write_text("ignored\n")
    before = git(project, "status", "--porcelain"), git(project, "stash", "list"), git(project, "rev-parse", "HEAD")
    repository = Repository(project)
    version = repository.version(name)
    with repository.checked_out(version, tmp_path / "head") as root:
        assert (root / "train.py").read_text() == "three = 3\n"
        assert (root / "new.py").exists()
        assert not (root / "secret.txt").exists()
    after = git(project, "status", "--porcelain"), git(project, "stash", "list"), git(project, "rev-parse", "HEAD")
    assert before == after
    assert not list((project / ".git").glob("ddl-gate*"))
    assert len(repository.uncommitted()) == 2


def test_the_same_content_twice_is_refused(project: Path) -> None:
    repository = Repository(project)
    main = repository.version("main")
    for head in (main, repository.version("v2"), repository.version("WORKTREE")):
        with pytest.raises(UsageError, match=r"nothing to compare.*WORKTREE.*--head-python"):
            check_different(main, head, same_is_meant=False)
        check_different(main, head, same_is_meant=True)
    check_different(repository.version("main~1"), main, same_is_meant=False)


def test_what_is_no_commit_is_refused(project: Path) -> None:
    for name in ("nonsense", "main~99", "--help", "HEAD:train.py"):
        with pytest.raises(UsageError, match="is no commit of"):
            Repository(project).version(name)


def test_a_shallow_clone_is_named(project: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{project}", "shallow")
    with pytest.raises(UsageError, match="fetch-depth: 0"):
        Repository(tmp_path / "shallow").version("HEAD~1")


def test_commits_that_head_lacks_are_counted_where_the_clone_can_tell(project: Path, tmp_path: Path) -> None:
    repository = Repository(project)
    one, two = repository.version("main~1"), repository.version("main")
    assert repository.lacking(one, two) == (0, one.commit)
    assert repository.lacking(two, one) == (1, one.commit)
    git(project, "checkout", "-q", "-b", "topic", "main~1")
    (project / "train.py").write_text("three = 3\n")
    git(project, "commit", "-qam", "three")
    git(tmp_path, "clone", "-q", "--depth", "1", "--no-single-branch", f"file://{project}", "shallow")
    shallow = Repository(tmp_path / "shallow")
    assert shallow.lacking(shallow.version("origin/main"), shallow.version("topic")) == (0, "")
    git(project, "checkout", "-q", "--orphan", "other")
    git(project, "commit", "-qam", "unrelated")
    assert repository.lacking(two, repository.version("other")) == (2, "")


def test_a_folder_without_a_repository_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(UsageError, match=r"not in a git repository.*--repository"):
        Repository(tmp_path)
    with pytest.raises(UsageError, match="is not a folder"):
        Repository(tmp_path / "missing")


def test_git_that_is_missing_is_named(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UsageError, match="needs git"):
        Repository(project)
