"""Run git commands and return their output as text. All failures raise :class:`GitError`."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SECONDS = 120
"""Maximum time of a git command, in seconds."""
_OF_A_HOOK = ("GIT_DIR", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_WORK_TREE")
"""Variables that git sets for its hooks. With them, a command would read and write the user's index."""


class GitError(RuntimeError):
    """Raised if a git command fails. The message names the command and the folder."""

    def __init__(self, message: str, said: str = "") -> None:
        super().__init__(message)
        self.said = said or message
        """Message of git itself."""


class GitUnusableError(GitError):
    """Raised if git cannot be run, or does not answer in time."""


def git(folder: str | Path, *arguments: str, environ: Mapping[str, str] | None = None) -> str:
    """Run git in a folder and return its output, without line feeds at the end.

    Bytes that are not UTF-8 become surrogates, as in names of files.

    :raises GitError: if the command fails.
    :raises GitUnusableError: if it cannot be run, or takes more than ``SECONDS``.
    """
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            env={name: value for name, value in os.environ.items() if name not in _OF_A_HOOK} | dict(environ or {}),
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            timeout=SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except OSError as error:
        raise GitUnusableError(f"git cannot be run: {error}") from None
    except subprocess.TimeoutExpired:
        raise GitUnusableError(f"git {' '.join(arguments)} took more than {SECONDS} s") from None
    if done.returncode:
        said = done.stderr.strip() or f"exit status {done.returncode}"
        raise GitError(f"git {arguments[0]} in {folder} failed: {said}", said)
    return done.stdout.strip("\n")


@dataclass(frozen=True)
class GitLog:
    """Commits of one branch, oldest first, as hash and subject."""

    commits: tuple[tuple[str, str], ...]
    shallow: bool = False
    """True if the repository is a shallow clone, so that the branch is longer than it seems."""


def is_shallow(folder: str | Path) -> bool:
    """Return whether a repository is a clone without all of its history."""
    return git(folder, "rev-parse", "--is-shallow-repository") == "true"


def read_log(repository: Path, branch: str = "HEAD") -> GitLog:
    """Read the first-parent history of ``branch``, which asv puts on its axis.

    :raises GitError: if it is not a repository, or has no such branch.
    """
    out = git(repository, "log", "--first-parent", "--reverse", "--format=%H%x09%s", branch, "--")
    # A subject may have any encoding; it is only displayed.
    out = out.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    pairs = (line.partition("\t") for line in out.splitlines() if line)
    return GitLog(tuple((name, subject) for name, _, subject in pairs), is_shallow(repository))


def commit_url(repository: Path) -> str:
    """Return the URL to which a commit's hash is appended, or an empty string if the host is unknown.

    The remote ``origin`` must be on GitHub, GitLab, Codeberg or Bitbucket, whose commit pages have fixed paths.
    """
    try:
        remote = git(repository, "remote", "get-url", "origin").strip()
    except GitError:
        return ""
    match = re.fullmatch(r"(?:https://|ssh://git@|git@)(?:[^@/]*@)?([\w.-]+)[:/](.+?)(?:\.git)?/?", remote)
    if not match:
        return ""
    host, path = match.groups()
    middle = {"github.com": "commit", "gitlab.com": "-/commit", "codeberg.org": "commit", "bitbucket.org": "commits"}
    return f"https://{host}/{path}/{middle[host]}/" if host in middle else ""
