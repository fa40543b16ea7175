"""Read the commits of a branch from git: their order, their subjects, and links to them."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path


class GitError(Exception):
    """Raised if the repository cannot be read. The message contains git's own message, if there is one."""


@dataclass(frozen=True)
class GitLog:
    """Commits of one branch, oldest first, as hash and subject."""

    commits: tuple[tuple[str, str], ...]
    shallow: bool = False
    """True if the repository is a shallow clone, so that the branch is longer than it seems."""


def read_log(repository: Path, branch: str = "HEAD") -> GitLog:
    """Read the first-parent history of ``branch``, which asv puts on its axis.

    :raises GitError: if it is not a repository, or has no such branch.
    """
    out = _git(repository, "log", "--first-parent", "--reverse", "--format=%H%x09%s", branch, "--")
    pairs = (line.partition("\t") for line in out.splitlines() if line)
    shallow = _git(repository, "rev-parse", "--is-shallow-repository").strip() == "true"
    return GitLog(tuple((name, subject) for name, _, subject in pairs), shallow)


def commit_url(repository: Path) -> str:
    """Return the URL to which a commit's hash is appended, or an empty string if the host is unknown.

    The remote ``origin`` must be on GitHub, GitLab, Codeberg or Bitbucket, whose commit pages have fixed paths.
    """
    try:
        remote = _git(repository, "remote", "get-url", "origin").strip()
    except GitError:
        return ""
    match = re.fullmatch(r"(?:https://|ssh://git@|git@)(?:[^@/]*@)?([\w.-]+)[:/](.+?)(?:\.git)?/?", remote)
    if not match:
        return ""
    host, path = match.groups()
    middle = {"github.com": "commit", "gitlab.com": "-/commit", "codeberg.org": "commit", "bitbucket.org": "commits"}
    return f"https://{host}/{path}/{middle[host]}/" if host in middle else ""


def _git(repository: Path, *arguments: str) -> str:
    command = ["git", "-C", str(repository), *arguments]
    try:
        # A subject may have any encoding; invalid characters may be replaced, because it is only displayed.
        done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", check=True, timeout=60)
    except FileNotFoundError as error:
        raise GitError("git is not installed; without it, leave --repository out") from error
    except subprocess.CalledProcessError as error:
        raise GitError(f"git {arguments[0]} in {repository} failed: {error.stderr.strip()}") from error
    except subprocess.TimeoutExpired as error:
        raise GitError(f"git {arguments[0]} in {repository} took more than 60 s") from error
    return done.stdout
