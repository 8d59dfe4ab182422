"""Plan: a model on so many GPUs, laid out this way or that: memory, communication, bubble, MFU and cost, by formula."""

from collections.abc import Mapping, Sequence
from functools import partial

from dash import dcc, html
from dash.development.base_component import Component

from traincope.errors import UsageError
from traincope.figures.plan import plan_memory, plan_step
from traincope.plan.memory import LEFT_OUT
from traincope.units import flops
from traincope.viewer.components import absent, field, parameter, section, table
from traincope.viewer.numbers import PLAN, number, tile
from traincope.viewer.pages.page import Asked, Needs, Page
from traincope.viewer.planning import (
    EXPERTS,
    FIRST,
    MACHINE,
    MESH,
    MODEL,
    PRESET,
    PRESETS,
    Field,
    document,
    hours,
    machine,
    prediction,
    values,
)
from traincope.viewer.view import View

PREDICTED = "predicted"


def render(asked: Asked) -> Sequence[Component]:
    chosen = values(asked.view)
    controls = [
        html.Div([_preset(asked.view)], className="controls"),
        *(
            html.Div([_control(one, chosen) for one in group], className="controls plan")
            for group in (MODEL, EXPERTS, MESH, MACHINE)
        ),
    ]
    return [*controls, html.Div(_shown(asked, chosen), id=PREDICTED)]


def update(asked: Asked) -> Mapping[str, Mapping[str, object]] | None:
    """The fields stay, and what is being typed into one; all anew where they do not say what the address says."""
    chosen = values(asked.view)
    if any(asked.fields.get(name) != value for name, value in chosen.items()):
        return None
    return {PREDICTED: {"children": _shown(asked, chosen)}}


def _shown(asked: Asked, chosen: Mapping[str, str]) -> Sequence[Component]:
    try:
        return _predicted(asked, chosen)
    except UsageError as error:
        return [absent(f"This cannot be: {error}.")]


def _preset(view: View) -> Component:
    choice = dcc.Dropdown(
        id=parameter(PRESET),
        options=list(PRESETS),
        value=view.text(PRESET) or FIRST,
        clearable=False,
        className="faults",
    )
    return field("model and mesh", choice)


def _control(of: Field, chosen: Mapping[str, str]) -> Component:
    if of.choices:
        control: Component = dcc.Dropdown(
            id=parameter(of.name), options=list(of.choices), value=chosen[of.name], clearable=False, className="small"
        )
    else:
        control = dcc.Input(id=parameter(of.name), value=chosen[of.name], debounce=True, type="text")
    return field(of.label, control)


def _predicted(asked: Asked, chosen: Mapping[str, str]) -> list[Component]:
    found = prediction(chosen)
    told = partial(number, document(chosen, found), of=PLAN)
    tiles = [
        tile("GPUs", told("ranks", form="count")),
        tile(
            "MFU",
            [told("worst_mfu", form="share"), " to ", told("best_mfu", form="share")],
            note="if nothing, or all communication is hidden",
        ),
        tile("a step", [told("best_seconds", form="seconds"), " to ", told("worst_seconds", form="seconds")]),
        tile("bubble", told("bubble_ratio", form="share")),
        tile("largest rank", told("largest_bytes", form="size"), note="fits" if found.fits else "does not fit"),
        tile("tokens a step", told("tokens_per_step", form="count")),
        tile(
            "cost",
            [told("price", 0, form="count"), " to ", told("price", 1, form="count")],
            note=" to ".join(f"{one:,.0f}" for one in hours(chosen, found)) + " GPU hours",
        ),
    ]
    rows = [[axis, told("axis_seconds", axis, form="seconds")] for axis in found.axis_seconds]
    sent = table(("axis", "of the busiest rank, in a step"), rows) if rows else absent("Nothing is sent.")
    memory_bytes = machine(chosen).memory_bytes
    note = f"of a GPU of {chosen['gib']} GiB; by formula, on top of it: {LEFT_OUT}"
    return [
        html.Div(tiles, className="tiles"),
        section("Memory", asked.graph(plan_memory(found, memory_bytes=memory_bytes)), note=note),
        section("A step", asked.graph(plan_step(found)), sent, note=f"{flops(found.model_flops)} of model"),
    ]


PAGE = Page(slug="plan", title="Plan", needs=Needs.NOTHING, render=render, update=update)
