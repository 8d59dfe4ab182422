"""Snapshots of torch's allocator (`torch.cuda.memory._dump_snapshot`), read without running anything in them.

A pickle can name any callable. The reader builds lists, dictionaries, numbers and text only, and refuses the rest.
Snapshots in JSON, and those packed by gzip, are read too. The format is documented at `torch.cuda.memory._snapshot`:
segments with their blocks, and for each GPU the history of the allocator's actions, if it was recorded.
"""

import gzip
import json
import re
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from traincope.errors import DataError, UsageError
from traincope.ingest.cards import NOTHING_GIVEN, Given, rank_card, run_card, write_card
from traincope.ingest.foreign import GZIP, begin
from traincope.ingest.importing import rank_of
from traincope.private_files import make_directory
from traincope.store.job.flight import DAMAGED, PICKLE, NotPlainError, load_plain
from traincope.store.layout import RANK_FILE, RUN_FILE, memory_file, rank_directory
from traincope.store.side_tables.memory_snapshots import AllocationSite, DeviceMemory, MemorySnapshot, write_snapshot
from traincope.whole_files import written_aside

ALLOCATED, INACTIVE = "active_allocated", "inactive"
"""States of a block. The others await their free: `active_awaiting_free`, in older torch `active_pending_free`."""
GROWS = "alloc"
SHRINKS = ("free_requested", "free_completed")
"""Actions that end an allocation, the first one first: a history may leave out either."""
NO_FILE = ("", "??")
"""File of a C++ frame without symbols."""
SUFFIXES = (".pickle", ".pkl", ".json", ".gz")
"""Names of the snapshots that are taken from a folder end like this."""
KEYS = (b'"segments"', b'"total_size"')
"""Keys at the begin of a snapshot in JSON."""
MAX_SITES = 64
MAX_FRAMES = 8
MAX_POINTS = 400
"""Most points of a history; more are folded, and each keeps its largest value."""
PARTS = (
    ("torch/optim/", "optimizer"),
    ("torch/distributed/", "distributed"),
    ("torch/autograd/", "backward"),
    ("torch/_tensor.py", "backward"),
)
"""Part of a path of torch's own files -> the part of torch that it is. `Tensor.backward` is in `_tensor.py`."""

OF_TORCH = re.compile(
    r"/(site|dist)-packages/(torch|triton|nvidia)/|/torch/(_\w+|nn|optim|autograd|distributed|utils|cuda|fx)(/|\.py)"
)
"""Begin and part of paths of torch's own files, with `/` also for Windows."""
IN_CPP = (
    (re.compile(r"torch::autograd::(Engine|generated::|AccumulateGrad|Node::|python::PythonEngine)"), "backward"),
    (re.compile(r"c10d::"), "distributed"),
)
"""Begin of the name of a C++ function -> part of torch. Forward passes `torch::autograd::VariableType`."""
UNWINDING = re.compile(r"torch::(unwind|CapturedTraceback)|c10::|std::|at::detail::empty|_?_?(libc_)?start|clone")
"""Begin of the names of C++ functions that say nothing about an allocation."""

Raw = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedSnapshot:
    """Result of one imported snapshot."""

    source: Path
    rank: int
    rule: str
    """Source of the rank."""
    snapshot: MemorySnapshot


def is_snapshot(path: Path) -> bool:
    """True if the file is a pickle, or JSON of segments. False for a folder, or a file that cannot be read."""
    head = begin(path)
    return head.startswith(PICKLE) or all(key in head for key in KEYS)


def find_snapshots(paths: Sequence[Path]) -> tuple[Path, ...]:
    """All snapshots among files and folders."""
    found: list[Path] = []
    for path in paths:
        inside = sorted(path.rglob("*")) if path.is_dir() else []
        found += [file for file in inside if file.suffix.lower() in SUFFIXES and is_snapshot(file)]
        found += [path] if is_snapshot(path) else []
    return tuple(found)


def import_snapshots(
    paths: Sequence[Path],
    target: Path,
    *,
    given: Given = NOTHING_GIVEN,
    on_left_out: Callable[[str], object] | None = None,
) -> tuple[ImportedSnapshot, ...]:
    """Make the run directory `target`, which must not exist, of snapshots, one per rank.

    `on_left_out` gets a sentence for each file that is not a snapshot, and the others are imported. Raises DataError
    for such a file without `on_left_out`, and if no file is a snapshot; UsageError if the directory cannot be made. On
    an error nothing remains of it.
    """
    if target.exists():
        raise UsageError(f"{target} exists already; choose another directory with -o")
    imported: list[ImportedSnapshot] = []
    refused: list[DataError] = []
    for path in paths:
        try:
            snapshot = read_memory_snapshot(path)
        except DataError as error:
            refused.append(error)
            continue
        rank, rule = rank_of(path, taken={each.rank for each in imported})
        if any(each.rank == rank for each in imported):
            raise UsageError(f"{path} is of rank {rank} like a file before it; give one snapshot per rank")
        imported.append(ImportedSnapshot(source=path, rank=rank, rule=rule, snapshot=snapshot))
    if refused and (on_left_out is None or not imported):
        raise refused[0]
    if on_left_out is not None:
        for reason in refused:
            on_left_out(str(reason))
    try:
        with written_aside(target) as new_path:
            make_directory(new_path)
            for each in imported:
                _write(each, rank_directory(new_path, attempt=0, rank=each.rank), given=given)
            size = max(each.rank for each in imported) + 1
            card = run_card(target.name, world_size=size, mesh={}, began_ns=0, given=given)
            write_card(new_path / RUN_FILE, card)
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror or error}") from error
    return tuple(imported)


def read_memory_snapshot(path: Path) -> MemorySnapshot:
    """Read and reduce a snapshot. Raises DataError for another file."""
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if content.startswith(GZIP) else content
        raw = load_plain(BytesIO(content)) if content.startswith(PICKLE) else json.loads(content)
        raw = {"segments": raw} if isinstance(raw, list) else raw  # of torch.cuda.memory_snapshot()
        if not isinstance(raw, Mapping) or "segments" not in raw:
            raise DataError(f"{path} is not a snapshot of torch's allocator: it has no list of segments")
        traces = raw.get("device_traces") or []
        by_device: dict[int, list[Raw]] = defaultdict(list)
        for segment in raw["segments"]:
            by_device[int(segment.get("device", 0))].append(segment)
        if not raw["segments"] and not any(traces):
            raise DataError(f"{path} is empty: torch's allocator had no memory of a GPU when it was written")
        devices = sorted({*by_device, *(number for number, trace in enumerate(traces) if trace)})
        return MemorySnapshot(
            source=path.name,
            devices=tuple(
                _device(number, by_device[number], traces[number] if number < len(traces) else ()) for number in devices
            ),
        )
    except NotPlainError as error:
        raise DataError(
            f"{path} is refused: {error}. A snapshot of torch's allocator holds plain data only; do not open this file "
            "with pickle.load"
        ) from error
    except (*DAMAGED, zlib.error) as error:
        raise DataError(
            f"{path} is not a snapshot of torch's allocator, or is damaged ({type(error).__name__}: {error}); write "
            "one with torch.cuda.memory._dump_snapshot()"
        ) from error


def _write(imported: ImportedSnapshot, directory: Path, *, given: Given) -> None:
    make_directory(directory)
    write_snapshot(directory / memory_file(0), imported.snapshot)
    device = {} if given.gpu is None else {"name": given.gpu, "count": 1}
    host = f"imported-{imported.rank}"
    card = rank_card(imported.rank, coords={}, host=host, started_ns=0, ended_ns=0, device=device)
    write_card(directory / RANK_FILE, card)


def _device(number: int, segments: Sequence[Raw], trace: Sequence[Raw]) -> DeviceMemory:
    blocks = [block for segment in segments for block in segment["blocks"]]
    live = [block for block in blocks if block["state"] == ALLOCATED]
    free = [int(block["size"]) for block in blocks if block["state"] == INACTIVE]
    allocated, reserved = _sum(live, "size"), _sum(segments, "total_size")
    if any(int(block["size"]) < 0 for block in blocks):
        raise ValueError(f"a block of GPU {number} has a negative size")
    if _sum(blocks, "size") != reserved:
        raise ValueError(f"the blocks of GPU {number} have {_sum(blocks, 'size')} bytes, its segments {reserved}")
    times, history = _history(trace, end_bytes=allocated)
    return DeviceMemory(
        device=number,
        segments=len(segments),
        expandable_segments=sum(bool(segment.get("is_expandable")) for segment in segments),
        reserved_bytes=reserved,
        allocated_bytes=allocated,
        requested_bytes=sum(int(block.get("requested_size", block["size"])) for block in live),
        awaiting_free_bytes=reserved - allocated - sum(free),
        inactive_bytes=sum(free),
        largest_inactive_bytes=max(free, default=0),
        sites=tuple(_sites(live)),
        times_us=tuple(times),
        history_bytes=tuple(history),
        peak_bytes=max(history, default=None),
        out_of_memory_bytes=tuple(int(entry["size"]) for entry in trace if entry["action"] == "oom"),
    )


def _sum(rows: Sequence[Raw], key: str) -> int:
    return sum(int(row[key]) for row in rows)


def _sites(live: Sequence[Raw]) -> Iterator[AllocationSite]:
    """Group live blocks by the training's line that allocated them."""
    groups: dict[tuple[str, str], list[Raw]] = defaultdict(list)
    for block in live:
        frames = _frames(block)
        groups[_place(frames), _part(frames)].append(block)
    largest = sorted(groups.items(), key=lambda group: -_sum(group[1], "size"))[:MAX_SITES]
    for (place, part), blocks in largest:
        stack = tuple(map(_named, _frames(blocks[0])[:MAX_FRAMES]))
        yield AllocationSite(place=place, stack=stack, part=part, bytes=_sum(blocks, "size"), blocks=len(blocks))


def _frames(block: Raw) -> Sequence[Raw]:
    """Frames that name a function; `history` is where torch before 2.0 has them."""
    history = block.get("history") or ()
    frames = block.get("frames") or (history[0].get("frames") if history else None) or ()
    return [frame for frame in frames if frame.get("name")]


def _place(frames: Sequence[Raw]) -> str:
    """The innermost frame outside of torch, the most recent one first; otherwise the innermost one that allocates."""
    of_training = (frame for frame in frames if not _is_torch(_path(frame)))
    allocating = (frame for frame in frames if not UNWINDING.match(str(frame["name"])))
    frame = next(of_training, None) or next(allocating, frames[0] if frames else None)
    return "" if frame is None else _named(frame)


def _path(frame: Raw) -> str:
    return str(frame.get("filename") or "").replace("\\", "/")


def _is_torch(path: str) -> bool:
    return OF_TORCH.search(path) is not None or not path.endswith(".py")


def _part(frames: Sequence[Raw]) -> str:
    """The part of torch by its own files and C++ functions in the stack, from the innermost frame on."""
    return next(filter(None, map(_part_of, frames)), "model" if frames else "")


def _part_of(frame: Raw) -> str:
    path, name = _path(frame), str(frame["name"])
    by_path = (part for words, part in PARTS if words in path and _is_torch(path))
    return next(by_path, None) or next((part for pattern, part in IN_CPP if pattern.match(name)), "")


def _named(frame: Raw) -> str:
    file, name = str(frame.get("filename") or ""), str(frame["name"])
    return name if file in NO_FILE else f"{file}:{frame.get('line') or '?'} in {name}"


def _history(trace: Sequence[Raw], *, end_bytes: int) -> tuple[list[int], list[int]]:
    """Times since the first entry, us, and allocated bytes, counted back from the end.

    A history has only the last entries of a long run, so what was allocated before it follows from what is now. Empty
    if that is impossible: the history lacks actions.
    """
    ends = next((action for action in SHRINKS if any(entry["action"] == action for entry in trace)), SHRINKS[0])
    changes = [
        (int(entry.get("time_us", at)), int(entry["size"]) * (1 if entry["action"] == GROWS else -1))
        for at, entry in enumerate(trace)
        if entry["action"] in (GROWS, ends)
    ]
    if not changes:
        return [], []
    allocated = end_bytes - sum(change for _, change in changes)
    times, values = [changes[0][0]], [allocated]
    for at, change in changes:
        allocated += change
        times.append(at)
        values.append(allocated)
    if min(values) < 0:
        return [], []
    each = -(-len(times) // MAX_POINTS)
    folded = [(times[at] - times[0], max(values[at : at + each])) for at in range(0, len(times), each)]
    return [at for at, _ in folded], [value for _, value in folded]
