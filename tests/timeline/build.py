"""Runs written by hand: rows of records with times in ns.

    run(
        rank(0, step(0, 0, 100), phase(Phase.FORWARD, 10, 60)),
        rank(1, step(0, 0, 100), phase(Phase.FORWARD, 10, 90)),
    )

Without `clock` rows the common axis is the monotonic clock itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from traincope.events import NO_PEER, NO_STEP, Flag, Kind, Phase
from traincope.store import RECORD_DTYPE, RankRecords, RunRecords, SegmentRecords
from traincope.store.job.manifests import RankInfo, RunInfo
from traincope.timeline import Timeline, build_timeline
from traincope.topology import Group, Host, RankCoord


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One record; `group` is the number of a group of its rank."""

    kind: Kind
    start_ns: int
    end_ns: int
    name: str = ""
    phase: Phase = Phase.NONE
    step: int = NO_STEP
    group: int = 0
    schedule: str | None = None
    sequence: int = 0
    peer: int = NO_PEER
    tag: int = 0
    window: int = 0
    flags: int = 0
    value: int = 0
    thread: str = "main"


def step(number: int, start_ns: int, end_ns: int, *, flags: int = 0) -> Row:
    return Row(kind=Kind.STEP, start_ns=start_ns, end_ns=end_ns, step=number, flags=flags)


def phase(of: Phase, start_ns: int, end_ns: int, *, at: int = NO_STEP, thread: str = "main") -> Row:
    return Row(
        kind=Kind.PHASE, start_ns=start_ns, end_ns=end_ns, name=of.name.lower(), phase=of, step=at, thread=thread
    )


def action(
    name: str, start_ns: int, end_ns: int, *, stage: int, microbatch: int, at: int = 0, of: Phase = Phase.NONE
) -> Row:
    return Row(
        kind=Kind.ACTION,
        phase=of,
        start_ns=start_ns,
        end_ns=end_ns,
        name=name,
        schedule="Schedule",
        sequence=microbatch,
        peer=stage,
        step=at,
    )


def collective(
    start_ns: int,
    end_ns: int,
    *,
    name: str = "all_gather",
    group: int = 0,
    sequence: int = 0,
    at: int = 0,
    num_bytes: int = 0,
    flags: int = 0,
) -> Row:
    return Row(
        kind=Kind.COLLECTIVE,
        start_ns=start_ns,
        end_ns=end_ns,
        name=name,
        group=group,
        sequence=sequence,
        step=at,
        value=num_bytes,
        flags=flags,
    )


def message(
    name: str,
    start_ns: int,
    end_ns: int,
    *,
    peer: int,
    group: int = 0,
    sequence: int = 0,
    tag: int = 0,
    at: int = 0,
    num_bytes: int = 0,
    flags: int = 0,
) -> Row:
    """Build a send to the rank `peer`, or a recv from it."""
    row = collective(
        start_ns,
        end_ns,
        name=name,
        group=group,
        sequence=sequence,
        at=at,
        num_bytes=num_bytes,
        flags=flags | Flag.POINT_TO_POINT,
    )
    return replace(row, peer=peer, tag=tag)


def stall(of: Row, start_ns: int, end_ns: int) -> Row:
    """Build a stall of the training thread for the collective `of`."""
    return Row(
        kind=Kind.STALL,
        start_ns=start_ns,
        end_ns=end_ns,
        name=of.name,
        group=of.group,
        sequence=of.sequence,
        peer=of.peer,
        tag=of.tag,
        window=of.window,
        step=of.step,
        value=of.value,
        flags=of.flags,
    )


def clock(monotonic_ns: int, wall_ns: int) -> Row:
    return Row(kind=Kind.CLOCK, start_ns=monotonic_ns, end_ns=monotonic_ns, value=wall_ns)


def group(axis: str, *ranks: int, key: str | None = None) -> Group:
    """Build a group. `rank()` numbers groups in the given order."""
    return Group(number=0, key=key or f"{axis}:{ranks}", axis=axis, rule="mesh", ranks=ranks)


def rank(
    number: int,
    *rows: Row,
    groups: Sequence[Group] = (),
    coords: dict[str, int] | None = None,
    boot_id: str = "boot",
    ending: str | None = "clean",
    problems: Sequence[str] = (),
    first_name: str | None = None,
) -> RankRecords:
    """Build the records of a rank. `first_name` shifts the numbers of its names."""
    names = [] if first_name is None else [first_name]
    threads = dict.fromkeys(row.thread for row in rows)
    return RankRecords(
        attempt=0,
        info=RankInfo(
            coord=RankCoord(rank=number, coords=coords or {}),
            host=Host(name=f"host-{boot_id}", boot_id=boot_id),
            pid=1000 + number,
            started_wall_ns=0,
            ended_wall_ns=None if ending is None else 1,
            ending=ending,
            probes={"collectives": "on"},
            recorder={},
        ),
        segments=tuple(
            SegmentRecords(
                thread=thread,
                index=0,
                records=_records([row for row in rows if row.thread == thread], names),
                lost_bytes=0,
            )
            for thread in threads
        ),
        names=tuple(names),
        groups=tuple(replace(group, number=at) for at, group in enumerate(groups)),
        problems=tuple(problems),
    )


def run(*ranks: RankRecords, world_size: int | None = None, mesh: dict[str, int] | None = None) -> RunRecords:
    present = {rank.rank for rank in ranks}
    size = len(ranks) if world_size is None else world_size
    return RunRecords(
        path=Path("hand-made"),
        info=RunInfo(
            id="hand-made",
            world_size=size,
            mesh=mesh or {},
            started_wall_ns=0,
            versions={"torch": "2.13.0"},
            command="train.py",
            settings={},
        ),
        ranks=ranks,
        attempts=1,
        missing=tuple(number for number in range(size) if number not in present),
        problems=(),
    )


def timeline(*ranks: RankRecords, world_size: int | None = None, mesh: dict[str, int] | None = None) -> Timeline:
    return build_timeline(run(*ranks, world_size=world_size, mesh=mesh))


def _records(rows: Sequence[Row], names: list[str]) -> NDArray[np.void]:
    records = np.zeros(len(rows), dtype=RECORD_DTYPE)
    for record, row in zip(records, rows, strict=True):
        record["start_ns"], record["end_ns"], record["value"] = row.start_ns, row.end_ns, row.value
        record["step"], record["name"] = row.step, _intern(row.name, names)
        record["group"] = row.group if row.schedule is None else _intern(row.schedule, names)
        record["sequence"], record["peer"], record["tag"] = row.sequence, row.peer, row.tag
        record["window"] = row.window
        record["flags"], record["phase"], record["kind"] = row.flags, row.phase, row.kind
    records.setflags(write=False)
    return records


def _intern(name: str, names: list[str]) -> int:
    if name not in names:
        names.append(name)
    return names.index(name)
