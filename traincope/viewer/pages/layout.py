"""Layout page: predicted memory, communication, bubble, MFU and cost of a model on a mesh of GPUs."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from dash import dcc, html
from dash.development.base_component import Component

from traincope.errors import UsageError
from traincope.figures.efficiency.plan import plan_memory, plan_step
from traincope.plan.layout.memory import LEFT_OUT
from traincope.units import flops, size
from traincope.viewer.components import absent, field, parameter, section, table
from traincope.viewer.numbers import PLAN, number, tile
from traincope.viewer.pages.page import Asked, Needs, Page
from traincope.viewer.planning.one_layout import (
    EXPERTS,
    FIRST,
    MACHINE,
    MESH,
    MODEL,
    PRESET,
    PRESETS,
    SHARING,
    Field,
    currency,
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
            html.Div([_control(entry, chosen) for entry in group], className="controls plan")
            for group in (MODEL, EXPERTS, MESH, SHARING, MACHINE)
        ),
    ]
    return [*controls, html.Div(_shown(asked, chosen), id=PREDICTED)]


def update(asked: Asked) -> Mapping[str, Mapping[str, object]] | None:
    """Update the prediction and keep the fields; None where the fields differ from the address."""
    chosen = values(asked.view)
    if any(asked.fields.get(name) != value for name, value in chosen.items()):
        return None
    return {PREDICTED: {"children": _shown(asked, chosen)}}


def _shown(asked: Asked, chosen: Mapping[str, str]) -> Sequence[Component]:
    try:
        return _predicted(asked, chosen)
    except UsageError as error:
        return [absent(f"No plan: {error}.")]


def _preset(view: View) -> Component:
    choice = dcc.Dropdown(
        id=parameter(PRESET),
        options=list(PRESETS),
        value=view.text(PRESET) or FIRST,
        clearable=False,
        className="faults",
    )
    return field("model and mesh", choice)


def _control(entry: Field, chosen: Mapping[str, str]) -> Component:
    if entry.choices:
        control: Component = dcc.Dropdown(
            id=parameter(entry.name),
            options=list(entry.choices),
            value=chosen[entry.name],
            clearable=False,
            className="small",
        )
    else:
        control = dcc.Input(id=parameter(entry.name), value=chosen[entry.name], debounce=True, type="text")
    return field(entry.label, control)


def _predicted(asked: Asked, chosen: Mapping[str, str]) -> list[Component]:
    plan = prediction(chosen)
    value = partial(number, document(chosen, plan), command=PLAN)
    tiles = [
        tile("GPUs", value("ranks", form="count")),
        *speed_tiles(value, fits=plan.fits),
        tile("pipeline bubble", value("bubble_ratio", form="share")),
        tile("largest rank", value("largest_bytes", form="size"), note="fits" if plan.fits else "does not fit"),
        tile("tokens per step", value("tokens_per_step", form="count")),
        tile(
            f"cost, {currency(chosen)}",
            value("price", form="count"),
            note=f"{hours(chosen, plan):,.0f} GPU-hours",
        ),
    ]
    rows = [[axis, value("axis_seconds", axis, form="seconds")] for axis in plan.axis_seconds]
    heads = ("axis", "communication time per step, busiest rank")
    communication = table(heads, rows) if rows else absent("This plan needs no communication.")
    memory_bytes = machine(chosen).memory_bytes
    note = f"estimate for a GPU of {chosen['gib']} GiB; it leaves out: {LEFT_OUT}"
    if away := max(rank.host + rank.nvme for rank in plan.memory):
        note += f"; off the GPU: {size(away)} per rank"
    return [
        html.Div(tiles, className="tiles"),
        section("Memory", asked.graph(plan_memory(plan, memory_bytes=memory_bytes)), note=note),
        section(
            "Step time",
            asked.graph(plan_step(plan)),
            communication,
            note=f"model FLOPs per step: {flops(plan.model_flops)}; the device's optimizer and the kernels that "
            "quantize take no time here",
        ),
    ]


def speed_tiles(value: Callable[..., Component], *, fits: bool) -> list[Component]:
    """The speed of a layout that can run: one that does not fit has none."""
    if not fits:
        return [tile("MFU", "none", note="it does not fit into memory, so it does not run")]
    return [
        tile("MFU", value("expected_mfu", form="share"), note="an estimate without known bounds"),
        tile("step time", value("expected_seconds", form="seconds")),
    ]


PAGE = Page(slug="layout", title="Layout", needs=Needs.NOTHING, render=render, update=update)
