"""Peers: the observer that lets this node's agent meet the others, keep copies for them, and copy to one of them.

It runs on threads of its own. Neither the agent's looks nor the training wait for the network.
"""

import errno
import logging
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic, thread_time
from typing import Any

from traincope.errors import ConfigError, ServerError
from traincope.live.peers.channel import Channel, Message, open_channel
from traincope.live.peers.comparing import Comparer
from traincope.live.peers.copying import RankCopier
from traincope.live.peers.listening import GREETING, Listener, listening_socket
from traincope.live.peers.members import Member, Members, read_member, read_notes, write_note
from traincope.live.peers.sealing import make_seal
from traincope.live.peers.settings import Address, PeerSettings, facing_address
from traincope.live.peers.witnessing import ALIVE, COPY, FAREWELL, SEEN, Witness, copy_message
from traincope.live.window import Window
from traincope.record.instrumentation.guard import guard
from traincope.store.layout import attempt_directory, rank_directory
from traincope.topology import Host

logger = logging.getLogger(__name__)

INTERVAL_SECONDS = 1.0
"""Interval of signs of life, and of copies."""
SHARE_OF_A_CORE = 0.003
"""Maximum mean CPU share of copying, and of comparing: both become rarer before they cost more."""
MAX_PAUSE_SECONDS = 5.0
MAX_COMPARING_PAUSE_SECONDS = 60.0
"""Share of one core for comparing. Histories of collectives cover a longer pause than copies do."""
MEETING_SECONDS = 15.0
"""Interval at which configured addresses are greeted again: their agents may have started later."""
AVOIDED_SECONDS = 10.0
"""Time for which a peer that refused or did not answer is left alone."""
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
            run = guard(_Exchange(self._settings, attempt, host=self._host, ranks=lambda: self._ranks).run)
            self._thread = threading.Thread(target=run, args=(self._stopping,), daemon=True, name="traincope-peers")
            self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(END_SECONDS)


class _Exchange:
    """Exchange of one agent with the others, on the thread of `Peers`."""

    def __init__(
        self, settings: PeerSettings, attempt: Path, *, host: Host, ranks: Callable[[], Mapping[int, RankCopier]]
    ) -> None:
        self._settings, self._attempt, self._host, self._ranks = settings, attempt, host, ranks
        self._seal = make_seal(settings.key)
        self._members = Members()
        self._comparer = Comparer(attempt, host=host)
        self._witness = Witness(attempt, host=host, comparer=self._comparer)
        self._own = Member(host=host, address="", port=0)
        self._peer: Member | None = None
        self._channel: Channel | None = None
        self._avoided: dict[Address, float] = {}
        """Address -> until when it is left alone."""
        self._next_meeting = self._next_copy = self._next_comparing = 0.0
        self._comparing = threading.Thread()
        """The thread that compares ranks with those of other hosts; not alive between two times."""

    def run(self, stopping: threading.Event) -> None:
        try:
            server = self._listen(stopping)
        except (OSError, ServerError) as error:
            logger.warning("witness copies are off: %s", error)
            return
        address, port = server.getsockname()[:2]
        self._own = Member(host=self._host, address=address, port=port)
        handlers = {
            GREETING: self._greeted,
            COPY: self._witness.keep,
            SEEN: self._witness.keep,
            ALIVE: self._witness.alive,
            FAREWELL: self._witness.farewell,
        }
        listener = Listener(server, self._seal, handlers=handlers, on_close=self._witness.closed)
        listener.start()
        logger.info("other agents reach this one at %s port %d", address, port)
        note = self._write_note()
        try:
            while not stopping.wait(INTERVAL_SECONDS):
                self._turn()
            self._end()
        finally:
            listener.stop()
            self._leave_peer()
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

    def _turn(self) -> None:
        self._witness.note()
        if self._channel is None:
            self._meet()
            self._choose()
        elif monotonic() >= self._next_meeting:
            self._meet()
        self._tell(Message(kind=ALIVE))
        if monotonic() >= self._next_copy and (self._channel is not None or self._comparer.needs_copies):
            self._next_copy = _next_time(self._copy, longest_pause=MAX_PAUSE_SECONDS)
        if monotonic() >= self._next_comparing and not self._comparing.is_alive():
            self._comparing = threading.Thread(target=self._compare, name="traincope-comparing", daemon=True)
            self._comparing.start()

    def _compare(self) -> None:
        """Compare on a thread of its own, so that the signs of life to other hosts go on."""
        self._next_comparing = _next_time(self._comparer.compare, longest_pause=MAX_COMPARING_PAUSE_SECONDS)

    def _end(self) -> None:
        """Send the last copies, take leave, and listen until it is clear which hosts fell silent."""
        deadline = monotonic() + END_SECONDS - INTERVAL_SECONDS
        if self._channel is not None:
            self._copy()
            self._tell(Message(kind=FAREWELL))
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

    def _meet(self) -> None:
        """Learn of other agents: from the run directory if it is shared, and from the given addresses."""
        self._next_meeting = monotonic() + MEETING_SECONDS
        for member in read_notes(self._attempt):
            self._members.add(member)
        for address in self._settings.known:
            if address != (self._own.address, self._own.port):
                channel = self._greet(address)
                if channel is not None:
                    channel.close()

    def _choose(self) -> None:
        """Take the next host of the ring that answers."""
        for member in self._members.after(self._host):
            channel = self._greet((member.address, member.port))
            if channel is not None:
                self._channel, self._peer = channel, member
                for copier in self._ranks().values():
                    copier.forget()
                logger.info("the agent of host %s keeps copies of the last records", member.host.name)
                return

    def _greet(self, address: Address) -> Channel | None:
        """Connect and exchange who is known. None if the agent refuses or does not answer."""
        if monotonic() < self._avoided.get(address, 0.0):
            return None
        channel = None
        try:
            channel = open_channel(*address, self._seal)
            answer = channel.ask(Message(kind=GREETING, fields=self._own.as_json()))
        except (OSError, ServerError) as error:
            logger.info("no agent was reached at %s port %d: %s", *address, error)
            self._avoid(address)
            if channel is not None:
                channel.close()
            return None
        introduced = answer.fields.get("members")
        for raw in (answer.fields.get("self"), *(introduced if isinstance(introduced, list) else ())):
            member = read_member(raw)
            if member is not None and member.host != self._host:
                self._members.add(member)
        return channel

    def _avoid(self, address: Address) -> None:
        now = monotonic()
        self._avoided = {known: until for known, until in self._avoided.items() if until > now}
        self._avoided[address] = now + AVOIDED_SECONDS

    def _copy(self) -> None:
        for copier in tuple(self._ranks().values()):
            seen, copy = copier.seen(), copier.changed()
            if copy is not None:
                self._comparer.add(copy, host=self._host)
                if not self._tell(copy_message(copy)):
                    continue
                copier.sent(copy)
            if seen is not None and self._tell(copy_message(seen)):
                copier.sent(seen)

    def _tell(self, message: Message) -> bool:
        """Tell the peer; False if it did not take it. A peer that does not answer is replaced."""
        channel, peer = self._channel, self._peer
        if channel is None or peer is None:
            return False
        try:
            answer = channel.ask(message)
        except (OSError, ServerError) as error:
            logger.info("the agent of host %s no longer answers: %s", peer.host.name, error)
        else:
            if answer.kind == "answer":
                return True
            logger.info("the agent of host %s refuses: %s", peer.host.name, answer.fields.get("why"))
        self._avoid((peer.address, peer.port))
        self._leave_peer()
        return False

    def _leave_peer(self) -> None:
        if self._channel is not None:
            self._channel.close()
        self._channel = self._peer = None


def _next_time(act: Callable[[], None], *, longest_pause: float) -> float:
    """Act, and return when to act again, so that it takes its share of a core."""
    began, before = monotonic(), thread_time()
    act()
    return began + min((thread_time() - before) / SHARE_OF_A_CORE, longest_pause)


def peers_or_none(make_settings: Callable[[], PeerSettings | None], *, host: Host) -> Peers:
    """The observer. An impossible setting switches it off with one line in the log."""
    try:
        settings = make_settings()
    except ConfigError as error:
        logger.warning("witness copies are off: %s", error)
        settings = None
    return Peers(settings, host=host)
