"""A dashboard: panels, plus the variables and links that all dashboards share."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.builders import text
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.text import TextMode

from traincope_dashboards.panels.panels import Panel
from traincope_dashboards.panels.variables import Scopes, make_scopes, variables

TAG = "traincope"


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    uid: str
    title: str
    about: str
    """One sentence: the question that it answers."""
    panels: Callable[[Scopes], Iterable[Panel]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Settings of built dashboards."""

    grafana: str = "http://127.0.0.1:3000"
    """URL of Grafana as the reader's browser reaches it; alerts and runbooks link to it."""
    viewer: str = "http://127.0.0.1:8050"
    """URL of `traincope view` as the reader's browser reaches it."""
    from_rules: bool = False
    """True: job-wide panels query recorded rules, for jobs of more than about 1,000 ranks."""


def render(board: Board, look: Look) -> str:
    """The dashboard as Grafana's JSON."""
    built = _frame(board.uid, title=board.title, about=board.about, tag=TAG)
    for variable in variables(viewer=look.viewer):
        built.with_variable(variable)
    built.link(
        builders.DashboardLink("viewer").type(models.DashboardLinkType.LINK).url("${viewer:raw}").target_blank(True)
    )
    for number, panel in enumerate(board.panels(make_scopes(from_rules=look.from_rules)), start=1):
        built.with_panel(panel.id(number))
    return to_json(built)


def page(uid: str, *, title: str, about: str, markdown: str, tag: str) -> str:
    """A dashboard that is one page of text."""
    panel = text.Panel().id(1).content(markdown).mode(TextMode.MARKDOWN).span(24).height(22)
    return to_json(_frame(uid, title=title, about=about, tag=tag).with_panel(panel))


def to_json(built: builders.Dashboard) -> str:
    board = built.build()
    for variable in (board.templating and board.templating.list_val) or ():
        # The SDK gives the settings of an interval to every variable.
        variable.auto = variable.auto_min = variable.auto_count = None
    return json.dumps(board, cls=JSONEncoder, indent=2, ensure_ascii=False, sort_keys=True) + "\n"


def _frame(uid: str, *, title: str, about: str, tag: str) -> builders.Dashboard:
    return (
        builders.Dashboard(title)
        .uid(uid)
        .description(about)
        .tags([tag])
        .time("now-1h", "now")
        .refresh("30s")
        .timezone("browser")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .link(_others())
    )


def _others() -> builders.DashboardLink:
    return (
        builders.DashboardLink("traincope")
        .type(models.DashboardLinkType.DASHBOARDS)
        .tags([TAG])
        .as_dropdown(True)
        .include_vars(True)
        .keep_time(True)
    )
