"""RECORDING: the limits of the report: what was recorded, lost, left open, missing or excluded."""

from collections.abc import Iterator, Mapping, Sequence

from rich.console import RenderableType
from rich.text import Text

from traincope.analysis import Analysis, FaultKind, RequestedWindow, Sampling
from traincope.analysis.attribution.terms import exposed_transfer
from traincope.analysis.faults.anomalies.corruption import StateChecks, StateShare
from traincope.analysis.stragglers.slowdown import Slowdown
from traincope.lines import indented, text
from traincope.palette import SEVERE
from traincope.report.document.recording_losses import losses_text
from traincope.report.schema import (
    Document,
    Fault,
    Ledger,
    OpenRecord,
    Probe,
    Recorder,
    Run,
)
from traincope.report.sections.reliability import is_logbook
from traincope.timeline import RankClock
from traincope.timeline.observation import NATIVE_PROBE, ON, PROBE, observation, why_not_native
from traincope.topology import PIPELINE_AXIS
from traincope.units import count, duration, numbers, ranges, share

MIN_DRIFT_PPM = 0.1
"""Drift below this is not printed."""
MAX_LINES = 5
"""Further open ends or problems are counted, not listed; JSON has all."""


def recording(document: Document, analysis: Analysis) -> Iterator[RenderableType]:
    """Short if all is well; otherwise everything that makes a number of the report doubtful."""
    yield Text("RECORDING", style="bold")
    yield indented(lines(document, analysis))


def lines(document: Document, analysis: Analysis) -> Iterator[Text]:
    """One line per fact; severe facts in their colour."""
    recorder = document["recorder"]
    yield from _no_ends(document)
    yield from _missing(document["run"])
    if document["run"]["imported"]:
        yield from _imported(document, analysis)
        yield from _problems(recorder["problems"])
        return
    yield _counts(recorder)
    yield from _lost(recorder["lost"])
    yield from _excluded_because(recorder["dropped_steps"], "a rank dropped events in them")
    yield from _sampling(analysis.sampling, recorder["unwatched_steps"], ledger=document["ledger"])
    yield from _requested(analysis.sampling.requested)
    yield from _state_checks(analysis.state_checks)
    yield from _problems(recorder["problems"])
    yield from _recorded_by([probe for probe in recorder["probes"] if probe["name"] == NATIVE_PROBE])
    yield from _probes([probe for probe in recorder["probes"] if not _is_expected(probe)])
    yield from _unmatched_collectives(recorder["probes"])
    yield from _guessed(document["run"])
    yield from _excluded(document["run"])
    yield from _clock(analysis.timeline.clocks)


def _imported(document: Document, analysis: Analysis) -> Iterator[Text]:
    if analysis.slowdown is not None:
        yield from _table(analysis.slowdown)
        return
    if is_logbook(document):
        yield text("a list of runs and interruptions was imported; what it does not have is unknown")
        return
    if analysis.kernels is None:
        yield text("snapshots of memory were imported; nothing else is known")
        return
    if not document["run"]["steps"]:
        yield text("kernel traces were imported that give no steps, so the ledger is unknown")
        return
    if analysis.gpu_partition:
        what = "kernel traces were imported: steps, phases and stalls are those of the GPUs"
    else:
        what = "traces without events of a GPU were imported: steps and phases are those of the thread that trains"
    yield text(f"{what}; nothing else was recorded")
    if document["run"]["guessed_steps"]:
        yield text("step boundaries were inferred from the optimizer; call the profiler's step() for exact ones")
    yield from _no_bubble(document, analysis)
    yield from _clock(analysis.timeline.clocks)


def _table(slowdown: Slowdown) -> Iterator[Text]:
    yield text(
        "a table of operations was imported: it contains no bytes, no FLOPs and no memory, so these are unknown; gaps "
        "between computations are stalls for the message or collective that ran then"
    )
    if slowdown.unknown_operations:
        yield text(f"{count(slowdown.unknown_operations, 'operation')} of unknown types: spans, in no sum")


def _no_bubble(document: Document, analysis: Analysis) -> Iterator[Text]:
    """Reason why an imported pipeline has no bubble."""
    ledger = document["ledger"]
    if analysis.bubble is None and ledger is not None and ledger["terms"].get(exposed_transfer(PIPELINE_AXIS)):
        yield text(
            "the pipeline's bubble is unknown, and its idle time is exposed communication: not all its ranks have "
            "traces with annotated actions (PP:0F0 and the like, as torch's multi-stage schedules write them)"
        )


def _no_ends(document: Document) -> Iterator[Text]:
    """Ranks without a known end. Ranks with a known end are in FAULTS."""
    no_ends = [fault for fault in document["faults"] if fault["kind"] == FaultKind.NO_END]
    for fault in no_ends[:MAX_LINES]:
        yield text(_no_end(fault, end_ns=document["run"]["end"]), style=SEVERE)
    hidden = no_ends[MAX_LINES:]
    if hidden:
        yield text(f"{count(len(hidden), 'more rank')} without a recorded end (see --format json)", style=SEVERE)


def _no_end(fault: Fault, *, end_ns: int | None) -> str:
    silent_ns = 0 if end_ns is None else end_ns - fault["at_ns"]
    before = f", {duration(silent_ns)} before the end of the run" if silent_ns > 0 else ""
    return f"{numbers(fault['ranks'], 'rank')}: its records end {_open_at_end(fault['open_records'])}{before}"


def _open_at_end(records: list[OpenRecord]) -> str:
    """The innermost open event, then the others, which may be the reason for it."""
    if not records:
        return "with no open event"
    *others, inner = records
    step = "outside every step" if inner["step"] is None else f"step {inner['step']}"
    lasted = f", after {duration(inner['duration_ns'])}" if inner["duration_ns"] else ""
    inside = f" (also open: {'; '.join(map(_what, others))})" if others else ""
    return f"in {_what(inner)}, {step}{lasted}{inside}"


def _what(record: OpenRecord) -> str:
    return record["what"] if record["axis"] is None else f"{record['what']} on {record['axis']}"


def _missing(run: Run) -> Iterator[Text]:
    if run["missing_ranks"]:
        ranks = numbers(run["missing_ranks"], "rank")
        yield text(f"{ranks} of {run['world_size']} left no readable records", style=SEVERE)


def _counts(recorder: Recorder) -> Text:
    return text(f"{count(recorder['events'], 'event')}, {count(recorder['dropped'])} dropped, {_overhead(recorder)}")


def _lost(lost: Mapping[str, int | None]) -> Iterator[Text]:
    losses = losses_text(lost)
    if losses:
        yield text(f"lost: {losses} (reasons: traincope doctor RUN)", style=SEVERE)


def _overhead(recorder: Recorder) -> str:
    seconds, ratio = recorder["overhead_seconds_per_step"], recorder["overhead_ratio"]
    if seconds is None or ratio is None:
        return "recorder overhead not measured"
    return f"recorder overhead {duration(seconds * 1e9)} per step ({share(ratio)})"


def _sampling(sampling: Sampling, unwatched: list[list[int]], *, ledger: Ledger | None) -> Iterator[Text]:
    """The steps that the ledger stands on, and what recording them cost."""
    if not unwatched:
        return
    if not sampling.sampled_steps:
        yield from _excluded_because(unwatched, "collectives were not recorded in them (level 0)")
        return
    detailed = f"{sampling.sampled_steps:,} of {count(sampling.steps, 'step')}"
    where = f"in {count(sampling.windows, 'window')} up to step {sampling.last_sampled}"
    counted = 0 if ledger is None else max(rank["steps"] for rank in ledger["ranks"])
    of_them = (
        "these" if counted == sampling.sampled_steps else f"{counted:,} of these, without first ones unlike the rest"
    )
    yield text(f"recorded in detail: {detailed}, {where}; all sums stand on {of_them}")
    overhead = sampling.measured_overhead
    if overhead is not None:
        estimate, low, high = (f"{100 * ratio:+.1f} %" for ratio in (overhead.estimate, overhead.low, overhead.high))
        yield text(f"measured in this job: detail changed a step's time by {estimate} (95 % interval: {low} to {high})")


def _requested(windows: Sequence[RequestedWindow]) -> Iterator[Text]:
    """Windows outside of the sampling, the newest last."""
    for window in windows[-MAX_LINES:]:
        steps = ranges([[window.first_step, window.last_step]], "step", max_ranges=1)
        num_steps = window.last_step - window.first_step + 1
        kernels = " with kernels" if window.kernels else ""
        yield text(
            f"window requested by {window.reason}: {steps}{kernels}, {window.recorded_steps} of {num_steps} in "
            f"detail on all ranks{_without(window)}"
        )
    hidden = len(windows) - MAX_LINES
    if hidden > 0:
        yield text(f"{count(hidden, 'earlier requested window')} (see --format json)")


def _state_checks(checks: StateChecks | None) -> Iterator[Text]:
    """Coverage of the checks for silent corruption."""
    if checks is None:
        return
    steps = f"{count(checks.num_checks, 'step')} from {checks.first_step} to {checks.last_step}"
    yield text(f"checked for corruption after {steps}, {duration(checks.check_ns)} each on the host")
    for noun, covered in (("parameters", checks.parameters), ("optimizer state", checks.optimizer_state)):
        yield text(f"of the {noun}, {_covered(covered)}")
    if checks.edited_checks:
        times = count(checks.edited_checks, "check")
        yield text(f"the training itself wrote to its state between steps in {times}: those tensors are not covered")


def _covered(covered: StateShare) -> str:
    return (
        f"{share(covered.voted_ratio)} were compared with replicas, "
        f"and {share(covered.held_ratio)} with themselves until the next update"
    )


def _without(window: RequestedWindow) -> str:
    if not window.ranks_without:
        return ""
    return f"; {numbers(window.ranks_without, 'rank')} read the request too late or never"


def _excluded_because(steps: list[list[int]], why: str) -> Iterator[Text]:
    if steps:
        yield text(f"excluded from all averages because {why}: {ranges(steps, 'step', max_ranges=MAX_LINES)}")


def _problems(problems: list[str]) -> Iterator[Text]:
    for problem in problems[:MAX_LINES]:
        yield text(problem, style=SEVERE)
    hidden = len(problems) - MAX_LINES
    if hidden > 0:
        yield text(f"{count(hidden)} more problems (see --format json)", style=SEVERE)


def _is_expected(probe: Probe) -> bool:
    """On; or off because the chosen level excludes it or because there is nothing to watch; or in a line of its own."""
    expected = ("off: needs level", "off: nothing to watch")
    return probe["state"] == ON or probe["state"].startswith(expected) or probe["name"] == NATIVE_PROBE


def _recorded_by(probes: list[Probe]) -> Iterator[Text]:
    """The recorder of the collectives, and why it is not the native one."""
    for probe in probes:
        why = why_not_native(probe["state"])
        ranks = f" of {numbers(probe['ranks'], 'rank')}" if len(probes) > 1 else ""
        by = "the native recorder" if why is None else f"the Python hooks, not by the native recorder: {why}"
        yield text(f"collectives{ranks} were recorded by {by}")


def _probes(probes: list[Probe]) -> Iterator[Text]:
    """One line for all probes that are in the same state on the same ranks, mostly for one reason."""
    alike: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for probe in probes:
        alike.setdefault((probe["state"], tuple(probe["ranks"])), []).append(probe["name"])
    for (state, ranks), names in alike.items():
        which = f"probe {names[0]}" if len(names) == 1 else f"probes {', '.join(names)}"
        how = "on" if state.startswith(f"{ON}, ") else "off"
        why = state.removeprefix(f"{how}: ").removeprefix(f"{how}, ")
        yield text(f"{which} on {numbers(ranks, 'rank')}: {how}, {why}")


def _unmatched_collectives(probes: list[Probe]) -> Iterator[Text]:
    """Groups of ranks whose collectives cannot be matched with each other."""
    ranks_by_method: dict[str, list[int]] = {}
    for probe in probes:
        if probe["name"] == PROBE:
            ranks_by_method.setdefault(observation({PROBE: probe["state"]}), []).extend(probe["ranks"])
    if len(ranks_by_method) > 1:
        sides = [numbers(sorted(ranks), "rank") for ranks in ranks_by_method.values()]
        yield text(f"collectives of {' and '.join(sides)} are not matched: different hooks recorded them")


def _guessed(run: Run) -> Iterator[Text]:
    if run["backward_steps"]:
        unsure = count(run["backward_steps"], "step")
        yield text(
            f"the number of steps is unknown: {unsure} without a certain sign of an update of the weights may be parts "
            "of steps, or several steps; call run.step() once per step",
            style=SEVERE,
        )
    elif run["guessed_steps"]:
        yield text("step boundaries were inferred from the optimizer; call run.step() for exact ones")


def _excluded(run: Run) -> Iterator[Text]:
    if run["excluded_steps"]:
        yield text(f"excluded from all averages as warm-up: {numbers(run['excluded_steps'], 'step')}")


def _clock(clocks: Sequence[RankClock]) -> Iterator[Text]:
    unknown = [clock.rank for clock in clocks if clock.bound_ns is None]
    bounds = {clock.bound_ns or 0 for clock in clocks}
    if unknown:
        ranks = numbers(unknown, "rank")
        yield text(f"clock error unknown on {ranks}; do not compare times there with other hosts")
    elif not any(bounds):
        yield text("one clock for all ranks")
    else:
        within = f"{duration(max(bounds))} of rank {clocks[0].rank}'s"
        yield text(
            f"all clocks are within {within}, bounded by messages; smaller differences between hosts are not compared"
        )
        yield from _drift(clocks)


def _drift(clocks: Sequence[RankClock]) -> Iterator[Text]:
    """The clock with the largest drift. The drift is corrected."""
    worst = max(clocks, key=lambda clock: abs(clock.drift_ppm or 0.0))
    ppm = worst.drift_ppm or 0.0
    if abs(ppm) >= MIN_DRIFT_PPM:
        drift = f"{abs(ppm):.1f} ppm {'slow' if ppm > 0 else 'fast'}"
        yield text(f"rank {worst.rank}'s clock drifts most: {drift}; its times are corrected")
