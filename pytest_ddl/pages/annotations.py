"""Write an annotation for each failed comparison, so that GitHub shows it beside the line in the pull request."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from pytest_ddl import github
from pytest_ddl.pages.facts import Facts


def annotation(
    facts: Facts, root: Path, location: tuple[str, int | None, str], environ: Mapping[str, str] = os.environ
) -> str:
    """Return the workflow command for a failed comparison, as one line.

    :param root: root folder of pytest, to which the location of the test is relative.
    :param location: file, line (from 0) and name of the test, which stand in for an unknown line of the program.
    """
    repository = Path(environ.get("GITHUB_WORKSPACE") or root)
    file = _in_repository(Path(facts.file), repository) if facts.file else None
    line: int | None = facts.line
    if file is None:
        file, line = _in_repository(root / location[0], repository), (location[1] or 0) + 1
    text = "\n".join(filter(None, [facts.headline, f"fix: {facts.fix}" if facts.fix else "", facts.test]))
    title = f"{facts.cause or facts.verdict}: {facts.strategy}"
    return github.annotation("error", title, text, file or "", line).rstrip("\n")


def _in_repository(path: Path, repository: Path) -> str | None:
    """Return a path relative to the repository, or ``None`` if the file is elsewhere."""
    whole = Path(os.path.abspath(path))
    return str(whole.relative_to(repository)) if whole.is_relative_to(repository) else None
