"""Run directory of many ranks, written from replayed programs.

All ranks of a tensor-parallel group are on one host, whose clock has an offset of its own. Files of a rank are those
that the recorder and its agent write: `rank.json`, names, groups, a segment, and `rows.jsonl`.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.scale.program import Program
from benchmarks.scale.recording import SHARDS, STAGES
from benchmarks.scale.replay import Plan, Replayed
from traincope.analysis.attribution.terms import UNATTRIBUTED, exposed_transfer, exposed_wait
from traincope.events import FORMAT_VERSION, OPEN, Kind
from traincope.store.job.looks import Look, append_look
from traincope.store.layout import (
    DETAILS_FILE,
    GROUPS_FILE,
    NAMES_FILE,
    RANK_FILE,
    RUN_FILE,
    rank_directory,
    segment_path,
)
from traincope.store.segments.segments import segment_content
from traincope.store.side_tables.rows import Row, append_rows

BEGAN_NS = 1_790_000_000_000_000_000
NOTICED_NS = 60_000_000_000
"""Time from a rank's last record to the agent's look at its process, which still exists."""
MESH = ("dp", "pp", "tp")


def write_run(out: Path, programs: Sequence[Program], replayed: Sequence[Replayed], plan: Plan) -> int:
    """Write the run directory `out`; returns its number of records."""
    out.mkdir(parents=True)
    first = programs[0].source
    raw = json.loads((first.directory.parents[1] / RUN_FILE).read_text())  # type: ignore[union-attr]
    mesh = {"dp": plan.replicas, "pp": STAGES, "tp": SHARDS}
    raw |= {"world_size": plan.ranks, "mesh": mesh, "started_wall_ns": BEGAN_NS}
    (out / RUN_FILE).write_text(json.dumps(raw))
    written = 0
    for replica in range(plan.replicas):
        for stage in range(STAGES):
            for shard in range(SHARDS):
                written += _write_rank(out, programs[stage], replayed[stage], plan, (replica, stage, shard))
    return written


def _write_rank(out: Path, program: Program, times: Replayed, plan: Plan, place: tuple[int, int, int]) -> int:
    replica, stage, shard = place
    rank, host = plan.rank(*place), replica * STAGES + stage
    directory = rank_directory(out, attempt=0, rank=rank)
    directory.mkdir(parents=True)
    source = program.source.directory
    assert source is not None
    raw = json.loads((source / RANK_FILE).read_text())
    raw |= {"version": FORMAT_VERSION, "rank": rank, "world_size": plan.ranks, "pid": 10_000 + shard, "process": None}
    raw |= {"coords": dict(zip(MESH, place, strict=True)), "host": f"host-{host:05d}", "boot_id": f"boot-{host:05d}"}
    raw |= {"started_wall_ns": BEGAN_NS, "ending": None, "ended_wall_ns": None, "recorder": {}}
    (directory / RANK_FILE).write_text(json.dumps(raw, indent=1))
    (directory / NAMES_FILE).write_bytes((source / NAMES_FILE).read_bytes())
    (directory / DETAILS_FILE).touch()
    (directory / GROUPS_FILE).write_text(_groups(program, plan, place))
    records = _records(program, times, plan, place)
    segment_path(directory, thread="main", index=0).write_bytes(segment_content(records))
    append_look(directory, Look(at_ns=int(records["start_ns"].max()) + NOTICED_NS, state="S"))
    append_rows(directory, _rows(times, plan, place))
    return len(records)


def _groups(program: Program, plan: Plan, place: tuple[int, int, int]) -> str:
    lines = []
    for group in program.source.groups:
        if group.axis in MESH:
            raw = {"key": f"{group.axis}-{_members(group.axis, plan, place)[0]}", "axis": group.axis}
            raw |= {"rule": group.rule, "ranks": _members(group.axis, plan, place)}
            lines.append(json.dumps([group.number, raw]))
    return "".join(f"{line}\n" for line in lines)


def _members(axis: str, plan: Plan, place: tuple[int, int, int]) -> list[int]:
    replica, stage, shard = place
    if axis == "dp":
        return [plan.rank(each, stage, shard) for each in range(plan.replicas)]
    if axis == "pp":
        return [plan.rank(replica, each, shard) for each in range(STAGES)]
    return [plan.rank(replica, stage, each) for each in range(SHARDS)]


def _records(program: Program, times: Replayed, plan: Plan, place: tuple[int, int, int]) -> NDArray[np.void]:
    """The records of all steps that began, in order of begin."""
    replica, stage, shard = place
    monotonic_ns = 1_000_000_000 * (1 + (replica * STAGES + stage) % 1000)
    starts, ends = times.starts[:, :, replica, shard], times.ends[:, :, replica, shard]
    records = np.tile(program.records, plan.detailed)
    steps = np.arange(plan.steps - plan.detailed, plan.steps)
    begun = np.isfinite(starts).reshape(-1)
    number = np.repeat(steps, len(program.records))
    records["step"] = number
    records["window"] = 0
    for at in range(len(program.records)):
        if program.records["kind"][at] in (Kind.COLLECTIVE, Kind.STALL):
            records["sequence"][at :: len(program.records)] += (steps * program.calls[program.channel(at)]).astype(
                np.uint32
            )
    messages = [at for at in range(len(program.records)) if int(program.records["peer"][at]) >= 0]
    for at in messages:
        if program.records["kind"][at] in (Kind.COLLECTIVE, Kind.STALL) and program.is_message(at):
            group = program.source.groups[int(program.records["group"][at])]
            other = group.ranks.index(int(program.records["peer"][at]))
            records["peer"][at :: len(program.records)] = plan.rank(replica, other, shard)
    relative = np.where(begun, starts.reshape(-1), 0).astype(np.int64)
    records["start_ns"] = relative + monotonic_ns
    ended = np.isfinite(ends).reshape(-1)
    records["end_ns"] = np.where(ended, np.where(ended, ends.reshape(-1), 0).astype(np.int64) + monotonic_ns, OPEN)
    clock = records["kind"] == Kind.CLOCK
    records["value"] = np.where(clock, relative + BEGAN_NS, records["value"])
    records = records[begun]
    return records[np.argsort(records["start_ns"], kind="stable")]


def _rows(times: Replayed, plan: Plan, place: tuple[int, int, int]) -> list[Row]:
    """The rows of complete steps. An agent splits waits over the ranks of its host only."""
    replica, _, shard = place
    rows = []
    for number, (starts, ends) in enumerate(times.borders):
        start, end = starts[replica, shard], ends[replica, shard]
        if np.isfinite(end):
            terms = {name: int(ns[replica, shard]) for name, ns in times.terms[number].items()}
            rows.append(
                Row(
                    rank=plan.rank(*place),
                    step=number,
                    start_ns=int(start) + BEGAN_NS,
                    wall_ns=int(end - start),
                    own_ns=0,
                    anomalous=False,
                    terms=_as_the_agent(terms, wall_ns=int(end - start)),
                )
            )
    return rows


def _as_the_agent(terms: dict[str, int], *, wall_ns: int) -> dict[str, int]:
    """Terms without waits for other hosts, which an agent without copies of their ranks counts as transfers."""
    result: dict[str, int] = {}
    for name, ns in terms.items():
        elsewhere = name in (exposed_wait("dp"), exposed_wait("pp"))
        key = exposed_transfer(name.split("[")[1].rstrip("]")) if elsewhere else name
        result[key] = result.get(key, 0) + ns
    result[UNATTRIBUTED] = result.get(UNATTRIBUTED, 0) + wall_ns - sum(result.values())
    return result
