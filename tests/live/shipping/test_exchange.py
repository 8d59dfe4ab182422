"""Requests of users reach the ranks of a node that records by itself."""

from pathlib import Path

from traincope.live.shipping.exchange import missing_lines, pull_requests, renumbered, with_lines


def test_only_complete_new_lines_are_added() -> None:
    assert missing_lines(b"a\nb\nc", b"b\n") == b"a\n"
    assert with_lines(b"x\nto", b"a\n") == b"x\na\n"


def test_lines_of_other_attempts_keep_their_number() -> None:
    assert renumbered(b'{"attempt": 0}\n{"attempt": 3}\nnot json\n', {0: 2}) == (
        b'{"attempt": 2}\n{"attempt": 3}\nnot json\n'
    )


def test_level_and_requests_are_pulled_once(tmp_path: Path) -> None:
    named, run = tmp_path / "named", tmp_path / "run"
    for directory in (named, run):
        directory.mkdir()
    (named / "level").write_text("0\n")
    (named / "requests.jsonl").write_text('{"attempt": 0, "first_step": 32}\n')
    for _ in range(2):
        pull_requests(named, run, attempt=0)
        assert (run / "level").read_text() == "0\n"
        assert (run / "requests.jsonl").read_text() == '{"attempt": 0, "first_step": 32}\n'
    (named / "level").unlink()
    pull_requests(named, run, attempt=0)
    assert not (run / "level").exists()
