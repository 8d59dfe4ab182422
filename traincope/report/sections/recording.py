"""Recording: the limits of the report: what was recorded, lost, left open, missing or excluded."""

from collections.abc import Iterator, Sequence
from typing import Any

from traincope.analysis import FaultKind
from traincope.analysis.attribution.terms import exposed_transfer
from traincope.report.document.recording_losses import losses_text
from traincope.report.schema import Document, Fault, Ledger, OpenRecord, Probe, Recorder, Run
from traincope.report.sections.reliability import is_logbook
from traincope.report.sections.section import Alarm, Lines, On, Section, Table, Words
from traincope.timeline.observation import NATIVE_PROBE, ON, PROBE, observation, why_not_native
from traincope.topology import PIPELINE_AXIS
from traincope.units import count, duration, numbers, ranges, share

NAME, TITLE = "recording", "Recording"
MIN_DRIFT_PPM = 0.1
"""Drift below this is not printed."""
MAX_LINES, MAX_PROBLEMS = 5, 20
"""Further open ends or problems are counted, not listed; JSON has all."""


def recording(document: Document) -> Section:
    """Short if all is well; otherwise everything that makes a number of the report doubtful."""
    probes = document["recorder"]["probes"]
    states = Table(
        caption="Probes",
        heads=("probe", "state", "ranks"),
        rows=tuple((probe["name"], probe["state"], numbers(probe["ranks"])) for probe in probes),
        left=frozenset({0, 1, 2}),
        on=On.SCREEN,
        folded=True,
    )
    return Section(name=NAME, title=TITLE, parts=(Lines(tuple(_lines(document)), facts=True), states))


def _lines(document: Document) -> Iterator[Words]:
    """One line per fact; severe facts are alarms."""
    recorder, run = document["recorder"], document["run"]
    yield from _no_ends(document)
    if run["missing_ranks"]:
        yield Alarm(f"{numbers(run['missing_ranks'], 'rank')} of {run['world_size']} left no readable records")
    if run["imported"]:
        yield from _imported(document)
        yield from problems(recorder["problems"])
        return
    yield f"{count(recorder['events'], 'event')}, {count(recorder['dropped'])} dropped, {_overhead(recorder)}"
    if losses := losses_text(recorder["lost"]):
        yield Alarm(f"lost: {losses} (reasons: traincope doctor RUN)")
    yield from _excluded_because(recorder["dropped_steps"], "a rank dropped events in them")
    if recorder["unwatched_steps"]:
        yield from _sampling(recorder, ledger=document["ledger"])
    yield from _requested(recorder["sampling"]["requested"])
    if document["state_checks"] is not None:
        yield from _state_checks(document["state_checks"])
    yield from problems(recorder["problems"])
    yield from _recorded_by([probe for probe in recorder["probes"] if probe["name"] == NATIVE_PROBE])
    yield from _probes([probe for probe in recorder["probes"] if not _is_expected(probe)])
    yield from _unmatched_collectives(recorder["probes"])
    yield from _guessed(run)
    if run["excluded_steps"]:
        yield f"excluded from all averages as warm-up: {numbers(run['excluded_steps'], 'step')}"
    yield from _clock(document["clock"])


def _imported(document: Document) -> Iterator[str]:
    if document["slowdown"] is not None:
        yield from _table(document["slowdown"]["unknown_operations"])
    elif is_logbook(document):
        yield "a list of runs and interruptions was imported; what it does not have is unknown"
    elif document["kernels"] is None:
        yield "snapshots of memory were imported; nothing else is known"
    elif not document["run"]["steps"]:
        yield "kernel traces were imported that give no steps, so the ledger is unknown"
    else:
        yield from _traces(document)


def _table(unknown_operations: int) -> Iterator[str]:
    yield (
        "a table of operations was imported: it contains no bytes, no FLOPs and no memory, so these are unknown; gaps "
        "between computations are stalls for the message or collective that ran then"
    )
    if unknown_operations:
        yield f"{count(unknown_operations, 'operation')} of unknown types: spans, in no sum"


def _traces(document: Document) -> Iterator[str]:
    """What kernel traces have, and why an imported pipeline has no bubble."""
    if document["gpu_partition"]:
        what = "kernel traces were imported: steps, phases and stalls are those of the GPUs"
    else:
        what = "traces without events of a GPU were imported: steps and phases are those of the thread that trains"
    yield f"{what}; nothing else was recorded"
    if document["run"]["guessed_steps"]:
        yield "step boundaries were inferred from the optimizer; call the profiler's step() for exact ones"
    ledger = document["ledger"]
    if document["bubble"] is None and ledger is not None and ledger["terms"].get(exposed_transfer(PIPELINE_AXIS)):
        yield (
            "the pipeline's bubble is unknown, and its idle time is exposed communication: not all its ranks have "
            "traces with annotated actions (PP:0F0 and the like, as torch's multi-stage schedules write them)"
        )
    yield from _clock(document["clock"])


def _no_ends(document: Document) -> Iterator[Alarm]:
    """Ranks without a known end. Ranks with a known end are in FAULTS."""
    no_ends = [fault for fault in document["faults"] if fault["kind"] == FaultKind.NO_END]
    yield from (Alarm(_no_end(fault, end_ns=document["run"]["end"])) for fault in no_ends[:MAX_LINES])
    if hidden := no_ends[MAX_LINES:]:
        yield Alarm(f"{count(len(hidden), 'more rank')} without a recorded end (see --format json)")


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


def _overhead(recorder: Recorder) -> str:
    seconds, ratio = recorder["overhead_seconds_per_step"], recorder["overhead_ratio"]
    if seconds is None or ratio is None:
        return "recorder overhead not measured"
    return f"recorder overhead {duration(seconds * 1e9)} per step ({share(ratio)})"


def _sampling(recorder: Recorder, *, ledger: Ledger | None) -> Iterator[str]:
    """The steps that the ledger stands on, and what recording them cost."""
    sampling = recorder["sampling"]
    sampled, overhead = sampling["sampled_steps"], sampling["measured_overhead"]
    if not sampled:
        why = "collectives were not recorded in them (level 0)"
        yield from _excluded_because(recorder["unwatched_steps"], why)
        return
    where = f"in {count(sampling['windows'], 'window')} up to step {sampling['last_sampled']}"
    counted = 0 if ledger is None else max(rank["steps"] for rank in ledger["ranks"])
    of_them = "these" if counted == sampled else f"{counted:,} of these, without first ones unlike the rest"
    of_all = f"{sampled:,} of {count(sampling['steps'], 'step')}"
    yield f"recorded in detail: {of_all}, {where}; all sums stand on {of_them}"
    if overhead is not None:
        estimate, low, high = (f"{100 * overhead[key]:+.1f} %" for key in ("estimate", "low", "high"))
        yield f"measured in this job: detail changed a step's time by {estimate} (95 % interval: {low} to {high})"


def _requested(windows: Sequence[Any]) -> Iterator[str]:
    """Windows outside of the sampling, the newest last."""
    for window in windows[-MAX_LINES:]:
        first, last, without = window["first_step"], window["last_step"], window["ranks_without"]
        kernels = " with kernels" if window["kernels"] else ""
        late = f"; {numbers(without, 'rank')} read the request too late or never" if without else ""
        yield (
            f"window requested by {window['reason']}: {ranges([[first, last]], 'step', max_ranges=1)}{kernels}, "
            f"{window['recorded_steps']} of {last - first + 1} in detail on all ranks{late}"
        )
    if (hidden := len(windows) - MAX_LINES) > 0:
        yield f"{count(hidden, 'earlier requested window')} (see --format json)"


def _state_checks(checks: Any) -> Iterator[str]:
    """Coverage of the checks for silent corruption."""
    steps = f"{count(checks['num_checks'], 'step')} from {checks['first_step']} to {checks['last_step']}"
    yield f"checked for corruption after {steps}, {duration(checks['check_ns'])} each on the host"
    for noun, covered in (("parameters", checks["parameters"]), ("optimizer state", checks["optimizer_state"])):
        yield (
            f"of the {noun}, {share(covered['voted_ratio'])} were compared with replicas, "
            f"and {share(covered['held_ratio'])} with themselves until the next update"
        )
    if checks["edited_checks"]:
        times = count(checks["edited_checks"], "check")
        yield f"the training itself wrote to its state between steps in {times}: those tensors are not covered"


def _excluded_because(steps: list[list[int]], why: str) -> Iterator[str]:
    if steps:
        yield f"excluded from all averages because {why}: {ranges(steps, 'step', max_ranges=MAX_LINES)}"


def problems(found: list[str]) -> Iterator[Alarm]:
    """What could not be read, in the words of the reader."""
    yield from map(Alarm, found[:MAX_PROBLEMS])
    if (hidden := len(found) - MAX_PROBLEMS) > 0:
        yield Alarm(f"{count(hidden, 'more problem')} (see --format json)")


def _is_expected(probe: Probe) -> bool:
    """On; or off because the chosen level excludes it or because there is nothing to watch; or in a line of its own."""
    expected = ("off: needs level", "off: nothing to watch")
    return probe["state"] == ON or probe["state"].startswith(expected) or probe["name"] == NATIVE_PROBE


def _recorded_by(probes: list[Probe]) -> Iterator[str]:
    """The recorder of the collectives, and why it is not the native one."""
    for probe in probes:
        why = why_not_native(probe["state"])
        ranks = f" of {numbers(probe['ranks'], 'rank')}" if len(probes) > 1 else ""
        by = "the native recorder" if why is None else f"the Python hooks, not by the native recorder: {why}"
        yield f"collectives{ranks} were recorded by {by}"


def _probes(probes: list[Probe]) -> Iterator[str]:
    """One line for all probes that are in the same state on the same ranks, mostly for one reason."""
    alike: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for probe in probes:
        alike.setdefault((probe["state"], tuple(probe["ranks"])), []).append(probe["name"])
    for (state, ranks), names in alike.items():
        which = f"probe {names[0]}" if len(names) == 1 else f"probes {', '.join(names)}"
        how = "on" if state.startswith(f"{ON}, ") else "off"
        why = state.removeprefix(f"{how}: ").removeprefix(f"{how}, ")
        yield f"{which} on {numbers(ranks, 'rank')}: {how}, {why}"


def _unmatched_collectives(probes: list[Probe]) -> Iterator[str]:
    """Groups of ranks whose collectives cannot be matched with each other."""
    ranks_by_method: dict[str, list[int]] = {}
    for probe in probes:
        if probe["name"] == PROBE:
            ranks_by_method.setdefault(observation({PROBE: probe["state"]}), []).extend(probe["ranks"])
    if len(ranks_by_method) > 1:
        sides = [numbers(sorted(ranks), "rank") for ranks in ranks_by_method.values()]
        yield f"collectives of {' and '.join(sides)} are not matched: different hooks recorded them"


def _guessed(run: Run) -> Iterator[Words]:
    if run["backward_steps"]:
        unsure = count(run["backward_steps"], "step")
        yield Alarm(
            f"the number of steps is unknown: {unsure} without a certain sign of an update of the weights may be parts "
            "of steps, or several steps; call run.step() once per step"
        )
    elif run["guessed_steps"]:
        yield "step boundaries were inferred from the optimizer; call run.step() for exact ones"


def _clock(clocks: Sequence[Any]) -> Iterator[str]:
    """The bound of the clocks' error, and the clock with the largest drift, which is corrected."""
    unknown = [clock["rank"] for clock in clocks if clock["bound_ns"] is None]
    bound_ns = max((clock["bound_ns"] or 0 for clock in clocks), default=0)
    if unknown:
        yield f"clock error unknown on {numbers(unknown, 'rank')}; do not compare times there with other hosts"
    elif not bound_ns:
        yield "one clock for all ranks"
    else:
        within = f"{duration(bound_ns)} of rank {clocks[0]['rank']}'s"
        yield (
            f"all clocks are within {within}, bounded by messages; smaller differences between hosts are not compared"
        )
        worst = max(clocks, key=lambda clock: abs(clock["drift_ppm"] or 0.0))
        ppm = worst["drift_ppm"] or 0.0
        if abs(ppm) >= MIN_DRIFT_PPM:
            drift = f"{abs(ppm):.1f} ppm {'slow' if ppm > 0 else 'fast'}"
            yield f"rank {worst['rank']}'s clock drifts most: {drift}; its times are corrected"
