"""Files of one host in a run directory, in the order in which they must arrive.

A name must be there before the first record that has it. So the states of records are taken first, names are shipped
next, and records as of the taken state after them. The manifest of a rank comes before its records: a rank without a
manifest cannot be read.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from traincope.analysis.faults.lost_hosts import SILENCE_NS
from traincope.errors import RunDirectoryError
from traincope.events import RECORD_BYTES
from traincope.live.node.tail import num_begun, records_at
from traincope.record.segments.writer import CAPACITY
from traincope.store.job.manifests import read_rank_info
from traincope.store.job.witness import Heard, file_name_of, witnessed_hosts
from traincope.store.layout import (
    BELL_FILE,
    DETAILS_FILE,
    GROUPS_FILE,
    HANGS_FILE,
    INJECTED_FILE,
    LAUNCHER_FILE,
    LEVEL_FILE,
    METRICS_FILES,
    NAMES_FILE,
    PEER_FILES,
    PROVISIONAL,
    RANK_FILE,
    REQUESTS_FILE,
    RUN_FILE,
    SCALARS_FILES,
    SEGMENT,
    SIGNAL_FILES,
    STACKS_FILE,
    TILES_DIRECTORY,
    WITNESS_DIRECTORY,
    attempt_directory,
    attempt_number,
    metrics_file,
    scalars_file,
)
from traincope.store.places.remote import is_portable
from traincope.store.places.ship_notes import LEFT_FILES, SHIPPED_FILES
from traincope.store.segments.segments import HEADER_BYTES, segment_content
from traincope.topology import Host

LAUNCH_FILE = "launch.json"
"""The launch that an attempt at a destination belongs to."""
RESERVED_BYTES = HEADER_BYTES + CAPACITY * RECORD_BYTES
"""Size of a segment that may still be written."""
SHARED = frozenset({LAUNCHER_FILE, REQUESTS_FILE, INJECTED_FILE, HANGS_FILE})
"""Files of lines to which several hosts append."""
PLAIN = frozenset({RUN_FILE, LAUNCH_FILE, *SHARED})
"""Files to which several hosts write. They are files of their own everywhere. `run.json` shows that there is a run."""
WORDS = frozenset({NAMES_FILE, GROUPS_FILE, DETAILS_FILE})
UNFINISHED = (".new", ".room")
UNSHIPPED = (BELL_FILE, LEVEL_FILE)
"""Files that processes of the node write to each other."""


class Order(IntEnum):
    """Order of arrival."""

    WORDS = 0
    MANIFEST = 1
    RECORDS = 2
    OTHERS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One file to ship, as of its state."""

    name: str
    path: Path
    order: Order
    state: str
    """Changes whenever the content does."""
    size: int
    attempt: int | None
    """Number of its attempt on this node; None for a file of the run."""
    begun: int | None = None
    """Number of records of a segment that may still be written; otherwise None."""

    @property
    def is_shared(self) -> bool:
        return self.path.name in SHARED

    def content(self) -> bytes | None:
        """Content as of the state or later; None if the file is gone. Raises OSError."""
        try:
            if self.begun is None:
                return self.path.read_bytes()
            with self.path.open("rb") as file:
                return segment_content(records_at(file.fileno(), 0, self.begun))
        except FileNotFoundError:
            return None


def host_pieces(run: Path, host: Host, *, attempt: int) -> list[Piece]:
    """All files of `host` in one attempt of `run`, in order of arrival. Raises OSError if they cannot be read."""
    ranks = list(_rank_directories(run, host, attempt=attempt))
    pieces: list[Piece] = []
    for directory in ranks:
        pieces += _pieces(directory, run=run)
    if attempt_directory(run, attempt).is_dir():
        pieces += _attempt_pieces(attempt_directory(run, attempt), host, run=run)
    for path in run.iterdir():
        if not _is_of_another(path, host):
            pieces += _one(path, run=run)
    for path in run.glob(f"{TILES_DIRECTORY}/*/*.json"):
        pieces += _one(path, run=run)
    return sorted(pieces, key=lambda piece: (piece.order, piece.name))


def is_over(run: Path, host: Host, *, attempt: int) -> bool:
    """Return whether no rank of this host will write anything more in this attempt."""
    ranks = list(_rank_directories(run, host, attempt=attempt))
    for directory in ranks:
        try:
            info = read_rank_info(directory)
        except RunDirectoryError:
            return False
        if info.ending is None and (info.process is None or info.process.is_running() is not False):
            return False
    return bool(ranks)


def _rank_directories(run: Path, host: Host, *, attempt: int) -> Iterator[Path]:
    for directory in (*attempt_directory(run, attempt).glob("rank-*"), *run.glob(f"{PROVISIONAL}*")):
        with suppress(RunDirectoryError):
            if read_rank_info(directory).host == host:
                yield directory


def _attempt_pieces(attempt: Path, host: Host, *, run: Path) -> Iterator[Piece]:
    """Notes and copies that this host's agent wrote."""
    own = file_name_of(host)
    for path in attempt.iterdir():
        if not _is_of_another(path, host):
            yield from _one(path, run=run)
    of_silent_hosts = (path for heard, path in witnessed_hosts(attempt) if _is_silent(heard))
    for directory in (*of_silent_hosts, *attempt.glob(f"compared/{own}")):
        if directory.parent.name != WITNESS_DIRECTORY or directory.name.endswith(f"-by-{own}"):
            yield from _pieces(directory, run=run)


def copies_of_answering_hosts(attempt: Path) -> Iterator[Path]:
    """The directories of copies that are of no use any more: their hosts answer, or took leave. A directory whose note
    is gone or cannot be read is not one of them.
    """
    return (path for heard, path in witnessed_hosts(attempt) if not _is_silent(heard))


def _is_silent(heard: Heard) -> bool:
    """True if the host may be lost: the copies of its records are of use only then."""
    return not heard.farewell and (heard.closed or heard.silent_ns >= SILENCE_NS)


def _is_of_another(path: Path, host: Host) -> bool:
    """Return whether a file is of another host's agent, or of no use elsewhere."""
    if any(path.match(pattern) for pattern in (LEFT_FILES, SHIPPED_FILES, PEER_FILES, LAUNCH_FILE)):
        return True
    is_named_by_host = path.match(METRICS_FILES) or path.match(SCALARS_FILES)
    return is_named_by_host and path.name not in (metrics_file(host.name), scalars_file(host.name))


def _pieces(directory: Path, *, run: Path) -> Iterator[Piece]:
    with suppress(FileNotFoundError):  # a provisional directory is renamed
        for path in sorted(directory.rglob("*")):
            yield from _one(path, run=run)


def _one(path: Path, *, run: Path) -> Iterator[Piece]:
    """The piece of a file; nothing for directories, links, and files that are being written aside."""
    relative = path.relative_to(run)
    if path.suffix in UNFINISHED or any(part.startswith(".") for part in relative.parts) or path.name in UNSHIPPED:
        return
    if not is_portable(relative.as_posix()):
        return  # not a file of traincope
    try:
        status = path.lstat()
        if not path.is_file() or path.is_symlink():
            return
        if not status.st_size and (path.match(SIGNAL_FILES) or path.name == STACKS_FILE):
            return  # no signal has arrived
        is_open = path.suffix == SEGMENT and status.st_size == RESERVED_BYTES
        begun = num_begun(path) if is_open else None
    except FileNotFoundError:
        return
    begun_bytes = 0 if begun is None else HEADER_BYTES + begun * RECORD_BYTES
    yield Piece(
        name=relative.as_posix(),
        path=path,
        order=_order(path),
        state=f"begun-{begun}" if is_open else f"{status.st_size}-{status.st_mtime_ns}-{status.st_ino}",
        size=begun_bytes if is_open else status.st_size,
        attempt=attempt_number(Path(relative.parts[0])),
        begun=begun,
    )


def _order(path: Path) -> Order:
    if path.name in WORDS:
        return Order.WORDS
    if path.name in (RANK_FILE, RUN_FILE):
        return Order.MANIFEST
    if path.suffix in (SEGMENT, ".parquet"):
        return Order.RECORDS
    return Order.OTHERS
