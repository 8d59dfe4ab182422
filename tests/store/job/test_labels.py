"""Labels of runs in metrics: the name, and digits that no run of the same name elsewhere has."""

import json
import re
from pathlib import Path

import pytest

from traincope.errors import NotARunError
from traincope.store.job.manifests import read_run_info
from traincope.store.layout import rank_directory
from traincope.store.places.named_runs import run_by_name
from traincope.store.reading import find_run

DEMO = Path(__file__).parents[3] / "sample_runs" / "demo"
FIRST, SECOND = "ab" * 8, "cd" * 8


def run(path: Path, *launches: dict[int, str | None], world_size: int = 4) -> Path:
    """A run named `gpt`: rank -> launch of each attempt."""
    path.mkdir(parents=True)
    manifest = json.loads((DEMO / "run.json").read_text())
    path.joinpath("run.json").write_text(json.dumps({**manifest, "id": "gpt", "world_size": world_size}))
    for attempt, ranks in enumerate(launches):
        for rank, launch in ranks.items():
            directory = rank_directory(path, attempt=attempt, rank=rank)
            directory.mkdir(parents=True)
            card = json.loads((rank_directory(DEMO, attempt=0, rank=0) / "rank.json").read_text())
            directory.joinpath("rank.json").write_text(json.dumps({**card, "rank": rank, "launch": launch}))
    return path


def label(path: Path) -> str:
    return read_run_info(path).label


def test_runs_of_one_name_have_different_labels_that_begin_with_it(tmp_path: Path) -> None:
    labels = [label(run(tmp_path / str(at) / "gpt", {0: launch})) for at, launch in enumerate((FIRST, SECOND))]
    assert len(set(labels)) == 2
    assert all(re.fullmatch(r"gpt~[0-9a-f]{4}", each) for each in labels)


def test_hosts_and_attempts_of_a_run_share_its_label(tmp_path: Path) -> None:
    """The second host has a directory of its own, without rank 0. The third attempt had another launch."""
    first_host = run(tmp_path / "a" / "gpt", {0: FIRST, 1: FIRST})
    second_host = run(tmp_path / "b" / "gpt", {2: None, 3: FIRST})
    restarted = run(tmp_path / "c" / "gpt", {0: FIRST}, {0: FIRST}, {0: SECOND})
    assert label(first_host) == label(second_host) == label(restarted)


def test_a_process_alone_has_its_start_instead_of_a_launch(tmp_path: Path) -> None:
    alone = run(tmp_path / "a" / "gpt", {0: None}, world_size=1)
    assert label(alone) == label(alone) != "gpt"


@pytest.mark.parametrize("launches", [(), ({0: None, 1: None},)])
def test_without_a_launch_the_label_is_the_name(tmp_path: Path, launches: tuple[dict[int, str | None], ...]) -> None:
    """A run from before launches had names, and one that no rank has begun yet."""
    assert label(run(tmp_path / "gpt", *launches)) == "gpt"


def test_a_label_names_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ours = run(tmp_path / "traincope_runs" / "gpt", {0: FIRST})
    theirs = run(tmp_path / "elsewhere" / "gpt", {0: SECOND})
    assert find_run(Path(label(ours))) == Path("traincope_runs/gpt")
    assert run_by_name(Path(label(theirs))) == Path(label(theirs)), "no run of this directory"
    with pytest.raises(NotARunError):
        find_run(Path(label(theirs)))
