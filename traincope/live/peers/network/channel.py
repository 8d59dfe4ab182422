"""Channel: sealed messages over one TCP connection between two agents.

Each side first sends a fresh random number. Every message is sealed together with both numbers, its direction and its
count, so a recorded message fits nowhere else. Each message has a deadline, and a size limit that is small until the
other side has shown that it has the key.
"""

import json
import secrets
import socket
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from traincope.access import is_loopback
from traincope.errors import ServerError
from traincope.live.peers.network.sealing import Seal
from traincope.store.lines import parse

MAGIC = b"traincope-peers-2\n"
CHALLENGE_BYTES = 16
LENGTH_BYTES = 4
COUNT_BYTES = 8
MAX_MESSAGE_BYTES = 512 << 10
MAX_GREETING_BYTES = 8 << 10
"""Size limit of the first message, whose sender may not have the key."""
MESSAGE_SECONDS = 2.0
"""Longest time in which one message is sent, or received once it has begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message."""

    kind: str
    fields: dict[str, Any] = field(default_factory=dict)
    payload: bytes = b""


class Channel:
    """One side of a connection. Not for several threads at once."""

    def __init__(self, connection: socket.socket, seal: Seal, *, opened_here: bool) -> None:
        """Exchange challenges.

        Raises ServerError if the other side is another program, or another host while nothing is encrypted; OSError.
        """
        self._connection, self._seal = connection, seal
        self.address = str(connection.getpeername()[0])
        if not seal.encrypts and not is_loopback(self.address):
            raise ServerError(
                f"{self.address} is another host, and nothing is sent there without encryption: "
                "pip install 'traincope[peers]'"
            )
        challenge = secrets.token_bytes(CHALLENGE_BYTES)
        self._send_all(MAGIC + challenge)
        greeting = self._receive_exactly(len(MAGIC) + CHALLENGE_BYTES, deadline=monotonic() + MESSAGE_SECONDS)
        if not greeting.startswith(MAGIC):
            raise ServerError(f"{self.address} answers, but it is not an agent of traincope")
        other = greeting[len(MAGIC) :]
        self._challenges = challenge + other if opened_here else other + challenge
        self._opened_here = opened_here
        self._num_sent = self._num_received = 0

    def send(self, message: Message) -> None:
        """Send a message within its deadline. Raises OSError; ServerError if it is too large."""
        header = json.dumps({"kind": message.kind, **message.fields}).encode()
        sealed = self._seal.seal(
            header + b"\n" + message.payload, position=self._position(self._opened_here, self._num_sent)
        )
        if len(sealed) > MAX_MESSAGE_BYTES:
            raise ServerError(f"a message of {len(sealed):,} bytes exceeds the limit of {MAX_MESSAGE_BYTES:,}")
        self._num_sent += 1
        self._send_all(len(sealed).to_bytes(LENGTH_BYTES, "big") + sealed)

    def receive(self, *, wait_seconds: float = MESSAGE_SECONDS) -> Message:
        """Receive the next message; wait so long for its begin.

        Raises ServerError if it is damaged or without the key; ConnectionError if the other side closed; OSError.
        """
        length = int.from_bytes(self._receive_exactly(LENGTH_BYTES, deadline=monotonic() + wait_seconds), "big")
        limit = MAX_MESSAGE_BYTES if self._num_received else MAX_GREETING_BYTES
        if length > limit:
            raise ServerError(f"{self.address} announces a message of {length:,} bytes; the limit is {limit:,}")
        sealed = self._receive_exactly(length, deadline=monotonic() + MESSAGE_SECONDS)
        content = self._seal.open(sealed, position=self._position(not self._opened_here, self._num_received))
        self._num_received += 1
        header, _, payload = content.partition(b"\n")
        fields = parse(header.decode(errors="replace"))
        if not isinstance(fields, dict) or not isinstance(fields.get("kind"), str):
            raise ServerError(f"{self.address} sent a message of an unknown form")
        return Message(kind=fields.pop("kind"), fields=fields, payload=payload)

    def ask(self, message: Message) -> Message:
        """Send a message and return its answer. Raises like `send` and `receive`."""
        self.send(message)
        return self.receive()

    def close(self) -> None:
        self._connection.close()

    def _position(self, by_opener: bool, count: int) -> bytes:
        return self._challenges + bytes([by_opener]) + count.to_bytes(COUNT_BYTES, "big")

    def _send_all(self, content: bytes) -> None:
        self._connection.settimeout(MESSAGE_SECONDS)
        self._connection.sendall(content)

    def _receive_exactly(self, count: int, *, deadline: float) -> bytes:
        """Receive `count` bytes. Bytes that drip in do not extend the deadline."""
        parts, missing = [], count
        while missing:
            self._connection.settimeout(max(deadline - monotonic(), 1e-3))
            part = self._connection.recv(missing)
            if not part:
                raise ConnectionError(f"{self.address} closed the connection")
            if monotonic() > deadline:
                raise TimeoutError(f"{self.address} did not complete its message in time")
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)


def open_channel(host: str, port: int, seal: Seal) -> Channel:
    """Connect to an agent. Raises ServerError, OSError."""
    connection = socket.create_connection((host, port), timeout=MESSAGE_SECONDS)
    try:
        return Channel(connection, seal, opened_here=True)
    except (OSError, ServerError):
        connection.close()
        raise
