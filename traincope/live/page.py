"""The page of a running job: what it does now, on this node, made anew every second or two."""

from collections.abc import Sequence
from typing import Any

import dash
from dash import Input, Output, dcc, html
from dash.development.base_component import Component

from traincope import metrics
from traincope.figures.ledger_steps import ledger_rows
from traincope.figures.running import step_times, utilization_steps
from traincope.live.samples import Moment
from traincope.live.watching import Seen, Watcher, key_of
from traincope.live.window import RankState
from traincope.metrics import Metric
from traincope.record.identity import this_host
from traincope.units import MISSING, count, duration, numbers, share
from traincope.viewer.app import empty_app
from traincope.viewer.components import absent, graph, said, section, table

EVERY_MS = 2_000
OLD_NS = 10_000_000_000
"""An age from which on a living rank is pointed out."""
Numbers = dict[tuple[str, tuple[str, ...]], float]


def make_page(watcher: Watcher, *, hosts: Sequence[str]) -> dash.Dash:
    """`hosts`: names under which it may be asked; none: under any."""
    app = empty_app(hosts)
    app.layout = lambda: _layout(watcher)

    @app.callback(Output("page", "children"), Input("interval", "n_intervals"), Input("theme", "data"))
    def show(_passed: int | None, theme: str | None) -> Any:
        return dash.no_update if theme is None else render(watcher, theme=theme)

    return app


def _layout(watcher: Watcher) -> Component:
    host = said(this_host().name, most=60)
    title = [html.B(said(watcher.run.name, most=60)), html.Span(f"attempt {watcher.attempt}, ranks of {host}")]
    return html.Div(
        [
            dcc.Store(id="theme", storage_type="local"),
            dcc.Interval(id="interval", interval=EVERY_MS),
            html.Header(
                [
                    html.Span("traincope live", className="brand"),
                    html.Div(title, id="run"),
                    html.Button("light / dark", id="light", n_clicks=0),
                ]
            ),
            html.Main(id="page", tabIndex="-1"),
        ]
    )


def render(watcher: Watcher, *, theme: str) -> list[Component]:
    """All of the page, as things stand."""
    seen, moment = watcher.seen, Moment.now()
    if seen is None:
        return [absent(watcher.problem or "Nothing was seen yet.")]
    told = seen.numbers(moment)
    shown = [html.P(_state(seen, watcher.problem), className="caption", role="status"), _tiles(seen, told)]
    if seen.rows:
        shown.append(
            section("Step time", graph(step_times(seen.rows), theme=theme), note="the latest steps, without the first")
        )
        shown.append(
            section("Ledger", graph(ledger_rows(seen.rows), theme=theme), note="where the time of each step went")
        )
    else:
        shown.append(absent("No step beyond the first has been finished by all ranks yet."))
    shown.append(_utilization(seen, theme=theme))
    shown.append(section("Ranks", _ranks(seen, told, moment), note="a rank that hangs, or is gone, grows old"))
    return [*shown, section("Faults", _faults(seen), note="the newest first; of slow steps the last ten")]


def _state(seen: Seen, problem: str | None) -> str:
    if problem:
        return said(problem)
    if seen.over:
        return "All ranks of this host are over; traincope view shows the whole run."
    world = seen.state.info.world_size
    if len(seen.ranks) < world:
        return (
            f"Running. {len(seen.ranks)} of its {count(world, 'rank')} are on this host, and only these are shown: "
            "waiting for ranks of other hosts counts as transfer."
        )
    return f"Running, {count(world, 'rank')}."


def _tiles(seen: Seen, told: Numbers) -> Component:
    steps = [told[key] for rank in seen.ranks if (key := key_of(metrics.LAST_STEP, str(rank.rank))) in told]
    last = [row.wall_ns for row in seen.rows if row.step == seen.rows[-1].step]
    pairs = {
        "step": f"{max(steps):,.0f}" if steps else MISSING,
        "step time": duration(max(last)) if last else MISSING,
        "MFU": _share(told, metrics.MFU),
        "HFU": _share(told, metrics.HFU),
        "goodput": _share(told, metrics.GOODPUT),
        "faults": f"{seen.num_faults:,}",
    }
    tiles = [html.Div([html.B(value), html.Span(name)], className="tile") for name, value in pairs.items()]
    return html.Div(tiles, className="tiles")


def _share(told: Numbers, metric: Metric) -> str:
    return share(told.get(key_of(metric)))


def _utilization(seen: Seen, *, theme: str) -> Component:
    if not seen.utilization:
        return absent(
            "MFU is not known: it takes FLOPs that were counted or told, and the peak of the device "
            "(run.describe(peak_flops=...)); steps before this page was opened have none."
        )
    return section("MFU", graph(utilization_steps(seen.utilization), theme=theme), note="of the ranks of this host")


def _ranks(seen: Seen, told: Numbers, moment: Moment) -> Component:
    rows = []
    for rank in seen.ranks:
        age_ns = max(moment.monotonic_ns - rank.last_record_ns, 0)
        step = told.get(key_of(metrics.LAST_STEP, str(rank.rank)))
        caused = told.get(key_of(metrics.CAUSED_WAIT, str(rank.rank)))
        old = rank.state is RankState.ALIVE and age_ns >= OLD_NS
        rows.append(
            [
                f"rank {rank.rank}",
                f"{rank.state.value}, nothing for a while" if old else rank.state.value,
                MISSING if step is None else f"{step:,.0f}",
                MISSING if rank.state is RankState.ENDED else duration(age_ns),
                MISSING if caused is None else duration(caused * 1e9),
            ]
        )
    return table(("rank", "state", "last step", "age of its data", "others waited for it"), rows, numbers_from=2)


def _faults(seen: Seen) -> Component:
    if not seen.faults:
        return absent("None.")
    rows = [
        [
            fault.kind.value.replace("_", " "),
            numbers(fault.ranks, "rank") if fault.ranks else "the job",
            MISSING if fault.step is None else str(fault.step),
            fault.what,
            fault.evidence,
        ]
        for fault in seen.faults
    ]
    return table(("kind", "where", "step", "what", "evidence"), rows, numbers_from=99)
