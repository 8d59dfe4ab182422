"""Compare: two runs beside each other, a step against a step."""

from collections.abc import Sequence

from dash import dcc
from dash.development.base_component import Component

from traincope.report.schema import Document
from traincope.units import MISSING, duration, share
from traincope.viewer.components import absent, field, parameter, said, section, table
from traincope.viewer.pages.page import Asked, Needs, Page

OTHER = "other"


def render(asked: Asked) -> Sequence[Component]:
    library = asked.library
    if len(library) < 2:
        return [absent("One run is open; open two to compare them: traincope view RUN OTHER.")]
    other = asked.view.whole(OTHER)
    at = other if other is not None and other != asked.view.run else 0 if asked.view.run else 1
    options = [
        {"label": said(library[one].name, most=60), "value": str(one)}
        for one in range(len(library))
        if one != asked.view.run
    ]
    choice = dcc.Dropdown(id=parameter(OTHER), options=options, value=str(at), clearable=False, className="runs")
    theirs = library[at].document
    if theirs is None:
        return [field("with", choice), absent(f"{library[at].name} is being read; this page opens by itself.")]
    return [
        field("with", choice),
        section(
            "Term by term", _terms(asked.document, theirs), note="of a rank's step, mean; the largest difference first"
        ),
        section("What else differs", _settings(asked.document, theirs)),
    ]


def per_step(document: Document) -> dict[str, float]:
    """Term -> mean ns of a rank's step; `step` its wall time. Empty where no step counted."""
    ledger = document["ledger"]
    if ledger is None:
        return {}
    steps = ledger["rank_steps"]
    return {"step": ledger["wall_ns"] / steps} | {
        term: ns / steps for term, ns in ledger["terms"].items() if ns is not None
    }


def _terms(own: Document, other: Document) -> Component:
    mine, theirs = per_step(own), per_step(other)
    if not mine or not theirs:
        return absent("Of one of them no step was counted, so that there is nothing to compare.")
    moved = {term: mine.get(term, 0.0) - theirs.get(term, 0.0) for term in {**mine, **theirs}}
    order = sorted(moved, key=lambda term: (term != "step", -abs(moved[term])))
    rows = [
        [
            term.replace("_", " "),
            duration(mine.get(term)),
            duration(theirs.get(term)),
            f"{'+' if moved[term] > 0 else ''}{duration(moved[term])}",
            share(moved[term] / theirs["step"]),
        ]
        for term in order
        if mine.get(term) or theirs.get(term)
    ]
    return table(("term", "this run", "the other", "difference", "of the other's step"), rows)


def _settings(own: Document, other: Document) -> Component:
    """Versions, size and mesh, where they are not the same."""
    pairs = {
        "ranks": (own["run"]["world_size"], other["run"]["world_size"]),
        "mesh": (_mesh(own), _mesh(other)),
        "attempts": (own["run"]["attempts"], other["run"]["attempts"]),
    }
    names = sorted({*own["run"]["versions"], *other["run"]["versions"]})
    pairs |= {name: (own["run"]["versions"].get(name), other["run"]["versions"].get(name)) for name in names}
    rows = [
        [name, str(mine or MISSING), str(theirs or MISSING)] for name, (mine, theirs) in pairs.items() if mine != theirs
    ]
    return (
        table(("what", "this run", "the other"), rows, numbers_from=9) if rows else absent("Nothing that was recorded.")
    )


def _mesh(document: Document) -> str:
    return ", ".join(f"{axis} {size}" for axis, size in document["run"]["mesh_axes"].items())


PAGE = Page(slug="compare", title="Compare", needs=Needs.DOCUMENT, render=render)
