"""Run directory -> records: what can still be read is read, what cannot is named."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traincope.errors import EmptyRunError, NotARunError, RunDirectoryError, VersionError
from traincope.events import FORMAT_VERSION, Kind
from traincope.store.layout import GROUPS_FILE, NAMES_FILE, RANK_FILE, RUN_FILE, attempt_number, rank_number
from traincope.store.segments import RECORD_DTYPE, SegmentRecords, read_segment
from traincope.topology import Group, Host, RankCoord


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """What `run.json` says."""

    id: str
    world_size: int
    mesh: dict[str, int]
    """Axis -> size, outermost first; empty if no DeviceMesh was seen."""
    started_wall_ns: int
    versions: dict[str, str]
    command: str
    settings: dict[str, Any]
    """What the training told with `run.describe()`: tokens per step, model FLOPs, peak, ..."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankInfo:
    """What `rank.json` says."""

    coord: RankCoord
    host: Host
    pid: int
    started_wall_ns: int
    ended_wall_ns: int | None
    """None: the process has not come to a clean end (still running, or killed)."""
    ending: str | None
    """`clean`, the exception that left the `with`, or None as above."""
    probes: dict[str, str]
    """Probe -> `on`, or why it is not."""
    recorder: dict[str, Any]
    """The recorder's own counts at a clean end; empty before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRecords:
    """Everything one rank left in one attempt."""

    attempt: int
    info: RankInfo
    names: tuple[str, ...]
    groups: tuple[Group, ...]
    segments: tuple[SegmentRecords, ...]
    problems: tuple[str, ...]
    """What of this rank could not be read, one sentence each."""

    @property
    def rank(self) -> int:
        return self.info.coord.rank

    def thread(self, name: str) -> NDArray[np.void]:
        """All records of one thread, in the order they were begun."""
        parts = [segment.records for segment in self.segments if segment.thread == name]
        return np.concatenate(parts) if parts else np.empty(0, dtype=RECORD_DTYPE)

    @property
    def threads(self) -> tuple[str, ...]:
        """Thread names, the training thread first."""
        seen = sorted({segment.thread for segment in self.segments}, key=lambda name: (name != "main", name))
        return tuple(seen)

    @property
    def dropped(self) -> int:
        """Records the recorder could not keep, by its own count."""
        return sum(
            int(segment.records["value"][segment.records["kind"] == Kind.DROPPED].sum()) for segment in self.segments
        )

    def name(self, number: int) -> str:
        """The interned string, or a stand-in where the names file lost it."""
        return self.names[number] if number < len(self.names) else f"<name {number}>"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecords:
    """A run directory, read."""

    path: Path
    info: RunInfo
    ranks: tuple[RankRecords, ...]
    """The last attempt's ranks, in rank order."""
    attempts: int
    missing: tuple[int, ...]
    """Ranks of the world that left nothing readable."""
    problems: tuple[str, ...]


def read_run(path: str | Path) -> RunRecords:
    """Open a run directory, also while it is being written or after its writers were killed.

    `path` may be a parent that holds exactly one run. Raises NotARunError, EmptyRunError or
    VersionError, each with what to do; damage to single ranks is reported in `problems` instead.
    """
    root = find_run(Path(path))
    info = _read_run_info(root)
    attempts = sorted(p for p in root.glob("attempt-*") if p.is_dir() and attempt_number(p) is not None)
    if not attempts:
        raise EmptyRunError(f"{root} was begun, but no rank has recorded anything yet; try again once training runs")
    ranks, problems = [], []
    for directory in sorted(attempts[-1].glob("rank-*")):
        try:
            ranks.append(_read_rank(directory, attempt=attempt_number(attempts[-1]) or 0))
        except VersionError:
            raise
        except RunDirectoryError as error:
            problems.append(str(error))
    if not any(len(segment.records) for rank in ranks for segment in rank.segments):
        detail = f": {problems[0]}" if problems else ""
        raise EmptyRunError(f"{attempts[-1]} holds no records{detail}; try again once training has begun")
    present = {rank.rank for rank in ranks}
    return RunRecords(
        path=root,
        info=info,
        ranks=tuple(ranks),
        attempts=len(attempts),
        missing=tuple(rank for rank in range(info.world_size) if rank not in present),
        problems=tuple(problems),
    )


def find_run(path: Path) -> Path:
    """The run directory that `path` is, or the one run it contains.

    Raises NotARunError if there is none, or several.
    """
    if not path.exists():
        raise NotARunError(f"{path} does not exist; give the directory that `traincope.run(out=...)` was given")
    if (path / RUN_FILE).is_file():
        return path
    found = sorted(p.parent for p in path.glob(f"*/{RUN_FILE}")) if path.is_dir() else []
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(p.name for p in found[:5]) + (", ..." if len(found) > 5 else "")
        raise NotARunError(f"{path} holds {len(found)} runs ({names}); name one of them")
    raise NotARunError(f"{path} is not a run directory: it has no {RUN_FILE}; give the directory a run was recorded in")


def _read_run_info(root: Path) -> RunInfo:
    raw = _read_json(root / RUN_FILE)
    version = raw.get("version")
    if version != FORMAT_VERSION:
        raise VersionError(
            f"{root} was written in format {version}, this traincope reads format {FORMAT_VERSION}; "
            "open it with the traincope that wrote it, or a newer one"
        )
    try:
        return RunInfo(
            id=str(raw["id"]),
            world_size=int(raw["world_size"]),
            mesh={str(axis): int(size) for axis, size in raw["mesh"].items()},
            started_wall_ns=int(raw["started_wall_ns"]),
            versions={str(k): str(v) for k, v in raw["versions"].items()},
            command=str(raw["command"]),
            settings=dict(raw["settings"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunDirectoryError(
            f"{root / RUN_FILE} lacks or garbles {error}; restore it from a copy of the run"
        ) from error


def _read_rank(directory: Path, *, attempt: int) -> RankRecords:
    problems: list[str] = []
    info = _read_rank_info(directory)
    if info.coord.rank != rank_number(directory):
        raise RunDirectoryError(
            f"{directory / RANK_FILE} says it is rank {info.coord.rank}; it was put there by mistake"
        )
    segments = []
    for path in sorted(directory.glob("*.seg")):
        try:
            segment = read_segment(path)
        except VersionError:
            raise
        except RunDirectoryError as error:
            problems.append(str(error))
            continue
        if segment.lost_bytes:
            problems.append(f"{path} is cut off in the middle of a record; {segment.lost_bytes} bytes of it are lost")
        segments.append(segment)
    return RankRecords(
        attempt=attempt,
        info=info,
        names=tuple(str(line) for line in _read_lines(directory / NAMES_FILE)),
        groups=tuple(_group(number, line) for number, line in enumerate(_read_lines(directory / GROUPS_FILE))),
        segments=tuple(segments),
        problems=tuple(problems),
    )


def _read_rank_info(directory: Path) -> RankInfo:
    raw = _read_json(directory / RANK_FILE)
    try:
        return RankInfo(
            coord=RankCoord(rank=int(raw["rank"]), coords={str(k): int(v) for k, v in raw["coords"].items()}),
            host=Host(name=str(raw["host"]), boot_id=str(raw["boot_id"])),
            pid=int(raw["pid"]),
            started_wall_ns=int(raw["started_wall_ns"]),
            ended_wall_ns=None if raw.get("ended_wall_ns") is None else int(raw["ended_wall_ns"]),
            ending=raw.get("ending"),
            probes=dict(raw.get("probes", {})),
            recorder=dict(raw.get("recorder", {})),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        rank = rank_number(directory)
        raise RunDirectoryError(f"{directory / RANK_FILE} (rank {rank}) lacks or garbles {error}") from error


def _group(number: int, raw: Any) -> Group:
    """A garbled line keeps its place, for records name groups by line."""
    fields = raw if isinstance(raw, dict) else {}
    ranks = fields.get("ranks")
    whole = isinstance(ranks, list) and all(type(rank) is int and rank >= 0 for rank in ranks)
    return Group(
        number=number,
        key=str(fields.get("key", f"<group {number}>")),
        axis=str(fields.get("axis", "unknown")),
        rule=str(fields.get("rule", "none")),
        ranks=tuple(ranks) if whole and isinstance(ranks, list) else (),
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise RunDirectoryError(f"{path} is missing; the recording of it ended before it began") from error
    except (OSError, ValueError) as error:
        raise RunDirectoryError(f"{path} cannot be read: {error}") from error
    if not isinstance(raw, dict):
        raise RunDirectoryError(f"{path} holds no JSON object")
    return raw


def _read_lines(path: Path) -> Iterator[Any]:
    """Complete lines only: the last one may have been cut by a kill."""
    try:
        text = path.read_text(errors="replace")
    except FileNotFoundError:
        return
    for line in text.splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            return
