"""Verdict page: the findings, each with its evidence, advice and links, next to the waterfall of step time."""

from collections.abc import Sequence

from dash import dcc, html
from dash.development.base_component import Component

from traincope.figures.efficiency.waterfall import waterfall
from traincope.report.schema import Finding
from traincope.report.sections.reliability import is_logbook
from traincope.report.sections.verdict import verdict
from traincope.report.text.text import facts
from traincope.units import count, duration, numbers, share
from traincope.viewer.components import linked, plain, section
from traincope.viewer.numbers import number, tile
from traincope.viewer.pages import explained
from traincope.viewer.pages.page import Asked, Needs, Page
from traincope.viewer.sections import rendered

MAX_RANKS = 8
"""Ranks of a finding that its timeline link shows."""
MAX_ROWS = 5
"""Ranges of steps that one line lists."""


def render(asked: Asked) -> Sequence[Component]:
    document = asked.document
    findings, ledger = document["verdict"], document["ledger"]
    judged = verdict(findings, cost=None if ledger is None else ledger["cost"])
    return [
        html.Div(_tiles(asked), className="tiles"),
        html.Div(
            [
                rendered(judged, asked, links=[_links(asked, finding) for finding in findings]),
                *_waterfall(asked),
            ],
            className="side-by-side",
        ),
        section("Data quality", html.Ul([html.Li(plain(line)) for line in _data_quality(asked)])),
    ]


def _waterfall(asked: Asked) -> list[Component]:
    """The job's waterfall: from peak to MFU where MFU is known, otherwise the ledger of a step."""
    ledger, utilization = asked.document["ledger"], asked.document["utilization"]
    if ledger is None or not ledger["rank_steps"]:
        return []
    step_ns = ledger["wall_ns"] / ledger["rank_steps"]
    drawn = asked.graph(waterfall(utilization["waterfall"] or ledger["waterfall"], step_ns=step_ns), id=linked("term"))
    return [section("Where the time went", drawn, note=f"mean step {duration(step_ns)}; click a bar to open its term")]


def _tiles(asked: Asked) -> list[Component]:
    document = asked.document
    if is_logbook(document):
        return [
            tile("interruptions", number(document, "reliability", "num_interruptions", form="count")),
            tile("between two", number(document, "reliability", "mtbf", "ns", form="duration"), note="mean time"),
            tile("in runs", number(document, "reliability", "running_ratio", form="share"), note="of the time"),
            tile(
                "goodput", number(document, "reliability", "productive_ratio", form="share"), note="of the job's time"
            ),
            tile("ranks", number(document, "run", "world_size", form="count")),
        ]
    mfu = tile("MFU", number(document, "utilization", "mfu", form="share"))
    return [
        mfu,
        tile("step time", number(document, "run", "step_ns", form="duration"), note="median"),
        tile("counted steps", number(document, "run", "steps", form="count")),
        tile("ranks", number(document, "run", "world_size", form="count")),
        tile("tokens per second", number(document, "utilization", "tokens_per_second", form="mean")),
        tile("goodput", number(document, "goodput", "productive_ratio", form="share"), note="of the job's time"),
        tile("pipeline bubble", number(document, "bubble", "fraction_ratio", form="share"), note="of step time"),
    ]


def _links(asked: Asked, finding: Finding) -> list[Component | str]:
    """Links to the explanation, the steps and the ranks of a finding."""
    step = finding["steps"][0] if finding["steps"] else None
    ranks = numbers(finding["ranks"][:MAX_RANKS]) or None
    explanation = explained.link(asked.view, finding["kind"], "explanation")
    if is_logbook(asked.document):
        return [explanation, " · ", dcc.Link("entries", href=asked.view.on("faults").address)]
    timeline = asked.view.on("timeline", step=step, ranks=ranks)
    title = f"timeline{f' of step {step}' if step is not None else ''}"
    return [
        explanation,
        " · ",
        dcc.Link(title, href=timeline.address),
        " · ",
        dcc.Link("ranks", href=asked.view.on("ranks").address),
    ]


def _data_quality(asked: Asked) -> list[str]:
    document = asked.document
    recorder, run = document["recorder"], document["run"]
    if run["imported"]:
        lines = [f"imported, nothing else was recorded: {', '.join(facts(document))}"]
    else:
        lines = [f"{count(recorder['events'], 'event')} recorded, {recorder['dropped']:,} dropped"]
    if recorder["overhead_ratio"] is not None:
        lines.append(f"recorder overhead: {share(recorder['overhead_ratio'])} of step time")
    if run["missing_ranks"]:
        lines.append(f"no records from {numbers(run['missing_ranks'], 'rank')}")
    if run["backward_steps"]:
        unsure = count(run["backward_steps"], "step")
        lines.append(f"the number of steps is unknown: {unsure} without a sure update; call run.step() once per step")
    elif run["guessed_steps"]:
        lines.append(f"boundaries of {count(run['guessed_steps'], 'step')} are inferred from the training loop")
    if run["excluded_steps"]:
        lines.append(f"excluded from all sums: {numbers(run['excluded_steps'], 'step')}")
    sampling = recorder["sampling"]
    if recorder["unwatched_steps"]:
        windows = count(sampling["windows"], "window")
        lines.append(f"recorded in detail: {sampling['sampled_steps']:,} of {sampling['steps']:,} steps, in {windows}")
    reason = document["utilization"]["reason"]
    if reason and not is_logbook(document):
        lines.append(f"MFU unknown: {reason}")
    return [*lines, *recorder["problems"][:20]]


PAGE = Page(slug="verdict", title="Verdict", needs=Needs.DOCUMENT, render=render)
