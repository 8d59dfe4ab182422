"""Figures as data that the page's script draws."""

from traincope.figures.written import Figure, figure_json, templates_json
from traincope.report.html.markup import Html, block, tag

JSON = "application/json"


def plot(figure: Figure, *, name: str, caption: str) -> Html:
    """A place for `figure`, its data beside it; `caption` says what is to be seen, also to whom cannot see it."""
    height = f"height:{figure.layout.height}px"
    return tag(
        "figure",
        tag("figcaption", caption),
        tag("div", class_="plot", id=name, style=height, role="img", aria_label=caption),
        block(figure_json(figure), kind=JSON, name=f"{name}-figure"),
    )


def templates() -> Html:
    """Light and dark, for the page's script."""
    return block(templates_json(), kind=JSON, name="templates")
