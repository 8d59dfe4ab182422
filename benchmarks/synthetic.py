"""A large run made from a small one: the sample run's records, repeated on many ranks.

Ranks of the large run are pipelines of the sample's stages, each stage sharded over many ranks. Every rank repeats the
records of the sample's rank at its place, some microseconds later than its neighbours. Counts, step numbers, groups and
peers are those of a run of that size.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from traincope.events import FORMAT_VERSION, NO_STEP, OPEN, Kind
from traincope.record.segments.writer import CAPACITY
from traincope.store import RankRecords, RunRecords, read_run
from traincope.store.layout import GROUPS_FILE, NAMES_FILE, RANK_FILE, RUN_FILE, rank_directory, segment_path
from traincope.store.segments.segments import HEADER_BYTES, SegmentFile

LATER_NS = 1_000
"""Delay of a rank after its neighbour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Size of the large run."""

    shards: int
    """Ranks of each pipeline stage."""
    repeats: int
    """Repetitions of the sample's steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Place of a rank in the large run."""

    stage: int
    shard: int
    size: Size
    num_stages: int
    repeat_ns: int
    """Time from one repetition to the next."""

    @property
    def rank(self) -> int:
        return self.stage * self.size.shards + self.shard

    def members(self, axis: str) -> list[int]:
        """The ranks of its group on an axis of the sample."""
        shards, stages = range(self.size.shards), range(self.num_stages)
        if axis == "pp":
            return [stage * self.size.shards + self.shard for stage in stages]
        if axis == "fsdp":
            return [self.stage * self.size.shards + shard for shard in shards]
        return list(range(self.num_stages * self.size.shards))


def write_large_run(sample: Path, out: Path, *, size: Size) -> int:
    """Write the run directory `out`; returns its number of records."""
    run = read_run(sample)
    stages, shards = run.info.mesh["pp"], run.info.mesh["fsdp"]
    _write_run_info(run, out, size=size)
    written, repeat_ns = 0, _lasts_ns(run) + LATER_NS * size.shards
    for stage in range(stages):
        for shard in range(size.shards):
            place = Place(stage=stage, shard=shard, size=size, num_stages=stages, repeat_ns=repeat_ns)
            written += _write_rank(run.ranks[stage * shards + shard % shards], out, place=place)
    return written


def _lasts_ns(run: RunRecords) -> int:
    """Time from the first record of any rank to the last."""
    threads = [rank.thread("main") for rank in run.ranks]
    last = max(int(max(records["end_ns"].max(), records["start_ns"].max())) for records in threads)
    return last - min(int(records["start_ns"].min()) for records in threads)


def _write_run_info(run: RunRecords, out: Path, *, size: Size) -> None:
    out.mkdir(parents=True)
    raw = json.loads((run.path / RUN_FILE).read_text())
    mesh = {"pp": run.info.mesh["pp"], "fsdp": size.shards}
    raw |= {"version": FORMAT_VERSION, "mesh": mesh, "world_size": mesh["pp"] * mesh["fsdp"]}
    (out / RUN_FILE).write_text(json.dumps(raw))


def _write_rank(source: RankRecords, out: Path, *, place: Place) -> int:
    directory = rank_directory(out, attempt=0, rank=place.rank)
    directory.mkdir(parents=True)
    info = {
        "version": FORMAT_VERSION,
        "rank": place.rank,
        "coords": {"pp": place.stage, "fsdp": place.shard},
        "host": source.info.host.name,
        "boot_id": source.info.host.boot_id,
        "pid": source.info.pid,
        "started_wall_ns": source.info.started_wall_ns,
        "probes": source.info.probes,
        "ending": source.info.ending,
        "ended_wall_ns": source.info.ended_wall_ns,
    }
    (directory / RANK_FILE).write_text(json.dumps(info))
    _write_lines(directory / NAMES_FILE, list(source.names))
    _write_lines(directory / GROUPS_FILE, [_group(group.axis, place) for group in source.groups])
    records = _records(source, place)
    for index, start in enumerate(range(0, len(records), CAPACITY)):
        part = records[start : start + CAPACITY]
        segment = SegmentFile(segment_path(directory, thread="main", index=index), capacity=CAPACITY)
        segment.map[HEADER_BYTES : HEADER_BYTES + part.nbytes] = part.tobytes()
        segment.seal(len(part))
    return len(records)


def _group(axis: str, place: Place) -> dict[str, object]:
    members = place.members(axis)
    return {"key": f"{axis}-{members[0]}", "axis": axis, "rule": "mesh", "ranks": members}


def _write_lines(path: Path, values: list[object] | list[str] | list[dict[str, object]]) -> None:
    path.write_text("".join(f"{json.dumps([number, value])}\n" for number, value in enumerate(values)))


def _records(source: RankRecords, place: Place) -> NDArray[np.void]:
    """The rank's records, once per repetition, with continued counters."""
    once = source.thread("main")
    num_steps, num_calls = int(once["step"].max()) + 1, int(once["sequence"].max()) + 1
    repeat = np.repeat(np.arange(place.size.repeats), len(once))
    records = np.tile(once, place.size.repeats)
    later_ns = repeat * place.repeat_ns + place.shard * LATER_NS
    records["start_ns"] += later_ns
    records["end_ns"] += np.where(records["end_ns"] == OPEN, 0, later_ns)
    records["value"] += np.where(records["kind"] == Kind.CLOCK, later_ns, 0)
    records["step"] += np.where(records["step"] == NO_STEP, 0, repeat * num_steps).astype(np.int32)
    called = np.isin(records["kind"], (Kind.COLLECTIVE, Kind.STALL))
    records["sequence"] += np.where(called, repeat * num_calls, 0).astype(np.uint32)
    (other,) = (rank for rank in place.members("pp") if rank != place.rank)
    records["peer"] = np.where(called & (records["peer"] >= 0), other, records["peer"])
    return records
