"""Compare page: the steps of two runs, in the numbers of `traincope diff`."""

from collections.abc import Iterator, Sequence
from functools import partial

from dash import dcc, html
from dash.development.base_component import Component

from traincope.analysis import Analysis, Diff, Judgement, TermChange, diff
from traincope.analysis.diff.diff import Basis
from traincope.analysis.diff.series import step_series
from traincope.analysis.diff.significance import BLOCKS
from traincope.report.sections.forms import Form
from traincope.report.text.diff import diff_document, needed, other_clocks, sampled_terms
from traincope.units import MISSING
from traincope.viewer.components import absent, field, parameter, plain, section, table
from traincope.viewer.numbers import DIFF, number
from traincope.viewer.pages.page import Asked, Needs, Page

OTHER = "other"
NOT_TESTED = Judgement.NOT_TESTED.value
MAX_SETTINGS = 100


def render(asked: Asked) -> Sequence[Component]:
    library = asked.library
    if len(library) < 2:
        return [absent("Only one run is open. Open two to compare them: traincope view RUN OTHER.")]
    other = asked.view.whole(OTHER)
    at = other if other is not None and other != asked.view.run else 0 if asked.view.run else 1
    options = [
        {"label": plain(library[position].name, max_length=60), "value": str(position)}
        for position in range(len(library))
        if position != asked.view.run
    ]
    choice = dcc.Dropdown(id=parameter(OTHER), options=options, value=str(at), clearable=False, className="runs")
    baseline = library[at].analysis
    if baseline is None:
        return [field("compare with", choice), absent(f"Reading {library[at].name}. The page opens when it is ready.")]
    if not _comparable(asked.analysis) or not _comparable(baseline):
        why = "One of the two runs has no counted step that all its ranks completed."
        return [field("compare with", choice), absent(why)]
    result = diff(baseline, asked.analysis)
    return [
        field("compare with", choice),
        section("This run compared with the other", html.Ul([html.Li(line) for line in _answer(result)])),
        section("Terms", _terms(result), note=_basis(result)),
        *_new_findings(result),
        section("Different settings", _settings(result)),
    ]


def _comparable(analysis: Analysis) -> bool:
    """True for a run with counted steps that all its ranks completed."""
    return bool(analysis.ledger.rank_steps) and bool(len(step_series(analysis)))


Line = list[Component | str]


def _answer(result: Diff) -> Iterator[Line]:
    """The comparison in words, with its evidence."""
    value = partial(number, diff_document(result), command=DIFF)
    if result.judgement is Judgement.NOT_TESTED:
        yield [
            f"not tested, {needed(result.step, result)}: a step takes ",
            value("step", "change_ratio", form="more_share"),
        ]
    elif result.basis is Basis.SHARE:
        yield [f"{result.judgement.value}: only shares of a step are compared"]
    else:
        yield [f"{result.judgement.value}: a step takes ", value("step", "change_ratio", form="more_share")]
    if result.interval is not None:
        low, high = (value("interval", at, form="more_duration") for at in (0, 1))
        yield ["95 % interval ", low, " to ", high]
    yield _sizes(result)
    if result.sampled_steps is not None:
        yield [plain(sampled_terms(result))]
    if note := other_clocks(result, names=("the other run", "this run")):
        yield [plain(note)]
    if result.reason:
        yield [plain(result.reason)]
    for moved in result.movers:
        at = result.terms.index(moved)
        change = value("terms", at, "change", form=_forms(result)[1])
        yield [f"{_name(moved)} changed by ", change, " (p ", value("terms", at, "p", form="probability"), ")"]


def _sizes(result: Diff) -> Line:
    value = partial(number, diff_document(result), command=DIFF, form="count")
    tested = f"; each run is compared in {BLOCKS} blocks of consecutive steps" * (result.step.p is not None)
    return ["steps of this run: ", value("after", "steps"), ", of the other: ", value("before", "steps"), tested]


def _basis(result: Diff) -> str:
    return f"{result.basis.value}, typical; p: probability of a change this large by chance, corrected for all terms"


def _forms(result: Diff) -> tuple[Form, Form]:
    """Forms of a term's value and of its change."""
    return ("share", "more_share") if result.basis is Basis.SHARE else ("duration", "more_duration")


def _terms(result: Diff) -> Component:
    """The step, then its terms, the largest change first."""
    order = sorted(range(len(result.terms)), key=lambda at: -abs(result.terms[at].change))
    places: list[tuple[TermChange, tuple[str | int, ...]]] = [(result.step, ("step",))]
    places += [(result.terms[at], ("terms", at)) for at in order]
    value, (unsigned, signed) = partial(number, diff_document(result), command=DIFF), _forms(result)
    rows = [
        [
            _name(moved),
            value(*path, "after", form=unsigned),
            value(*path, "before", form=unsigned),
            value(*path, "change", form=signed),
            value(*path, "p", form="probability") if moved.p is not None else NOT_TESTED,
            _verdict(moved, result),
        ]
        for moved, path in places
        if moved.before or moved.after
    ]
    return table(("term", "this run", "other run", "change", "p", "verdict"), rows)


def _verdict(moved: TermChange, result: Diff) -> str:
    if moved.p is None:
        return needed(moved, result)
    return "changed" if moved.evident else "no evidence of a change"


def _name(moved: TermChange) -> str:
    return plain(moved.term)


def _new_findings(result: Diff) -> list[Component]:
    lines = [f"{finding.kind.value.replace('_', ' ')}: {finding.evidence}" for finding in result.new_findings]
    return [section("Findings of this run only", html.Ul([html.Li(plain(line)) for line in lines]))] if lines else []


def _settings(result: Diff) -> Component:
    rows = [
        [setting.family, setting.name, setting.after or MISSING, setting.before or MISSING]
        for setting in result.settings[:MAX_SETTINGS]
    ]
    heads = ("kind", "setting", "this run", "other run")
    return table(heads, rows, numbers_from=9) if rows else absent("All recorded settings are equal.")


PAGE = Page(slug="compare", title="Compare", needs=Needs.ANALYSIS, render=render)
