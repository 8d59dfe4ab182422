"""Readers of a recorded run, a Kineto trace and NCCL's flight recorder, for the same steps."""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from traincope.events import Flag, Kind
from traincope.store import RankRecords, read_run

SPIN = "spin_kernel"
"""The kernel of `torch.cuda._sleep`."""
RETIRED_WITHIN_SECONDS = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    start_ns: int
    end_ns: int
    name: str

    @property
    def microseconds(self) -> float:
        return (self.end_ns - self.start_ns) / 1e3


def only_rank(directory: Path) -> RankRecords:
    (rank,) = read_run(directory).ranks
    return rank


def device_stalls(rank: RankRecords) -> list[Stall]:
    """Return the stalls measured on the compute stream, by their start."""
    records = [record for thread in rank.threads for record in rank.thread(thread)]
    return sorted(
        (
            Stall(start_ns=int(record["start_ns"]), end_ns=int(record["end_ns"]), name=rank.name(int(record["name"])))
            for record in records
            if record["kind"] == Kind.STALL and record["flags"] & Flag.DEVICE
        ),
        key=lambda stall: stall.start_ns,
    )


def failed_hooks(rank: RankRecords) -> dict[str, str]:
    """Return the errors that a guard caught in the run.

    Errors of the recorder are silent in training, so tests must ask.
    """
    return {
        name: state
        for name, state in rank.info.probes.items()
        if "failed" in state or "switched off" in state or name == "device stalls"
    }


def gaps_between_spins(trace: Path) -> list[float]:
    """Return the microseconds between the spin kernels of each pair on the compute stream, from the trace."""
    events = json.loads(trace.read_text())["traceEvents"]
    spins = sorted(
        (float(event["ts"]), float(event["dur"]))
        for event in events
        if event.get("cat") == "kernel" and SPIN in event["name"]
    )
    pairs = zip(spins[::2], spins[1::2], strict=True)
    return [after - (before + duration) for (before, duration), (after, _) in pairs]


def flight_recorder_milliseconds(operation: str, *, count: int) -> list[float]:
    """Return the durations of the newest `count` collectives, once the watchdog has timed them."""
    native: Any = torch._C._distributed_c10d
    dump = getattr(native, "_dump_nccl_trace_json", None) or native._dump_fr_trace_json
    deadline = time.monotonic() + RETIRED_WITHIN_SECONDS
    while True:
        dumped = json.loads(dump())
        entries = [entry for entry in dumped["entries"] if operation in entry["profiling_name"]][-count:]
        durations = [entry.get("duration_ms") for entry in entries]
        if len(durations) == count and None not in durations:
            return durations
        if time.monotonic() > deadline:
            raise AssertionError(f"the flight recorder timed {durations} of the last {count} {operation}")
        time.sleep(0.2)
