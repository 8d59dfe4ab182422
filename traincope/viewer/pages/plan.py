"""Plan page: all layouts of a model on a cluster, ranked, with the memory, step, limits and cost of a chosen one."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from dash import dcc, html
from dash.development.base_component import Component

from traincope.analysis import measured_rates
from traincope.errors import RunDirectoryError, TraincopeError
from traincope.figures.efficiency.search import collective_times, layouts_memory, layouts_step, roofline
from traincope.figures.ranks.schedule import planned_schedule
from traincope.plan.layout.layout import Place
from traincope.plan.search.answer import Answer, Ranked, axes, interval_words
from traincope.plan.search.question import Question
from traincope.units import count, duration, share, size
from traincope.viewer.components import absent, facts, field, parameter, plain, section, table
from traincope.viewer.numbers import SEARCH, number, tile
from traincope.viewer.pages.page import Asked, Needs, Page
from traincope.viewer.planning.asked_question import FILTERS, JOB, LIKE, MODEL, PLACE, Option, question, typed
from traincope.viewer.planning.drawn_schedule import drawn_schedule
from traincope.viewer.planning.searches import Search
from traincope.viewer.view import View

COMMAND, EXPLORED, ANSWERED, POLL = "plan-command", "explored", "answered", "searching"
"""Ids of the command line, of the answer, of a store with what it shows, and of the interval that asks for it."""
SEARCHING_MS, RESTING_MS = 400, 3_000
"""Intervals of the question whether a search has ended: while one runs, and otherwise."""
ENDED, RUNS = "ended", "runs"
HEADS = ("", "layout", "schedule", "M x B", "memory", "step", "MFU", "days", "GPU-hours")
AXIS_HEADS = ("axis of the chosen layout", "on the wire", "exposed", "links", "by")
OPERATOR_HEADS = (
    "operator",
    "times",
    "FLOPs",
    "bytes",
    "FLOPs per byte",
    "at least",
    "expected",
    "of the limit",
    "in a step",
    "constants",
)
GROUPS = {"Train": MODEL, "Filter": FILTERS, "Cost": JOB}
"""Rows of fields under their names."""
NUM_REASONS = 8
SECOND_NS = 1e9


def render(asked: Asked) -> Sequence[Component]:
    texts = typed(asked.view)
    return [
        *(
            html.Div(
                [html.Span(title, className="group"), *(_control(option, texts) for option in options)],
                className="controls plan",
            )
            for title, options in GROUPS.items()
        ),
        *_rates_control(asked),
        html.Div(_command(asked), id=COMMAND),
        html.Div(explored(asked), id=EXPLORED),
        dcc.Store(id=ANSWERED, data=state(asked)),
        dcc.Interval(id=POLL, interval=SEARCHING_MS),
    ]


def update(asked: Asked) -> Mapping[str, Mapping[str, object]] | None:
    """Update the command and the answer, and keep the fields; None where the fields differ from the address."""
    texts = {**typed(asked.view), **({LIKE: asked.view.text(LIKE) or ""} if LIKE in asked.fields else {})}
    if any((asked.fields.get(name) or "") != text for name, text in texts.items()):
        return None
    return {
        COMMAND: {"children": _command(asked)},
        EXPLORED: {"children": explored(asked)},
        ANSWERED: {"data": state(asked)},
        POLL: {"interval": SEARCHING_MS},
    }


def state(asked: Asked) -> list[str]:
    """What the answer on the page shows: address, theme, what its search does, and whether it has ended."""
    try:
        search = _search(asked)
        ended, stage = asked.searches[search] is not None, asked.searches.stage(search)
    except TraincopeError:
        ended, stage = True, ""
    return [asked.view.address, asked.theme, stage, ENDED if ended else RUNS]


def is_ended(state: Sequence[str]) -> bool:
    return state[-1] == ENDED


def explored(asked: Asked) -> Sequence[Component]:
    """The answer, or a message while it is being searched."""
    try:
        search = _search(asked)
        outcome = asked.searches[search]
        if outcome is None:
            stage = asked.searches.stage(search) or "the search starts"
            return [absent(f"Searching all layouts: {stage}. The answer appears when it is ready.")]
        if isinstance(outcome, TraincopeError):
            raise outcome
        return list(_answered(asked, search.question, outcome))
    except TraincopeError as error:
        return [absent(f"No plan: {error}.")]


def begin(asked: Asked) -> None:
    """Begin the search of the address, if its question is possible."""
    with suppress(TraincopeError):
        asked.searches.begin(_search(asked))


def _search(asked: Asked) -> Search:
    """The question of the address. Raises TraincopeError for impossible values, and for a run without rates."""
    texts, at = typed(asked.view), asked.view.whole(LIKE)
    if at is None:
        return Search(question(texts))
    opened = asked.library[at]
    if opened.analysis is None:
        raise RunDirectoryError(opened.problem or f"{opened.name} is still being read; try again in a moment")
    path = str(opened.path)
    return Search(question(texts, like=path), measured_rates(opened.analysis, source=path))


def _rates_control(asked: Asked) -> list[Component]:
    """A choice of the open run whose measured rates count; nothing without a run."""
    if not len(asked.library):
        return []
    names = [
        {"label": plain(asked.library[at].name, max_length=60), "value": str(at)} for at in range(len(asked.library))
    ]
    choice = dcc.Dropdown(
        id=parameter(LIKE),
        options=names,
        value=asked.view.text(LIKE),
        placeholder="of data sheets",
        className="faults",
    )
    return [html.Div([html.Span("Rates", className="group"), field("measured by", choice)], className="controls plan")]


def _control(option: Option, texts: Mapping[str, str]) -> Component:
    text = texts[option.name]
    if option.choices:
        control: Component = dcc.Dropdown(
            id=parameter(option.name),
            options=list(option.choices),
            value=text or None,
            clearable=not option.usual,
            placeholder="any",
            className="small",
        )
    else:
        control = dcc.Input(
            id=parameter(option.name), value=text, debounce=True, type="text", placeholder="" if option.usual else "-"
        )
    return field(option.label, control)


def _command(asked: Asked) -> list[Component]:
    try:
        return [_line(_search(asked).question.command)]
    except TraincopeError:
        return []


def _line(command: str) -> Component:
    """A command line with a button that copies it."""
    return html.Div(
        [html.Code(plain(command)), dcc.Clipboard(content=command, title="copy the command line", className="copy")],
        className="command",
    )


def _answered(asked: Asked, wanted: Question, answer: Answer) -> Iterator[Component]:
    value = partial(number, answer, command=SEARCH)
    if not answer["ranked"]:
        yield _nothing(answer)
        yield _rejected(answer, value)
        return
    at = min(max(asked.view.whole(PLACE) or 1, 1), len(answer["ranked"])) - 1
    ranked = answer["ranked"][at]
    yield html.Div(_tiles(answer, at, value), className="tiles")
    if answer["measured"] is not None:
        yield html.P(plain(f"Measured rates of {answer['measured']}."), className="caption")
    yield from (absent(f"Caveat: {caveat}.") for caveat in answer["caveats"] if at == 0)
    yield absent(f"Such predictions were compared with {answer['checked']}.")
    rows = [_row(asked.view, answer, place, at, value) for place in range(len(answer["ranked"]))]
    fit = f"{count(answer['num_fitting'], 'layout')} fit; a click chooses one"
    yield html.Div(
        [
            section("Layouts, fastest first", table((*HEADS, _price_head(answer)), rows, numbers_from=4), note=fit),
            section(f"Cost of layout {at + 1}", facts(_cost(answer, ranked))),
        ],
        className="beside",
    )
    yield html.P(f"Layout {at + 1} alone:", className="caption")
    yield _line(_narrowed(wanted, ranked).command)
    compared = _compared(answer, at)
    memory = asked.graph(layouts_memory(compared, usable_bytes=answer["usable_bytes"]))
    yield html.Div(
        [
            section("Step", asked.graph(layouts_step(compared)), *_why(answer, at)),
            section("Memory", memory, html.P(f"Not included: {answer['left_out']}.", className="caption")),
        ],
        className="side-by-side",
    )
    yield _schedule(asked, wanted, ranked)
    note = f"products of one microbatch's forward on one rank of {answer['gpu']}"
    limits = section("Roofline", asked.graph(roofline(answer, ranked)), note=note)
    yield html.Div([limits, _collectives(asked, answer, at, value)], className="side-by-side")
    operators = [_operator(ranked, at, row, value) for row in range(len(ranked["operators"]))]
    yield section("Operators", table(OPERATOR_HEADS, operators), note="of one microbatch's forward on one rank")
    yield _rejected(answer, value)


def _collectives(asked: Asked, answer: Answer, at: int, value: Any) -> Component:
    ranked = answer["ranked"][at]
    rows = [_axis(ranked, at, row, value) for row in range(len(ranked["axes"]))]
    sent = table(AXIS_HEADS, rows) if rows else absent("This layout needs no communication.")
    figure = asked.graph(collective_times(answer["collectives"]))
    return section("All-reduce by size", figure, sent, note="a prediction takes the faster of ring and tree")


def _price_head(answer: Answer) -> str:
    return f"price, {answer['currency']}" if answer["currency"] else "price"


def _tiles(answer: Answer, at: int, value: Any) -> list[Component]:
    ranked = answer["ranked"][at]
    return [
        tile("chosen", f"{at + 1}: {axes(ranked)}"),
        tile("step", value("ranked", at, "step_seconds", form="seconds"), note=interval_words(ranked)),
        tile("MFU", value("ranked", at, "mfu", form="share")),
        tile("memory", value("ranked", at, "largest_bytes", form="size")),
        tile("bubble", value("ranked", at, "bubble_ratio", form="share")),
        tile("tokens per second", value("ranked", at, "tokens_per_second", form="count")),
        tile("days", value("ranked", at, "elapsed_days", form="mean")),
        tile(_price_head(answer), value("ranked", at, "money", form="count")),
    ]


def _row(view: View, answer: Answer, place: int, chosen: int, value: Any) -> list[object]:
    ranked = answer["ranked"][place]
    here = "chosen" if place == chosen else ""
    recompute = "" if ranked["recompute"] == "none" else f", recompute {ranked['recompute']}"
    name = f"{axes(ranked)}, ZeRO {ranked['zero']}{recompute}"
    return [
        str(place + 1),
        html.Span(dcc.Link(name, href=view.but(**{PLACE: place + 1}).address), className=here),
        _schedule_name(ranked),
        f"{ranked['microbatches']} x {ranked['micro_batch']}",
        value("ranked", place, "largest_bytes", form="size"),
        value("ranked", place, "step_seconds", form="seconds"),
        value("ranked", place, "mfu", form="share"),
        value("ranked", place, "elapsed_days", form="mean"),
        value("ranked", place, "gpu_hours", form="count"),
        value("ranked", place, "money", form="count"),
    ]


def _schedule_name(ranked: Ranked) -> str:
    if ranked["pp"] == 1:
        return "-"
    return ranked["schedule"] if ranked["virtual"] == 1 else f"{ranked['schedule']} x {ranked['virtual']}"


def _narrowed(wanted: Question, ranked: Ranked) -> Question:
    """The question that only this layout, and those with other stages per rank, answers."""
    return replace(
        wanted,
        dp=ranked["dp"],
        tp=ranked["tp"],
        pp=ranked["pp"],
        cp=ranked["cp"],
        ep=ranked["ep"],
        zero=ranked["zero"],
        schedule=ranked["schedule"] if ranked["pp"] > 1 else None,
        micro_batch=ranked["micro_batch"],
        quantized=ranked["quantized"],
        offload=_offloaded(ranked),
    )


def _offloaded(ranked: Ranked) -> str | None:
    """Place of the state that is not on the devices."""
    places = (ranked["parameters_place"], ranked["optimizer_place"])
    return next((place for place in places if place != Place.DEVICE), None)


def _compared(answer: Answer, at: int) -> Mapping[int, Ranked]:
    """The chosen layout and the next one: the fastest, or after it the second."""
    other = 0 if at else 1
    places = [at, *([other] if other < len(answer["ranked"]) else [])]
    return {place + 1: answer["ranked"][place] for place in places}


def _why(answer: Answer, at: int) -> Iterator[Component]:
    """The differences between the chosen layout and the one next to it."""
    known = {comparison["place"]: comparison for comparison in answer["comparisons"]}
    comparison = known.get(at + 1 if at else 2)
    if comparison is None:
        return
    parts = ", ".join(
        f"{'+' if seconds > 0 else '-'}{duration(abs(seconds) * SECOND_NS)} {part}"
        for part, seconds in comparison["parts"].items()
        if seconds
    )
    more = duration(comparison["more_seconds"] * SECOND_NS)
    yield html.P(
        plain(f"Place {comparison['place']} takes {more} more than place 1: {parts or 'equal'}."), className="caption"
    )


def _schedule(asked: Asked, wanted: Question, ranked: Ranked) -> Component:
    if ranked["pp"] == 1:
        return section("Schedule", absent("This layout has no pipeline."))
    drawn = drawn_schedule(ranked, layers=wanted.shape.layers)
    virtual = f" --virtual {ranked['virtual']}" if ranked["virtual"] > 1 else ""
    command = (
        f"traincope plan schedule {ranked['schedule']} --pp {ranked['pp']} --microbatches {ranked['microbatches']}"
        f"{virtual} --layers {wanted.shape.layers}"
    )
    if drawn is None:
        return section(
            "Schedule", absent(f"{ranked['pp']} ranks have too many boxes to draw."), _line(f"{command} --format json")
        )
    fewer = drawn.microbatches < ranked["microbatches"]
    shown = f"{drawn.microbatches} of {ranked['microbatches']} microbatches are drawn" if fewer else ""
    return section("Schedule", asked.graph(planned_schedule(drawn.timetable)), _line(command), note=shown)


def _operator(ranked: Ranked, at: int, row: int, value: Any) -> list[object]:
    path = ("ranked", at, "operators", row)
    return [
        ranked["operators"][row]["name"],
        value(*path, "count", form="count"),
        value(*path, "flops", form="flops"),
        value(*path, "moved_bytes", form="size"),
        value(*path, "intensity", form="mean"),
        value(*path, "least_seconds", form="seconds"),
        value(*path, "forward_seconds", form="seconds"),
        value(*path, "reached_ratio", form="share"),
        value(*path, "step_seconds", form="seconds"),
        ranked["operators"][row]["constants"],
    ]


def _axis(ranked: Ranked, at: int, row: int, value: Any) -> list[object]:
    axis, path = ranked["axes"][row], ("ranked", at, "axes", row)
    return [
        axis["axis"],
        value(*path, "seconds", form="seconds"),
        value(*path, "exposed_seconds", form="seconds"),
        axis["tier"],
        axis["algorithm"],
    ]


def _cost(answer: Answer, ranked: Ranked) -> Iterator[tuple[str, str]]:
    yield "training", f"{answer['tokens']:.3g} tokens in {ranked['elapsed_days']:,.3g} days"
    yield "GPU-hours", f"{ranked['gpu_hours']:,.0f}"
    if ranked["money"] is not None:
        yield "price", f"{ranked['money']:,.0f} {answer['currency']}"
    yield "goodput", f"{share(ranked['goodput_ratio'])}, with a failure every {ranked['mtbf_hours']:,.3g} h"
    yield "checkpoint", f"Daly's interval, every {duration(ranked['checkpoint_seconds'] * SECOND_NS)}"
    if ranked["energy_mwh"] is not None:
        yield "energy", f"at most {ranked['energy_mwh']:,.4g} MWh"


def _nothing(answer: Answer) -> Component:
    smallest = answer["smallest"]
    if smallest is None:
        return absent("No layout is possible; the reasons are below.")
    return absent(
        f"No layout fits into {size(answer['usable_bytes'])} per GPU. The smallest one, {axes(smallest)}, needs "
        f"{size(smallest['needed_bytes'])}. Use more GPUs, or GPUs with more memory."
    )


def _rejected(answer: Answer, value: Any) -> Component:
    rows = [[reason, value("rejected", reason, form="count")] for reason in list(answer["rejected"])[:NUM_REASONS]]
    return section("Rejected", table(("reason", "layouts"), rows) if rows else absent("No layout is rejected."))


PAGE = Page(slug="plan", title="Plan", needs=Needs.NOTHING, render=render, update=update)
