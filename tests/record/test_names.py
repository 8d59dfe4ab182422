import json
from pathlib import Path

from traincope.record import names as naming
from traincope.record.names import OTHER, Names


def test_a_name_is_written_once_before_its_number_is_used(tmp_path: Path) -> None:
    names = Names(tmp_path / "names.jsonl")
    assert [names.intern("forward"), names.intern("backward"), names.intern("forward")] == [1, 2, 1]
    lines = (tmp_path / "names.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [OTHER, "forward", "backward"]


def test_names_beyond_the_limit_share_number_zero(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(naming, "MAX_NAMES", 3)
    names = Names(tmp_path / "names.jsonl")
    assert [names.intern(f"name {i}") for i in range(5)] == [1, 2, 0, 0, 0]
    assert len((tmp_path / "names.jsonl").read_text().splitlines()) == 3


def test_hostile_names_stay_one_line_and_short(tmp_path: Path) -> None:
    names = Names(tmp_path / "names.jsonl")
    hostile = "a\nb\u2028</script>\x1b[31m" + "x" * 10_000_000
    assert names.intern(hostile) == 1
    assert names.intern(hostile) == 1
    assert len((tmp_path / "names.jsonl").read_bytes()) < 2_000
    assert len((tmp_path / "names.jsonl").read_bytes().split(b"\n")) == 3
