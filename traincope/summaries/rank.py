"""Summary of one rank: its newest ledger rows, and what its last records show."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from traincope.events import CLEAN, OPEN, Kind, Phase
from traincope.store.job.looks import read_looks
from traincope.store.job.manifests import parse_rank_info
from traincope.store.layout import GROUPS_FILE, NAMES_FILE, RANK_FILE
from traincope.store.lines import read_groups, read_names, read_object
from traincope.store.segments.segments import last_instant_ns
from traincope.summaries.last_records import read_last_records
from traincope.summaries.rows import Rows, newest_rows
from traincope.timeline import RankTimeline
from traincope.timeline.collectives.channels import Channel, channels_of
from traincope.timeline.observation import observation


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
    card = directory / RANK_FILE
    info = parse_rank_info(read_object(card), path=card, signals={})
    ended = info.ending == CLEAN
    last = read_last_records(directory, ended=ended)
    rank = RankTimeline(
        rank=info.coord.rank,
        coords=info.coord.coords,
        ending=info.ending,
        names=read_names(directory / NAMES_FILE, version=info.version),
        groups=read_groups(directory / GROUPS_FILE, version=info.version),
        threads=last.threads,
        steps=(),
        open_step=None,
        open_records=(),
        last_ns=0,
        observation=observation(info.probes),
    )
    main, to_wall_ns = last.main, last.to_wall_ns
    steps = main["step"][(main["kind"] == Kind.STEP) & (main["end_ns"] == OPEN)]
    looks = read_looks(directory)
    last_ns = max((last_instant_ns(records) for records in last.threads.values() if len(records)), default=None)
    return RankSummary(
        rank=rank.rank,
        coords=dict(rank.coords),
        host=info.host.name,
        pid=info.pid,
        ending=info.ending,
        last_ns=None if last_ns is None or to_wall_ns is None else last_ns + to_wall_ns,
        looked_ns=None if not looks or to_wall_ns is None else looks[-1].at_ns + to_wall_ns,
        silent_ns=max(looks[-1].at_ns - last_ns, 0) if looks and last_ns is not None else 0,
        step=int(steps[-1]) if len(steps) and not ended else None,
        doing=_doing(rank, main),
        waits=() if ended else tuple(_waits(rank, main)),
        joined=_joined(rank),
        whole=last.whole,
        rows=newest_rows(directory),
        problems=last.problems,
    )


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
    kind = main["kind"]
    inside = main[(main["end_ns"] == OPEN) & ((kind == Kind.PHASE) | (kind == Kind.ACTION))]
    if not len(inside):
        return "outside all phases"
    record = inside[-1]
    if record["kind"] == Kind.PHASE and record["phase"] != Phase.NONE:
        return f"in {Phase(int(record['phase'])).name.lower().replace('_', ' ')}"
    return f"in {rank.name(int(record['name']))}"
