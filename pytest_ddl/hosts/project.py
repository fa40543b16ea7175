"""List the files of a project: what ``--ddl-sync`` copies to each host.

In a work tree of git, these are the files that git knows or would add. Elsewhere, they are all files without those of
caches, of hidden folders and of environments of Python.
"""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pytest_ddl.cluster.obstacles import LaunchError

MEGABYTE = 1_000_000
_NAMED = 5
"""Number of files that the message about too large files names."""


@dataclass(frozen=True)
class Project:
    """Folder whose files are copied, as the user has chosen it."""

    root: str
    """Absolute path of pytest's rootdir."""
    limit: float
    """Maximum size of all files in megabytes."""
    kept: tuple[str, ...] = ()
    """Absolute paths that are no part of the project, also if they are inside its folder."""

    @classmethod
    def of(cls, root: Path, limit: float, kept: Iterable[str]) -> Project:
        """Make a project. Of the paths to keep, only those inside the folder matter."""
        made = cls(os.path.abspath(root), limit)
        inside = (path for path in map(os.path.abspath, kept) if (made.relative(path) or ".") != ".")
        return cls(made.root, limit, tuple(dict.fromkeys(inside)))

    @property
    def aliases(self) -> tuple[str, ...]:
        """The path of the folder, and the one without symbolic links if that is another."""
        return tuple(dict.fromkeys((self.root, os.path.realpath(self.root))))

    def relative(self, path: str) -> str | None:
        """Return the path of a file inside the folder, or ``None`` if it is no part of the project."""
        if any(_is_below(path, kept) for kept in self.kept):
            return None
        return next((os.path.relpath(path, root) for root in self.aliases if _is_below(path, root)), None)

    def settled(self, path: str) -> str | None:
        """Return the path of a file inside the folder, without links to folders: those are copied as links."""
        real = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
        return self.relative(path) and (self.relative(real) or self.relative(path))

    def files(self, more: Iterable[str] = ()) -> list[str]:
        """Return the files and the symbolic links of the project, relative to its folder.

        :param more: absolute paths of files to add, such as modules that git ignores but a test has imported.
        :raises LaunchError: if git cannot list them, or if they are larger than the limit.
        """
        found = [*(_known_to_git(self.root) or _walked(self.root)), *filter(None, map(self.settled, more))]
        unnamed = next((path for path in found if not _is_text(path)), None)
        if unnamed is not None:
            raise LaunchError(
                f"--ddl-sync: the name of the file {unnamed!r} is not UTF-8: rename it, or let git ignore it"
            )
        whole = ((path, os.path.join(self.root, path)) for path in dict.fromkeys(found))
        chosen = [path for path, full in whole if self.relative(full) and _is_portable(full)]
        self._check_size(chosen)
        return sorted(chosen)

    def _check_size(self, paths: list[str]) -> None:
        sizes = {path: os.lstat(os.path.join(self.root, path)).st_size for path in paths}
        total = sum(sizes.values())
        if total > self.limit * MEGABYTE:
            largest = sorted(sizes, key=lambda path: -sizes[path])[:_NAMED]
            named = ", ".join(f"{path} ({sizes[path] / MEGABYTE:.1f} MB)" for path in largest)
            raise LaunchError(
                f"--ddl-sync: the {len(sizes)} files in {self.root} have {total / MEGABYTE:.1f} MB, and "
                f"--ddl-sync-limit={self.limit:g} is the maximum in MB; the largest are {named}: let .gitignore leave "
                "out what tests do not read, or raise --ddl-sync-limit"
            )


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def _is_portable(path: str) -> bool:
    """Return whether a path is a file or a symbolic link, and not deleted, a socket or the code of an import."""
    if path.endswith(".pyc"):
        return False
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) or stat.S_ISLNK(mode)


def _known_to_git(root: str) -> list[str]:
    """Return the files that git knows or would add, or none if the folder is in no work tree, or is ignored.

    :raises LaunchError: if git refuses to read the work tree.
    """
    options = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(["git", "-C", root, *options], capture_output=True)
    except FileNotFoundError:
        return []
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        if "not a git repository" in said:
            return []
        raise LaunchError(f"--ddl-sync: git does not list the files of {root}: {said.splitlines()[0] if said else ''}")
    names: list[str] = []
    for path in filter(None, os.fsdecode(done.stdout).split("\0")):
        whole = os.path.join(root, path)
        if os.path.isdir(whole) and not os.path.islink(whole):
            # A submodule, or a work tree of its own.
            names += (os.path.join(path, inner) for inner in _known_to_git(whole))
        else:
            names.append(path)
    return names


def _walked(root: str) -> Iterator[str]:
    for folder, inner, files in os.walk(root):
        links = [name for name in inner if os.path.islink(os.path.join(folder, name))]
        inner[:] = [name for name in inner if _is_read(folder, name) and name not in links]
        for name in (*files, *links):
            yield os.path.relpath(os.path.join(folder, name), root)


def _is_read(folder: str, name: str) -> bool:
    is_cache = name.startswith(".") or name in ("__pycache__", "node_modules")
    return not is_cache and not os.path.exists(os.path.join(folder, name, "pyvenv.cfg"))
