"""Listener: answers the messages of other agents, each connection on a thread of its own."""

import logging
import socket
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any

from traincope.access import is_loopback
from traincope.errors import ServerError
from traincope.live.peers.network.channel import Channel, Message
from traincope.live.peers.network.members import Member, read_member
from traincope.live.peers.network.sealing import Seal
from traincope.record.instrumentation.guard import guard

logger = logging.getLogger(__name__)

GREETING = "greeting"
"""Kind of the first message of a connection; its fields are the sender (`Member`)."""
MAX_CONNECTIONS = 32
"""With messages of at most 512 KiB, this bounds the memory."""
IDLE_SECONDS = 30.0
"""A connection without a message for this long is closed."""
PAUSE_SECONDS = 0.5
"""Pause after a connection that could not be accepted."""

Handler = Callable[[Member, Message], Mapping[str, Any] | bytes]
"""Answer to a message of an agent: its fields, or its payload. Raises ServerError to refuse it."""


class Listener:
    """Listening side of the channel."""

    def __init__(
        self,
        server: socket.socket,
        seal: Seal,
        *,
        handlers: Mapping[str, Handler],
        lasting: Collection[str],
        on_close: Callable[[Member], None],
    ) -> None:
        """`handlers`: kind of message -> its handler. `on_close`: called when the other side's kernel closed a
        connection that carried a message of a `lasting` kind. Agents close others themselves, after a question.
        """
        self._server, self._seal, self._handlers, self._on_close = server, seal, handlers, on_close
        self._lasting = frozenset(lasting)
        self._slots = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._stopped = threading.Event()
        self._open: set[socket.socket] = set()
        self._refused_once = False

    def start(self) -> None:
        threading.Thread(target=guard(self._accept), daemon=True, name="traincope-listener").start()

    def stop(self) -> None:
        """Close everything. Threads that wait for a message end."""
        self._stopped.set()
        for connection in (self._server, *tuple(self._open)):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _accept(self) -> None:
        while not self._stopped.is_set():
            try:
                connection, _ = self._server.accept()
            except OSError:  # of `stop`, or of this one connection, or without a free descriptor: accept(2)
                self._stopped.wait(PAUSE_SECONDS)
                continue
            if not self._slots.acquire(blocking=False):
                connection.close()
                continue
            self._open.add(connection)
            threading.Thread(target=guard(self._serve), args=(connection,), daemon=True, name="traincope-peer").start()

    def _serve(self, connection: socket.socket) -> None:
        member: Member | None = None
        is_lasting = False
        try:
            channel = Channel(connection, self._seal, opened_here=False)
            greeting = channel.receive()
            member = read_member(greeting.fields)
            if greeting.kind != GREETING or member is None:
                raise ServerError(f"{channel.address} did not begin with a greeting")
            self._answer(channel, member, greeting)
            while True:
                message = channel.receive(wait_seconds=IDLE_SECONDS)
                is_lasting |= message.kind in self._lasting
                self._answer(channel, member, message)
        except ConnectionError:
            if member is not None and is_lasting and not self._stopped.is_set():
                self._on_close(member)
        except ServerError as refusal:
            if not self._refused_once:
                logger.warning("a connection of another agent was refused: %s", refusal)
            self._refused_once = True
        except OSError:
            pass  # silence: the witness judges it by time
        finally:
            self._open.discard(connection)
            connection.close()
            self._slots.release()

    def _answer(self, channel: Channel, member: Member, message: Message) -> None:
        handler = self._handlers.get(message.kind)
        if handler is None:
            channel.send(Message(kind="refusal", fields={"why": f"unknown kind {message.kind[:40]}"}))
            return
        try:
            answer = handler(member, message)
        except ServerError as refusal:
            channel.send(Message(kind="refusal", fields={"why": str(refusal)}))
        else:
            content = {"payload": answer} if isinstance(answer, bytes) else {"fields": dict(answer)}
            channel.send(Message(kind="answer", **content))


def listening_socket(host: str, port: int, *, encrypts: bool) -> socket.socket:
    """Open the socket to listen at.

    Raises ServerError off loopback without encryption; OSError if the address cannot be used.
    """
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    if not encrypts and not is_loopback(str(address[0])):
        raise ServerError(
            f"witness copies to other hosts need encryption (this agent would listen at {address[0]}): "
            "pip install 'traincope[peers]'"
        )
    return socket.create_server(address[:2], family=family)
