"""Explanations of the kinds of findings and faults: the entries of the pages in docs/findings.

An entry has a heading, a line with its kinds in backticks, and the four `PARTS`. `traincope/findings` links to the
pages, so every installation has them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

PARTS = ("What it means", "How we know", "What to do", "How to check it worked")
FOLDER = "docs/findings"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One entry of a page."""

    kinds: tuple[str, ...]
    """The kinds of findings and faults that it explains, as in JSON."""
    title: str
    theme: str
    """Heading of the page."""
    page: str
    """File name of the page."""
    text: str
    """Markdown of the four parts, without links: these lead to other pages only in the repository."""

    @property
    def anchor(self) -> str:
        """Anchor of the heading, as GitHub makes it."""
        return re.sub(r"[^\w -]", "", self.title.lower()).replace(" ", "-")

    def part(self, name: str) -> str:
        """Markdown of one of the `PARTS`, without its name."""
        return re.split(r"^\*\*[^*]+\.\*\*\s", self.text, flags=re.MULTILINE)[1 + PARTS.index(name)].strip()

    @property
    def place(self) -> str:
        """Path in the repository, with the anchor."""
        return f"{FOLDER}/{self.page}#{self.anchor}"


@cache
def explanations() -> Mapping[str, Explanation]:
    """Kind -> its explanation, in the order of the pages' names."""
    pages = sorted((page for page in files("traincope").joinpath("findings").iterdir()), key=lambda page: page.name)
    read = (_entries(page.name, page.read_text(encoding="utf-8")) for page in pages if page.name.endswith(".md"))
    return {kind: entry for entries in read for entry in entries for kind in entry.kinds}


def _entries(page: str, text: str) -> tuple[Explanation, ...]:
    head, *entries = re.split(r"^## ", text, flags=re.MULTILINE)
    theme = head.partition("\n")[0].removeprefix("# ")
    return tuple(_entry(page, theme, entry) for entry in entries)


def _entry(page: str, theme: str, entry: str) -> Explanation:
    title, kinds, text = (part.strip() for part in entry.split("\n\n", 2))
    plain = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", text)
    return Explanation(kinds=tuple(re.findall(r"`(\w+)`", kinds)), title=title, theme=theme, page=page, text=plain)
