"""Members: the agents of a job that are known, and where each listens.

Their order is a ring, sorted by host. Each agent copies to the next hosts of the ring that answer.
"""

import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from traincope.errors import RunDirectoryError
from traincope.store.job.witness import file_name_of
from traincope.store.layout import PEER_FILES
from traincope.store.lines import read_object
from traincope.topology import Host
from traincope.whole_files import write_json

MAX_MEMBERS = 16_384
MAX_NAME_CHARACTERS = 255
MAX_PORT = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """An agent of the job."""

    host: Host
    address: str
    """Empty: it does not listen."""
    port: int

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def read_member(raw: Any) -> Member | None:
    """Decode `as_json`; None if it is damaged."""
    if not isinstance(raw, dict) or not isinstance(raw.get("host"), dict):
        return None
    words = raw["host"].get("name"), raw["host"].get("boot_id"), raw.get("address")
    port = raw.get("port")
    if not all(isinstance(word, str) and len(word) <= MAX_NAME_CHARACTERS for word in words):
        return None
    if type(port) is not int or not 0 <= port <= MAX_PORT:
        return None
    name, boot_id, address = map(str, words)
    return Member(host=Host(name=name, boot_id=boot_id), address=address, port=port)


class Members:
    """The known agents. Any thread may use it."""

    def __init__(self) -> None:
        self._known: dict[Host, Member] = {}
        self._lock = threading.Lock()

    def add(self, member: Member) -> None:
        """Add an agent, or its new address."""
        with self._lock:
            if member.host in self._known or len(self._known) < MAX_MEMBERS:
                self._known[member.host] = member

    def at(self, host: Host) -> Member | None:
        """The agent of a host; None if it is unknown."""
        with self._lock:
            return self._known.get(host)

    def after(self, host: Host) -> list[Member]:
        """The other agents that listen, in the order of the ring: the next host first."""
        with self._lock:
            others = [member for member in self._known.values() if member.host != host and member.address]
        return sorted(others, key=lambda member: (_place(member.host) <= _place(host), _place(member.host)))


def _place(host: Host) -> tuple[str, str]:
    return host.name, host.boot_id


def write_note(attempt: Path, member: Member) -> Path:
    """Write where this agent listens into the directory of the attempt. Raises OSError."""
    path = attempt / PEER_FILES.replace("*", file_name_of(member.host))
    write_json(path, member.as_json())
    return path


def read_notes(attempt: Path) -> Iterator[Member]:
    """The agents that share this directory."""
    for path in attempt.glob(PEER_FILES):
        with suppress(RunDirectoryError):
            member = read_member(read_object(path))
            if member is not None:
                yield member
