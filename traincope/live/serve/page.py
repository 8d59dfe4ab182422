"""The page of a running job: the current state of its ranks on this host, updated every two seconds."""

from collections.abc import Sequence
from typing import Any

import dash
from dash import Input, Output, dcc, html
from dash.development.base_component import Component

from traincope.figures.run.running import step_times, utilization_steps
from traincope.figures.steps.ledger_steps import ledger_rows
from traincope.live.metrics.samples import Moment
from traincope.live.metrics.series import SeriesKey, series_key
from traincope.live.serve.so_far import Judge
from traincope.live.serve.watching import Snapshot, Watcher
from traincope.live.window import RankState
from traincope.metrics import catalogue
from traincope.metrics.metric import Metric
from traincope.record.session.identity import this_host
from traincope.report.sections.verdict import item
from traincope.timeline import LedgerClock
from traincope.units import MISSING, count, duration, numbers, share
from traincope.viewer.app import empty_app
from traincope.viewer.bodies import checked
from traincope.viewer.components import absent, article, graph, plain, section, table
from traincope.viewer.profiling import ANSWER, BUTTON, profile_button, requested

EVERY_MS = 2_000
OLD_NS = 10_000_000_000
"""Age of its data from which on a living rank is highlighted."""
Numbers = dict[SeriesKey, float]


def make_page(watcher: Watcher, judge: Judge, *, hosts: Sequence[str]) -> dash.Dash:
    """The app that shows what both know. It accepts host names in `hosts` (empty: any, without the button)."""
    app = empty_app(hosts)
    app.layout = lambda: _layout(watcher, has_button=bool(hosts))

    @app.callback(Output("page", "children"), Input("interval", "n_intervals"), Input("theme", "data"))
    @checked
    def show(_passed: int | None, theme: str | None) -> Any:
        return dash.no_update if theme is None else render(watcher, judge, theme=theme)

    if hosts:

        @app.callback(Output(ANSWER, "children"), Input(BUTTON, "n_clicks"), prevent_initial_call=True)
        @checked
        def request_steps(clicks: int | None) -> Any:
            return requested(watcher.run) if clicks else dash.no_update

    return app


def _layout(watcher: Watcher, *, has_button: bool) -> Component:
    host = plain(this_host().name, max_length=60)
    title = [html.B(plain(watcher.run.name, max_length=60)), html.Span(f"attempt {watcher.attempt}, ranks of {host}")]
    return html.Div(
        [
            dcc.Store(id="theme", storage_type="local"),
            dcc.Interval(id="interval", interval=EVERY_MS),
            html.Header(
                [
                    html.Span("traincope live", className="brand"),
                    html.Div(title, id="run"),
                    *profile_button(hidden=not has_button),
                    html.Button("light / dark", id="light", n_clicks=0),
                ]
            ),
            html.Main(id="page", tabIndex="-1"),
        ]
    )


def render(watcher: Watcher, judge: Judge, *, theme: str) -> list[Component]:
    """Render the whole page for the current state."""
    snapshot, moment = watcher.snapshot, Moment.now()
    if snapshot is None:
        return [absent(watcher.problem or "Waiting for the first record.")]
    numbers_now = snapshot.numbers(moment)
    shown = [
        html.P(_state(snapshot, watcher.problem, numbers_now, moment), className="caption", role="status"),
        _tiles(snapshot, numbers_now),
        _verdict(judge, moment),
    ]
    if snapshot.rows:
        shown.append(
            section("Step time", graph(step_times(snapshot.rows), theme=theme), note="latest steps, without the first")
        )
        clock = " on the GPUs' clocks" if snapshot.state.clock is LedgerClock.DEVICE else ""
        shown.append(
            section(
                "Ledger",
                graph(ledger_rows(snapshot.rows), theme=theme),
                note=f"terms of each step{clock}, mean over ranks",
            )
        )
    else:
        shown.append(absent("Waiting: all ranks have to complete two steps first."))
    shown.append(_utilization(snapshot, theme=theme))
    shown.append(
        section("Ranks", _ranks(snapshot, numbers_now, moment), note="data of a hanging or dead rank grows old")
    )
    return [*shown, section("Faults", _faults(snapshot), note="newest first; at most ten slow steps")]


def _state(snapshot: Snapshot, problem: str | None, values: Numbers, moment: Moment) -> str:
    if problem:
        return plain(problem)
    if snapshot.over:
        return "All ranks of this host have ended. `traincope view` shows the whole run."
    world = snapshot.state.info.world_size
    going_on = f"Running, {_reached(snapshot, values)}, last record {duration(_age_ns(snapshot, moment))} ago"
    if len(snapshot.ranks) < world:
        return (
            f"{going_on}. This page shows the {len(snapshot.ranks)} of {count(world, 'rank')} on this host. "
            "Wait for ranks of other hosts counts as transfer."
        )
    return f"{going_on}, {count(world, 'rank')}."


def _verdict(judge: Judge, moment: Moment) -> Component:
    """The findings of the report at its latest look at the run."""
    known = judge.verdict
    if known is None:
        return section("Verdict so far", absent(judge.problem or "The run is being judged for the first time."))
    read = "rows of the newest steps, " if known.by_rows else ""
    note = f"{read}judged {duration(moment.monotonic_ns - known.at_ns)} ago"
    articles = [
        article(item(finding, at, cost=None), at, document={"verdict": known.findings})
        for at, finding in enumerate(known.findings)
    ]
    late = [] if known.late is None else [html.P(f"{known.late[0].upper()}{known.late[1:]}.")]
    return section("Verdict so far", *(late + articles or [absent("No finding yet.")]), note=note)


def _reached(snapshot: Snapshot, values: Numbers) -> str:
    step = _last_step(snapshot, values)
    return "no step is recorded" if step is None else f"step {step:,}"


def _last_step(snapshot: Snapshot, values: Numbers) -> int | None:
    """Return the latest step of any rank."""
    keys = [series_key(catalogue.LAST_STEP, rank.rank) for rank in snapshot.ranks]
    return max((int(values[key]) for key in keys if key in values), default=None)


def _age_ns(snapshot: Snapshot, moment: Moment) -> int | None:
    """Return the age of the newest record of any rank."""
    newest = max((rank.last_record_ns for rank in snapshot.ranks), default=None)
    return None if newest is None else max(moment.monotonic_ns - newest, 0)


def _tiles(snapshot: Snapshot, values: Numbers) -> Component:
    step = _last_step(snapshot, values)
    last = [row.wall_ns for row in snapshot.rows if row.step == snapshot.rows[-1].step]
    pairs = {
        "step": MISSING if step is None else f"{step:,}",
        "step time": duration(max(last)) if last else MISSING,
        "MFU": _share(values, catalogue.MFU),
        "HFU": _share(values, catalogue.HFU),
        "goodput": _share(values, catalogue.GOODPUT),
        "faults": f"{snapshot.num_faults:,}",
    }
    tiles = [html.Div([html.B(value), html.Span(name)], className="tile") for name, value in pairs.items()]
    return html.Div(tiles, className="tiles")


def _share(values: Numbers, metric: Metric) -> str:
    return share(values.get(series_key(metric)))


def _utilization(snapshot: Snapshot, *, theme: str) -> Component:
    if not snapshot.utilization:
        return absent(
            "MFU unknown. It needs counted or declared FLOPs and the peak of the device "
            "(`traincope doctor --measure-peak` on its host, or run.describe(peak_flops=...)); "
            "steps before this page opened have none."
        )
    return section("MFU", graph(utilization_steps(snapshot.utilization), theme=theme), note="ranks of this host")


def _ranks(snapshot: Snapshot, values: Numbers, moment: Moment) -> Component:
    rows = []
    for rank in snapshot.ranks:
        age_ns = max(moment.monotonic_ns - rank.last_record_ns, 0)
        step = values.get(series_key(catalogue.LAST_STEP, rank.rank))
        straggler_wait = values.get(series_key(catalogue.STRAGGLER_WAIT, rank.rank))
        old = rank.state is RankState.ALIVE and age_ns >= OLD_NS
        rows.append(
            [
                f"rank {rank.rank}",
                f"{rank.state.value}, no new data" if old else rank.state.value,
                MISSING if step is None else f"{step:,.0f}",
                MISSING if rank.state is RankState.ENDED else duration(age_ns),
                MISSING if straggler_wait is None else duration(straggler_wait * 1e9),
            ]
        )
    return table(("rank", "state", "last step", "age of its data", "wait it caused"), rows, numbers_from=2)


def _faults(snapshot: Snapshot) -> Component:
    if not snapshot.faults:
        return absent("No fault was detected.")
    rows = [
        [
            fault.kind.value.replace("_", " "),
            numbers(fault.ranks, "rank") if fault.ranks else "the job",
            MISSING if fault.step is None else str(fault.step),
            fault.what,
            fault.evidence,
        ]
        for fault in snapshot.faults
    ]
    return table(("kind", "ranks", "step", "event", "evidence"), rows, numbers_from=99)
