"""What a page is."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

from dash import html
from dash.development.base_component import Component

from traincope.analysis import Analysis
from traincope.errors import RunDirectoryError
from traincope.figures.themes import Figure, pixels
from traincope.report.schema import Document
from traincope.store.tiles import Tiles
from traincope.viewer.components import graph
from traincope.viewer.library import Library, Opened
from traincope.viewer.view import View

T = TypeVar("T")


class Needs(Enum):
    """What of a run has to be there before the page can be shown."""

    NOTHING = "nothing"
    TILES = "tiles"
    DOCUMENT = "document"
    ANALYSIS = "analysis"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a page is asked to show."""

    view: View
    opened: Opened
    library: Library
    theme: str
    """`light` or `dark`."""
    fields: Mapping[str, object] = field(default_factory=dict)
    """Parameter -> what its field on the page holds, as far as it was entered."""

    @property
    def tiles(self) -> Tiles:
        """Raises RunDirectoryError where they are not there yet, as the next two."""
        return _there(self.opened.tiles, self.opened)

    @property
    def document(self) -> Document:
        return _there(self.opened.document, self.opened)

    @property
    def analysis(self) -> Analysis:
        return _there(self.opened.analysis, self.opened)

    def graph(self, figure: Figure, *, id: str | dict[str, str] | None = None, **config: Any) -> Component:
        """On the asked paper; its room is there before it is drawn, so that nothing below moves."""
        drawn = graph(figure, theme=self.theme, id=id, **config)
        return html.Div(drawn, style={"minHeight": f"{pixels(figure)}px"})


def _there(found: T | None, opened: Opened) -> T:
    if found is None:
        raise RunDirectoryError(f"{opened.name} has not been read yet; look again in a moment")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One file in `pages`, listed in its registry."""

    slug: str
    title: str
    needs: Needs
    render: Callable[[Asked], Sequence[Component]]
    update: Callable[[Asked], Mapping[str, Mapping[str, object]] | None] | None = None
    """Id of a component -> properties to change when the view does; None: the page is rendered anew."""
