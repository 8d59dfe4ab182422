"""Verdict: what happened, first cause first; each finding with its evidence, its advice and where to look."""

from collections.abc import Sequence

from dash import dcc, html
from dash.development.base_component import Component

from traincope.report.priced import costly
from traincope.report.schema import Document, Finding
from traincope.report.text import facts
from traincope.report.verdict import where
from traincope.units import count, numbers, ranges, share
from traincope.viewer.components import absent, said, section
from traincope.viewer.numbers import number, tile
from traincope.viewer.pages.page import Asked, Needs, Page

MOST_RANKS = 8
"""Of a finding, that a link shows."""
MOST_ROWS = 5
"""Of steps, told by their first and last."""


def render(asked: Asked) -> Sequence[Component]:
    document = asked.document
    findings = [_finding(asked, finding, at) for at, finding in enumerate(document["verdict"])]
    nothing = absent("Nothing can be said: no complete step was recorded.")
    return [
        html.Div(_tiles(asked), className="tiles"),
        section("What happened", *(findings or [nothing])),
        section("How far to trust it", html.Ul([html.Li(said(line)) for line in _trust(asked)])),
    ]


def _tiles(asked: Asked) -> list[Component]:
    document = asked.document
    mfu = tile("MFU", number(document, "utilization", "mfu", form="share"))
    return [
        mfu,
        tile("a step", number(document, "run", "step_ns", form="duration"), note="median"),
        tile("steps counted", number(document, "run", "steps", form="count")),
        tile("ranks", number(document, "run", "world_size", form="count")),
        tile("tokens a second", number(document, "utilization", "tokens_per_second", form="mean")),
        tile("productive", number(document, "goodput", "productive_ratio", form="share"), note="of the job's time"),
        tile("bubble", number(document, "bubble", "fraction_ratio", form="share"), note="of step time"),
    ]


def _finding(asked: Asked, finding: Finding, at: int) -> Component:
    gain = finding["estimated_gain_ratio"]
    told = [where(finding), f"confidence {finding['confidence']}"]
    if gain is not None:
        told.append("saves ")
    beside: list[Component | str] = [said("; ".join(told))]
    if gain is not None:
        beside.append(number(asked.document, "verdict", at, "estimated_gain_ratio", form="share"))
        beside.extend(_worth(asked.document, at))
    parts: list[Component] = [
        html.H3(f"{at + 1}. {said(finding['kind'].replace('_', ' '))}"),
        html.P(beside, className="facts"),
        html.P(said(finding["evidence"], most=2000)),
    ]
    if finding["advice"]:
        parts.append(html.P([html.B("Do: "), said(finding["advice"], most=2000)]))
    parts.append(html.P(_links(asked, finding)))
    return html.Article(parts, className=f"finding {'healthy' if finding['kind'] == 'healthy' else ''}")


def _worth(document: Document, at: int) -> list[Component | str]:
    """What a finding would save in rank-hours and money, where that is worth a word."""
    cost = document["ledger"]["cost"] if document["ledger"] else None
    if cost is None or not costly(cost):
        return []
    hours = number(document, "verdict", at, "estimated_gain_rank_hours", form="hours")
    money = number(document, "verdict", at, "estimated_gain_money", form="money")
    price: list[Component | str] = [] if cost["money"] is None else [", ", money]
    return [" (", hours, " rank-hours", *price, ")"]


def _links(asked: Asked, finding: Finding) -> list[Component | str]:
    """To the steps and ranks that it is about."""
    step = finding["steps"][0] if finding["steps"] else None
    ranks = numbers(finding["ranks"][:MOST_RANKS]) or None
    there = asked.view.on("timeline", step=step, ranks=ranks)
    shown = f"timeline{f' of step {step}' if step is not None else ''}"
    return [dcc.Link(shown, href=there.address), " · ", dcc.Link("ranks", href=asked.view.on("ranks").address)]


def _trust(asked: Asked) -> list[str]:
    document = asked.document
    recorder, run = document["recorder"], document["run"]
    if run["imported"]:
        lines = [f"{', '.join(facts(document))}: all that is known of it"]
    else:
        lines = [f"{count(recorder['events'], 'event')} recorded, {recorder['dropped']:,} dropped"]
    if recorder["overhead_ratio"] is not None:
        lines.append(f"the recorder itself took {share(recorder['overhead_ratio'])} of the steps")
    if run["missing_ranks"]:
        lines.append(f"{numbers(run['missing_ranks'], 'rank')} left no records")
    if run["guessed_steps"]:
        lines.append(f"the borders of {count(run['guessed_steps'], 'step')} were found from what the training did")
    if run["excluded_steps"]:
        lines.append(f"left out of every sum: {numbers(run['excluded_steps'], 'step')}")
    if recorder["unwatched_steps"]:
        unwatched = ranges(recorder["unwatched_steps"], "step", most=MOST_ROWS)
        lines.append(f"left out of every sum, for no collectives were recorded in them: {unwatched}")
    reason = document["utilization"]["reason"]
    if reason:
        lines.append(f"no MFU: {reason}")
    return [*lines, *recorder["problems"][:20]]


PAGE = Page(slug="verdict", title="Verdict", needs=Needs.DOCUMENT, render=render)
