"""A run that was recorded, by what its ranks wrote about themselves."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from traincope.doctor.finding import Examination, Finding, Section, bad, note, ok
from traincope.doctor.probes import ON, probe_off
from traincope.events import CLEAN
from traincope.report.lost import LOSSES
from traincope.store import RunRecords, read_run
from traincope.timeline import build_timeline, error_between_ns
from traincope.units import count, duration, numbers


def examine_run(path: Path) -> Examination:
    """Raises RunDirectoryError where nothing can be read."""
    run = read_run(path)
    return Examination(
        subject=f"{run.path}: {count(run.info.world_size, 'rank')}, {_made_with(run)}",
        sections=(
            Section(title="RANKS", findings=tuple(_ranks(run))),
            Section(title="PROBES", findings=tuple(_probes(run))),
            Section(title="RECORDS", findings=tuple(_records(run))),
            Section(title="CLOCKS", findings=(_clocks(run),)),
        ),
    )


def _made_with(run: RunRecords) -> str:
    versions = {name: run.info.versions[name] for name in ("traincope", "torch", "python") if name in run.info.versions}
    return ", ".join(f"{name} {number}" for name, number in versions.items()) or "versions unknown"


def _ranks(run: RunRecords) -> Iterator[Finding]:
    present = numbers([rank.rank for rank in run.ranks], "rank")
    if run.missing:
        missing = numbers(run.missing, "rank")
        yield bad(
            "present",
            f"{present}; {missing} left nothing to read",
            do=f"if {missing} ran on another host, record to a directory that all hosts share, or copy theirs here",
        )
    else:
        yield ok("present", f"{present}: all there are")
    yield from _endings(run)


def _endings(run: RunRecords) -> Iterator[Finding]:
    """As each rank told itself, unless whoever waited for its process knows better."""
    noted = {note.rank: note.exit_code for note in run.launcher if note.attempt == run.last_attempt}
    by_ending: dict[str | None, list[int]] = defaultdict(list)
    for rank in run.ranks:
        untold = rank.info.ending in (None, CLEAN) and rank.rank in noted
        by_ending[_exit(noted[rank.rank]) if untold else rank.info.ending].append(rank.rank)
    for ending, ranks in by_ending.items():
        who = numbers(ranks, "rank")
        if ending == CLEAN:
            yield ok("ended", f"{who} cleanly")
        elif ending is None:
            yield note(
                "ended",
                f"{who} not yet, or was killed; what was recorded until then can be read",
                do=f"traincope report {run.path} says what each rank was in",
            )
        else:
            yield note("ended", f"{who} by {ending}", do=f"traincope report {run.path} says which rank went first")


def _exit(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _probes(run: RunRecords) -> Iterator[Finding]:
    states: dict[tuple[str, str], list[int]] = defaultdict(list)
    for rank in run.ranks:
        for name, state in rank.info.probes.items():
            states[name, state].append(rank.rank)
    if not states:
        yield note("all", "no rank says anything about its probes")
    for (name, state), ranks in states.items():
        everywhere = len(ranks) == len(run.ranks)
        where = "" if everywhere else f" (on {numbers(ranks, 'rank')})"
        yield ok(name, f"{ON}{where}") if state == ON else probe_off(name, state, where=where)


def _records(run: RunRecords) -> Iterator[Finding]:
    total = sum(len(segment.records) for rank in run.ranks for segment in rank.segments)
    yield ok("events", f"{total:,} can be read")
    dropped = {rank.rank: rank.dropped for rank in run.ranks if rank.dropped}
    if dropped:
        yield bad(
            "dropped",
            f"{sum(dropped.values()):,} on {numbers(list(dropped), 'rank')}",
            do="give a larger traincope.run(disk_budget=...), lower the level, or make room on the disk",
        )
    else:
        yield ok("dropped", "none")
    yield from _lost_words(run)
    for problem in (*run.problems, *(problem for rank in run.ranks for problem in rank.problems)):
        yield bad("damaged", problem, do="what is named there is lost; everything else is read")


def _lost_words(run: RunRecords) -> Iterator[Finding]:
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
            f"{hosts}; {unknown} tied to the others by wall clocks alone, and nothing bounds the error",
            do="keep the hosts' clocks together (chrony, PTP), and compare times within a host only",
        )
    if not error_ns:
        return ok("clocks", "one for all ranks")
    return ok("clocks", f"{hosts}; by what they sent each other they agree within {duration(error_ns)}")
