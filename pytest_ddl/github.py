"""Write to GitHub Actions: annotations on the pull request, and the summary of a step.

Source: GitHub Docs, "Workflow commands for GitHub Actions".
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal


def is_github(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether this is a job of GitHub Actions."""
    return environ.get("GITHUB_ACTIONS") == "true"


def annotation(
    level: Literal["error", "warning", "notice"], title: str, message: str, file: str = "", line: int | None = None
) -> str:
    """Return the workflow command that shows a message on the pull request, as one line with its line feed.

    :param file: path in the repository of the file to which the message belongs; empty for none.
    :param line: line in this file, counted from 1.
    """
    place = [f"file={_property(file)}"] if file else []
    place += [f"line={line}"] if file and line is not None else []
    return f"::{level} {','.join([*place, f'title={_property(title)}'])}::{_escaped(message)}\n"


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    # A colon or a comma would end the property.
    return _escaped(text).replace(":", "%3A").replace(",", "%2C")


def append_summary(text: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Append Markdown to the summary of this step, and return whether the step has one."""
    path = environ.get("GITHUB_STEP_SUMMARY")
    if not path:
        return False
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(text)
    return True
