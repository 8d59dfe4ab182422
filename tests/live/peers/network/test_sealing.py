"""Sealed messages open only with their key and in their place."""

from pathlib import Path

import pytest

from traincope.errors import ConfigError, ServerError
from traincope.live.peers.network.sealing import Authentication, Encryption, Seal, key_of_launch, parse_key, read_key

KEY, OTHER_KEY = bytes(range(32)), bytes(32)
SEALS = [Encryption, Authentication]
TEXT = b"all_reduce on dp"


@pytest.fixture(params=SEALS, ids=["encrypted", "authenticated"])
def kind(request: pytest.FixtureRequest) -> type[Seal]:
    return request.param  # type: ignore[no-any-return]


def make(kind: type[Seal], key: bytes = KEY) -> Seal:
    return kind(key)  # type: ignore[call-arg]


def test_a_message_opens_with_its_key_in_its_place(kind: type[Seal]) -> None:
    assert make(kind).open(make(kind).seal(TEXT, position=b"1"), position=b"1") == TEXT


def test_a_wrong_key_is_refused(kind: type[Seal]) -> None:
    with pytest.raises(ServerError, match="does not have the job's key"):
        make(kind, OTHER_KEY).open(make(kind).seal(TEXT, position=b"1"), position=b"1")


def test_each_launch_has_a_key_of_its_own() -> None:
    """Without a process group a launch has no name, so all of them share one key of the file."""
    keys = [key_of_launch(key, launch=launch) for key in (KEY, OTHER_KEY) for launch in ("0a", "0b", None)]
    assert len({*keys, KEY, OTHER_KEY}) == 8
    assert key_of_launch(KEY, launch=None) == keys[2]


def test_a_message_in_another_place_is_refused(kind: type[Seal]) -> None:
    """A repeated or a reordered message is in another place."""
    with pytest.raises(ServerError):
        make(kind).open(make(kind).seal(TEXT, position=b"1"), position=b"2")


def test_every_changed_byte_and_every_cut_is_refused(kind: type[Seal]) -> None:
    sealed = make(kind).seal(TEXT, position=b"1")
    changed = [sealed[:at] + bytes([sealed[at] ^ 1]) + sealed[at + 1 :] for at in range(len(sealed))]
    for damaged in (*changed, *(sealed[:at] for at in range(len(sealed)))):
        with pytest.raises(ServerError):
            make(kind).open(damaged, position=b"1")


def test_an_encrypted_message_hides_its_text_and_differs_each_time() -> None:
    seal = Encryption(KEY)
    first, second = seal.seal(TEXT, position=b"1"), seal.seal(TEXT, position=b"1")
    assert TEXT not in first
    assert first != second


def test_a_key_file_must_be_closed_to_others(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(KEY.hex() + "\n")
    path.chmod(0o600)
    assert read_key(path) == KEY
    path.chmod(0o640)
    with pytest.raises(ConfigError, match=f"chmod 600 {path}"):
        read_key(path)


def test_a_damaged_key_is_refused_without_being_shown() -> None:
    with pytest.raises(ConfigError, match="64 hexadecimal digits") as error:
        parse_key("5ec2e7" * 3)
    assert "5ec2e7" not in str(error.value)
