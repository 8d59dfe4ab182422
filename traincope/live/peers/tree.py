"""Tree: this agent's part in the tree of all agents of the job (`live.tree`), and the answers to its children."""

import threading
from collections.abc import Collection, Mapping
from time import monotonic, monotonic_ns
from typing import Any

from traincope.errors import ServerError
from traincope.live.peers.network.channel import Message
from traincope.live.peers.network.members import Member
from traincope.live.tree.entries import OwnParts, read_entries
from traincope.live.tree.places import Places
from traincope.live.tree.reduction import MAX_CHILDREN, OWN, Reduction
from traincope.live.tree.results import Known
from traincope.store import RankRecords
from traincope.timeline.collectives.elsewhere import Elsewhere, Names
from traincope.topology import Host

JOIN = "join"
"""Kind of the message that asks the root for a parent."""
MAX_SILENT = 16
"""Parents that an agent may refuse when it asks for another."""
CHILD_SECONDS = 60.0
"""A child that sent nothing for this long gives up its place."""


class Tree:
    """Any thread may use it."""

    def __init__(self) -> None:
        self._known = Known()
        self.reduction = Reduction(on_results=self._known.add)
        self._parts = OwnParts()
        self._lock = threading.Lock()
        self._places: Places | None = None
        self._children: dict[Host, tuple[int, float]] = {}
        """Child -> its number, and when it last sent."""
        self.is_joined = False
        """True once this agent has, or had, a place: its job has more hosts than one agent sees."""

    @property
    def is_root(self) -> bool:
        return self._places is not None

    def begin(self, host: Host) -> Places:
        """Be the root, on this host."""
        with self._lock:
            self._places = self._places or Places(host)
            self.is_joined = True
            return self._places

    def join(self) -> None:
        """Note that this agent has a parent."""
        self.is_joined = True

    def elsewhere(self) -> Elsewhere | None:
        return self._known.elsewhere() if self.is_joined else None

    def contribute(self, rank: RankRecords, names: Names, *, own: Collection[int]) -> None:
        """Add what a rank's latest records hold anew. Only one thread calls this."""
        self.reduction.add(self._parts.new(rank, names, own=own), source=OWN)

    def clock(self, _member: Member, _message: Message) -> Mapping[str, Any]:
        """Give the time, for a child's clock."""
        return {"now_ns": monotonic_ns()}

    def take(self, member: Member, message: Message) -> bytes:
        """Take a child's sums, and return results for it. Raises ServerError if it is refused."""
        entries, source = read_entries(message.payload), self._number_of(member.host)
        self.reduction.add(entries, source=source)
        return self.reduction.take_down(source).tobytes()

    def _number_of(self, host: Host) -> int:
        with self._lock:
            now = monotonic()
            for other, (number, sent) in tuple(self._children.items()):
                if now - sent > CHILD_SECONDS:
                    del self._children[other]
                    self.reduction.forget(number)
            free = set(range(1, MAX_CHILDREN + 1)) - {number for number, _ in self._children.values()}
            if host not in self._children and not free:
                raise ServerError(f"this agent already passes on the sums of {MAX_CHILDREN} hosts")
            number = self._children[host][0] if host in self._children else min(free)
            self._children[host] = number, now
            return number
