"""Hook of MkDocs: let the pages that are written for GitHub be pages of the site too.

On GitHub, pages link to files outside ``docs/``, and the API reference lists names. On the site, some of these files
become pages, links to the others become text, and the API reference shows the docstrings of the names.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

PAGES = {"README.md": "readme.md", "SECURITY.md": "security.md", "CHANGELOG.md": "changelog.md"}
"""Files of the repository that become pages of the site."""
_LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\[\]]*)\]\((?P<target>(?!https?:|#)[^)#\s]+)(?P<anchor>#[^)]*)?\)")
_API_TABLE = re.compile(r"<!-- table: api-[\w-]+ -->\n(.*?)<!-- end -->", re.DOTALL)
_API_ROW = re.compile(r"^\| `([\w.]+)` ", re.MULTILINE)
_CELL = re.compile(r"<td.*?</td>", re.DOTALL)
_ROLE = re.compile(r":(?:class|func|meth|mod|data|attr|exc):<code>(~?)([\w.]+)</code>")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are written outside ``docs/``."""
    for name, uri in PAGES.items():
        text = (_root(config) / name).read_text(encoding="utf-8")
        files.append(File.generated(config, uri, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links to files outside ``docs/``, and put docstrings below the tables of the API reference."""
    uri = page.file.src_uri
    written_in = next((name for name, site in PAGES.items() if site == uri), f"docs/{uri}")

    def rewrite(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(written_in), match["target"]))
        site = PAGES.get(target) or (target.removeprefix("docs/") if target.startswith("docs/") else "")
        if site:
            address = posixpath.relpath(site, posixpath.dirname(uri))
            return f"{match['image']}[{match['text']}]({address}{match['anchor'] or ''})"
        # A link that leads nowhere stays, so that the strict build fails.
        return match["text"] if (_root(config) / target).exists() else match[0]

    return _API_TABLE.sub(_with_docstrings, _LINK.sub(rewrite, markdown))


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn cross-references of docstrings, which are written for Sphinx, into links, and correct cells of tables."""

    def link(match: re.Match[str]) -> str:
        shown = match[2].rpartition(".")[2] if match[1] else match[2]
        return f'<autoref identifier="{match[2]}" optional><code>{shown}</code></autoref>'

    # GitHub needs a backslash before a bar in a cell. Python-Markdown shows it if the bar is in code.
    return _CELL.sub(lambda match: match[0].replace(r"\|", "|"), _ROLE.sub(link, html))


def _with_docstrings(match: re.Match[str]) -> str:
    directives = "\n".join(f"::: {name}\n" for name in _API_ROW.findall(match[1]))
    rows = _API_ROW.sub(r"| [`\1`][\1] ", match[1])
    return f"{rows}\n{directives}"


def _root(config: MkDocsConfig) -> Path:
    return Path(config.config_file_path).parent
