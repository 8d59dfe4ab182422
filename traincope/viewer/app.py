"""The frame around the pages: tabs, choice of run, light and dark theme, and reactions to the address."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict

import dash
from dash import ClientsideFunction, Input, Output, State, dcc, html
from dash.development.base_component import Component
from flask import Response, abort, request

from traincope.errors import TraincopeError
from traincope.report.document.job_summary import SummaryDocument
from traincope.report.sections.head import attempt, steps
from traincope.report.sections.head import facts as head_facts
from traincope.report.sections.reliability import is_logbook
from traincope.report.sections.verdict import running
from traincope.units import count, duration
from traincope.viewer.bodies import checked, refuse_foreign_bodies
from traincope.viewer.components import absent, parameter, plain
from traincope.viewer.library.library import Library, Opened
from traincope.viewer.pages import OF_A_LOGBOOK, PAGES, TABS, WITHOUT_A_RUN, Asked, Needs, Page, plan, rows_page
from traincope.viewer.planning.searches import Searches
from traincope.viewer.profiling import ANSWER, BUTTON, profile_button, requested
from traincope.viewer.timeline.drawing import shares_at
from traincope.viewer.view import RUN, View

LOOK_AGAIN_MS, BUSY_MS = 10_000, 1_000
"""Intervals of the check for changed runs: usually, and while a run is being read."""
PLOTLY_FIRST = '<link rel="prefetch" href="/_dash-component-suites/plotly/package_data/plotly.min.js">'
"""Prefetch of the largest script; assets/plotly.js runs it.

Not a preload: the landing page runs it late, and Chromium warns of a preload that is unused for some seconds.
"""
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
OWN_SITES = ("none", "same-origin")
"""Sites of a request that a user makes, and no page of others: the address bar, and the viewer."""
POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
"""No data comes from or goes to another host. Dash needs inline scripts, plotly's templates need eval."""


class Field(TypedDict):
    """Id of a control of a page."""

    name: str


class Shown(TypedDict):
    """What a browser shows now."""

    page: str
    run: int
    theme: str
    whole: bool


class Pointed(TypedDict):
    """Place of the mouse pointer in the timeline: ns, and a height in ranks."""

    x: float | None
    y: float | None


def make_app(library: Library, *, hosts: Sequence[str] = LOOPBACK, searches: Searches | None = None) -> dash.Dash:
    """The viewer of a library. It rejects requests for host names outside `hosts` (DNS rebinding).

    Without `hosts`, other machines can reach it. Then it has no button that changes a running job. `searches`: those of
    the plan page, of which some may have begun.
    """
    app, searches = empty_app(hosts), Searches() if searches is None else searches
    app.layout = lambda: _layout(library)
    _show(app, library, searches)
    _search(app, library, searches)
    _follow(app, library)
    _read(app, library)
    if hosts:
        _profile(app, library)
    for name, inputs in {
        "control": [Input(parameter_of_any(), "value")],
        "zoom": [Input("timeline", "relayoutData")],
        "select": [Input("timeline", "selectedData")],
        "click": [Input("timeline", "clickData")],
        "whole": [Input("whole", "n_clicks")],
        "change": [Input("changes", "data")],
        "follow": [Input({"type": "linked", "name": dash.ALL}, "clickData")],
    }.items():
        _in_the_browser(app, name, *inputs, prevent_initial_call=True)
    return app


def empty_app(hosts: Sequence[str]) -> dash.Dash:
    """An app with the viewer's styles and access rules; its button `light` toggles the store `theme`, and figures in
    `page` fit the window.
    """
    app = dash.Dash(
        "traincope.viewer",
        assets_folder=str(Path(__file__).parent / "assets"),
        title="traincope",
        update_title=None,  # type: ignore[arg-type]
        suppress_callback_exceptions=True,
        serve_locally=True,
    )
    app.index_string = app.index_string.replace("{%css%}", f"{PLOTLY_FIRST}{{%css%}}")
    _guard(app, hosts)
    refuse_foreign_bodies(app)
    _in_the_browser(app, "theme", Output("theme", "data"), Input("light", "n_clicks"), State("theme", "data"))
    _in_the_browser(app, "redrawn", Input("page", "children"), prevent_initial_call=True)
    return app


def _in_the_browser(
    app: dash.Dash, name: str, *dependencies: Input | Output | State, prevent_initial_call: bool = False
) -> None:
    """Register a callback of assets/viewer.js."""
    function = ClientsideFunction("viewer", name)
    app.clientside_callback(function, *dependencies, prevent_initial_call=prevent_initial_call)  # type: ignore[no-untyped-call]


def parameter_of_any() -> dict[str, Any]:
    return {**parameter(""), "name": dash.ALL}


def _layout(library: Library) -> Component:
    """The layout for a new browser session."""
    return html.Div(
        [
            dcc.Location(id="location", refresh=False),
            dcc.Store(id="theme", storage_type="local"),
            dcc.Store(id="shown"),
            dcc.Store(id="changes"),
            dcc.Store(id="pointed"),
            dcc.Store(id="generation", data=library.generation),
            dcc.Interval(id="interval", interval=BUSY_MS),
            html.Header(
                [
                    html.Span("traincope", className="brand"),
                    html.Div(id="run"),
                    *profile_button(hidden=True),
                    html.Button("light / dark", id="light", n_clicks=0),
                ]
            ),
            html.Nav(id="tabs"),
            html.Main(id="page", tabIndex="-1"),
        ]
    )


def _guard(app: dash.Dash, hosts: Sequence[str]) -> None:
    def only_here() -> None:
        if hosts and request.host.rsplit(":", 1)[0] not in hosts:
            abort(403)

    def closed(response: Response) -> Response:
        response.headers["Content-Security-Policy"] = POLICY
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "no-referrer"
        return response

    app.server.before_request(only_here)
    app.server.after_request(closed)


def _show(app: dash.Dash, library: Library, searches: Searches) -> None:
    @app.callback(
        Output("page", "children"),
        Output("page", "data-page"),
        Output("tabs", "children"),
        Output("run", "children"),
        Output("shown", "data"),
        Output("changes", "data"),
        Input("location", "pathname"),
        Input("location", "search"),
        Input("theme", "data"),
        Input("generation", "data"),
        State("shown", "data"),
        State(parameter_of_any(), "id"),
        State(parameter_of_any(), "value"),
    )
    @checked
    def show(
        pathname: str | None,
        search: str | None,
        theme: str | None,
        _generation: int,
        shown: Shown | None,
        fields: list[Field],
        typed: list[object],
    ) -> tuple[Any, ...]:
        """Render the page, or update only its changed parts where it is already shown.

        The parts are an output, because Dash drops an output that a later request has overtaken; `dash.set_props` would
        put the older answer over the newer one.
        """
        if theme is None:
            return (dash.no_update,) * 6
        view = View.of(pathname, search)
        offered = _offered(library, view)
        page = next((page for page in offered if page.slug == view.page), offered[0])
        request = rows_page.request_for_events(view)
        if request:
            library.ask_for_events(view.run, request=request)
        opened = library[view.run]
        entered = {field["name"]: value for field, value in zip(fields, typed, strict=True)}
        asked = Asked(view=view, opened=opened, library=library, searches=searches, theme=theme, fields=entered)
        pending = _pending(page, opened)
        now = {"page": page.slug, "run": view.run, "theme": theme, "whole": pending is None}
        of_no_run = page.needs is Needs.NOTHING and dash.ctx.triggered_id == "generation"
        changed = page.update(asked) if page.update and now == shown and pending is None else None
        if changed is not None or (now == shown and pending is None and of_no_run):
            around = dash.no_update, dash.no_update, _tabs(offered, page, view), _runs(library, view), dash.no_update
            return *around, changed or dash.no_update
        return (
            _content(page, asked, pending),
            page.slug,
            _tabs(offered, page, view),
            _runs(library, view),
            now,
            dash.no_update,
        )


def _content(page: Page, asked: Asked, pending: str | None) -> Sequence[Component]:
    if asked.opened.summary is not None and pending:
        show = rows_page.render if page is PAGES[0] else rows_page.render_other
        return show(asked, asked.opened.summary)
    if asked.opened.problem and pending:
        return [absent(asked.opened.problem)]
    if pending:
        return [html.P(plain(pending), className="absent", role="status")]
    try:
        return page.render(asked)
    except TraincopeError as error:
        return [absent(str(error))]


def _pending(page: Page, opened: Opened) -> str | None:
    """A status message while the page's data are being read; None when they are ready."""
    ready = {
        Needs.NOTHING: True,
        Needs.TILES: opened.tiles is not None,
        Needs.DOCUMENT: opened.document is not None,
        Needs.ANALYSIS: opened.analysis is not None,
    }
    stage = f": {opened.stage}" if opened.stage else ""
    return None if ready[page.needs] else f"Reading {opened.name}{stage}. The page opens when it is ready."


def _offered(library: Library, view: View) -> Sequence[Page]:
    """The pages; without a run, those that need none."""
    if not len(library):
        return WITHOUT_A_RUN
    document = library[view.run].document
    return OF_A_LOGBOOK if document is not None and is_logbook(document) else PAGES


def _tabs(offered: Sequence[Page], page: Page, view: View) -> list[Component]:
    """The tabs, and below them the pages of the open one. All pages in order, hidden, for the keys [ and ]."""
    shown = [(title, pages, [each for each in pages if each in offered]) for title, pages in TABS]
    tabs = [(title if len(left) == len(pages) else left[0].title, left) for title, pages, left in shown if left]
    (inside,) = (pages for _, pages in tabs if page in pages)
    return [
        *(_link(pages[0], view, here=page in pages, title=title, id=f"tab-{pages[0].slug}") for title, pages in tabs),
        html.Div(
            [_link(each, view, here=each is page, id=f"page-{each.slug}") for each in inside] if inside[1:] else [],
            className="pages",
        ),
        html.Div([_link(each, view, here=each is page) for each in offered], id="order", hidden=True),
    ]


def _link(page: Page, view: View, *, here: bool, title: str | None = None, **named: Any) -> Component:
    return dcc.Link(title or page.title, href=view.on(page.slug).address, className="here" if here else "", **named)


def _runs(library: Library, view: View) -> list[Component]:
    if not len(library):
        return [html.Span("no run is open")]
    opened = library[view.run]
    facts = [html.Span(plain(_in_brief(opened)))]
    if len(library) < 2:
        return [html.B(plain(opened.name, max_length=60)), *facts]
    options = [{"label": plain(library[at].name, max_length=60), "value": str(at)} for at in range(len(library))]
    return [
        dcc.Dropdown(id=parameter(RUN), options=options, value=str(view.run), clearable=False, className="runs"),
        *facts,
    ]


def _in_brief(opened: Opened) -> str:
    if opened.document is None:
        return opened.problem or (_of_rows(opened.summary) if opened.summary else "reading ...")
    if is_logbook(opened.document):
        return ", ".join(head_facts(opened.document))
    run = opened.document["run"]
    facts = [count(run["world_size"], "rank"), steps(opened.document)]
    if run["end"] is not None:
        facts.append(duration(run["end"] - run["start"]))
    if run["attempts"] > 1:
        facts.append(attempt(opened.document))
    going_on = running(opened.document["verdict"])
    if going_on is not None:
        facts.insert(0, going_on)
    elif opened.growing:
        facts.append("no end recorded, it may still be running")
    if opened.analysis is None:
        facts.append("reading ...")
    if opened.problem:
        facts.append(opened.problem)
    return ", ".join(facts)


def _of_rows(summary: SummaryDocument) -> str:
    last = "" if summary["last_step"] is None else f", rows until step {summary['last_step']:,}"
    return f"{count(summary['world_size'], 'rank')}{last}; not all events are read"


def _follow(app: dash.Dash, library: Library) -> None:
    @app.callback(
        Output("generation", "data"),
        Output("interval", "interval"),
        Input("interval", "n_intervals"),
        State("generation", "data"),
        State("interval", "interval"),
        prevent_initial_call=True,
    )
    @checked
    def follow(_passed: int | None, known: int, every_ms: int) -> tuple[Any, Any]:
        library.refresh()
        interval_ms, now = BUSY_MS if library.busy else LOOK_AGAIN_MS, library.generation  # in this order
        return now if now != known else dash.no_update, interval_ms if interval_ms != every_ms else dash.no_update


def _read(app: dash.Dash, library: Library) -> None:
    @app.callback(
        Output("reading", "children"),
        Input("pointed", "data"),
        State("location", "pathname"),
        State("location", "search"),
        prevent_initial_call=True,
    )
    @checked
    def read(pointed: Pointed | None, pathname: str | None, search: str | None) -> Any:
        """Describe the pixel under the mouse pointer."""
        view = View.of(pathname, search)
        tiles = library[view.run].tiles
        if tiles is None or pointed is None or pointed["x"] is None or pointed["y"] is None:
            return dash.no_update
        pixel = shares_at(view, tiles, at_ns=pointed["x"], height=pointed["y"])
        if pixel is None:
            return dash.no_update
        name, shares = pixel
        return plain(f"{name}: " + (", ".join(f"{kind} {ratio}" for kind, ratio in shares) or "no spans"))


def _search(app: dash.Dash, library: Library, searches: Searches) -> None:
    def begin_early() -> None:
        """Begin the search of an address that a browser opens: it takes some time to load the scripts of the page."""
        if request.path.strip("/") == plan.PAGE.slug and request.headers.get("Sec-Fetch-Site") in OWN_SITES:
            view = View.of(request.path, request.query_string.decode(errors="replace"))
            opened = library[view.run]
            plan.begin(Asked(view=view, opened=opened, library=library, searches=searches, theme="light"))

    app.server.before_request(begin_early)

    @app.callback(
        Output(plan.EXPLORED, "children"),
        Output(plan.ANSWERED, "data"),
        Output(plan.POLL, "interval"),
        Input(plan.POLL, "n_intervals"),
        State(plan.ANSWERED, "data"),
        State("location", "pathname"),
        State("location", "search"),
        State("theme", "data"),
        prevent_initial_call=True,
    )
    @checked
    def answered(
        _passed: int | None, shown: list[str] | None, pathname: str | None, search: str | None, theme: str | None
    ) -> tuple[Any, Any, Any]:
        """Show the answer of a search that has ended. The address of this moment says which one."""
        view = View.of(pathname, search)
        asked = Asked(view=view, opened=library[view.run], library=library, searches=searches, theme=theme or "light")
        now = plan.state(asked)
        if now == shown:
            resting = plan.RESTING_MS if plan.is_ended(now) else dash.no_update
            return dash.no_update, dash.no_update, resting
        return plan.explored(asked), now, plan.RESTING_MS if plan.is_ended(now) else dash.no_update


def _profile(app: dash.Dash, library: Library) -> None:
    @app.callback(Output(BUTTON, "hidden"), Input("generation", "data"), Input("shown", "data"))
    @checked
    def offer(_generation: int, shown: Shown | None) -> bool:
        """Hide the button of a run that is over."""
        return shown is None or not library[shown["run"]].growing

    @app.callback(
        Output(ANSWER, "children"), Input(BUTTON, "n_clicks"), State("location", "search"), prevent_initial_call=True
    )
    @checked
    def request_steps(clicks: int | None, search: str | None) -> Any:
        return requested(library[View.of(None, search).run].path) if clicks else dash.no_update
