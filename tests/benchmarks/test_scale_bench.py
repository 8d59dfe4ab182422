"""`make bench-scale` in a directory that takes nothing."""

from pathlib import Path

import pytest

from benchmarks.scale.bench import main


@pytest.mark.parametrize("place", [Path("/proc/self"), Path(__file__), Path("/proc/none/runs")])
def test_a_directory_that_takes_nothing_is_refused_in_one_sentence(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["bench", "--out", str(place)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert f"cannot make a directory in {place}: " in capsys.readouterr().err
