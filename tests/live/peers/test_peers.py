"""Agents meet over loopback, keep copies for each other, and go on whatever the others do."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.live.peers.copies.test_witnessing import heard
from tests.live.peers.jobs import Work
from tests.live.processes import until
from tests.live.recorded import rank_of, record
from traincope.errors import ConfigError
from traincope.live.peers import peers as meeting
from traincope.live.peers.comparing import Comparer
from traincope.live.peers.copies.witnessing import ALIVE, FAREWELL
from traincope.live.peers.network import channel as channels
from traincope.live.peers.network.channel import Message, open_channel
from traincope.live.peers.network.listening import GREETING
from traincope.live.peers.network.members import Member, write_note
from traincope.live.peers.network.sealing import Seal, key_of_launch, make_seal
from traincope.live.peers.peers import Peers, peers_or_none
from traincope.live.peers.settings import PeerSettings, facing_address, peer_settings
from traincope.live.window import RankState, RankStatus, Window
from traincope.store import read_run
from traincope.store.job.manifests import read_rank_info, read_run_info
from traincope.store.layout import PEER_FILES, attempt_directory
from traincope.topology import Host

KEY = "0123456789abcdef" * 4
LAUNCH = "5e1f"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "INTERVAL_SECONDS", 0.02)
    monkeypatch.setattr(meeting, "MEETING_SECONDS", 0.02)
    monkeypatch.setattr(meeting, "AVOIDED_SECONDS", 0.1)
    monkeypatch.setattr(meeting, "END_SECONDS", 0.5)
    monkeypatch.setattr(meeting, "PORT_SECONDS", 0.1)
    monkeypatch.setattr(channels, "MESSAGE_SECONDS", 0.3)


def settings(*known: int, key: str = KEY, listen: str = "127.0.0.1") -> PeerSettings:
    found = peer_settings(
        {"TRAINCOPE_PEER_LISTEN": f"{listen}:0", "TRAINCOPE_PEERS": " ".join(f"127.0.0.1:{port}" for port in known)},
        key=key,
    )
    assert found is not None
    return found


def seal() -> Seal:
    return make_seal(key_of_launch(bytes.fromhex(KEY), launch=LAUNCH))


def window(run: Path, *, last_record_ns: int = 0, launch: str = LAUNCH) -> Window:
    info = replace(read_rank_info(rank_of(run)), launch=launch)
    rank = RankStatus(
        rank=0, info=info, state=RankState.ALIVE, last_record_ns=last_record_ns, last_record_wall_ns=0,
        num_records=0, num_dropped=0,
    )  # fmt: skip
    return Window(
        run=run, attempt=0, info=read_run_info(run), at_ns=0, since_ns=0, until_ns=0, ranks=(rank,), rows=(),
        warm_up=None, analysis=None, faults=(), earlier=(), last=False,
    )  # fmt: skip


@contextmanager
def agent(
    run: Path,
    name: str,
    *known: int,
    key: str = KEY,
    launch: str = LAUNCH,
    replaceable_port: int | None = None,
    listen: str = "127.0.0.1",
) -> Iterator[int]:
    """The peers of one agent, and the port at which it listens."""
    given = settings(*known, key=key, listen=listen)
    if replaceable_port is not None:
        given = replace(given, port=replaceable_port, port_is_given=False)
    peers = Peers(given, host=Host(name=name, boot_id="1"))
    peers.observe(window(run, launch=launch))
    try:
        until(lambda: bool(list(attempt_directory(run, 0).glob(PEER_FILES))), f"the note of {name}")
        (note,) = list(meeting.read_notes(attempt_directory(run, 0)))
        yield note.port
    finally:
        peers.close()


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """One run directory per host."""
    for name in ("a", "b", "c"):
        record(tmp_path / name, monkeypatch)
    return {name: tmp_path / name for name in ("a", "b", "c")}


def witnessed(run: Path) -> set[str]:
    """Hosts of which this run directory has a copy."""
    return {host.heard.host.name for host in read_run(run).witnessed if host.ranks}


def test_two_agents_keep_copies_for_each_other_and_take_leave(runs: dict[str, Path]) -> None:
    with agent(runs["a"], "a") as port:
        with agent(runs["b"], "b", port):
            until(lambda: witnessed(runs["a"]) == {"b"} and witnessed(runs["b"]) == {"a"}, "both copies")
            copy = read_run(runs["a"]).witnessed[0].ranks[0]
            assert copy.thread("main").tobytes() == read_run(runs["b"]).ranks[0].thread("main").tobytes()
        until(lambda: heard(attempt_directory(runs["a"], 0))[0].farewell, "b's farewell")
    assert not list(attempt_directory(runs["a"], 0).glob(PEER_FILES))


def test_the_meeting_host_introduces_the_others_to_each_other(runs: dict[str, Path]) -> None:
    """Agents b and c know only a. Each of the three has copies of both others."""
    with agent(runs["a"], "a") as port, agent(runs["b"], "b", port), agent(runs["c"], "c", port):
        for name in "abc":
            until(lambda name=name: witnessed(runs[name]) == {*"abc"} - {name}, f"both copies at {name}")


def test_a_killed_agent_is_noted_by_its_closed_connection(runs: dict[str, Path]) -> None:
    """Its kernel closes the connection, so its host was alive."""
    killed = Member(host=Host(name="b", boot_id="1"), address="", port=0)
    attempt = attempt_directory(runs["a"], 0)
    with agent(runs["a"], "a") as port:
        channel = open_channel("127.0.0.1", port, seal())
        channel.ask(Message(kind=GREETING, fields=killed.as_json()))
        assert channel.ask(Message(kind=ALIVE)).kind == "answer"
        channel.close()
        until(lambda: [(note.host.name, note.closed) for note in heard(attempt)] == [("b", True)], "its note")
    assert not heard(attempt)[0].farewell


def test_a_comparison_that_fails_pauses_like_others(runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the pause a comparison that always fails would exceed the agent's share of a core."""
    calls: list[Comparer] = []

    def fails(comparer: Comparer) -> None:
        calls.append(comparer)
        raise ValueError("an odd record")

    monkeypatch.setattr(Comparer, "compare", fails)
    monkeypatch.setattr(meeting, "SHARE_OF_A_CORE", 1e-12)
    with agent(runs["a"], "a") as port, agent(runs["b"], "b", port):
        until(lambda: len(calls) == 2, "a comparison of each")
        before = heard(attempt_directory(runs["a"], 0))
        until(lambda: heard(attempt_directory(runs["a"], 0)) != before, "another turn")
    assert len(calls) == len(set(calls)) == 2


@pytest.mark.parametrize("other", [{"key": "f" * 64}, {"launch": "60a1"}], ids=["another key", "another launch"])
def test_an_agent_of_another_job_is_left_alone(
    runs: dict[str, Path], caplog: pytest.LogCaptureFixture, other: dict[str, str]
) -> None:
    """Two jobs may have one key file."""
    with agent(runs["a"], "a") as port, agent(runs["b"], "b", port, **other):  # type: ignore[arg-type]
        until(lambda: "does not have the job's key" in caplog.text, "the refusal")
    assert not witnessed(runs["a"])
    assert not heard(attempt_directory(runs["a"], 0))


def test_a_peer_that_is_replaced_after_its_end_is_found_again(runs: dict[str, Path]) -> None:
    with agent(runs["a"], "a") as port:
        with agent(runs["b"], "b", port):
            until(lambda: witnessed(runs["b"]) == {"a"}, "a's copy at b")
        with agent(runs["c"], "c", port):
            until(lambda: witnessed(runs["c"]) == {"a"}, "a's copy at c")


def test_an_address_that_leads_to_its_own_agent_gets_no_copy(
    runs: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    """Host b wrote down an address of loopback, which is that of each host itself."""
    caplog.set_level("INFO")
    attempt = attempt_directory(runs["a"], 0)
    with agent(runs["a"], "a") as port:
        write_note(attempt, Member(host=Host(name="b", boot_id="1"), address="127.0.0.1", port=port))
        until(lambda: "the agent of host b does not answer there" in caplog.text, "the refusal")
    assert "the agent of host b keeps copies" not in caplog.text
    assert not heard(attempt)


def test_an_agent_that_listens_at_all_interfaces_gives_the_address_that_faces_the_others(
    runs: dict[str, Path],
) -> None:
    with agent(runs["a"], "a") as port, agent(runs["b"], "b", port, listen="0.0.0.0"):
        until(lambda: witnessed(runs["a"]) == {"b"} and witnessed(runs["b"]) == {"a"}, "both copies")
        (note,) = meeting.read_notes(attempt_directory(runs["b"], 0))
        assert note.address == "127.0.0.1"


def test_an_agent_that_does_not_answer_delays_neither_notes_nor_the_end(
    runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deadline of a message is longer than that of the test. Host b's last link is taken leave of all the same."""
    monkeypatch.setattr(channels, "MESSAGE_SECONDS", 1_000.0)
    attempt = attempt_directory(runs["a"], 0)
    with socket.create_server(("127.0.0.1", 0)) as silent, agent(runs["a"], "a") as port:
        with agent(runs["b"], "b", port) as other:
            until(lambda: witnessed(runs["a"]) == {"b"}, "b's copy")
            write_note(
                attempt_directory(runs["b"], 0),
                Member(host=Host(name="c", boot_id="1"), address="127.0.0.1", port=silent.getsockname()[1]),
            )
            connection, _ = silent.accept()
            channel = open_channel("127.0.0.1", other, seal())
            channel.ask(
                Message(kind=GREETING, fields=Member(host=Host(name="d", boot_id="1"), address="", port=0).as_json())
            )
            channel.ask(Message(kind=ALIVE))
            until(lambda: "d" in {note.host.name for note in heard(attempt_directory(runs["b"], 0))}, "d's note")
            channel.ask(Message(kind=FAREWELL))
            channel.close()
        until(lambda: heard(attempt)[0].farewell, "b's farewell")
        connection.close()


@pytest.mark.parametrize("answers", [False, True], ids=["silent", "another program"])
def test_a_redirect_to_a_stranger_gives_it_nothing_and_blocks_nothing(runs: dict[str, Path], answers: bool) -> None:
    """The address of a peer leads elsewhere: the stranger sees no name, and a real peer is still found."""
    received, stopping = bytearray(), threading.Event()

    def stranger(server: socket.socket) -> None:
        server.settimeout(0.05)
        while not stopping.is_set():
            try:
                connection, _ = server.accept()
            except TimeoutError:
                continue
            with connection:
                connection.settimeout(0.05)
                try:
                    received.extend(connection.recv(1 << 16))
                    if answers:
                        connection.sendall(channels.MAGIC + bytes(16))
                        while part := connection.recv(1 << 16):
                            received.extend(part)
                    else:
                        stopping.wait(0.4)
                except OSError:
                    pass

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=stranger, args=(server,))
        thread.start()
        try:
            with agent(runs["b"], "b") as port, agent(runs["a"], "a", server.getsockname()[1], port):
                until(lambda: bool(received) and witnessed(runs["b"]) == {"a"}, "the stranger and the peer")
        finally:
            stopping.set()
            thread.join()
    assert received.startswith(channels.MAGIC)
    for name in (b'"kind"', b"greeting", b"boot_id", b"work", b"rank"):
        assert name not in received


def test_a_taken_port_leaves_the_agent_alone(runs: dict[str, Path], caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        given = peer_settings({"TRAINCOPE_PEER_LISTEN": f"127.0.0.1:{server.getsockname()[1]}"}, key=KEY)
        peers = Peers(given, host=Host(name="a", boot_id="1"))
        peers.observe(window(runs["a"]))
        until(lambda: "witness copies are off: " in caplog.text, "its surrender")
        peers.close()


def test_a_taken_default_port_is_replaced_by_another(runs: dict[str, Path]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        with agent(runs["a"], "a", replaceable_port=taken) as port:
            assert port != taken


def test_a_port_that_is_released_soon_is_waited_for(runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent of the attempt before holds it until it ends."""
    monkeypatch.setattr(meeting, "PORT_SECONDS", 60.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        release = threading.Timer(0.1, server.close)
        release.start()
        with agent(runs["a"], "a", replaceable_port=taken) as port:
            assert port == taken
        release.join()


def test_without_the_switch_nothing_is_started(runs: dict[str, Path]) -> None:
    before = threading.active_count()
    peers = peers_or_none(lambda: peer_settings({}, key=None), host=Host(name="a", boot_id="1"))
    peers.observe(window(runs["a"]))
    assert threading.active_count() == before
    peers.close()


def test_without_a_key_the_log_says_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    peers_or_none(lambda: peer_settings({"TRAINCOPE_WITNESS": "on"}, key=None), host=Host(name="a", boot_id="1"))
    assert "set TRAINCOPE_PEER_KEY_FILE to a file of mode 600" in caplog.text


def test_settings_come_from_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("ab" * 32)
    path.chmod(0o600)
    variables = {
        "TRAINCOPE_WITNESS": "on",
        "TRAINCOPE_PEER_KEY_FILE": str(path),
        "TRAINCOPE_PEER_LISTEN": ":30000",
        "TRAINCOPE_PEERS": "one, two:1 [fd00::1]:2",
        "MASTER_ADDR": "127.0.0.1",
    }
    found = peer_settings(variables, key=KEY)
    assert found is not None
    assert (found.key, found.listen_host, found.port, found.port_is_given) == (b"\xab" * 32, None, 30000, True)
    assert found.known == (("one", 30000), ("two", 1), ("fd00::1", 2), ("127.0.0.1", 30000))
    assert peer_settings({**variables, "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}, key=KEY) == found
    assert facing_address(settings(1)) == "127.0.0.1"
    assert facing_address(PeerSettings(key=b"", listen_host=None, port=1, port_is_given=False, known=())) == "127.0.0.1"


def test_a_job_on_one_host_has_no_peers() -> None:
    variables = {"TRAINCOPE_WITNESS": "on", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"}
    assert peer_settings(variables, key=KEY) is None
    assert peer_settings({**variables, "TRAINCOPE_PEERS": "other"}, key=KEY) is not None


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1", "name.invalid"])
def test_a_meeting_host_on_loopback_keeps_the_agent_on_loopback(host: str) -> None:
    found = PeerSettings(key=b"", listen_host=None, port=1, port_is_given=False, known=((host, 1),))
    assert facing_address(found) == "127.0.0.1"


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("TRAINCOPE_PEER_LISTEN", "host:port", "give HOST:PORT"),
        ("TRAINCOPE_PEER_LISTEN", ":70000", "impossible port 70000"),
        ("TRAINCOPE_PEERS", ":29577", "without a host"),
    ],
)
def test_an_impossible_setting_is_refused(variable: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        peer_settings({variable: value}, key=KEY)


def test_the_work_of_hosts_never_falls() -> None:
    """One host works 1 s each time. Of the other, a launcher that had taken 100 s ends, and a rank goes on."""
    work = Work(2)
    assert [work.taken(each) for each in ([50, 100], [51, 100], [52, 3], [53, 4])] == [150, 151, 152, 154]
