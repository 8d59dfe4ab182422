"""Peers: the observer that lets this node's agent meet the others, keep copies for them, and copy to the next ones.

It runs on threads of its own. Neither the agent's looks nor the training wait for the network.
"""

import errno
import logging
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

from traincope.errors import ConfigError, ServerError
from traincope.live.peers.comparing import Comparer
from traincope.live.peers.copies.copying import RankCopier
from traincope.live.peers.copies.histories import Histories
from traincope.live.peers.copies.witnessing import ALIVE, COPY, FAREWELL, SEEN, Witness
from traincope.live.peers.links import (
    CLOCK,
    MAX_PAUSE_SECONDS,
    SHARE_OF_A_CORE,
    SUMS,
    CpuMeter,
    Link,
    Newest,
    ParentLink,
)
from traincope.live.peers.network.channel import Channel, Message, open_channel
from traincope.live.peers.network.listening import GREETING, Handler, Listener, listening_socket
from traincope.live.peers.network.members import Member, Members, read_member, read_notes, write_note
from traincope.live.peers.network.sealing import key_of_launch, make_seal
from traincope.live.peers.settings import Address, PeerSettings, facing_address, is_everywhere
from traincope.live.peers.tree import JOIN, MAX_SILENT, Tree
from traincope.live.tree.entries import names_of
from traincope.live.tree.places import MIN_HOSTS
from traincope.live.window import CopiedRank, Window
from traincope.record.instrumentation.guard import guard
from traincope.store.layout import attempt_directory, rank_directory
from traincope.timeline.collectives.elsewhere import Elsewhere
from traincope.topology import Host

logger = logging.getLogger(__name__)

INTERVAL_SECONDS = 1.0
"""Interval of signs of life, and of copies."""
NUM_WITNESSES = 3
"""Other hosts to which each agent copies. Each keeps copies of one more (`MAX_HOSTS`), so that a late agent finds some
with room.
"""
MAX_COMPARING_PAUSE_SECONDS = 60.0
"""Longest pause between comparisons. Histories of collectives cover a longer pause than copies do."""
MEETING_SECONDS = 15.0
"""Interval at which configured addresses are greeted again: their agents may have started later."""
AVOIDED_SECONDS = 10.0
"""Time for which a peer that refused or did not answer is left alone."""
SILENT_PARENT_SECONDS = 300.0
"""Time for which a parent that did not answer is not asked again."""
NUM_INTRODUCED = 8
"""Members in one answer: the next ones of the ring after the asking host."""
PORT_SECONDS = 15.0
"""Longest wait for a taken port: the agent of the attempt before releases it when it ends."""
END_SECONDS = 8.0
"""Longest wait at the end: for the last copies, and until a silent host counts as such."""


class Peers:
    """Observer that serves and copies. `settings`: None keeps this agent to itself."""

    def __init__(self, settings: PeerSettings | None, *, host: Host) -> None:
        self._settings, self._host = settings, host
        self._histories, self._tree = Histories(), Tree()
        self._ranks: dict[int, RankCopier] = {}
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def observe(self, window: Window) -> None:
        if self._settings is None:
            return
        for status in window.ranks:
            directory = rank_directory(window.run, attempt=window.attempt, rank=status.rank)
            if status.rank not in self._ranks:
                self._ranks = {**self._ranks, status.rank: RankCopier(directory, rank=status.rank)}
        if self._thread is None:
            attempt = attempt_directory(window.run, window.attempt)
            exchange = _Exchange(
                self._settings,
                attempt,
                launch=next((name for status in window.ranks if (name := status.info.launch)), None),
                host=self._host,
                ranks=lambda: self._ranks,
                histories=self._histories,
                tree=self._tree,
            )
            run = guard(exchange.run)
            self._thread = threading.Thread(target=run, args=(self._stopping,), daemon=True, name="traincope-peers")
            self._thread.start()

    def copied_ranks(self) -> tuple[CopiedRank, ...]:
        """The ranks of this host, and those of other hosts of which this agent keeps copies."""
        return tuple(self._histories.ranks().values())

    def elsewhere(self) -> Elsewhere | None:
        """Collectives with members on hosts of which this agent keeps no copies; None without a tree of agents."""
        return self._tree.elsewhere()

    def close(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(END_SECONDS)


class _Exchange:
    """Exchange of one agent with the others, on the thread of `Peers`."""

    def __init__(
        self,
        settings: PeerSettings,
        attempt: Path,
        *,
        launch: str | None,
        host: Host,
        ranks: Callable[[], Mapping[int, RankCopier]],
        histories: Histories,
        tree: Tree,
    ) -> None:
        self._settings, self._attempt, self._host, self._ranks = settings, attempt, host, ranks
        self._seal = make_seal(key_of_launch(settings.key, launch=launch))
        self._members = Members()
        self._histories, self._tree = histories, tree
        self._parent: ParentLink | None = None
        self._contributing: set[int] = set()
        """Ranks of this host whose parts in collectives are in the tree."""
        self._silent_parents: dict[Host, float] = {}
        """Host -> until when it is not asked to be the parent."""
        self._next_climb = 0.0
        self._comparer = Comparer(attempt, histories, host=host)
        self._witness = Witness(attempt, host=host, histories=histories)
        self._own = Member(host=host, address="", port=0)
        self._links: list[Link] = []
        self._newest: Newest = {}
        self._meter = CpuMeter()
        """CPU time of copies."""
        self._avoided: dict[Address, float] = {}
        """Address -> until when it is left alone."""
        self._next_meeting = self._next_copy = self._next_comparing = 0.0
        self._ending = threading.Event()
        """Set at the end: no link begins any more."""
        self._seeking = threading.Thread()
        """The thread that looks for witnesses; not alive between two times."""
        self._comparing = threading.Thread()
        """The thread that compares ranks with those of other hosts; not alive between two times."""

    def run(self, stopping: threading.Event) -> None:
        try:
            server = self._listen(stopping)
        except (OSError, ServerError) as error:
            logger.warning("witness copies are off: %s", error)
            return
        address, port = server.getsockname()[:2]
        if is_everywhere(address):
            address = facing_address(replace(self._settings, listen_host=None))
        self._own = Member(host=self._host, address=address, port=port)
        handlers = {
            GREETING: self._greeted,
            COPY: self._metered(self._witness.keep),
            SEEN: self._metered(self._witness.keep),
            ALIVE: self._witness.alive,
            FAREWELL: self._witness.farewell,
            JOIN: self._joined,
            CLOCK: self._tree.clock,
            SUMS: self._metered(self._tree.take),
        }
        listener = Listener(server, self._seal, handlers=handlers, lasting={ALIVE}, on_close=self._witness.closed)
        listener.start()
        logger.info("other agents reach this one at %s port %d", address, port)
        note = self._write_note()
        try:
            while not stopping.wait(INTERVAL_SECONDS):
                self._turn()
            self._end()
        finally:
            listener.stop()
            if note is not None:
                with suppress(OSError):
                    note.unlink()

    def _listen(self, stopping: threading.Event) -> socket.socket:
        """Open the socket to listen at; at another port if a default one stays taken. Raises OSError, ServerError."""
        host, port, encrypts = facing_address(self._settings), self._settings.port, self._seal.encrypts
        until = monotonic() + PORT_SECONDS
        while True:
            try:
                return listening_socket(host, port, encrypts=encrypts)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                if monotonic() >= until or stopping.wait(INTERVAL_SECONDS):
                    if self._settings.port_is_given:
                        raise
                    return listening_socket(host, 0, encrypts=encrypts)

    def _metered(self, handler: Handler) -> Handler:
        def handle(member: Member, message: Message) -> Mapping[str, Any] | bytes:
            with self._meter.running():
                return handler(member, message)

        return handle

    def _turn(self) -> None:
        self._witness.note()
        if not self._seeking.is_alive():
            self._seeking = threading.Thread(target=guard(self._seek), name="traincope-seeking", daemon=True)
            self._seeking.start()
        if monotonic() >= self._next_copy and (self._links or self._comparer.needs_copies):
            self._next_copy = monotonic() + min(self._copy() / SHARE_OF_A_CORE, MAX_PAUSE_SECONDS)
        if self._tree.is_root:
            with self._meter.running():
                self._tree.reduction.finish()
        if monotonic() >= self._next_comparing and not self._comparing.is_alive():
            self._comparing = threading.Thread(target=guard(self._compare), name="traincope-comparing", daemon=True)
            self._comparing.start()

    def _seek(self) -> None:
        """Replace broken links on a thread of its own: each host that is down takes seconds."""
        self._drop_broken_links()
        if not self._links or monotonic() >= self._next_meeting:
            self._meet()
        if len(self._links) < NUM_WITNESSES:
            self._choose()
        if monotonic() >= self._next_climb and not self._tree.is_root:
            self._climb()

    def _compare(self) -> None:
        """Compare on a thread of its own: it may take long."""
        began, meter = monotonic(), CpuMeter()
        try:
            with meter.running():
                self._comparer.compare()
        finally:
            self._next_comparing = began + min(meter.take() / SHARE_OF_A_CORE, MAX_COMPARING_PAUSE_SECONDS)

    def _end(self) -> None:
        """Send the last copies, take leave, and listen until it is clear which hosts fell silent."""
        deadline = monotonic() + END_SECONDS - INTERVAL_SECONDS
        self._ending.set()
        if self._seeking.is_alive():
            self._seeking.join(INTERVAL_SECONDS)
        self._copy()
        for link in self._links:
            link.finish()
        if self._parent is not None:
            self._parent.finish()
        for link in self._links:
            link.join(max(deadline - monotonic(), 0.0))
        pause = threading.Event()
        while not self._witness.is_settled() and monotonic() < deadline:
            pause.wait(INTERVAL_SECONDS / 5)
        self._witness.note()

    def _write_note(self) -> Path | None:
        try:
            return write_note(self._attempt, self._own)
        except OSError as error:
            logger.warning("agents that share the run directory do not find this one: %s", error)
            return None

    def _greeted(self, member: Member, _message: Message) -> Mapping[str, Any]:
        """Answer with this agent, and with the members next to the asking host."""
        if member.host != self._host:
            self._members.add(member)
        near = self._members.after(member.host)[:NUM_INTRODUCED]
        return {"self": self._own.as_json(), "members": [other.as_json() for other in near]}

    def _joined(self, member: Member, message: Message) -> Mapping[str, Any]:
        """Give an agent its parent: this one is the root, because it is asked. A small job needs no tree."""
        if len(self._members.after(self._host)) + 1 < MIN_HOSTS:
            return {}
        given = message.fields.get("silent")
        silent = [each for raw in (given if isinstance(given, list) else ())[:MAX_SILENT] if (each := read_member(raw))]
        parent = self._tree.begin(self._host).parent_of(member.host, silent={each.host for each in silent})
        found = self._own if parent == self._host else self._members.at(parent)
        return {} if found is None else {"parent": found.as_json()}

    def _climb(self) -> None:
        """Ask the agent of rank 0's host for a parent. Without one, the sums of this host go nowhere."""
        if self._parent is not None and self._parent.works:
            return
        self._next_climb = monotonic() + MEETING_SECONDS
        if self._parent is not None:
            self._silent_parents[self._parent.member.host] = monotonic() + SILENT_PARENT_SECONDS
            self._parent = None
        parent = self._assigned_parent()
        channel = None if parent is None else self._greet((parent.address, parent.port), expected=parent.host)
        if parent is not None and channel is None:
            self._silent_parents[parent.host] = monotonic() + SILENT_PARENT_SECONDS
        elif parent is not None and channel is not None:
            self._parent = ParentLink(
                channel,
                parent,
                reduction=self._tree.reduction,
                meter=self._meter,
                interval_seconds=INTERVAL_SECONDS,
            )
            self._tree.join()
            self._parent.start()
            logger.info("the agent of host %s passes on this host's parts in collectives", parent.host.name)

    def _assigned_parent(self) -> Member | None:
        """The parent that the root gives; None without a root, in a small job, and at the root."""
        silent = [host for host, until in self._silent_parents.items() if monotonic() < until][-MAX_SILENT:]
        given = [Member(host=host, address="", port=0).as_json() for host in silent]
        for address in self._settings.known[-1:]:
            channel = self._greet(address)
            try:
                answer = None if channel is None else channel.ask(Message(kind=JOIN, fields={"silent": given}))
            except (OSError, ServerError) as error:
                logger.info("the root of the tree of agents does not answer: %s", error)
                answer = None
            finally:
                if channel is not None:
                    channel.close()
            parent = None if answer is None else read_member(answer.fields.get("parent"))
            if parent is not None and parent.host != self._host:
                return parent
        return None

    def _meet(self) -> None:
        """Learn of other agents: from the run directory if it is shared, and from the given addresses."""
        self._next_meeting = monotonic() + MEETING_SECONDS
        for member in read_notes(self._attempt):
            self._members.add(member)
        for address in self._settings.known:
            if address != (self._own.address, self._own.port) and not self._ending.is_set():
                channel = self._greet(address)
                if channel is not None:
                    channel.close()

    def _choose(self) -> None:
        """Take the next hosts of the ring that answer."""
        for member in self._members.after(self._host):
            if len(self._links) == NUM_WITNESSES or self._ending.is_set():
                return
            if any(link.member.host == member.host for link in self._links):
                continue
            channel = self._greet((member.address, member.port), expected=member.host)
            if channel is not None and self._ending.is_set():
                channel.close()
            elif channel is not None:
                link = Link(
                    channel,
                    member,
                    newest=lambda: self._newest,
                    meter=self._meter,
                    interval_seconds=INTERVAL_SECONDS,
                )
                link.start()
                self._links.append(link)
                logger.info("the agent of host %s keeps copies of the last records", member.host.name)

    def _drop_broken_links(self) -> None:
        """Drop the links whose agents do not answer, or refuse. Others take their place."""
        for link in self._links:
            if not link.works:
                self._avoid((link.member.address, link.member.port))
        self._links = [link for link in self._links if link.works]

    def _greet(self, address: Address, *, expected: Host | None = None) -> Channel | None:
        """Connect and exchange who is known. None if the agent refuses, does not answer, or is of another host.

        An address of loopback, or of all interfaces, leads every host to itself.
        """
        if monotonic() < self._avoided.get(address, 0.0):
            return None
        channel = None
        try:
            channel = open_channel(*address, self._seal)
            answer = channel.ask(Message(kind=GREETING, fields=self._own.as_json()))
            answering = read_member(answer.fields.get("self"))
            if expected is not None and (answering is None or answering.host != expected):
                raise ServerError(f"the agent of host {expected.name} does not answer there")
        except (OSError, ServerError) as error:
            logger.info("no agent was reached at %s port %d: %s", *address, error)
            self._avoid(address)
            if channel is not None:
                channel.close()
            return None
        introduced = answer.fields.get("members")
        for member in (answering, *map(read_member, introduced if isinstance(introduced, list) else ())):
            if member is not None and member.host != self._host:
                self._members.add(member)
        return channel

    def _avoid(self, address: Address) -> None:
        now = monotonic()
        self._avoided = {known: until for known, until in self._avoided.items() if until > now}
        self._avoided[address] = now + AVOIDED_SECONDS

    def _copy(self) -> float:
        """Renew the copies that the links send. Returns the CPU seconds of all threads for copies since then."""
        with self._meter.running():
            for rank, copier in tuple(self._ranks().items()):
                seen, copy = copier.seen(), copier.changed()
                if copy is not None:
                    self._histories.add(copy, host=self._host)
                    self._newest = {**self._newest, (rank, True): copy}
                if self._tree.is_joined and (copy is not None or rank not in self._contributing):
                    self._contribute(rank, copier)
                if seen is not None:
                    self._newest = {**self._newest, (rank, False): seen}
        return self._meter.take()

    def _contribute(self, rank: int, copier: RankCopier) -> None:
        """Give the tree the new parts of a rank in collectives."""
        records = copier.latest()
        if records is not None:
            self._contributing.add(rank)
            self._tree.contribute(records, names_of(records), own=self._ranks())


def peers_or_none(make_settings: Callable[[], PeerSettings | None], *, host: Host) -> Peers:
    """The observer. An impossible setting switches it off with one line in the log."""
    try:
        settings = make_settings()
    except ConfigError as error:
        logger.warning("witness copies are off: %s", error)
        settings = None
    return Peers(settings, host=host)
