"""Figures as data that the page's script draws."""

from collections.abc import Mapping

from traincope.figures.written import Figure, figure_json, templates_json
from traincope.report.html.markup import Html, block, tag

JSON = "application/json"


def plot(figure: Figure, *, name: str, caption: str) -> Html:
    """A place for `figure`, its data beside it; `caption` says what is to be seen, also to whom cannot see it."""
    return choice({caption: figure}, name=name, caption=caption)


def choice(figures: Mapping[str, Figure], *, name: str, caption: str) -> Html:
    """One place for several figures, of which a reader picks one; the first is drawn, and printed."""
    options = [tag("option", of, value=f"{name}-{at}-figure") for at, of in enumerate(figures)]
    first = next(iter(figures.values()))
    return tag(
        "figure",
        tag(
            "figcaption",
            caption,
            tag("select", *options, data_place=name, aria_label=f"{caption}: of what", hidden=len(options) < 2),
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
        *(block(figure_json(one), kind=JSON, name=f"{name}-{at}-figure") for at, one in enumerate(figures.values())),
    )


def templates() -> Html:
    """Light and dark, for the page's script."""
    return block(templates_json(), kind=JSON, name="templates")
