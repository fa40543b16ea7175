"""Make a whole HTML document, with the shared look and the rules of these pages, and without scripts."""

from __future__ import annotations

from html import escape
from importlib.resources import files

from pytest_ddl.web.look import POLICY, look


def document(name: str, body: str) -> str:
    """Return an HTML document.

    :param name: title of the browser's window, as plain text.
    :param body: HTML.
    """
    own = files("pytest_ddl.pages").joinpath("page.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"<title>{escape(name)}</title>\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<link rel="icon" href="data:,">\n'
        f"<style>\n{look()}{own}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )
