"""The type of a page, and the request that it renders."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

from dash import html
from dash.development.base_component import Component

from traincope.analysis import Analysis
from traincope.errors import RunDirectoryError
from traincope.figures.drawing.themes import Figure, pixels
from traincope.report.schema import Document
from traincope.report.sections.source import Source
from traincope.tiles.storage import Tiles
from traincope.viewer.components import graph
from traincope.viewer.library.library import Library, Opened
from traincope.viewer.planning.searches import Searches
from traincope.viewer.view import View

T = TypeVar("T")


class Needs(Enum):
    """The part of a run that a page reads."""

    NOTHING = "nothing"
    TILES = "tiles"
    DOCUMENT = "document"
    ANALYSIS = "analysis"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request for a page: view, run, library, searches, theme and typed fields."""

    view: View
    opened: Opened
    library: Library
    theme: str
    """`light` or `dark`."""
    searches: Searches = field(default_factory=Searches)
    fields: Mapping[str, object] = field(default_factory=dict)
    """Parameter -> value of its field on the page."""

    @property
    def tiles(self) -> Tiles:
        """The tiles; like `document` and `analysis`, raises RunDirectoryError while they are being read."""
        return _ready(self.opened.tiles, self.opened)

    @property
    def document(self) -> Document:
        return _ready(self.opened.document, self.opened)

    @property
    def analysis(self) -> Analysis:
        return _ready(self.opened.analysis, self.opened)

    @property
    def source(self) -> Source:
        """The input of sections."""
        return Source(analysis=self.analysis, document=self.document)

    def graph(self, figure: Figure, *, id: str | dict[str, str] | None = None, **config: Any) -> Component:
        """A figure in the current theme; its height is reserved, so nothing below moves when it appears."""
        drawn = graph(figure, theme=self.theme, id=id, **config)
        return html.Div(drawn, style={"minHeight": f"{pixels(figure)}px"})


def _ready(value: T | None, opened: Opened) -> T:
    if value is None:
        raise RunDirectoryError(f"{opened.name} is still being read; try again in a moment")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page: one file in `pages`, listed in its registry."""

    slug: str
    title: str
    needs: Needs
    render: Callable[[Asked], Sequence[Component]]
    update: Callable[[Asked], Mapping[str, Mapping[str, object]] | None] | None = None
    """Returns component id -> properties to change for a new view; None renders the whole page again."""
