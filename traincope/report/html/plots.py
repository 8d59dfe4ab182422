"""Figures as JSON data that the page's script draws."""

from collections.abc import Mapping

from traincope.figures.drawing.serialization import Figure, figure_json, templates_json
from traincope.report.html.markup import Html, block, tag

JSON = "application/json"


def plot(figure: Figure, *, name: str, caption: str) -> Html:
    """A place for `figure` and its data; `caption` describes it, also for screen readers."""
    return choice({caption: figure}, name=name, caption=caption)


def choice(figures: Mapping[str, Figure], *, name: str, caption: str) -> Html:
    """One place for several figures with a drop-down; the first is drawn by default and printed."""
    options = [tag("option", title, value=f"{name}-{at}-figure") for at, title in enumerate(figures)]
    first = next(iter(figures.values()))
    return tag(
        "figure",
        tag(
            "figcaption",
            caption,
            tag("select", *options, data_place=name, aria_label=f"{caption}: scope", hidden=len(options) < 2),
        ),
        tag(
            "div",
            class_="plot",
            id=name,
            style=f"height:{first.layout.height}px",
            role="img",
            aria_label=caption,
            data_figure=f"{name}-0-figure",
        ),
        *(block(figure_json(each), kind=JSON, name=f"{name}-{at}-figure") for at, each in enumerate(figures.values())),
    )


def templates() -> Html:
    """The light and dark templates, for the page's script."""
    return block(templates_json(), kind=JSON, name="templates")
