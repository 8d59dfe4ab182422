"""Hooks of the site: pages of the repository's root, links that also work in the repository, and a complete menu.

On the site, a path is that of the repository without `docs/`, so README.md is the first page. A build fails if a page
shows other headings, lists, tables or code here than CommonMark has in it: the two dialects differ in blank lines.
"""

import logging
import posixpath
import re
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

logger = logging.getLogger("mkdocs.hooks")

ROOT = Path(__file__).parent
OF_THE_ROOT = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
PAGES = (".md", ".ipynb")
FIRST = ("README.md", "first-look.ipynb")
"""Pages of a folder that stand before its others."""
LINK = re.compile(r"(\]\()(?![a-z]+:|#)([^)#\s]+)")
COMMONMARK = MarkdownIt("commonmark").enable("table")
FROM_SOURCE = "\n::: "
COMPARED = ("h1", "h2", "h3", "h4", "li", "table", "tr", "pre", "img")


def on_config(config: MkDocsConfig) -> None:
    """Replace folders in the menu by their pages, and add the pages that it does not name to its last section."""
    docs = Path(config.docs_dir)
    pages = [str(path.relative_to(docs)) for path in sorted(docs.rglob("*")) if path.suffix in PAGES]
    nav: list[Any] = config.nav or []
    for section in nav:
        if isinstance(section, dict):
            for title, entry in section.items():
                if isinstance(entry, str) and entry.endswith("/"):
                    inside = [page for page in pages if posixpath.dirname(page) + "/" == entry]
                    section[title] = sorted(inside, key=lambda page: _place(posixpath.basename(page)))
    named = set(re.findall(r"[\w/.-]+\.(?:md|ipynb)", str(nav)))
    nav[-1]["More"] = [page for page in pages if page not in named]
    if not nav[-1]["More"]:
        nav.pop()


def on_files(files: Files, config: MkDocsConfig) -> None:
    for name in OF_THE_ROOT:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Turn links between files of the repository into links between pages of the site."""
    if not page.file.src_uri.endswith(".md"):
        return markdown
    here = posixpath.dirname(_in_repository(page.file.src_uri))
    there = posixpath.dirname(page.file.src_uri) or "."

    def rewritten(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(here, link[2]))
        return link[1] + posixpath.relpath(target.removeprefix("docs/"), there)

    return LINK.sub(rewritten, markdown)


def on_page_content(html: str, page: Page, **_: object) -> None:
    """Warn, so that `make docs` fails, if the page has another structure than on the repository's web page.

    The site shows more of a page with descriptions from the source.
    """
    if not page.file.src_uri.endswith(".md") or FROM_SOURCE in (page.markdown or ""):
        return
    expected = _counts(COMMONMARK.render(page.markdown or ""))
    if (counts := _counts(html)) != expected:
        differences = [
            f"{tag}: {expected[tag]}, here {counts[tag]}" for tag in COMPARED if counts[tag] != expected[tag]
        ]
        logger.warning(
            "%s has another structure on the site (%s): put a blank line before each list and table, and indent by "
            "four spaces in lists",
            _in_repository(page.file.src_uri),
            "; ".join(differences),
        )


def _counts(html: str) -> dict[str, int]:
    return {tag: len(re.findall(rf"<{tag}[\s>]", html)) for tag in COMPARED}


def _in_repository(path: str) -> str:
    return path if path in OF_THE_ROOT else f"docs/{path}"


def _place(name: str) -> tuple[int, str]:
    return (FIRST.index(name) if name in FIRST else len(FIRST), name)
