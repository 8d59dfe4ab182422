"""Export of a run for Perfetto with one file per host, to be merged with other traces of the same hosts.

    RUN.perfetto/perfetto_manifest.json    which file is of which host, and the clock of the merged trace
    RUN.perfetto/host-0.pftrace            the ranks of one host

All times are on the run's common axis, which the files call REALTIME. Each file also holds the same instants of its
host's MONOTONIC clock, so that a trace of the host's kernel finds its place. The format of the manifest is version 1 of
https://perfetto.dev/docs/reference/perfetto-manifest.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from traincope.errors import RunDirectoryError
from traincope.report.exports import DirectoryExport
from traincope.timeline import RankClock, Timeline, error_between_ns
from traincope_exporters.traces.events import Events
from traincope_exporters.traces.packets import Packets

MANIFEST = "perfetto_manifest.json"


def write_hosts(timeline: Timeline, directory: Path) -> None:
    """Write one file per host, and the manifest. Raises RunDirectoryError if no rank recorded an event."""
    ranks = {rank.rank for rank in timeline.ranks if any(map(len, rank.threads.values()))}
    if not ranks:
        raise RunDirectoryError(f"{timeline.run.path} holds no records; see its kernel traces with --to perfetto")
    clocks = {clock.rank: clock for clock in timeline.clocks if clock.rank in ranks}
    hosts: dict[str, list[int]] = {}
    for rank, clock in clocks.items():
        hosts.setdefault(clock.host, []).append(rank)
    files = [f"host-{number}.pftrace" for number in range(len(hosts))]
    for file, members in zip(files, hosts.values(), strict=True):
        _write(timeline, directory / file, members=frozenset(members), clock=clocks[members[0]])
    names = _names(timeline, [members[0] for members in hosts.values()])
    (directory / MANIFEST).write_text(json.dumps(_manifest(timeline, files, names), indent=2) + "\n")


def _write(timeline: Timeline, path: Path, *, members: frozenset[int], clock: RankClock) -> None:
    form = Packets()
    with path.open("wb") as file:
        file.write(form.begin(_snapshots(timeline, members=members, clock=clock)))
        for piece in Events(timeline, form).of(members):
            file.write(piece)


def _snapshots(timeline: Timeline, *, members: frozenset[int], clock: RankClock) -> Iterator[tuple[int, int]]:
    """Instants of the host's monotonic clock and of the axis: the first, the last, and the knots between them."""
    recorded = [rank for rank in timeline.run.ranks if rank.rank in members]
    starts = [segment.records["start_ns"] for rank in recorded for segment in rank.segments if len(segment.records)]
    first, last = min(int(times.min()) for times in starts), max(int(times.max()) for times in starts)
    knots = [correction.at_ns - clock.wall_offset_ns for correction in clock.corrections]
    own = np.unique(np.concatenate([np.array([first, last], dtype=np.int64), *knots]))
    own = own[(own >= first) & (own <= last)]
    yield from zip(own.tolist(), clock.on_axis(own).tolist(), strict=True)


def _names(timeline: Timeline, ranks: list[int]) -> list[str]:
    """Names of the hosts of these ranks, different ones: files of the same name would be of one machine."""
    recorded = {rank.rank: rank.info.host.name for rank in timeline.run.ranks}
    names = [recorded[rank] or "host" for rank in ranks]
    return [
        name if names.count(name) == 1 else f"{name} (rank {rank})" for name, rank in zip(names, ranks, strict=True)
    ]


def _manifest(timeline: Timeline, files: list[str], names: list[str]) -> dict[str, object]:
    error_ns = error_between_ns(timeline.clocks)
    return {
        "perfetto_manifest": {
            "version": 1,
            "trace_time": {"clock": "REALTIME", "file": files[0]},
            "files": [{"path": file, "machine": {"name": name}} for file, name in zip(files, names, strict=True)],
            "attributes": {
                "traincope.run": timeline.run.info.id,
                "traincope.world_size": timeline.run.info.world_size,
                "traincope.max_clock_error_ns": "unknown" if error_ns is None else error_ns,
            },
        }
    }


EXPORT = DirectoryExport(
    suffix="perfetto",
    write=write_hosts,
    hint="https://ui.perfetto.dev (Open multiple trace files: all of them, and other traces of these hosts)",
)
