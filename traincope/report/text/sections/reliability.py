"""RELIABILITY: interruptions of the job, by cause, and their cost."""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from traincope.analysis.reliability.badput import Badput
from traincope.analysis.reliability.reliability import Reliability
from traincope.analysis.reliability.rolling import Rolling
from traincope.lines import indented, table, text
from traincope.report.schema import Document
from traincope.units import MISSING, count, duration, share

HOUR_NS = 3_600_000_000_000
MAX_CAUSES = 20
"""Further causes are counted, not listed; JSON has all."""
RESTART, LOST = "restart", "lost"


def is_logbook(document: Document) -> bool:
    """True for a run that was imported from a list of interruptions: other imported runs have no reliability."""
    return document["run"]["imported"] and document["reliability"] is not None


def reliability(job: Reliability, *, logbook: bool) -> Iterator[RenderableType]:
    """The mean time between interruptions, causes, restarts, rolling goodput and checkpoints."""
    yield Text("RELIABILITY", style="bold").append_text(text(f"  {'; '.join(_head(job))}", style="not bold"))
    if job.causes:
        yield _causes(job)
    yield indented(map(text, _lines(job, logbook=logbook)))


def _head(job: Reliability) -> Iterator[str]:
    yield f"{count(job.num_interruptions, 'interruption')} in {duration(job.elapsed_ns)}"
    between = job.mtbf
    if between is None:
        yield f"the mean time between them is unknown: {job.mtbf_reason}"
    elif between.ns is None:
        yield f"the mean time between them is over {duration(between.low_ns)} with 95 % confidence"
    else:
        low, high = duration(between.low_ns), duration(between.high_ns)
        base = "" if between.running else ", per elapsed time"
        yield f"mean time between them {duration(between.ns)} (95 % interval {low} to {high}{base})"


def _causes(job: Reliability) -> RenderableType:
    rows = table("cause", "count", "share", "restart", "lost steps")
    for cause in job.causes[:MAX_CAUSES]:
        name = cause.cause
        rows.add_row(
            text(f"    {name.replace('_', ' ')}"),
            count(cause.count),
            share(cause.ratio),
            _time(job.badput, RESTART, name),
            _time(job.badput, LOST, name),
        )
    return rows


def _time(badput: Sequence[Badput], part: str, cause: str) -> str:
    """The time, "unknown", or a lower bound."""
    for entry in badput:
        if entry.part == part and entry.cause == cause:
            if entry.ns is None:
                return "unknown"
            return f"{'at least ' if entry.unknown else ''}{duration(entry.ns)}"
    return MISSING


def _lines(job: Reliability, *, logbook: bool) -> Iterator[str]:
    if len(job.causes) > MAX_CAUSES:
        yield f"{count(len(job.causes) - MAX_CAUSES, 'more cause')} (see --format json)"
    if job.running_ratio is not None:
        yield f"attempts ran in {share(job.running_ratio)} of the time"
    if job.productive_ratio is None:
        yield f"goodput unknown: {job.reason}"
    elif job.productive_low_ratio is None:
        yield f"goodput {share(job.productive_ratio)}"
    else:
        low, high = share(job.productive_low_ratio), share(job.productive_high_ratio)
        yield f"goodput {share(job.productive_ratio)} ({low} to {high}) by the steps and times of the list"
    times = (("noticed after", job.mean_detect_ns), ("restarted after", job.mean_restart_ns))
    known = [f"{what} {duration(ns)}" for what, ns in times if ns is not None]
    if known:
        yield f"on average, as far as known: {', '.join(known)}"
    for window in job.rolling:
        yield _rolling(window, "in runs" if logbook else "productive")
    yield from _checkpoints(job)


def _rolling(window: Rolling, what: str) -> str:
    lowest, last = share(min(window.ratios)), share(window.ratios[-1])
    return f"rolling {window.window_ns // HOUR_NS} h: {last} {what} at the end, lowest {lowest}"


def _checkpoints(job: Reliability) -> Iterator[str]:
    saves, best = job.saves, job.cadence
    if saves is None:
        return
    each = "" if saves.interval_ns is None else f", one after each {duration(saves.interval_ns)}"
    yield f"checkpoints: {count(saves.count)}, each costs {duration(saves.cost_ns)}{each}"
    if best is not None:
        low, high = duration(best.best_low_ns), duration(best.best_high_ns)
        yield (
            f"Daly's interval: {duration(best.best_ns)} ({low} to {high}); expected loss "
            f"{share(best.lost_ratio)} of the time as recorded, {share(best.best_lost_ratio)} there"
        )
