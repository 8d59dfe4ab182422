"""How far the report can be trusted: what was recorded, lost, left open, missing, or left out."""

from collections.abc import Iterator, Mapping

from rich.console import RenderableType
from rich.text import Text

from traincope.analysis import FaultKind
from traincope.palette import SEVERE
from traincope.report.lost import in_words
from traincope.report.plain import text
from traincope.report.schema import Document, Fault, OpenRecord, Probe, RankClock, Recorder, Run
from traincope.report.tables import indented
from traincope.timeline.watching import PROBE, watched
from traincope.units import count, duration, numbers, ranges, share

WORTH_A_LINE_PPM = 0.1
"""Of a clock's drift."""
MOST_LINES = 5
"""More unclean ends or unreadable things than this are counted, not listed; JSON has them all."""

ON = "on"


def recording(document: Document) -> Iterator[RenderableType]:
    """Short when all is well; everything that makes a number above doubtful is named."""
    yield Text("RECORDING", style="bold")
    yield indented(lines(document))


def lines(document: Document) -> Iterator[Text]:
    """One a fact, severe ones in their style."""
    recorder = document["recorder"]
    yield from _no_ends(document)
    yield from _missing(document["run"])
    if document["run"]["imported"]:
        yield text("kernel traces alone: nothing is known of steps, waits, or how far the ranks' clocks are apart")
        yield from _problems(recorder["problems"])
        return
    yield _counts(recorder)
    yield from _lost(recorder["lost"])
    yield from _left_out(recorder["dropped_steps"], "some rank dropped them")
    yield from _left_out(recorder["unwatched_steps"], "no collectives were recorded in them (level 0)")
    yield from _problems(recorder["problems"])
    yield from _probes([probe for probe in recorder["probes"] if not _as_asked(probe)])
    yield from _watched_otherwise(recorder["probes"])
    yield from _guessed(document["run"])
    yield from _excluded(document["run"])
    yield from _clock(document["clock"])


def _no_ends(document: Document) -> Iterator[Text]:
    """Ranks of which no end is known; those of which one is stand first in the report."""
    found = [fault for fault in document["faults"] if fault["kind"] == FaultKind.NO_END]
    for fault in found[:MOST_LINES]:
        yield text(_no_end(fault, end_ns=document["run"]["end"]), style=SEVERE)
    hidden = found[MOST_LINES:]
    if hidden:
        yield text(f"{count(len(hidden), 'more rank')} came to no clean end (see --format json)", style=SEVERE)


def _no_end(fault: Fault, *, end_ns: int | None) -> str:
    silent_ns = 0 if end_ns is None else end_ns - fault["at_ns"]
    before = f", {duration(silent_ns)} before the run's last record" if silent_ns > 0 else ""
    return f"{numbers(fault['ranks'], 'rank')} {_stopped(fault['open_records'])}{before}"


def _stopped(records: list[OpenRecord]) -> str:
    """What the rank was in; the innermost is named, what else is open may be why."""
    if not records:
        return "was in nothing that is watched when its records end"
    *others, inner = records
    step = "outside every step" if inner["step"] is None else f"step {inner['step']}"
    lasted = f", for {duration(inner['duration_ns'])}" if inner["duration_ns"] else ""
    inside = f" (also open: {'; '.join(map(_what, others))})" if others else ""
    return f"was in {_what(inner)}, {step}{lasted}{inside} when its records end"


def _what(record: OpenRecord) -> str:
    return record["what"] if record["axis"] is None else f"{record['what']} on {record['axis']}"


def _missing(run: Run) -> Iterator[Text]:
    if run["missing_ranks"]:
        ranks = numbers(run["missing_ranks"], "rank")
        yield text(f"{ranks} of {run['world_size']} left nothing to read; what happened there is unknown", style=SEVERE)


def _counts(recorder: Recorder) -> Text:
    return text(f"{count(recorder['events'], 'event')}, {count(recorder['dropped'])} dropped, {_own_cost(recorder)}")


def _lost(lost: Mapping[str, int | None]) -> Iterator[Text]:
    told = in_words(lost)
    if told:
        yield text(f"lost: {told} (traincope doctor RUN says why)", style=SEVERE)


def _own_cost(recorder: Recorder) -> str:
    seconds, ratio = recorder["overhead_seconds_per_step"], recorder["overhead_ratio"]
    if seconds is None or ratio is None:
        return "own cost not measured"
    return f"own cost {duration(seconds * 1e9)} a step ({share(ratio)})"


def _left_out(steps: list[list[int]], why: str) -> Iterator[Text]:
    if steps:
        yield text(f"left out of all shares, for {why}: {ranges(steps, 'step', most=MOST_LINES)}")


def _problems(problems: list[str]) -> Iterator[Text]:
    for problem in problems[:MOST_LINES]:
        yield text(problem, style=SEVERE)
    hidden = len(problems) - MOST_LINES
    if hidden > 0:
        yield text(f"{count(hidden)} more could not be read (see --format json)", style=SEVERE)


def _as_asked(probe: Probe) -> bool:
    """On, or off because the level that was asked for does not include it, or there is nothing that it could watch."""
    return probe["state"] == ON or probe["state"].startswith(("off: needs level", "off: nothing to watch"))


def _probes(probes: list[Probe]) -> Iterator[Text]:
    """Those that are in one state on the same ranks, for one reason mostly, share a line."""
    alike: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for probe in probes:
        alike.setdefault((probe["state"], tuple(probe["ranks"])), []).append(probe["name"])
    for (state, ranks), names in alike.items():
        which = f"probe {names[0]} is" if len(names) == 1 else f"probes {', '.join(names)} are"
        where = f"of rank{'s' if len(ranks) > 1 else ''} {numbers(ranks)}"
        how = "on" if state.startswith(f"{ON}, ") else "off"
        yield text(f"{which} {how}, {where}: {state.removeprefix(f'{how}: ').removeprefix(f'{how}, ')}")


def _watched_otherwise(probes: list[Probe]) -> Iterator[Text]:
    """Ranks whose collectives are not matched with others'."""
    ways: dict[str, list[int]] = {}
    for probe in probes:
        if probe["name"] == PROBE:
            ways.setdefault(watched({PROBE: probe["state"]}), []).extend(probe["ranks"])
    if len(ways) > 1:
        sides = [numbers(sorted(ranks), "rank") for ranks in ways.values()]
        yield text(f"collectives are not matched between {' and '.join(sides)}: they were not watched alike")


def _guessed(run: Run) -> Iterator[Text]:
    if run["guessed_steps"]:
        yield text("step boundaries were guessed from the optimizer; call run.step()")


def _excluded(run: Run) -> Iterator[Text]:
    if run["excluded_steps"]:
        yield text(f"left out of all shares as warm-up: {numbers(run['excluded_steps'], 'step')}")


def _clock(clocks: list[RankClock]) -> Iterator[Text]:
    unknown = [clock["rank"] for clock in clocks if clock["bound_ns"] is None]
    bounds = {clock["bound_ns"] or 0 for clock in clocks}
    if unknown:
        ranks = numbers(unknown, "rank")
        yield text(f"clock error is unknown on {ranks}; do not compare their times with other hosts")
    elif not any(bounds):
        yield text("one clock for all ranks")
    else:
        within = f"{duration(max(bounds))} with that of rank {clocks[0]['rank']}"
        yield text(
            f"the hosts' clocks agree within {within}, by what they sent; nothing finer is compared across hosts"
        )
        yield from _drift(clocks)


def _drift(clocks: list[RankClock]) -> Iterator[Text]:
    """Of the clock that drifts most; it is corrected for."""
    worst = max(clocks, key=lambda clock: abs(clock["drift_ppm"] or 0.0))
    ppm = worst["drift_ppm"] or 0.0
    if abs(ppm) >= WORTH_A_LINE_PPM:
        drift = f"{abs(ppm):.1f} ppm {'slow' if ppm > 0 else 'fast'}"
        yield text(f"that of rank {worst['rank']} drifts most, {drift}; all its times are corrected for it")
