"""Witness: keeps the copies of other hosts' ranks in the run directory, and notes when each host was last heard."""

import logging
import re
import shutil
import threading
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from time import monotonic_ns, time_ns
from typing import Any

from traincope.analysis.faults.lost_hosts import SILENCE_NS
from traincope.errors import ServerError
from traincope.live.peers.copies.chains import Chain
from traincope.live.peers.copies.copying import MAX_FLIGHT_BYTES, MAX_LOOKS_BYTES, MAX_PACKED_BYTES, RankCopy
from traincope.live.peers.copies.histories import Histories
from traincope.live.peers.network.channel import Message
from traincope.live.peers.network.members import Member
from traincope.private_files import make_directory
from traincope.store.job.manifests import MAX_RANKS
from traincope.store.job.witness import Heard, witness_directory, write_heard
from traincope.store.layout import FLIGHT_FILE, GROUPS_FILE, LOOKS_FILE, NAMES_FILE, RANK_FILE
from traincope.topology import Host

logger = logging.getLogger(__name__)

COPY, SEEN, ALIVE, FAREWELL = "copy", "seen", "alive", "farewell"
"""Kinds of messages to a witness."""
MAX_HOSTS = 4
"""Hosts of which one agent keeps copies at a time. Further ones are refused and ask the next."""
FREED_NS = 60_000_000_000
"""After so long a silence, another host may take a host's place: most likely it has other witnesses since its link
broke. Its note stays as it was then, and so do its copies on disk, of the last `MAX_HOSTS` such hosts.
"""
MAX_RANKS_PER_HOST = 64
MAX_SEEN_BYTES, MAX_COPY_BYTES = MAX_LOOKS_BYTES + MAX_FLIGHT_BYTES, 2 << 20
"""Bounds of a copy of either kind, with all its files."""
SIDE_FILES = frozenset({RANK_FILE, NAMES_FILE, GROUPS_FILE})
SEEN_FILES = frozenset({LOOKS_FILE, FLIGHT_FILE})
SEGMENT_FILE = re.compile(r"(main|thread-\d{1,3})-00000\.seg")


def copy_message(copy: RankCopy) -> Message:
    """The message that carries a copy. It has no flight recorder if that would make it too long."""
    if FLIGHT_FILE in copy.files and len(copy.packed) > MAX_PACKED_BYTES:
        looks = {name: content for name, content in copy.files.items() if name != FLIGHT_FILE}
        return copy_message(RankCopy(rank=copy.rank, files=looks))
    fields = {"rank": copy.rank, "parts": [[name, len(content)] for name, content in copy.files.items()]}
    return Message(kind=COPY if copy.has_records else SEEN, fields=fields, payload=copy.packed)


def read_copy(message: Message) -> RankCopy:
    """Raises ServerError for a copy of another form."""
    rank, parts = message.fields.get("rank"), message.fields.get("parts")
    if type(rank) is not int or not 0 <= rank < MAX_RANKS or not isinstance(parts, list):
        raise ServerError("a copy must name its rank and its parts")
    allowed = _is_seen if message.kind == SEEN else _is_of_a_rank
    payload = _inflated(message.payload, max_bytes=MAX_SEEN_BYTES if message.kind == SEEN else MAX_COPY_BYTES)
    files, at = {}, 0
    for part in parts:
        name, size = part if isinstance(part, list) and len(part) == 2 else (None, None)
        if not isinstance(name, str) or not allowed(name) or type(size) is not int or size < 0:
            raise ServerError("a copy has a part of another name or size than those of a rank directory")
        files[name] = payload[at : at + size]
        at += size
    if at != len(payload):
        raise ServerError("the parts of a copy do not add up to it")
    return RankCopy(rank=rank, files=files)


def _is_of_a_rank(name: str) -> bool:
    return name in SIDE_FILES or SEGMENT_FILE.fullmatch(name) is not None


def _is_seen(name: str) -> bool:
    return name in SEEN_FILES


def _inflated(payload: bytes, *, max_bytes: int) -> bytes:
    """Raises ServerError if it is damaged or too long."""
    inflating = zlib.decompressobj()
    try:
        content = inflating.decompress(payload, max_bytes)
    except zlib.error as error:
        raise ServerError("a copy is damaged") from error
    if not inflating.eof:
        raise ServerError("a copy is longer than its bound")
    return content


class Witness:
    """Copies that one agent keeps. Any thread may use it."""

    def __init__(self, attempt: Path, *, host: Host, histories: Histories | None = None) -> None:
        """`host`: this one. `histories`: get each copy of records too."""
        self._attempt, self._host, self._histories = attempt, host, histories
        self._lock = threading.Lock()
        """Never held while files are written: a disk that stalls silences no host."""
        self._writing = threading.Lock()
        self._heard: dict[Host, Heard] = {}
        self._heard_ns: dict[Host, int] = {}
        self._ranks: dict[Host, set[int]] = {}
        self._chains: dict[tuple[Host, int], Chain] = {}
        self._reported: set[Host] = set()
        self._freed: list[Host] = []
        """Hosts whose place another has, the longest ago first."""
        self._cannot_write = False

    def keep(self, member: Member, message: Message) -> Mapping[str, Any]:
        """Keep a copy. Raises ServerError if it is refused."""
        copy = read_copy(message)
        with self._lock:
            self._hear(member.host)
            ranks = self._ranks[member.host]
            if copy.rank not in ranks and len(ranks) >= MAX_RANKS_PER_HOST:
                raise ServerError(f"a witness keeps at most {MAX_RANKS_PER_HOST} ranks of a host")
            ranks.add(copy.rank)
        with self._writing:
            try:
                chain = self._chains.setdefault((member.host, copy.rank), Chain())
                chain.write(copy, self._directory(member.host) / f"rank-{copy.rank:05d}")
            except OSError as error:
                self._report_disk(error)
                raise ServerError("the copy could not be written") from error
        if self._histories is not None and copy.has_records:
            self._histories.add(copy, host=member.host)
        return {}

    def alive(self, member: Member, _message: Message) -> Mapping[str, Any]:
        """Note a sign of life."""
        with self._lock:
            self._hear(member.host)
        return {}

    def farewell(self, member: Member, _message: Message) -> Mapping[str, Any]:
        """Note that the host's agent ends by itself."""
        with self._lock:
            self._hear(member.host)
            self._heard[member.host] = replace(self._heard[member.host], farewell=True)
        self.note()
        return {}

    def closed(self, member: Member) -> None:
        """Note that the host's kernel closed the connection."""
        with self._lock:
            heard = self._heard.get(member.host)
            if heard is not None:
                self._heard[member.host] = replace(heard, closed=True)

    def note(self) -> None:
        """Write when each host was last heard, and release freed hosts. Call it about once per second."""
        with self._writing:
            self._tidy()
            for heard in self._heard_now():
                directory = self._directory(heard.host)
                try:
                    make_directory(directory, exist_ok=True)
                    write_heard(directory, heard)
                except OSError as error:
                    self._report_disk(error)

    def _heard_now(self) -> list[Heard]:
        """The notes as of now. Report each host once when it falls silent."""
        with self._lock:
            for host, heard in self._heard.items():
                silent_ns = monotonic_ns() - self._heard_ns[host]
                self._heard[host] = replace(heard, silent_ns=silent_ns)
                if silent_ns >= SILENCE_NS and not heard.farewell and host not in self._reported:
                    self._reported.add(host)
                    logger.warning("host %s has not been heard for %.0f s", host.name, silent_ns / 1e9)
            return list(self._heard.values())

    def is_settled(self) -> bool:
        """True once each host took leave, or was silent for so long that it counts as evidence."""
        with self._lock:
            return all(
                heard.farewell or heard.closed or monotonic_ns() - self._heard_ns[host] >= SILENCE_NS
                for host, heard in self._heard.items()
            )

    def _directory(self, host: Host) -> Path:
        return witness_directory(self._attempt, host, witness=self._host)

    def _hear(self, host: Host) -> None:
        """Raises ServerError if this host would be one too many."""
        if host not in self._heard and len(self._heard) >= MAX_HOSTS:
            silent = min(self._heard, key=self._heard_ns.__getitem__)
            if monotonic_ns() - self._heard_ns[silent] < FREED_NS:
                raise ServerError(f"this agent already is the witness of {MAX_HOSTS} hosts")
            del self._heard[silent], self._heard_ns[silent], self._ranks[silent]
            self._reported.discard(silent)
            self._freed.append(silent)
        self._heard[host] = Heard(host=host, witness=self._host, heard_wall_ns=time_ns(), silent_ns=0)
        self._heard_ns[host] = monotonic_ns()
        self._ranks.setdefault(host, set())
        self._reported.discard(host)

    def _tidy(self) -> None:
        """Release what was kept of freed hosts."""
        with self._lock:
            self._freed = [host for host in self._freed if host not in self._heard]
            freed, self._freed = self._freed, self._freed[-MAX_HOSTS:]
        for host in freed:
            for chain in [chain for chain in self._chains if chain[0] == host]:
                del self._chains[chain]
            if self._histories is not None:
                self._histories.forget(host)
            if host not in self._freed:
                shutil.rmtree(self._directory(host), ignore_errors=True)

    def _report_disk(self, error: OSError) -> None:
        if not self._cannot_write:
            logger.warning("witness copies cannot be written: %s", error)
        self._cannot_write = True
