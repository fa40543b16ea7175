"""Read the style sheet that all pages share: colors for light and dark, text, tables, cards and charts."""

from __future__ import annotations

from importlib.resources import files

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""Content security policy of a page without scripts: a browser then loads nothing and runs nothing."""


def look() -> str:
    """Return the rules for the ``style`` element of a page. Its own rules follow them."""
    return files("pytest_ddl.web").joinpath("look.css").read_text(encoding="utf-8")
