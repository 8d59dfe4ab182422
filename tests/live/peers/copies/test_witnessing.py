"""A witness keeps copies within bounds, refuses others, and notes silence."""

import json
import threading
import zlib
from pathlib import Path
from typing import Any

import pytest

from traincope.errors import ServerError
from traincope.live.peers.copies import witnessing
from traincope.live.peers.copies.copying import RankCopy
from traincope.live.peers.copies.histories import Histories
from traincope.live.peers.copies.witnessing import (
    ALIVE,
    COPY,
    FAREWELL,
    FREED_NS,
    MAX_HOSTS,
    MAX_RANKS_PER_HOST,
    SEEN,
    Witness,
)
from traincope.live.peers.network.channel import Message
from traincope.live.peers.network.members import Member, Members, read_member, read_notes, write_note
from traincope.store.job.witness import Heard, witness_directory, witnessed_hosts, write_heard
from traincope.store.segments.segments import HEADER_BYTES
from traincope.topology import Host

A = Host(name="a", boot_id="1")


def member(name: str, *, address: str = "10.0.0.1") -> Member:
    return Member(host=Host(name=name, boot_id="1"), address=address, port=29577)


def copy(rank: Any = 0, parts: Any = (("rank.json", 2),), payload: bytes = b"{}") -> Message:
    return Message(
        kind=COPY, fields={"rank": rank, "parts": [list(part) for part in parts]}, payload=zlib.compress(payload)
    )


def seen(parts: list[tuple[str, int]], payload: bytes) -> Message:
    return Message(kind=SEEN, fields={"rank": 0, "parts": [list(part) for part in parts]}, payload=payload)


def heard(attempt: Path) -> list[Heard]:
    return [note for note, _ in witnessed_hosts(attempt)]


@pytest.mark.parametrize(
    "message",
    [
        copy(rank=-1),
        copy(rank="0"),
        copy(rank=True),
        copy(rank=1 << 20),
        copy(parts=[("../rank.json", 2)]),
        copy(parts=[("heard.json", 2)]),
        copy(parts=[("main-00000.seg/../x", 2)]),
        copy(parts=[("rank.json", 3)]),
        copy(parts=[("rank.json", 1)]),
        copy(parts=[("rank.json", -1), ("names.jsonl", 3)]),
        Message(kind=COPY),
        copy(parts=[("looks.jsonl", 2)]),
        seen([("rank.json", 2)], zlib.compress(b"{}")),
        seen([("looks.jsonl", 2)], b"{}"),
        seen([("looks.jsonl", 2)], zlib.compress(b"{}")[:-1]),
        seen([("looks.jsonl", 8 << 20)], zlib.compress(bytes(8 << 20))),
    ],
)
def test_a_copy_of_another_form_is_refused_and_leaves_no_file(tmp_path: Path, message: Message) -> None:
    witness = Witness(tmp_path, host=A)
    with pytest.raises(ServerError):
        witness.keep(member("b"), message)
    assert list(tmp_path.rglob("*")) == []


def test_the_number_of_hosts_and_ranks_is_bounded(tmp_path: Path) -> None:
    witness = Witness(tmp_path, host=A)
    for rank in range(MAX_RANKS_PER_HOST):
        witness.keep(member("b"), copy(rank))
    with pytest.raises(ServerError, match="at most 64 ranks"):
        witness.keep(member("b"), copy(MAX_RANKS_PER_HOST))
    for number in range(1, MAX_HOSTS):
        witness.alive(member(f"c{number}"), Message(kind=ALIVE))
    with pytest.raises(ServerError, match="witness of 4 hosts"):
        witness.keep(member("d"), copy())
    witness.keep(member("b"), copy(0))
    assert len(list(tmp_path.glob("witness/*/rank-*"))) == MAX_RANKS_PER_HOST


def test_a_host_that_was_silent_for_a_minute_gives_its_place_to_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is c1: the others were heard later. Its note and its copy stay, as if it was lost. Agents compare no more with
    its ranks.
    """
    now = 1_000
    monkeypatch.setattr(witnessing, "monotonic_ns", lambda: now)
    histories = Histories()
    witness = Witness(tmp_path, host=A, histories=histories)
    names = [f"c{number}" for number in range(1, MAX_HOSTS + 1)]
    records = (("rank.json", 2), ("main-00000.seg", HEADER_BYTES))
    witness.keep(member("c1"), copy(parts=records, payload=b"{}" + bytes(HEADER_BYTES)))
    assert histories.hosts == {member("c1").host}
    now += 1
    for name in names[1:]:
        witness.alive(member(name), Message(kind=ALIVE))
    now += FREED_NS - 2
    witness.note()
    with pytest.raises(ServerError, match="witness of 4 hosts"):
        witness.alive(member("d"), Message(kind=ALIVE))
    now += 1
    witness.alive(member("d"), Message(kind=ALIVE))
    witness.note()
    silent = {note.host.name: note.silent_ns for note in heard(tmp_path)}
    assert silent == {"c1": FREED_NS - 1, **dict.fromkeys(names[1:], FREED_NS - 1), "d": 0}
    assert len(list(tmp_path.glob("witness/c1-*/rank-00000"))) == 1
    assert histories.hosts == frozenset()
    with pytest.raises(ServerError, match="witness of 4 hosts"):
        witness.alive(member("c1"), Message(kind=ALIVE))


def test_hosts_that_come_and_go_leave_no_more_than_those_that_are_witnessed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is heard once, a minute after the one before. c35 comes back, and takes the place of c36."""
    now = 1_000
    monkeypatch.setattr(witnessing, "monotonic_ns", lambda: now)
    witness = Witness(tmp_path, host=A)
    for number in (*range(40), 35):
        witness.keep(member(f"c{number}"), copy())
        witness.note()
        now += FREED_NS
    freed, witnessed = {"c32", "c33", "c34", "c36"}, {"c35", "c37", "c38", "c39"}
    assert {note.host.name for note in heard(tmp_path)} == freed | witnessed
    for kept in (witness._heard, witness._heard_ns, witness._ranks):
        assert {host.name for host in kept} == witnessed
    assert {host.name for host, _ in witness._chains} == witnessed
    assert len(list(tmp_path.glob("witness/*/rank-00000"))) == 8


def test_a_hosts_name_is_no_path(tmp_path: Path) -> None:
    Witness(tmp_path, host=A).keep(member("../../etc"), copy())
    (directory,) = (tmp_path / "witness").iterdir()
    assert directory.name.startswith("______etc-")
    assert (directory / "rank-00000" / "rank.json").read_text() == "{}"


def test_silence_is_noted_and_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 1_000
    monkeypatch.setattr(witnessing, "monotonic_ns", lambda: now)
    witness = Witness(tmp_path, host=A)
    witness.alive(member("b"), Message(kind=ALIVE))
    witness.note()
    assert not witness.is_settled()
    (note,) = heard(tmp_path)
    assert (note.host.name, note.witness, note.silent_ns, note.farewell, note.closed) == ("b", A, 0, False, False)
    now += 7_000_000_000
    witness.note()
    witness.note()
    assert witness.is_settled()
    assert heard(tmp_path)[0].silent_ns == 7_000_000_000
    assert heard(tmp_path)[0].heard_wall_ns == note.heard_wall_ns
    assert [record.message for record in caplog.records] == ["host b has not been heard for 7 s"]
    witness.alive(member("b"), Message(kind=ALIVE))
    witness.note()
    assert heard(tmp_path)[0].silent_ns == 0


def test_a_farewell_and_a_closed_connection_are_noted(tmp_path: Path) -> None:
    witness = Witness(tmp_path, host=A)
    witness.alive(member("b"), Message(kind=ALIVE))
    witness.closed(member("b"))
    witness.closed(member("not witnessed"))
    witness.farewell(member("c"), Message(kind=FAREWELL))
    witness.note()
    assert witness.is_settled()
    assert {(note.host.name, note.closed, note.farewell) for note in heard(tmp_path)} == {
        ("b", True, False),
        ("c", False, True),
    }
    witness.alive(member("b"), Message(kind=ALIVE))  # its agent came back
    witness.note()
    assert not any(note.closed for note in heard(tmp_path))


def test_a_disk_that_stalls_silences_no_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sign of life is taken while the copy is being written. The deadline only ends a broken test."""
    witness, heard_meanwhile = Witness(tmp_path, host=A), []

    def stalls(_copy: RankCopy, _directory: Path) -> None:
        sign = threading.Thread(target=witness.alive, args=(member("c"), Message(kind=ALIVE)), daemon=True)
        sign.start()
        sign.join(10)
        heard_meanwhile.append(not sign.is_alive())

    monkeypatch.setattr(RankCopy, "write", stalls)
    witness.keep(member("b"), copy())
    witness.note()
    assert heard_meanwhile == [True]
    assert {note.host.name for note in heard(tmp_path)} == {"b", "c"}


def test_a_full_disk_refuses_the_copy_and_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "witness").write_text("in the way")
    witness = Witness(tmp_path, host=A)
    for _ in range(2):
        with pytest.raises(ServerError, match="could not be written"):
            witness.keep(member("b"), copy())
    witness.note()
    assert len(caplog.records) == 1


@pytest.mark.parametrize("damage", [b"", b"[]", b'{"host": 3}', b'{"host": {"name": "b", "boot_id": "1"}}'])
def test_a_damaged_note_is_left_out(tmp_path: Path, damage: bytes) -> None:
    directory = witness_directory(tmp_path, A, witness=A)
    directory.mkdir(parents=True)
    write_heard(directory, Heard(host=A, witness=A, heard_wall_ns=1, silent_ns=2))
    assert len(heard(tmp_path)) == 1
    (directory / "heard.json").write_bytes(damage)
    assert heard(tmp_path) == []


def test_members_are_a_ring() -> None:
    members = Members()
    for name in ("d", "b", "c", "a"):
        members.add(member(name))
    members.add(member("e", address=""))  # it does not listen
    members.add(member("c", address="10.0.0.9"))
    assert [other.host.name for other in members.after(Host(name="b", boot_id="1"))] == ["c", "d", "a"]
    assert [other.host.name for other in members.after(Host(name="e", boot_id="1"))] == ["a", "b", "c", "d"]
    assert members.after(Host(name="b", boot_id="1"))[0].address == "10.0.0.9"


def test_agents_find_each_other_in_a_shared_directory(tmp_path: Path) -> None:
    write_note(tmp_path, member("b"))
    path = write_note(tmp_path, member("c"))
    assert {note.host.name for note in read_notes(tmp_path)} == {"b", "c"}
    path.write_text(json.dumps({**member("c").as_json(), "port": "29577"}))
    assert {note.host.name for note in read_notes(tmp_path)} == {"b"}


@pytest.mark.parametrize("change", [{"port": -1}, {"port": 65536}, {"address": "x" * 256}, {"host": "b"}, {"host": {}}])
def test_a_damaged_member_is_none(change: dict[str, Any]) -> None:
    assert read_member(member("b").as_json()) == member("b")
    assert read_member({**member("b").as_json(), **change}) is None
