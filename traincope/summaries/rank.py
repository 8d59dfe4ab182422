"""Summary of one rank: its newest ledger rows, and what its last records show."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

from traincope.arrays import Bools, Ints
from traincope.errors import RunDirectoryError
from traincope.events import CLEAN, OPEN, RECORD_BYTES, Kind, Phase
from traincope.store.job.looks import read_looks
from traincope.store.job.manifests import read_rank_info
from traincope.store.layout import COMPACTED, GROUPS_FILE, NAMES_FILE, ROWS_FILE, record_files
from traincope.store.lines import dense_groups, dense_names, read_numbered
from traincope.store.segments.records import read_records
from traincope.store.segments.segments import (
    HEADER_BYTES,
    RECORD_DTYPE,
    begun_records,
    last_instant_ns,
    plausible,
    read_header,
)
from traincope.timeline import RankTimeline
from traincope.timeline.collectives.channels import Channel, channels_of
from traincope.timeline.observation import observation
from traincope.timeline.timeline import TRAINING_THREAD

NEWEST_ROWS = 240
"""Rows of a summary: enough to name a straggler among 16,384 ranks."""
ROW_BYTES = 400
"""Bytes that a row takes at most, usually."""
LAST_RECORDS = 2048
"""Records of a summary, per thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastCall:
    """A call that a rank waits in at the end of its records."""

    channel: Channel
    axis: str
    operation: str
    members: tuple[int, ...]
    """Ranks of the group; of a message the two sides."""
    window: int
    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Single steps of one rank, the newest ones, in order. Arrays have one entry per step."""

    step: Ints
    wall_ns: Ints
    own_ns: Ints
    """The recorder's own time."""
    terms: Mapping[str, Ints]
    """Ledger term -> ns."""

    @property
    def detailed(self) -> Bools:
        """Steps with terms. A step without detail has none, so its terms are unknown, not 0."""
        steps: Bools = np.zeros(len(self.step), dtype=bool)
        for ns in self.terms.values():
            steps |= ns != 0
        return steps


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSummary:
    """What a job report needs of one rank."""

    rank: int
    coords: Mapping[str, int]
    host: str
    pid: int
    ending: str | None
    """As `RankInfo.ending`."""
    last_ns: int | None
    """Wall time of its last record, since the epoch, by the clock of its host; None without records, and if the
    last ones show no wall time.
    """
    looked_ns: int | None
    """Wall time of the last look of its node's agent at its process; None without one, and as `last_ns`."""
    silent_ns: int
    """Time from its last record to that look; 0 without one."""
    step: int | None
    """Step under way at the end of its records."""
    doing: str
    """What the training thread did then, e.g. `in forward`."""
    waits: tuple[LastCall, ...]
    """Calls that the training thread waits in then."""
    joined: Mapping[Channel, tuple[int, int]]
    """Channel -> window and count of the rank's last call on it."""
    whole: bool
    """`joined` has all channels on which it ever communicated: the summary holds all records."""
    rows: Rows
    problems: tuple[str, ...] = ()

    @property
    def seen_ns(self) -> int | None:
        """Latest instant at which its process certainly existed; None if unknown."""
        return max((ns for ns in (self.last_ns, self.looked_ns) if ns is not None), default=None)


def summarise_rank(directory: Path) -> RankSummary:
    """Read the summary of a rank's directory. Raises RunDirectoryError if its `rank.json` cannot be read."""
    info = read_rank_info(directory)
    names = dense_names(read_numbered(directory / NAMES_FILE, version=info.version))
    groups = dense_groups(read_numbered(directory / GROUPS_FILE, version=info.version))
    problems: list[str] = []
    threads, whole = _last_records(directory, problems)
    tail = threads.get(TRAINING_THREAD, np.empty(0, dtype=RECORD_DTYPE))
    ended = info.ending == CLEAN
    main, to_wall_ns = _newest_step(directory, tail, problems, ended=ended)
    rank = RankTimeline(
        rank=info.coord.rank,
        coords=info.coord.coords,
        ending=info.ending,
        names=names,
        groups=groups,
        threads=threads,
        steps=(),
        open_step=None,
        open_records=(),
        last_ns=0,
        observation=observation(info.probes),
    )
    steps = main[(main["kind"] == Kind.STEP) & (main["end_ns"] == OPEN)]
    looks = read_looks(directory)
    last_ns = max((last_instant_ns(records) for records in threads.values() if len(records)), default=None)
    return RankSummary(
        rank=rank.rank,
        coords=dict(rank.coords),
        host=info.host.name,
        pid=info.pid,
        ending=info.ending,
        last_ns=None if last_ns is None or to_wall_ns is None else last_ns + to_wall_ns,
        looked_ns=None if not looks or to_wall_ns is None else looks[-1].at_ns + to_wall_ns,
        silent_ns=max(looks[-1].at_ns - last_ns, 0) if looks and last_ns is not None else 0,
        step=int(steps["step"][-1]) if len(steps) and not ended else None,
        doing=_doing(rank, main),
        waits=() if ended else tuple(_waits(rank, main)),
        joined=_joined(rank),
        whole=whole,
        rows=_newest_rows(directory),
        problems=tuple(problems),
    )


def _last_records(directory: Path, problems: list[str]) -> tuple[dict[str, NDArray[np.void]], bool]:
    """The last records of each thread, and whether these are all."""
    files: dict[str, list[Path]] = {}
    for path in record_files(directory):
        files.setdefault(path.stem.rpartition("-")[0], []).append(path)
    threads, whole = {}, True
    for thread, paths in files.items():
        try:
            records = read_records(paths[-1]).records if paths[-1].suffix == COMPACTED else _tail(paths[-1])
        except RunDirectoryError as error:
            problems.append(str(error))
            whole = False
            continue
        whole &= len(paths) == 1 and len(records) < LAST_RECORDS
        threads[thread] = records[-LAST_RECORDS:]
    return threads, whole


def _tail(path: Path) -> NDArray[np.void]:
    """The last records of a segment, without reading what the recorder reserved and did not write yet."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        read_header(os.pread(descriptor, HEADER_BYTES, 0), path)
        low, high = 0, max(os.fstat(descriptor).st_size - HEADER_BYTES, 0) // RECORD_BYTES
        while low < high:  # records are begun in order; the kind is the last byte of each
            middle = (low + high) // 2
            begun = os.pread(descriptor, 1, HEADER_BYTES + (middle + 1) * RECORD_BYTES - 1) != b"\0"
            low, high = (middle + 1, high) if begun else (low, middle)
        first = max(low - LAST_RECORDS, 0)
        raw = os.pread(descriptor, (low - first) * RECORD_BYTES, HEADER_BYTES + first * RECORD_BYTES)
    finally:
        os.close(descriptor)
    records = begun_records(np.frombuffer(raw, dtype=RECORD_DTYPE, count=len(raw) // RECORD_BYTES))
    return records[plausible(records)]


def _newest_step(
    directory: Path, tail: NDArray[np.void], problems: list[str], *, ended: bool
) -> tuple[NDArray[np.void], int | None]:
    """The training thread's last records with the step under way, and what to add to their times for wall time.

    A step of very many records began before the tail. Then its whole segment is read, and at last the one before.
    """
    records = tail
    for number, path in enumerate(reversed(record_files(directory, thread=TRAINING_THREAD)[-2:])):
        if (ended or _shows_step(records)) and Kind.CLOCK in records["kind"]:
            break
        try:
            whole = read_records(path).records
        except RunDirectoryError as error:
            problems.append(str(error))
            break
        records = np.concatenate([whole, records]) if number else whole
    clocks = records[records["kind"] == Kind.CLOCK]
    return records, int(clocks["value"][-1]) - int(clocks["start_ns"][-1]) if len(clocks) else None


def _shows_step(records: NDArray[np.void]) -> bool:
    """True if a step under way is among the records. CLOCK records lie between steps, and one begins each segment."""
    steps = records[records["kind"] == Kind.STEP]
    return bool((steps["end_ns"] == OPEN).any() or (records["kind"][1:] == Kind.CLOCK).any())


def _joined(rank: RankTimeline) -> dict[Channel, tuple[int, int]]:
    last: dict[Channel, tuple[int, int]] = {}
    for records in rank.threads.values():
        called = records[records["kind"] == Kind.COLLECTIVE]
        channels, at = channels_of(rank, called)
        newest = np.zeros(len(channels), dtype=np.int64)
        newest[at] = np.arange(len(called))  # records are in order: the last one of each channel stays
        for channel, position in zip(channels, newest.tolist(), strict=True):
            found = (int(called["window"][position]), int(called["sequence"][position]))
            last[channel] = max(last.get(channel, (-1, -1)), found)
    return last


def _waits(rank: RankTimeline, main: NDArray[np.void]) -> list[LastCall]:
    """Calls of open stalls; without one, an open collective after which the thread began nothing."""
    still_open = main[main["end_ns"] == OPEN]
    stalls = still_open[still_open["kind"] == Kind.STALL]
    if not len(stalls) and len(main) and main["kind"][-1] == Kind.COLLECTIVE and main["end_ns"][-1] == OPEN:
        stalls = main[-1:]
    channels, at = channels_of(rank, stalls)
    calls = []
    for record, number in zip(stalls, at.tolist(), strict=True):
        channel, group = channels[number], int(record["group"])
        if group >= len(rank.groups):
            continue
        sides = (channel.source, channel.destination)
        calls.append(
            LastCall(
                channel=channel,
                axis=rank.groups[group].axis,
                operation=rank.name(int(record["name"])),
                members=sides if channel.direct else rank.groups[group].ranks,
                window=int(record["window"]),
                sequence=int(record["sequence"]),
            )
        )
    return calls


def _doing(rank: RankTimeline, main: NDArray[np.void]) -> str:
    inside = main[(main["end_ns"] == OPEN) & np.isin(main["kind"], (Kind.PHASE, Kind.ACTION))]
    if not len(inside):
        return "outside all phases"
    record = inside[-1]
    if record["kind"] == Kind.PHASE and record["phase"] != Phase.NONE:
        return f"in {Phase(int(record['phase'])).name.lower().replace('_', ' ')}"
    return f"in {rank.name(int(record['name']))}"


Number = Annotated[int, msgspec.Meta(gt=-(1 << 62), lt=1 << 62)]
_decoder = msgspec.json.Decoder(tuple[Number, Number, Number, Number, Number, dict[str, Number]])
"""Of a row of a single step, as `store/rows.py` writes it."""


def _newest_rows(directory: Path) -> Rows:
    """The newest rows of single steps. Lines that cannot be decoded are left out."""
    by_step = {}
    for line in _last_lines(directory / ROWS_FILE):
        try:
            row = _decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
        by_step[row[0]] = row
    rows = [by_step[step] for step in sorted(by_step)][-NEWEST_ROWS:]
    columns = np.array([row[:4] for row in rows], dtype=np.int64).reshape(-1, 4)
    terms: dict[str, Ints] = {}
    for at, row in enumerate(rows):
        for term, ns in row[5].items():
            if term not in terms:
                terms[term] = np.zeros(len(rows), dtype=np.int64)
            terms[term][at] = ns
    return Rows(step=columns[:, 0], wall_ns=columns[:, 2], own_ns=columns[:, 3], terms=terms)


def _last_lines(path: Path) -> list[bytes]:
    """Complete lines at the end of the file."""
    try:
        with path.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            first = max(size - NEWEST_ROWS * ROW_BYTES, 0)
            file.seek(first)
            lines = file.read().split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    return lines[1:] if first else lines
