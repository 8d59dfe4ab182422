"""Runs by the beginning of their names, and the newest run."""

import shutil
from pathlib import Path

import pytest

from traincope.errors import NotARunError
from traincope.store.places.named_runs import newest_run, run_by_name
from traincope.store.reading import find_run

DEMO = Path(__file__).parents[3] / "sample_runs" / "demo" / "run.json"
NAMES = ("gpt-1128-1324", "gpt-1128-1324-2", "llama-1128-0900", "gpt[1]")


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Each run begins one second before the one before it."""
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(NAMES):
        run = tmp_path / "traincope_runs" / name
        run.mkdir(parents=True)
        run.joinpath("run.json").write_text(
            DEMO.read_text().replace('"started_wall_ns": 17', f'"started_wall_ns": {9 - number}7')
        )
    return Path("traincope_runs")


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("llama", "llama-1128-0900"),
        ("l", "llama-1128-0900"),
        ("gpt-1128-1324", "gpt-1128-1324"),
        ("gpt-1128-1324-", "gpt-1128-1324-2"),
        ("traincope_runs/ll", "llama-1128-0900"),
        ("gpt[", "gpt[1]"),
    ],
)
def test_any_unique_beginning_names_a_run(runs: Path, given: str, name: str) -> None:
    """A whole name has precedence, although another name begins with it. Brackets are no pattern."""
    assert find_run(Path(given)) == runs / name


@pytest.mark.usefixtures("runs")
def test_a_beginning_of_several_names_lists_them() -> None:
    with pytest.raises(NotARunError) as raised:
        run_by_name(Path("gpt-"))
    assert str(raised.value) == (
        "2 runs begin with gpt- (traincope_runs/gpt-1128-1324, traincope_runs/gpt-1128-1324-2); give more of the name"
    )


@pytest.mark.usefixtures("runs")
def test_a_path_that_exists_is_no_beginning() -> None:
    Path("llama").mkdir()
    assert run_by_name(Path("llama")) == Path("llama")
    assert run_by_name(Path("/nowhere/llama")) == Path("/nowhere/llama")
    assert run_by_name(Path("s3://bucket/llama")) == Path("s3://bucket/llama")


def test_the_newest_run_began_last(runs: Path) -> None:
    """A run that cannot be read is not the newest."""
    assert newest_run() == runs / NAMES[0]
    (runs / NAMES[0] / "run.json").write_text("{")
    assert newest_run() == runs / NAMES[1]
    shutil.rmtree(runs)
    with pytest.raises(NotARunError, match="there is no run below traincope_runs here"):
        newest_run()
