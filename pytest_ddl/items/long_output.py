"""Cut a long section of a report, and keep the whole text in a file that the report names."""

from __future__ import annotations

import re
from typing import Any

import pytest

LONGEST = 20_000
"""Characters of a section that are shown: half of them from its beginning, and half from its end."""


def shortened(config: pytest.Config, title: str, text: str) -> tuple[str, str]:
    """Return a section with at most :data:`LONGEST` characters of its text.

    The file is in pytest's folder of temporary files, which keeps those of the last runs. Without its plugin
    (``-p no:tmpdir``), or if the file cannot be written, nothing is cut.
    """
    # Outside of a fixture, pytest has no public way to this folder (private name: pytest 3.9 to 9.2).
    factory: Any = getattr(config, "_tmp_path_factory", None)
    if len(text) <= LONGEST or factory is None:
        return title, text
    try:
        path = factory.mktemp("output") / (re.sub(r"\W+", "-", title).strip("-") + ".txt")
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError:  # a full disk
        return title, text
    half = LONGEST // 2
    note = f"… {len(text) - 2 * half:,} characters are not shown. All {len(text):,} are in {path} …"
    return title, f"{text[:half].rstrip()}\n\n{note}\n\n{text[-half:].lstrip()}"
