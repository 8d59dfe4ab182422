"""Compare: two runs beside each other, a step against a step."""

from collections.abc import Iterator, Sequence

from dash import dcc, html
from dash.development.base_component import Component

from traincope.analysis import Analysis, Diff, diff
from traincope.analysis.diff import Basis
from traincope.analysis.diff_series import step_series
from traincope.units import MISSING, count, duration, share
from traincope.viewer.components import absent, field, parameter, said, section, table
from traincope.viewer.pages.page import Asked, Needs, Page

OTHER = "other"
MOST_SETTINGS = 100


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
    theirs = library[at].analysis
    if theirs is None:
        return [field("with", choice), absent(f"{library[at].name} is being read; this page opens by itself.")]
    if not _comparable(asked.analysis) or not _comparable(theirs):
        return [field("with", choice), absent("Of one of them no step counts that all its ranks completed.")]
    found = diff(theirs, asked.analysis)
    return [
        field("with", choice),
        section("This run against the other", html.Ul([html.Li(said(line)) for line in _answer(found)])),
        section("Term by term", _terms(found), note=_basis(found)),
        *_new_findings(found),
        section("What else differs", _settings(found)),
    ]


def _comparable(analysis: Analysis) -> bool:
    """Whether it has steps that count and that all its ranks completed."""
    return bool(analysis.ledger.rank_steps) and bool(len(step_series(analysis)))


def _answer(found: Diff) -> Iterator[str]:
    """In words, with the evidence."""
    if found.basis is Basis.SHARE:
        yield f"{found.judgement.value}: only the shares of a step are compared"
    else:
        yield f"{found.judgement.value}: a step takes {_change(found)}"
    if found.interval is not None and found.step.before:
        low, high = (share(bound / found.step.before) for bound in found.interval)
        yield f"95 % interval {low} to {high}"
    yield _sizes(found)
    if found.reason:
        yield found.reason
    for moved in found.movers:
        yield f"{moved.term.replace('_', ' ')} moved by {_signed(moved.change, found)} (p {moved.p:.3f})"


def _change(found: Diff) -> str:
    ratio = found.change_ratio
    return f"{'+' if ratio > 0 else ''}{share(ratio)}"


def _sizes(found: Diff) -> str:
    other, own = found.num_steps
    together = f", {found.block_steps} at a time taken as one, for they depend on each other" * (found.block_steps > 1)
    return f"{count(own, 'step')} of this run and {count(other, 'step')} of the other{together}"


def _basis(found: Diff) -> str:
    return f"{found.basis.value}, typical; p: of so large a change by chance, all terms considered"


def _signed(value: float, found: Diff) -> str:
    return f"{'+' if value > 0 else ''}{_told(value, found)}"


def _told(value: float, found: Diff) -> str:
    return share(value) if found.basis is Basis.SHARE else duration(value)


def _terms(found: Diff) -> Component:
    """The largest change first, below the step's."""
    order = sorted(found.terms, key=lambda moved: -abs(moved.change))
    rows = [
        [
            moved.term.replace("_", " "),
            _told(moved.after, found),
            _told(moved.before, found),
            _signed(moved.change, found),
            "-" if moved.p is None else f"{moved.p:.3f}",
            "moved" if moved.evident else "no evidence",
        ]
        for moved in (found.step, *order)
        if moved.before or moved.after
    ]
    return table(("term", "this run", "the other", "difference", "p", ""), rows)


def _new_findings(found: Diff) -> list[Component]:
    lines = [f"{finding.kind.value.replace('_', ' ')}: {finding.evidence}" for finding in found.new_findings]
    return (
        [section("What only this run's verdict says", html.Ul([html.Li(said(line)) for line in lines]))]
        if lines
        else []
    )


def _settings(found: Diff) -> Component:
    rows = [
        [one.family, one.name, one.after or MISSING, one.before or MISSING] for one in found.settings[:MOST_SETTINGS]
    ]
    heads = ("of", "what", "this run", "the other")
    return table(heads, rows, numbers_from=9) if rows else absent("Nothing that was recorded.")


PAGE = Page(slug="compare", title="Compare", needs=Needs.ANALYSIS, render=render)
