"""Check a recorded run by what its ranks wrote about themselves."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from traincope.doctor.finding import Examination, Finding, Section, bad, note, ok
from traincope.doctor.probes import probe_off
from traincope.events import CLEAN, Flag, Kind
from traincope.report.document.recording_losses import LOSSES
from traincope.store import RECORD_DTYPE, RunRecords, read_run
from traincope.store.places.node_local import recorded_at
from traincope.store.places.ship_notes import ShipNote, left_notes
from traincope.store.reading import SHARE
from traincope.timeline import build_timeline, error_between_ns, open_run
from traincope.timeline.observation import NATIVE_PROBE, ON
from traincope.timeline.timeline import TRAINING_THREAD
from traincope.units import count, duration, numbers, share, size


def examine_run(path: Path) -> Examination:
    """Examine a run directory. Raises RunDirectoryError if nothing can be read."""
    run = read_run(path)
    if run.info.imported:
        run = open_run(path).run  # with the records of its GPUs
    return Examination(
        subject=f"{run.path}: {count(run.info.world_size, 'rank')}, {_made_with(run)}",
        sections=(
            Section(title="RANKS", findings=tuple(_ranks(run))),
            Section(title="PROBES", findings=tuple(_probes(run))),
            Section(title="RECORDS", findings=tuple(_records(run))),
            Section(title="CLOCKS", findings=(_clocks(run),)),
            *_shipping(run.path),
        ),
    )


def _shipping(run: Path) -> Iterator[Section]:
    """Files of this node that are not at a destination. No section if the run is not shipped from here."""
    place = recorded_at(run)
    findings = [_shipped_to(note, place) for note in left_notes(place)]
    if findings:
        yield Section(title="SHIPPING", findings=tuple(findings))


def _shipped_to(shipped: ShipNote, place: Path) -> Finding:
    if shipped.complete:
        return ok("shipped", f"all records of host {shipped.host}, to {shipped.destination}")
    left = f"{count(shipped.left_files, 'file')} ({size(shipped.left_bytes)}) of host {shipped.host}"
    reason = "" if shipped.problem is None else f": {shipped.problem}"
    return bad(
        "not shipped",
        f"{left} to {shipped.destination}{reason}; they are in {place}",
        do=f"if the training has ended, run traincope ship {place} on {shipped.host}",
    )


def _made_with(run: RunRecords) -> str:
    versions = {name: run.info.versions[name] for name in ("traincope", "torch", "python") if name in run.info.versions}
    return ", ".join(f"{name} {number}" for name, number in versions.items()) or "versions unknown"


def _ranks(run: RunRecords) -> Iterator[Finding]:
    present = numbers([rank.rank for rank in run.ranks], "rank")
    if run.logbook is not None:
        yield note("present", "none: imported from a list of runs and interruptions")
    elif run.missing:
        lost = [rank for rank in run.missing if rank not in run.refused]
        if lost:
            do = f"copy the records of {numbers(lost, 'rank')} here, or record to a directory that all hosts share"
            yield bad("present", f"{present}; {numbers(lost, 'rank')} left no records", do=do)
        if run.refused:
            refused = numbers(run.refused, "rank")
            yield bad("present", f"{present}; {refused} may not be read", do=f"check the modes of its files; {SHARE}")
    elif len(run.ranks) < run.info.world_size:
        traces = f"traces of {present} of {run.info.world_size}"
        yield note("present", traces, do="import the traces of the other ranks too, to separate wait from transfer")
    else:
        yield ok("present", f"{present}: all ranks")
    yield from _endings(run)


def _endings(run: RunRecords) -> Iterator[Finding]:
    """Ends of the ranks: as each rank recorded it, unless its launcher noted an exit code."""
    noted = {note.rank: note.exit_code for note in run.launcher if note.attempt == run.last_attempt}
    by_ending: dict[str | None, list[int]] = defaultdict(list)
    for rank in run.ranks:
        unrecorded = rank.info.ending in (None, CLEAN) and rank.rank in noted
        by_ending[_exit(noted[rank.rank]) if unrecorded else rank.info.ending].append(rank.rank)
    for ending, ranks in by_ending.items():
        shown = numbers(ranks, "rank")
        if ending == CLEAN:
            yield ok("ended", f"{shown} cleanly")
        elif ending is None:
            yield note(
                "ended",
                f"{shown}: no end recorded, still running or killed; the records until then can be read",
                do=f"run traincope report {run.path} to see what each rank was in",
            )
        else:
            yield note(
                "ended", f"{shown} by {ending}", do=f"run traincope report {run.path} to see which rank ended first"
            )


def _exit(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _probes(run: RunRecords) -> Iterator[Finding]:
    states: dict[tuple[str, str], list[int]] = defaultdict(list)
    for rank in run.ranks:
        for name, state in rank.info.probes.items():
            states[name, state].append(rank.rank)
    if not states:
        yield note("all", "no rank recorded its probes")
    for (name, state), ranks in states.items():
        everywhere = len(ranks) == len(run.ranks)
        where = "" if everywhere else f" (on {numbers(ranks, 'rank')})"
        if state == ON or name == NATIVE_PROBE:  # without the native recorder, the Python hooks record
            yield ok(name, f"{state}{where}")
        else:
            yield probe_off(name, state, where=where)


def _records(run: RunRecords) -> Iterator[Finding]:
    total = sum(len(segment.records) for rank in run.ranks for segment in rank.segments)
    yield ok("events", f"{total:,} can be read")
    dropped = {rank.rank: rank.dropped for rank in run.ranks if rank.dropped}
    if dropped:
        yield bad(
            "dropped",
            f"{sum(dropped.values()):,} on {numbers(list(dropped), 'rank')}",
            do="set a larger traincope.run(disk_budget=...), lower the level, or free disk space",
        )
    else:
        yield ok("dropped", "none")
    yield from _lost(run)
    yield from _sampling(run)
    for problem in (*run.problems, *(problem for rank in run.ranks for problem in rank.problems)):
        yield bad("damaged", problem, do="use the rest of the run: only the named part is lost")


def _sampling(run: RunRecords) -> Iterator[Finding]:
    """Steps with detail, where some have none."""
    steps = np.concatenate([records[records["kind"] == Kind.STEP] for records in _training_threads(run)])
    detailed = int(np.count_nonzero(steps["flags"] & Flag.DETAILED))
    if not 0 < detailed < len(steps):
        return
    budgets = {rank.info.budget for rank in run.ranks}
    limit = f"; the recorder's budget is {share(budgets.pop())} of step time" if budgets != {None} else ""
    yield note(
        "sampling",
        f"{detailed:,} of {count(len(steps), 'step')} of all ranks have detail (collectives, waits, actions){limit}",
        do="record detail in every step with traincope.run(budget=None) or TRAINCOPE_BUDGET=none",
    )


def _training_threads(run: RunRecords) -> Iterator[NDArray[np.void]]:
    yield np.empty(0, dtype=RECORD_DTYPE)
    yield from (rank.thread(TRAINING_THREAD) for rank in run.ranks)


def _lost(run: RunRecords) -> Iterator[Finding]:
    for counter, (what, why) in LOSSES.items():
        lost = {rank.rank: int(rank.info.recorder.get(counter, 0)) for rank in run.ranks}
        total, ranks = sum(lost.values()), [rank for rank, number in lost.items() if number]
        if total:
            yield bad("lost", f"{total:,} {what} on {numbers(ranks, 'rank')}", do=why)


def _clocks(run: RunRecords) -> Finding:
    clocks = build_timeline(run).clocks
    hosts = count(len({clock.host for clock in clocks}), "host")
    error_ns = error_between_ns(clocks)
    if error_ns is None:
        unknown = numbers([clock.rank for clock in clocks if clock.bound_ns is None], "rank")
        return note(
            "clocks",
            f"{hosts}; only wall clocks relate {unknown} to the others, with an unknown error",
            do="synchronise the hosts' clocks (chrony, PTP), and compare times only within a host",
        )
    if not error_ns:
        return ok("clocks", "one clock for all ranks")
    return ok("clocks", f"{hosts}; their clocks agree within {duration(error_ns)}, by the messages between them")
