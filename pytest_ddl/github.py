"""Write to GitHub Actions: annotations on the pull request, and the summary of a step.

Source: GitHub Docs, "Workflow commands for GitHub Actions".
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def is_github(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether this is a job of GitHub Actions."""
    return environ.get("GITHUB_ACTIONS") == "true"


def escaped(text: str) -> str:
    """Return a message for a workflow command, which must be one line."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def escaped_property(text: str) -> str:
    """Return a value for a property of a workflow command, for example ``title``."""
    return escaped(text).replace(":", "%3A").replace(",", "%2C")


def append_summary(text: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Append Markdown to the summary of this step, and return whether the step has one."""
    path = environ.get("GITHUB_STEP_SUMMARY")
    if not path:
        return False
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(text)
    return True
