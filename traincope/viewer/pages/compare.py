"""Compare: two runs beside each other, a step against a step, in the numbers of `traincope diff`."""

from collections.abc import Iterator, Sequence
from functools import partial

from dash import dcc, html
from dash.development.base_component import Component

from traincope.analysis import Analysis, Diff, Moved, diff
from traincope.analysis.diff import Basis
from traincope.analysis.diff_series import step_series
from traincope.report.diff import diff_document
from traincope.report.forms import Form
from traincope.units import MISSING
from traincope.viewer.components import absent, field, parameter, said, section, table
from traincope.viewer.numbers import DIFF, number
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
        section("This run against the other", html.Ul([html.Li(line) for line in _answer(found)])),
        section("Term by term", _terms(found), note=_basis(found)),
        *_new_findings(found),
        section("What else differs", _settings(found)),
    ]


def _comparable(analysis: Analysis) -> bool:
    """Whether it has steps that count and that all its ranks completed."""
    return bool(analysis.ledger.rank_steps) and bool(len(step_series(analysis)))


Line = list[Component | str]


def _answer(found: Diff) -> Iterator[Line]:
    """In words, with the evidence."""
    told = partial(number, diff_document(found), of=DIFF)
    if found.basis is Basis.SHARE:
        yield [f"{found.judgement.value}: only the shares of a step are compared"]
    else:
        yield [f"{found.judgement.value}: a step takes ", told("step", "change_ratio", form="more_share")]
    if found.interval is not None:
        low, high = (told("interval", at, form="more_duration") for at in (0, 1))
        yield ["95 % interval ", low, " to ", high]
    yield _sizes(found)
    if found.reason:
        yield [said(found.reason)]
    for moved in found.movers:
        at = found.terms.index(moved)
        change = told("terms", at, "change", form=_forms(found)[1])
        yield [f"{_words(moved)} moved by ", change, " (p ", told("terms", at, "p", form="probability"), ")"]


def _sizes(found: Diff) -> Line:
    told = partial(number, diff_document(found), of=DIFF, form="count")
    together = f", {found.block_steps} at a time taken as one, for they depend on each other" * (found.block_steps > 1)
    return ["steps of this run: ", told("after", "steps"), ", of the other: ", told("before", "steps"), together]


def _basis(found: Diff) -> str:
    return f"{found.basis.value}, typical; p: of so large a change by chance, all terms considered"


def _forms(found: Diff) -> tuple[Form, Form]:
    """Of what a term takes, and of how it differs."""
    return ("share", "more_share") if found.basis is Basis.SHARE else ("duration", "more_duration")


def _terms(found: Diff) -> Component:
    """The largest change first, below the step's."""
    order = sorted(range(len(found.terms)), key=lambda at: -abs(found.terms[at].change))
    places: list[tuple[Moved, tuple[str | int, ...]]] = [(found.step, ("step",))]
    places += [(found.terms[at], ("terms", at)) for at in order]
    told, (plain, signed) = partial(number, diff_document(found), of=DIFF), _forms(found)
    rows = [
        [
            _words(moved),
            told(*path, "after", form=plain),
            told(*path, "before", form=plain),
            told(*path, "change", form=signed),
            told(*path, "p", form="probability"),
            "moved" if moved.evident else "no evidence",
        ]
        for moved, path in places
        if moved.before or moved.after
    ]
    return table(("term", "this run", "the other", "difference", "p", ""), rows)


def _words(moved: Moved) -> str:
    return said(moved.term.replace("_", " "))


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
