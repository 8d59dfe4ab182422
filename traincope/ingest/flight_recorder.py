"""Dumps of torch's flight recorder as the records of a run: the latest collectives of each rank, and nothing else."""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from traincope.errors import DataError
from traincope.events import Kind
from traincope.store import RECORD_DTYPE, Look, RankRecords, RunRecords
from traincope.store.job.flight import Flight, FlightFile
from traincope.store.job.manifests import MAX_RANKS, RankInfo, RunInfo
from traincope.store.segments.segments import SegmentRecords
from traincope.topology import Host, RankCoord

NUMBER = re.compile(r"\d{1,7}")
ON_DEVICE = {"cuda": "unknown"}


def read_dumps(paths: Sequence[Path]) -> RunRecords:
    """Read one dump per rank. `paths`: files, or one folder of them. The last number in a file's name is its rank.

    All dumps are of one moment: the latest instant in any of them. Raises DataError for a file that is no dump, and if
    two files are of one rank.
    """
    files = {_rank(path): path for path in _files(paths)}
    flights = {rank: _read(path) for rank, path in sorted(files.items())}
    at_ns = max(flight.at_ns for flight in flights.values())
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
        ranks=tuple(_records(rank, files[rank], at_ns=at_ns) for rank in flights),
        attempts=1,
        missing=tuple(rank for rank in range(size) if rank not in flights),
        problems=(),
    )


def holds_dumps(path: Path) -> bool:
    """True if the path is a dump of a rank, or a folder with at least one."""
    files = sorted(each for each in path.iterdir() if each.is_file()) if path.is_dir() else [path]
    return any(FlightFile(file).read() is not None for file in files if NUMBER.search(file.name))


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    taken: dict[int, Path] = {}
    for path in paths:
        inside = sorted(each for each in path.iterdir() if each.is_file()) if path.is_dir() else [path]
        if not inside:
            raise DataError(f"{path} is empty; give the folder with one dump of torch's flight recorder per rank")
        for each in inside:
            other = taken.setdefault(_rank(each), each)
            if other is not each:
                raise DataError(f"{other} and {each} are of the same rank; give one dump per rank")
            yield each


def _rank(path: Path) -> int:
    numbers = NUMBER.findall(path.name)
    if not numbers or int(numbers[-1]) >= MAX_RANKS:
        raise DataError(f"the name of {path} contains no rank; name each dump with its rank, e.g. rank_3")
    return int(numbers[-1])


def _read(path: Path) -> Flight:
    flight = FlightFile(path).read()
    if flight is None:
        raise DataError(f"{path} is no dump of torch's flight recorder, or is damaged")
    return flight


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
