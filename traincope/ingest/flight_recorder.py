"""Dumps of torch's flight recorder as the records of a run: the latest collectives of each rank, and nothing else."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from traincope.errors import DataError
from traincope.events import Kind
from traincope.ingest.foreign import begin
from traincope.store import RECORD_DTYPE, Look, RankRecords, RunRecords
from traincope.store.job.flight import Flight, FlightFile
from traincope.store.job.manifests import MAX_RANKS, RankInfo, RunInfo
from traincope.store.layout import RUN_FILE
from traincope.store.segments.segments import SegmentRecords
from traincope.topology import Host, RankCoord

NAMED_RANK = re.compile(r"rank[-_]?(\d{1,7})(?!\d)", re.IGNORECASE)
NUMBER = re.compile(r"(?<!\d)\d{1,7}(?!\d)")
HEAD = 1 << 14
"""Bytes at the begin of a dump that contain one of its keys."""
KEYS, OF_TRACES = (b"entries", b"pg_config", b"pg_status", b"at_ns"), (b"traceEvents", b"schemaVersion")
MAX_MESSAGES = 4
ON_DEVICE = {"cuda": "unknown"}
WATCHDOG_NS = 300_000_000_000
"""Longest time that NCCL's watchdog takes to write after a time-out. Younger files are copies, or were asked for."""
MAY_BE_OF_BEFORE = (
    "when the dumps were written: the files are younger than the time-out of the first collective; if a person asked "
    "for them before it, the stop was shorter"
)


def read_dumps(paths: Sequence[Path]) -> RunRecords:
    """Read one dump per rank. `paths`: files, or one folder of them.

    A file's rank is the number after "rank" in its name, otherwise the last number in it unless it is outside the
    groups of the dump, otherwise the only rank that is in all of them.

    All dumps are of one moment: the latest instant in any of them, or that at which the first collective timed out,
    from which NCCL's watchdog dumps, unless the files are older. A copied file may be younger than what is in it, never
    older. Files that are no dump are in the problems. Raises DataError if no file is a dump, and if two are of one
    rank.
    """
    files, problems = _dumps(paths)
    flights = {rank: flight for rank, (_, flight) in sorted(files.items())}
    written_ns = max(path.stat().st_mtime_ns for path, _ in files.values())
    limit_ns = min((limit for flight in flights.values() if (limit := flight.timed_out_ns) is not None), default=None)
    at_ns = max(flight.at_ns for flight in flights.values())
    if limit_ns is not None:
        at_ns = max(at_ns, min(limit_ns, written_ns))
        if written_ns > limit_ns + WATCHDOG_NS:
            problems = (*problems, MAY_BE_OF_BEFORE)
    problems = (*problems, *_messages(flights))
    members = [rank for flight in flights.values() for ranks in flight.groups.values() for rank in ranks]
    size = min(max([*members, *flights]) + 1, MAX_RANKS)
    return RunRecords(
        path=paths[0],
        info=RunInfo(
            id=paths[0].name,
            world_size=size,
            mesh={},
            started_wall_ns=at_ns,
            versions=ON_DEVICE if any(flight.on_device for flight in flights.values()) else {},
            command="",
            settings={},
            imported=True,
        ),
        ranks=tuple(_records(rank, files[rank][0], at_ns=at_ns) for rank in flights),
        attempts=1,
        missing=tuple(rank for rank in range(size) if rank not in flights),
        problems=problems,
    )


def holds_dumps(path: Path) -> bool:
    """True if the path is a dump of a rank, or a folder with at least one."""
    return any(FlightFile(file).read() is not None for file in _like_dumps(path))


def may_hold_dumps(path: Path) -> bool:
    """True as `holds_dumps`, and also if all the dumps are damaged."""
    return any(True for _ in _like_dumps(path))


def _like_dumps(path: Path) -> Iterator[Path]:
    """Yield the files that begin like dumps. A run directory has files of its own."""
    is_run = (path / RUN_FILE).exists()
    files = () if is_run else _inside(path) if path.is_dir() else (path,)
    yield from filter(_may_be, files)


def _may_be(path: Path) -> bool:
    """Look at the begin of a file only: traces and snapshots may be large."""
    head = begin(path)[:HEAD]
    return any(key in head for key in KEYS) and not any(key in head for key in OF_TRACES)


def _dumps(paths: Iterable[Path]) -> tuple[dict[int, tuple[Path, Flight]], tuple[str, ...]]:
    """The dump of each rank, and a sentence for each file that is none."""
    found: dict[int, tuple[Path, Flight]] = {}
    problems = []
    for path in _files(paths):
        flight = FlightFile(path).read()
        rank = None if flight is None else _rank(path, flight)
        if flight is None:
            problems.append(f"{path} is not a dump of torch's flight recorder, or is damaged, so it is left out")
        elif rank is None:
            problems.append(f"{path} does not show its rank, so it is left out; name it rank_N, with the rank N")
        elif rank in found:
            raise DataError(f"{found[rank][0]} and {path} are of the same rank {rank}; give one dump per rank")
        else:
            found[rank] = path, flight
    if not found:
        raise DataError(problems[0])
    return found, tuple(problems)


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        inside = _inside(path) if path.is_dir() else [path]
        if not inside:
            raise DataError(f"{path} is empty; give the folder with one dump of torch's flight recorder per rank")
        yield from inside


def _inside(folder: Path) -> list[Path]:
    """Files of a folder, and of the folders in it, as of one host each."""
    return sorted(each for each in (*folder.iterdir(), *folder.glob("*/*")) if each.is_file())


def _messages(flights: Mapping[int, Flight]) -> Iterator[str]:
    """Say which messages are not complete: torch does not count them as it counts collectives."""
    for rank, flight in flights.items():
        if flight.open_messages:
            yield (
                f"why rank {rank} still waits in {', '.join(flight.open_messages[:MAX_MESSAGES])}: of messages between "
                "two ranks the dumps do not show which one is late; see what the other of the two does"
            )


def _rank(path: Path, flight: Flight) -> int | None:
    """Rank by the file's name. A process has only the groups that it is in, so a number outside them is another one."""
    named, numbers = NAMED_RANK.search(path.name), NUMBER.findall(path.name)
    number = int(named[1] if named else numbers[-1]) if named or numbers else MAX_RANKS
    members = [set(ranks) for ranks in flight.groups.values() if ranks]
    possible = set.intersection(*members) if members else set()
    if number < MAX_RANKS and (named or not possible or number in possible):
        return number
    return possible.pop() if len(possible) == 1 else None


def _records(rank: int, path: Path, *, at_ns: int) -> RankRecords:
    """A rank without events. Its one record holds the clock, which is the wall clock."""
    records = np.zeros(1, dtype=RECORD_DTYPE)
    records["kind"], records["start_ns"], records["end_ns"], records["value"] = Kind.CLOCK, 0, 0, 0
    return RankRecords(
        attempt=0,
        info=RankInfo(
            coord=RankCoord(rank=rank),
            host=Host(name="imported", boot_id=""),
            pid=0,
            started_wall_ns=at_ns,
            ended_wall_ns=None,
            ending=None,
            probes={},
            recorder={},
        ),
        names=(),
        groups=(),
        segments=(SegmentRecords(thread="main", index=0, records=records, lost_bytes=0),),
        problems=(),
        looks=(Look(at_ns=at_ns),),
        flight=FlightFile(path),
    )
