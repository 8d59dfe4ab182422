"""`traincope agent` by hand: its output and its errors."""

from pathlib import Path

import pytest

from tests.live.recorded import record
from traincope.cli.main import main


def agent(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["agent", *words])
    return int(str(ended.value.code))


def test_on_a_run_that_is_over_it_writes_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.nice", lambda _: None)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    record(tmp_path / "run", monkeypatch, ranks=2, steps=6)
    assert agent(str(tmp_path / "run")) == 0
    assert capsys.readouterr().out == f"10 ledger rows written to {tmp_path}/run/attempt-000\n"
    assert agent(str(tmp_path / "run")) == 0
    assert capsys.readouterr().out == f"0 ledger rows written to {tmp_path}/run/attempt-000\n"


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["nowhere"], 4, "nowhere does not exist; give the directory"),
        (["run", "--attempt", "7"], 4, "no rank of this host"),
        (["run", "--interval", "0"], 2, "0 is not an interval; give seconds above 0, e.g. 5"),
        (["run", "--disk-budget", "-5"], 2, "-5 is not a budget; give bytes, e.g. 268435456"),
        (["run", "--interval", "soon"], 2, "'soon' is not a number"),
        (["run", "--share", "2"], 2, "2 is not a share of a core"),
    ],
)
def test_bad_input_is_one_sentence_and_its_exit_code(
    words: list[str],
    code: int,
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("os.nice", lambda _: None)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    record(tmp_path / "run", monkeypatch)
    assert agent(*words) == code
    assert sentence in capsys.readouterr().err
