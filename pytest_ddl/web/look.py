"""Make a whole HTML document with the style sheet that all pages share, without scripts."""

from __future__ import annotations

from html import escape
from importlib.resources import files

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""Content security policy of a page without scripts: a browser then loads nothing and runs nothing."""


def look() -> str:
    """Return the rules for the ``style`` element of a page. Its own rules follow them."""
    return files("pytest_ddl.web").joinpath("look.css").read_text(encoding="utf-8")


def document(title: str, body: str, rules: str = "") -> str:
    """Return an HTML document.

    :param title: title of the browser's window, as plain text.
    :param body: HTML.
    :param rules: CSS of this page only.
    """
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"<title>{escape(title)}</title>\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<link rel="icon" href="data:,">\n'
        f"<style>\n{look()}{rules}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )
