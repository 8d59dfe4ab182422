"""The channel over real connections: what it carries, and what it refuses."""

import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.live.peers.hosts import why_not
from traincope.errors import ServerError
from traincope.live.peers.network import channel as channels
from traincope.live.peers.network import listening as listeners
from traincope.live.peers.network.channel import MAGIC, MAX_MESSAGE_BYTES, Channel, Message, open_channel
from traincope.live.peers.network.listening import GREETING, Listener, listening_socket
from traincope.live.peers.network.members import Member
from traincope.live.peers.network.sealing import Authentication, Encryption, Seal
from traincope.topology import Host

KEY = bytes(range(32))
MEMBER = Member(host=Host(name="b", boot_id="2"), address="127.0.0.1", port=1)
HELLO = Message(kind=GREETING, fields=MEMBER.as_json())


class Received:
    def __init__(self) -> None:
        self.messages: list[tuple[Member, Message]] = []
        self.closed: list[Member] = []
        self.has_closed = threading.Event()

    def keep(self, member: Member, message: Message) -> dict[str, Any]:
        self.messages.append((member, message))
        return {"count": len(self.messages)}

    def close(self, member: Member) -> None:
        self.closed.append(member)
        self.has_closed.set()


@contextmanager
def listening(seal: Seal) -> Iterator[tuple[int, Received]]:
    received = Received()
    server = listening_socket("127.0.0.1", 0, encrypts=seal.encrypts)
    handlers = {GREETING: lambda *_: {}, "note": received.keep, "question": received.keep}
    listener = Listener(server, seal, handlers=handlers, lasting={"note"}, on_close=received.close)
    listener.start()
    try:
        yield server.getsockname()[1], received
    finally:
        listener.stop()


@contextmanager
def answering(answer: Callable[[socket.socket], object]) -> Iterator[int]:
    """A server of another program."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                answer(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        thread.join()


@pytest.mark.parametrize("seal", [Encryption(KEY), Authentication(KEY)], ids=["encrypted", "authenticated"])
def test_messages_arrive_with_their_sender_and_are_answered(seal: Seal) -> None:
    with listening(seal) as (port, received):
        channel = open_channel("127.0.0.1", port, seal)
        assert channel.ask(HELLO).kind == "answer"
        payload = bytes(range(256)) * 1000
        assert channel.ask(Message(kind="note", fields={"rank": 3}, payload=payload)).fields == {"count": 1}
        assert channel.ask(Message(kind="note", payload=b"\n\n")).fields == {"count": 2}
        assert received.messages[0] == (MEMBER, Message(kind="note", fields={"rank": 3}, payload=payload))
        assert received.messages[1][1].payload == b"\n\n"
        channel.close()
        received.has_closed.wait()
    assert received.closed == [MEMBER]


def test_an_agent_that_closes_after_a_question_has_not_ended() -> None:
    """Every 15 s an agent asks the root for its parent, on a connection of its own."""
    seal = Encryption(KEY)
    with listening(seal) as (port, received):
        for kind in ("question", "note"):
            channel = open_channel("127.0.0.1", port, seal)
            for message in (HELLO, Message(kind=kind)):
                assert channel.ask(message).kind == "answer"
            channel.close()
        for thread in threading.enumerate():
            if thread.name == "traincope-peer":
                thread.join()
    assert [message.kind for _, message in received.messages] == ["question", "note"]
    assert received.closed == [MEMBER]


def test_a_wrong_key_gets_no_answer_and_leaves_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with listening(Encryption(KEY)) as (port, received):
        channel = open_channel("127.0.0.1", port, Encryption(bytes(32)))
        with pytest.raises(ConnectionError):
            channel.ask(HELLO)
        channel.close()
    assert not received.messages
    assert "does not have the job's key" in caplog.text


def test_a_connection_must_begin_with_a_greeting(caplog: pytest.LogCaptureFixture) -> None:
    with listening(Encryption(KEY)) as (port, received):
        channel = open_channel("127.0.0.1", port, Encryption(KEY))
        with pytest.raises(ConnectionError):
            channel.ask(Message(kind="note"))
        channel.close()
    assert not received.messages
    assert "did not begin with a greeting" in caplog.text


def test_a_recorded_message_is_refused_on_another_connection() -> None:
    """A server that repeats what an agent once answered does not pass as that agent."""
    seal, recorded = Encryption(KEY), bytearray()

    def record(connection: socket.socket) -> None:
        channel = Channel(connection, seal, opened_here=False)
        channel.receive()
        before = channel._seal.seal(b'{"kind": "answer"}\n', position=channel._position(False, 0))
        recorded.extend(len(before).to_bytes(4, "big") + before)
        connection.sendall(recorded)

    def repeat(connection: socket.socket) -> None:
        connection.sendall(MAGIC + bytes(16))
        connection.recv(1 << 16)
        connection.sendall(recorded)
        while connection.recv(1 << 16):
            pass

    with answering(record) as port:
        channel = open_channel("127.0.0.1", port, seal)
        assert channel.ask(HELLO).kind == "answer"
        channel.close()
    with answering(repeat) as port:
        channel = open_channel("127.0.0.1", port, seal)
        with pytest.raises(ServerError):
            channel.ask(HELLO)
        channel.close()


def test_a_connection_that_cannot_be_accepted_ends_no_listener() -> None:
    """In a process of its own, because without descriptors other threads of this one may fail too."""
    program = f"from {__name__} import connect_without_descriptors; connect_without_descriptors()"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")


def connect_without_descriptors() -> None:
    """No descriptor is free at a connection. It waits in the queue, and is served once there is one.

    An accept that waits has its descriptor already (accept4 of Linux), so the connection before takes that one.
    """
    listeners.PAUSE_SECONDS = 0.01
    seal, limits = Authentication(KEY), resource.getrlimit(resource.RLIMIT_NOFILE)
    with listening(seal) as (port, _), socket.socket() as before, socket.socket() as connection:
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
        try:
            before.connect(("127.0.0.1", port))
            connection.connect(("127.0.0.1", port))
            threading.Event().wait(0.1)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert Channel(connection, seal, opened_here=True).ask(HELLO).kind == "answer"


def test_another_server_is_recognized() -> None:
    def web(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

    with answering(web) as port, pytest.raises(ServerError, match="not an agent of traincope"):
        open_channel("127.0.0.1", port, Encryption(KEY))


def test_bytes_that_drip_in_do_not_extend_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "MESSAGE_SECONDS", 0.2)

    def drip(connection: socket.socket) -> None:
        try:
            while True:
                connection.sendall(MAGIC[:1])
                threading.Event().wait(0.05)
        except OSError:
            pass

    with answering(drip) as port, pytest.raises((TimeoutError, ServerError)):
        open_channel("127.0.0.1", port, Encryption(KEY))


def test_messages_above_the_limit_are_neither_sent_nor_received() -> None:
    seal = Encryption(KEY)
    with listening(seal) as (port, received):
        channel = open_channel("127.0.0.1", port, seal)
        channel.ask(HELLO)
        with pytest.raises(ServerError, match="exceeds the limit"):
            channel.send(Message(kind="note", payload=bytes(MAX_MESSAGE_BYTES)))
        channel._send_all((MAX_MESSAGE_BYTES + 1).to_bytes(4, "big"))
        with pytest.raises(ConnectionError):
            channel.receive()
        channel.close()
    assert not received.messages


def test_a_message_that_is_cut_off_leaves_nothing() -> None:
    """Its host is lost while it sends."""
    seal = Encryption(KEY)
    with listening(seal) as (port, received):
        channel = open_channel("127.0.0.1", port, seal)
        channel.ask(HELLO)
        assert channel.ask(Message(kind="note")).fields == {"count": 1}
        sealed = seal.seal(b'{"kind": "note"}\n' + bytes(1000), position=channel._position(True, 2))
        channel._send_all(len(sealed).to_bytes(4, "big") + sealed[:500])
        channel.close()
        received.has_closed.wait()
    assert len(received.messages) == 1


def test_a_first_message_of_many_bytes_is_refused_before_it_is_read() -> None:
    with listening(Encryption(KEY)) as (port, _):
        channel = open_channel("127.0.0.1", port, Encryption(KEY))
        channel._send_all((channels.MAX_GREETING_BYTES + 1).to_bytes(4, "big"))
        with pytest.raises(ConnectionError):
            channel.receive()
        channel.close()


def test_without_encryption_nothing_is_served_off_loopback() -> None:
    with pytest.raises(ServerError, match=r"pip install 'traincope\[peers\]'"):
        listening_socket("192.0.2.1", 0, encrypts=False)


SEND_ELSEWHERE = """
import socket
from traincope.errors import ServerError
from traincope.live.peers.network.channel import open_channel
from traincope.live.peers.network.sealing import Authentication
with socket.create_server(("192.0.2.1", 0)) as server:
    try:
        open_channel("192.0.2.1", server.getsockname()[1], Authentication(bytes(32)))
    except ServerError as refusal:
        print(refusal)
    connection, _ = server.accept()
    print(connection.recv(1))
"""


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_without_encryption_nothing_is_sent_off_loopback() -> None:
    """In a network of its own, which has such an address."""
    prepare = 'ip link set lo up && ip address add 192.0.2.1/32 dev lo && exec "$@"'
    command = ["unshare", "--net", "sh", "-c", prepare, "sh", sys.executable, "-c", SEND_ELSEWHERE]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    assert printed[0].startswith("192.0.2.1 is another host, and nothing is sent there without encryption: pip install")
    assert printed[1:] == ["b''"]
