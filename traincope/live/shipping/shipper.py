"""One round of shipping: every file of the host that changed since it was shipped.

Rows and logs grow: only what was added is shipped. At a URL, the files of a round arrive together (`archiving`).
"""

import json
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from traincope.errors import RunDirectoryError, TraincopeError
from traincope.live.shipping.exchange import missing_lines, renumbered, with_lines
from traincope.live.shipping.journal import Journal, journal_path
from traincope.live.shipping.limits import Rate, ShipSettings
from traincope.live.shipping.selecting import (
    LAUNCH_FILE,
    PLAIN,
    SHARED,
    WORDS,
    Piece,
    copies_of_answering_hosts,
    host_pieces,
)
from traincope.live.shipping.targets import Target
from traincope.store.job.manifests import read_run_info
from traincope.store.job.witness import file_name_of
from traincope.store.layout import (
    COMPACTED,
    OLD_ROWS_FILE,
    PROVISIONAL,
    RANK_FILE,
    ROWS_FILE,
    RUN_FILE,
    SEGMENT,
    WITNESS_DIRECTORY,
    attempt_directory,
    rank_number,
    segment_path,
    thread_and_index,
)
from traincope.store.lines import parse, read_object
from traincope.store.places.ship_notes import ShipNote, content_of, left_path, shipped_name
from traincope.topology import Host
from traincope.whole_files import write_whole

logger = logging.getLogger(__name__)

KEPT = frozenset({RUN_FILE, RANK_FILE, ROWS_FILE, OLD_ROWS_FILE, *SHARED})
"""Files that are never removed at a destination."""
COMMIT_BYTES = 32 << 20
"""So many gathered bytes arrive before the end of a round."""
JOURNAL_SECONDS = 1.0
MAX_ATTEMPTS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Result of one round."""

    files: int
    bytes: int
    left_files: int
    left_bytes: int


class Shipper:
    """Ships the files of one host in one attempt of a run to one destination."""

    def __init__(
        self, run: Path, *, attempt: int, host: Host, target: Target, settings: ShipSettings | None = None
    ) -> None:
        """Raises OSError if the journal cannot be read."""
        self._run, self._attempt, self._host, self._target = run, attempt, host, target
        self._settings = settings or ShipSettings()
        self._journal = Journal(journal_path(run, attempt=attempt, place=target.place, host=host))
        self._has_begun = False
        self._arriving: dict[str, str] = {}
        """States of the files that were written, and may not have arrived yet."""
        self._bytes = Rate(self._settings.bytes_per_second)
        self._files = Rate(self._settings.files_per_second)

    @property
    def place(self) -> str:
        return self._target.place

    def round(self, *, last: bool = False, is_over: Callable[[], bool] = bool, is_ending: bool = False) -> Round:
        """Ship what changed. `last`: ship all, because nothing will change any more. `is_ending`: this process ends, so
        nothing is sent that the destination has already.

        Ends early once `is_over` returns true. Raises OSError, ServerError if the destination cannot be used; the next
        round continues there.
        """
        began_wall_ns = time.time_ns()
        self._begin()
        pieces = host_pieces(self._run, self._host, attempt=self._attempt)
        todo = [piece for piece in pieces if self._is_due(piece, last=last)]
        try:
            files, num_bytes = self._ship_all(todo, is_over=is_over, is_ending=last or is_ending)
            if files == len(todo):
                self._remove({self._name_there(piece) for piece in pieces})
            left = todo[files:]
            note = self._note(at_wall_ns=began_wall_ns, complete=last and not left, left=left)
            if not left:
                self._write_note(note)
        finally:
            num_bytes_last = self._arrive(is_ending=last or is_ending)
        with suppress(OSError):  # a full disk: the note of before lists more as left
            self._write_left(note)
        return Round(
            files=files, bytes=num_bytes + num_bytes_last, left_files=note.left_files, left_bytes=note.left_bytes
        )

    def _begin(self) -> None:
        """Find out what has arrived, if the destination knows: an agent may be killed before it writes it down."""
        if self._has_begun:
            return
        number = self._attempt_there(self._attempt)
        self._remember()  # the token, before anything arrives under it
        name = f"{file_name_of(self._host)}-{self._journal.token}"
        states = self._target.begin(f"{attempt_directory(Path(), number).name}/{name}")
        if states is not None:
            plain = {name: state for name, state in self._journal.shipped.items() if _is_plain(name)}
            self._journal.shipped = {**plain, **states}
        self._has_begun = True

    def _ship_all(self, todo: Sequence[Piece], *, is_over: Callable[[], bool], is_ending: bool) -> tuple[int, int]:
        """Ship pieces until `is_over`. Returns the numbers of files and of bytes."""
        num_bytes, written_at = 0, time.monotonic()
        for number, piece in enumerate(todo):
            ready = (self._target.gathers or self._files.wait(1, is_over=is_over)) and self._bytes.wait(
                0, is_over=is_over
            )
            if is_over() or not ready:
                return number, num_bytes
            sent = self._ship(piece)
            self._bytes.charge(sent)
            num_bytes += sent
            is_much = self._target.gathered_bytes > COMMIT_BYTES
            if is_much or (not self._target.gathers and time.monotonic() - written_at > JOURNAL_SECONDS):
                num_bytes += self._arrive(is_ending=is_ending)
                written_at = time.monotonic()
        return len(todo), num_bytes

    def _arrive(self, *, is_ending: bool) -> int:
        """Let what was written arrive, and write that down. Returns the number of bytes that were sent."""
        arriving, self._arriving = self._arriving, {}
        try:
            sent = self._target.commit(arriving, last=is_ending)
        except (OSError, TraincopeError):
            self._has_begun = False  # what has arrived is known only there
            raise
        self._bytes.charge(sent)
        self._journal.shipped |= arriving
        if arriving:
            self._remember()
        return sent

    def _remember(self) -> None:
        """Write the journal. On a full disk, the next agent asks the destination, or ships all again."""
        with suppress(OSError):
            self._journal.write()

    def note_begin(self) -> None:
        """Write down on the node that this destination does not have all records yet. Raises OSError."""
        self._note_left(None)

    def note_failure(self, problem: str) -> None:
        """Write down on the node why the last round failed. Raises OSError."""
        self._note_left(problem)

    def _note_left(self, problem: str | None) -> None:
        pieces = host_pieces(self._run, self._host, attempt=self._attempt)
        left = [piece for piece in pieces if self._is_due(piece, last=True)]
        self._write_left(self._note(at_wall_ns=0, complete=False, left=left, problem=problem))

    def _is_due(self, piece: Piece, *, last: bool) -> bool:
        name = self._known_name(piece)
        return name is None or self._journal.shipped.get(name) != piece.state or (last and piece.is_shared)

    def _ship(self, piece: Piece) -> int:
        """Ship a piece. Returns the number of bytes that were written."""
        name = self._name_there(piece)
        if piece.is_shared:
            sent = self._merge(piece, name)
        elif piece.name == RUN_FILE and self._is_foreign_manifest(piece):
            sent = 0
        elif (added := self._extend(piece, name)) is not None:
            sent = added
        else:
            content = piece.content()
            if content is None:
                return 0
            self._target.write(name, content)
            sent = len(content)
        self._arriving[name] = piece.state
        return 0 if self._target.gathers and not _is_plain(name) else sent

    def _merge(self, piece: Piece, name: str) -> int:
        local, there = renumbered(piece.content() or b"", self._journal.attempts), self._target.read(name) or b""
        added = missing_lines(local, there)
        if not added:
            return 0
        content = with_lines(there, added)
        self._target.write(name, content)
        return len(content)

    def _is_foreign_manifest(self, piece: Piece) -> bool:
        """Return whether the run's manifest there is of rank 0, which another host has."""
        has_first = any(path.is_dir() for path in self._run.glob("attempt-*/rank-00000"))
        return not has_first and self._target.read(piece.name) is not None

    def _extend(self, piece: Piece, name: str) -> int | None:
        """Append what is new in a file that only grows, and return its size. None if it must be written whole."""
        before = self._journal.shipped.get(name, "").split("-")
        now = piece.state.split("-")
        if piece.path.suffix not in (".jsonl", ".log") or len(before) != 3:
            return None
        size, inode = int(before[0]), before[2]
        if inode != now[2] or piece.size <= size:
            return None
        with piece.path.open("rb") as file:
            file.seek(size)
            added = file.read(piece.size - size)
        return len(added) if self._target.append(name, added, at=size) else None

    def _remove(self, present: set[str]) -> None:
        """Remove files that this host shipped, and that are gone here: a segment that was compacted or given up, stacks
        of a rank that has ended, a directory of before the rank had its place, copies of a host that answers again.

        A file that was lost here, as one that a cleaner of /tmp removed, stays there. So do copies of a host unless
        it is known to answer again: they may be all that is left of its last records.
        """
        readable = {_folder(name) for name in present}
        answering = self._copies_of_answering_hosts()
        for name in sorted(self._journal.shipped.keys() - present):
            is_copy, is_provisional = _is_copy(name), name.startswith(PROVISIONAL)
            if is_copy:
                is_kept = not any(name.startswith(f"{folder}/") for folder in answering)
            else:
                is_kept = not is_provisional and (_folder(name) not in readable or _is_lost(name, present))
            if is_kept:
                continue
            if is_copy or PurePosixPath(name).name not in KEPT:
                self._target.remove(name)
            del self._journal.shipped[name]

    def _copies_of_answering_hosts(self) -> list[str]:
        """Names of their directories at the destination."""
        number = self._journal.attempts.get(self._attempt)
        if number is None:
            return []
        folders = copies_of_answering_hosts(attempt_directory(self._run, self._attempt))
        return [self._renamed(folder.relative_to(self._run).as_posix(), number) for folder in folders]

    def _name_there(self, piece: Piece) -> str:
        if piece.attempt is None:
            return piece.name
        return self._renamed(piece.name, self._attempt_there(piece.attempt))

    def _known_name(self, piece: Piece) -> str | None:
        """Name at the destination, if the number of its attempt there is known."""
        if piece.attempt is None:
            return piece.name
        number = self._journal.attempts.get(piece.attempt)
        return None if number is None else self._renamed(piece.name, number)

    def _renamed(self, name: str, number: int) -> str:
        _, _, rest = name.partition("/")
        return f"{attempt_directory(Path(), number).name}/{rest}"

    def _attempt_there(self, attempt: int) -> int:
        """Number of an attempt at the destination: the first from `attempt` on that no other launch has.

        A pod that starts again with an empty disk begins with attempt 0. All hosts of a launch find the same number,
        because the launch has a name.
        """
        known = self._journal.attempts.get(attempt)
        if known is not None:
            return known
        launch = self._launch(attempt)
        for number in range(attempt, MAX_ATTEMPTS):
            folder = attempt_directory(Path(), number).name
            marker = f"{folder}/{LAUNCH_FILE}"
            there = _launch_in(self._target.read(marker))
            if there is None and (names := self._target.folders(folder)):
                # Another host of this launch may have begun: by shipping, or by recording there.
                there = _launch_in(self._target.read(marker)) or self._launch_of_ranks(folder, names)
            if there is None:
                self._target.write(marker, json.dumps({"launch": launch}).encode() + b"\n")
                there = launch
            if there == launch:
                self._journal.attempts[attempt] = number
                self._remember()
                return number
        raise RunDirectoryError(f"{self.place} has {MAX_ATTEMPTS} attempts of other launches; ship to another place")

    def _launch_of_ranks(self, folder: str, names: Sequence[str]) -> str:
        """Name of the launch of ranks that recorded in an attempt there themselves; empty if they have none."""
        manifests = (
            self._target.read(f"{folder}/{name}/{RANK_FILE}") for name in names if rank_number(Path(name)) is not None
        )
        return _launch_in(next((manifest for manifest in manifests if manifest is not None), None)) or ""

    def _launch(self, attempt: int) -> str:
        """Name of the launch that an attempt on this node belongs to."""
        for manifest in sorted(attempt_directory(self._run, attempt).glob(f"rank-*/{RANK_FILE}")):
            with suppress(RunDirectoryError):
                launch = read_object(manifest).get("launch")
                if isinstance(launch, str):
                    return launch
        return f"{read_run_info(self._run).id}-{attempt}"

    def _write_note(self, note: ShipNote) -> None:
        """Write the note at the destination. It arrives with or after the files of its round."""
        there = ShipNote(
            host=note.host,
            at_wall_ns=note.at_wall_ns,
            interval_seconds=note.interval_seconds,
            complete=note.complete,
        )
        number = self._attempt_there(self._attempt)
        self._target.write(f"{attempt_directory(Path(), number).name}/{shipped_name(self._host)}", content_of(there))

    def _note(self, *, at_wall_ns: int, complete: bool, left: list[Piece], problem: str | None = None) -> ShipNote:
        return ShipNote(
            host=self._host.name,
            at_wall_ns=at_wall_ns,
            interval_seconds=self._settings.interval_seconds,
            complete=complete,
            destination=self.place,
            left_files=len(left),
            left_bytes=sum(piece.size for piece in left),
            problem=problem,
        )

    def _write_left(self, note: ShipNote) -> None:
        path = left_path(attempt_directory(self._run, self._attempt), self._host, destination=self.place)
        write_whole(path, content_of(note))


def _is_plain(name: str) -> bool:
    """Return whether a file is not part of an archive."""
    return PurePosixPath(name).name in PLAIN


def _folder(name: str) -> str:
    """Folder of the rank, or otherwise of the attempt or the run, that a file belongs to. None of the files of a rank
    without a readable manifest are present.
    """
    return "/".join(PurePosixPath(name).parts[:-1][:2])


def _is_copy(name: str) -> bool:
    """Return whether a file belongs to a witness' copies of another host."""
    return WITNESS_DIRECTORY in PurePosixPath(name).parts[1:2]


def _is_lost(name: str, present: set[str]) -> bool:
    """Return whether a file that is gone was not given up on purpose: words and first segments of threads never are."""
    path = PurePosixPath(name)
    if path.name in WORDS:
        return True
    thread, index = thread_and_index(Path(name))
    if path.suffix not in (SEGMENT, COMPACTED) or index < 0:
        return False
    first = segment_path(Path(path.parent), thread=thread, index=0)
    return not any(str(first.with_suffix(suffix)) in present for suffix in (SEGMENT, COMPACTED))


def _launch_in(content: bytes | None) -> str | None:
    raw = parse(content.decode(errors="replace")) if content is not None else None
    launch = raw.get("launch") if isinstance(raw, dict) else None
    return launch if isinstance(launch, str) else None
