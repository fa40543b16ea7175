"""Resolve references with git, and check out both versions into temporary folders, which are always removed."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pytest_ddl.bench.git import GitError, GitUnusableError, git, is_shallow
from pytest_ddl.cluster import session_folder

PREFIX = "ddl-gate-"
WORKTREE = "WORKTREE"
"""Name for HEAD that means the working tree as it is, with uncommitted and new files. ``.`` means the same."""


class GateUsageError(ValueError):
    """Raised if the gate cannot run as requested (exit status 2). The message names the argument and the fix."""


@contextmanager
def usage_errors(option: str = "") -> Iterator[None]:
    """Turn a ValueError in this context into a :class:`GateUsageError`, with a text before its message."""
    try:
        yield
    except ValueError as error:
        raise GateUsageError(f"{option}{error}") from None


@dataclass(frozen=True)
class Version:
    """Commit to measure."""

    given: str
    """Name from the user."""
    commit: str
    """Full hash. For a working tree, it is the hash of a commit made from it, which is on no branch."""
    tree: str
    """Hash of the content."""

    @property
    def short(self) -> str:
        return f"{self.given} ({self.commit[:10]})" if not self.commit.startswith(self.given) else self.commit[:10]


class Repository:
    """Git repository that holds both versions.

    :raises GateUsageError: if the folder is not in a git repository.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        if not folder.is_dir():
            raise GateUsageError(f"--repository={str(folder)!r} is not a folder")
        try:
            self.root = Path(self._git("rev-parse", "--show-toplevel")).resolve()
            self.prefix = self._git("rev-parse", "--show-prefix").rstrip("/")
        except GitError as error:
            raise GateUsageError(
                f"{folder.resolve()} is not in a git repository ({error.said}); run the gate in your project, or give "
                "--repository"
            ) from None

    def version(self, given: str) -> Version:
        """Find a commit by branch, tag, hash, or ``WORKTREE``.

        :raises GateUsageError: if there is no such commit.
        """
        try:
            commit = (
                self._snapshot()
                if given in (WORKTREE, ".")
                else self._git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{given}^{{commit}}")
            )
        except GitError as error:
            if given in (WORKTREE, "."):
                raise GateUsageError(f"{given}: the working tree cannot be read: {error.said}") from None
            hint = " (this clone is shallow: fetch its history, in GitHub Actions with fetch-depth: 0)"
            hint = hint if is_shallow(self._folder) else ""
            raise GateUsageError(f"{given!r} is no commit of {self.root}{hint}") from None
        return Version(given, commit, self._git("rev-parse", f"{commit}^{{tree}}"))

    def uncommitted(self) -> list[str]:
        """List the files that differ from the last commit, as ``git status`` reports them, without ignored ones."""
        return self._git("status", "--porcelain").splitlines()

    def lacking(self, base: Version, head: Version) -> tuple[int, str]:
        """Return how many commits of BASE are not in HEAD, and the last commit that both share, or an empty text.

        The count is 0 if the clone is too shallow to know it.
        """
        count = int(self._git("rev-list", "--count", f"{head.commit}..{base.commit}", "--"))
        try:
            return count, self._git("merge-base", base.commit, head.commit)
        except GitError:
            return (0 if is_shallow(self._folder) else count), ""

    def is_checked_out(self, version: Version) -> bool:
        """Return whether the working tree was made from this version."""
        return self._git("rev-parse", "HEAD") == version.commit

    def _snapshot(self) -> str:
        """Make a commit from the working tree and return its hash. Only the repository's object store changes."""
        git_folder = Path(self._git("rev-parse", "--absolute-git-dir"))
        index = git_folder / f"ddl-gate-index-{os.getpid()}"
        environ = {"GIT_INDEX_FILE": str(index)}
        try:
            self._git("read-tree", "HEAD", environ=environ)
            self._git("-C", str(self.root), "add", "--all", environ=environ)
            tree = self._git("write-tree", environ=environ)
        finally:
            for path in (index, index.with_name(index.name + ".lock")):
                path.unlink(missing_ok=True)
        identity = ["-c", "user.name=pytest-ddl", "-c", "user.email=pytest-ddl@localhost"]
        return self._git(*identity, "commit-tree", tree, "-p", "HEAD", "-m", "The working tree, for pytest-ddl gate")

    @contextmanager
    def checked_out(self, version: Version, folder: Path) -> Iterator[Path]:
        """Check out a version into its own folder, which is removed in any case at the end.

        The repository's hooks do not run, and files of Git LFS stay pointers.

        :raises GitError: if git cannot check out the version, for example because the disk is full.
        """
        try:
            try:
                self._git(
                    *("-c", f"core.hooksPath={os.devnull}", "worktree", "add", "--detach", "--quiet"),
                    *(str(folder), version.commit),
                    environ={"GIT_LFS_SKIP_SMUDGE": "1"},
                )
            except GitError as error:
                said = "; ".join(error.said.splitlines())
                raise GitError(f"git cannot check out {version.short} into {folder}: {said}") from None
            yield folder.resolve()
        finally:
            with contextlib.suppress(GitError):
                # ``--force`` twice, because neither a lock nor a program's files may prevent the removal.
                self._git("worktree", "remove", "--force", "--force", str(folder))

    def forget(self) -> None:
        """Make git forget worktrees of this gate or of a killed gate that could not be removed properly.

        ``git worktree prune`` would also forget the user's own worktrees on a drive that is not connected now.
        """
        with contextlib.suppress(GitError):
            for line in self._git("worktree", "list", "--porcelain").splitlines():
                key, _, path = line.partition(" ")
                if key == "worktree" and Path(path).parent.name.startswith(PREFIX) and not Path(path).exists():
                    self._git("worktree", "remove", "--force", "--force", path)

    def _git(self, *arguments: str, environ: dict[str, str] | None = None) -> str:
        try:
            return git(self._folder, *arguments, environ=environ)
        except GitUnusableError as error:
            raise GateUsageError(f"the gate needs git: {error}") from None


def check_different(base: Version, head: Version, same_is_meant: bool) -> None:
    """Refuse to compare a version with itself.

    :param same_is_meant: true if the environments of the interpreters differ, or if the gate itself is measured.
    :raises GateUsageError: if the content is the same; the message names both versions.
    """
    if base.tree == head.tree and not same_is_meant:
        same = "the same commit" if base.commit == head.commit else "commits with the same content"
        raise GateUsageError(
            f"BASE {base.short} and HEAD {head.short} are {same}, so there is nothing to compare. To measure "
            f"uncommitted changes give {WORKTREE} as HEAD; to compare releases of TensorFlow give the interpreter of "
            "another environment as --head-python; to measure the gate itself give --a-a"
        )


@contextmanager
def held_folder(kind: str = "") -> Iterator[Path]:
    """Make a temporary folder that exists as long as the context, and remove those of gates that were killed.

    A file in it is locked. The kernel releases the lock when the process ends for any reason. Unlike a process id,
    the lock means the same in all containers that share the folder.

    :param kind: part of the folder's name.
    """
    made, lock = session_folder.make(prefix=PREFIX, kind=kind)
    folder = Path(made).resolve()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)
