"""Check out both versions into folders that are always removed, and choose the pytest-ddl that measures each."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest_ddl
from pytest_ddl.bench.gate.plan import GatePlan
from pytest_ddl.bench.gate.side import PROTOCOL
from pytest_ddl.bench.gate.sides import SCRIPT, Side
from pytest_ddl.bench.git import GitError, GitUnusableError, git, is_shallow
from pytest_ddl.bench.outcome import UsageError
from pytest_ddl.cluster import session_folder

PREFIX = "ddl-gate-"
WORKTREE = "WORKTREE"
"""Name for HEAD that means the working tree as it is, with uncommitted and new files. ``.`` means the same."""


@contextmanager
def usage_errors(option: str = "") -> Iterator[None]:
    """Turn a ValueError in this context into a :class:`UsageError`, with a text before its message."""
    try:
        yield
    except ValueError as error:
        raise UsageError(f"{option}{error}") from None


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

    :raises UsageError: if the folder is not in a git repository.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        if not folder.is_dir():
            raise UsageError(f"--repository={str(folder)!r} is not a folder")
        try:
            self.root = Path(self._git("rev-parse", "--show-toplevel")).resolve()
            self.prefix = self._git("rev-parse", "--show-prefix").rstrip("/")
        except GitError as error:
            raise UsageError(
                f"{folder.resolve()} is not in a git repository ({error.said}); run the gate in your project, or give "
                "--repository"
            ) from None

    def version(self, given: str) -> Version:
        """Find a commit by branch, tag, hash, or ``WORKTREE``.

        :raises UsageError: if there is no such commit.
        """
        try:
            commit = (
                self._snapshot()
                if given in (WORKTREE, ".")
                else self._git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{given}^{{commit}}")
            )
        except GitError as error:
            if given in (WORKTREE, "."):
                raise UsageError(f"{given}: the working tree cannot be read: {error.said}") from None
            hint = " (this clone is shallow: fetch its history, in GitHub Actions with fetch-depth: 0)"
            hint = hint if is_shallow(self._folder) else ""
            raise UsageError(f"{given!r} is no commit of {self.root}{hint}") from None
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
            raise UsageError(f"the gate needs git: {error}") from None


def check_different(base: Version, head: Version, same_is_meant: bool) -> None:
    """Refuse to compare a version with itself.

    :param same_is_meant: true if the environments of the interpreters differ, or if the gate itself is measured.
    :raises UsageError: if the content is the same; the message names both versions.
    """
    if base.tree == head.tree and not same_is_meant:
        same = "the same commit" if base.commit == head.commit else "commits with the same content"
        raise UsageError(
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


_START = """import sys
from pytest_ddl.bench.gate.side import main
sys.exit(main())
"""


@contextmanager
def both_sides(
    plan: GatePlan, repository: Repository, base: Version, head: Version
) -> Iterator[tuple[Side, Side, list[str]]]:
    """Check out both versions, and yield their sides with notes for the reader.

    :raises UsageError: if the plan does not fit the versions.
    """
    with ExitStack() as stack:
        stack.callback(repository.forget)
        folder = stack.enter_context(held_folder())
        roots = [
            stack.enter_context(repository.checked_out(version, folder / name))
            for name, version in (("base", base), ("head", head))
        ]
        own, notes = _measures_itself(plan.instrument, roots)
        instrument = write_instrument(folder, own)
        package = Path(pytest_ddl.__file__).resolve()
        sides = [
            Side(
                name,
                version.commit,
                root,
                _paths(root, plan.paths, repository.prefix),
                repository.root,
                instrument,
                root / "pytest_ddl" / "__init__.py" if own else package,
                # Made absolute here, because a side starts in another folder. Links are not resolved, because the
                # link in a venv selects its environment.
                str(Path(shutil.which(python) or python).absolute()),
            )
            for name, version, root, python in zip(
                ("BASE", "HEAD"), (base, head), roots, (plan.base_python, plan.head_python), strict=True
            )
        ]
        yield sides[0], sides[1], notes


def write_instrument(folder: Path, own: bool) -> Path:
    """Make a folder with the script that starts a side, and return it.

    :param own: true if each version has its own pytest-ddl. Otherwise the folder also links to the running one.
    """
    instrument = folder / "instrument"
    instrument.mkdir()
    (instrument / SCRIPT).write_text(_START, encoding="utf-8")
    if not own:
        # Only this package: others in the same folder must not shadow those of the side's interpreter.
        (instrument / "pytest_ddl").symlink_to(Path(pytest_ddl.__file__).resolve().parent)
    return instrument


def _measures_itself(instrument: str, roots: Sequence[Path]) -> tuple[bool, list[str]]:
    """Return whether each version is measured by its own pytest-ddl, and notes for the reader.

    :raises UsageError: if the user asked for this, but a version has no pytest-ddl with the protocol of this gate.
    """
    spoken = {root.name.upper(): _protocol(root) for root in roots}
    lacking = " and ".join(name for name, protocol in spoken.items() if protocol is None)
    strange = " and ".join(name for name, protocol in spoken.items() if protocol not in (None, PROTOCOL))
    if instrument == "version" and lacking:
        raise UsageError(f"--instrument=version: {lacking} does not contain a pytest-ddl with a gate")
    if instrument == "version" and strange:
        raise UsageError(f"--instrument=version: the pytest-ddl of {strange} uses another protocol than this one")
    if instrument == "gate" or lacking:
        return False, []
    if strange:
        return False, [f"both versions are measured by this pytest-ddl: that of {strange} uses another protocol"]
    return True, ["each version is measured by its own pytest-ddl"]


def _protocol(root: Path) -> int | None:
    """Return the gate protocol of a version's own pytest-ddl, or ``None`` if it has none."""
    file = root / "pytest_ddl" / "bench" / "gate" / "side.py"
    match = re.search(r"^PROTOCOL = (\d+)$", file.read_text(encoding="utf-8"), re.MULTILINE) if file.is_file() else None
    return int(match[1]) if match else None


def _paths(root: Path, given: Sequence[str], prefix: str) -> tuple[Path, ...]:
    """Return the folders of a version from which modules are imported.

    :raises UsageError: if a given path is not a folder of the version.
    """
    if given:
        for path in given:
            if not (root / path).is_dir() or Path(path).is_absolute():
                raise UsageError(f"--path={path!r} is no folder of {root.name.upper()} (relative to its root)")
        return tuple((root / path).resolve() for path in given)
    usual = dict.fromkeys([root / prefix, root / prefix / "src", root, root / "src"])
    return tuple(path.resolve() for path in usual if path.is_dir())
