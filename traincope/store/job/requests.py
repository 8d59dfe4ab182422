"""Requested windows: steps that a person or an anomaly wants in detail, one JSON line each in `requests.jsonl`.

    {"attempt": 0, "first_step": 1024, "num_steps": 20, "kernels": false, "cause": "profile", ...}

Every rank reads the file about once a second and records these steps in detail. A request names steps that no rank has
reached (`requesting.py`). A rank that reads it too late begins with the next block; the steps before it then lack
detail on that rank, and no analysis counts them.
"""

import json
import os
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from traincope.events import BLOCK_STEPS
from traincope.private_files import file_mode, read_regular
from traincope.store.layout import REQUESTS_FILE
from traincope.store.lines import parse

MAX_STEPS = 1_000
"""Most steps of one request."""
TAIL_BYTES = 4_096
"""Bytes from the end of the file that a training process reads: some 25 requests, and pending ones are the newest."""


class Cause(StrEnum):
    """Reason for a request. Reasons other than a person's are kinds of faults."""

    PROFILE = "profile"
    VIEWER = "viewer"
    SLOW_STEP = "slow_step"
    STEP_TIME_CHANGE = "step_time_change"
    LATE_RANK = "late_rank"
    """Ranks of a node seem to wait for one of them. It samples its stack in the window."""
    SPIKE = "spike"
    NOT_FINITE = "not_finite"
    MEMORY_GROWTH = "memory_growth"
    """Tensors are counted in the window too (`record.compute.memory.census`)."""
    THROTTLED = "throttled"
    ECC_ERROR = "ecc_error"
    XID = "xid"


PERSONS = frozenset({Cause.PROFILE, Cause.VIEWER})
PHRASES = {
    Cause.PROFILE: "traincope profile",
    Cause.VIEWER: "the button in the browser",
    Cause.SLOW_STEP: "a slow step",
    Cause.STEP_TIME_CHANGE: "a longer step time",
    Cause.LATE_RANK: "a rank that the others wait for",
    Cause.SPIKE: "a spike in a logged value",
    Cause.NOT_FINITE: "a logged value that is not finite",
    Cause.MEMORY_GROWTH: "growing memory",
    Cause.THROTTLED: "a throttled GPU",
    Cause.ECC_ERROR: "ECC errors of a GPU",
    Cause.XID: "an error of a GPU",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRequest:
    """A request for steps in detail."""

    attempt: int
    first_step: int
    """First step of a block. It leads in and is not counted."""
    num_steps: int
    """Number of steps after `first_step`."""
    kernels: bool
    """True: torch's profiler traces each of these steps too."""
    cause: Cause
    at_step: int | None
    """Step of the anomaly; None for a person's request."""
    at_wall_ns: int
    """Wall time of the request."""
    stacks: tuple[int, ...] = ()
    """Ranks that sample the Python stack of their training thread in the window."""

    @property
    def end_step(self) -> int:
        """The step after the last block of the window."""
        return -(-(self.first_step + 1 + self.num_steps) // BLOCK_STEPS) * BLOCK_STEPS

    @property
    def last_step(self) -> int:
        """The last of the `num_steps` steps."""
        return self.first_step + self.num_steps

    @property
    def reason(self) -> str:
        """The cause as a phrase, e.g. "a slow step (step 812)"."""
        return PHRASES[self.cause] + ("" if self.at_step is None else f" (step {self.at_step})")

    def covers(self, step: int) -> bool:
        """Return whether the step is in one of the window's blocks."""
        return self.first_step <= step < self.end_step

    def traces(self, step: int) -> bool:
        """Return whether the step's kernels are traced."""
        return self.kernels and self.first_step < step <= self.last_step

    def delays(self, step: int) -> bool:
        """Return whether kernel traces lengthen the step: it is traced, or the trace of the one before is written."""
        return self.traces(step) or self.traces(step - 1)


def append_request(run: Path, request: WindowRequest) -> None:
    """Append a request in one write. Raises OSError if the file cannot be written."""
    line = json.dumps(asdict(request)).encode() + b"\n"
    descriptor = os.open(run / REQUESTS_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, file_mode())
    with open(descriptor, "wb", buffering=0) as file:
        file.write(line)


def read_requests(run: Path, *, attempt: int | None = None) -> tuple[WindowRequest, ...]:
    """Read the requests of one attempt or of all, in order. Empty without a file; unreadable lines are left out."""
    try:
        return _requests((run / REQUESTS_FILE).read_bytes(), attempt=attempt)
    except OSError:
        return ()


def read_latest_requests(file: Path, *, attempt: int) -> tuple[WindowRequest, ...]:
    """Read the newest requests, at most `TAIL_BYTES` of the file. Raises OSError."""
    return _requests(read_regular(file, last_bytes=TAIL_BYTES, flags=os.O_NOFOLLOW), attempt=attempt)


def _requests(content: bytes, *, attempt: int | None) -> tuple[WindowRequest, ...]:
    lines = content.decode(errors="replace").split("\n")[:-1]  # the last line may still be written
    read = (_request(parse(line)) for line in lines)
    return tuple(request for request in read if request is not None and attempt in (None, request.attempt))


def _request(raw: Any) -> WindowRequest | None:
    if not isinstance(raw, dict) or raw.get("cause") not in list(Cause):
        return None
    numbers = [raw.get(name) for name in ("attempt", "first_step", "num_steps", "at_wall_ns")]
    if any(type(number) is not int or number < 0 for number in numbers):
        return None
    attempt, first_step, num_steps, at_wall_ns = map(int, numbers)  # type: ignore[arg-type]
    if first_step % BLOCK_STEPS or not 1 <= num_steps <= MAX_STEPS:
        return None
    at_step, stacks = raw.get("at_step"), raw.get("stacks", [])
    if not isinstance(stacks, list) or any(type(rank) is not int or rank < 0 for rank in stacks):
        return None
    return WindowRequest(
        attempt=attempt,
        first_step=first_step,
        num_steps=num_steps,
        kernels=raw.get("kernels") is True,
        cause=Cause(raw["cause"]),
        at_step=at_step if type(at_step) is int else None,
        at_wall_ns=at_wall_ns,
        stacks=tuple(stacks),
    )
