"""The library: runs are read in a child process, cached on disk, and read again after a change."""

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import time

import pytest

from tests.viewer.library.reading import shelf
from traincope.analysis import Analysis, analyze
from traincope.errors import RunDirectoryError
from traincope.report.document.document import to_document
from traincope.timeline import open_run
from traincope.viewer.library import library as library_module
from traincope.viewer.library import preparing
from traincope.viewer.library.analysis_cache import load_analysis
from traincope.viewer.library.analysis_process import Pending, Reading
from traincope.viewer.library.library import Library
from traincope.viewer.library.preparing import Place, fingerprint, prepare

SAMPLE = Path(__file__).parents[3] / "sample_runs" / "demo"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SAMPLE, tmp_path / "run"))


@pytest.fixture
def library(run: Path, tmp_path: Path) -> Iterator[Library]:
    library = Library([run], cache=tmp_path / "cache")
    yield library
    library.close()


def read(library: Library) -> None:
    """Wait for the child's answer."""
    library.refresh()
    for reading in library._readings.values():
        assert reading.done(within_seconds=120)
    library.refresh()


@pytest.mark.slow
def test_a_child_process_reads_a_run_completely(library: Library) -> None:
    assert library[0].tiles is None
    read(library)
    opened = library[0]
    expected = json.loads((SAMPLE / "expected.json").read_text())
    assert opened.document == expected
    assert opened.tiles is not None
    assert opened.analysis is not None
    assert sum(len(rank.main) for rank in opened.analysis.timeline.ranks) < len(opened.tiles.spans)
    assert not library.busy


@pytest.mark.slow
def test_a_child_process_says_what_it_does(run: Path, tmp_path: Path) -> None:
    child = Reading(run, tmp_path / "tiles", work=prepare)
    child.result()
    assert child.stage == "writing the report; preparing the timeline, 4 of 4 ranks"


@dataclass
class Busy:
    """A reading that goes on."""

    run: Path
    tiles: Path
    stage: str = "analysing 4 ranks"

    def done(self) -> bool:
        return False

    def result(self) -> Analysis:
        raise AssertionError

    def close(self) -> None:
        return


def test_a_stage_of_the_first_reading_is_a_state_of_the_run(run: Path, tmp_path: Path) -> None:
    library = Library([run], cache=tmp_path / "cache", begin=Busy)
    library.refresh()
    library.refresh()
    assert (library[0].stage, library.generation) == ("analysing 4 ranks", 1)
    library.refresh()
    assert library.generation == 1


def test_a_stage_of_very_many_ranks_is_few_messages() -> None:
    """A pipe of 64 KiB holds them all, when no page asks."""
    messages: list[str] = []
    progress = preparing._in_words("reading the rows", messages.append)
    for done in range(64, 16_384 + 1, 64):
        progress(done, 16_384)
    assert len(messages) == 1 + preparing.SHARES
    assert messages[:2] == ["reading the rows, 64 of 16,384 ranks", "reading the rows, 832 of 16,384 ranks"]
    assert messages[-1] == "reading the rows, 16,384 of 16,384 ranks"


@pytest.mark.slow
def test_a_second_visit_reads_nothing_again(library: Library, run: Path, tmp_path: Path) -> None:
    read(library)
    again = Library([run], cache=tmp_path / "cache", begin=never)
    again.refresh()
    first, opened = library[0], again[0]
    assert first.analysis is not None
    assert opened.analysis is not None
    assert to_document(opened.analysis) == to_document(first.analysis)
    assert opened.document == first.document
    assert opened.tiles is not None


def never(run: Path, tiles: Path) -> Pending:
    raise AssertionError(f"{run} is read into {tiles}")


def test_an_open_run_is_read_again_until_quiet_for_an_hour(run: Path, tmp_path: Path) -> None:
    for card in run.glob("attempt-*/rank-*/rank.json"):
        card.write_text(json.dumps({**json.loads(card.read_text()), "ending": None}))
    place = Place(run=run, cache=tmp_path / "cache")
    prepare(run, place.tiles)
    assert place.tiles.is_dir()
    assert load_analysis(place.tiles) is None
    for file in run.rglob("*"):
        os.utime(file, (time() - 3601,) * 2)
    prepare(run, place.tiles)
    assert load_analysis(place.tiles) is not None


@pytest.mark.slow
def test_a_changed_run_is_read_again_and_older_tiles_are_deleted(library: Library, run: Path, tmp_path: Path) -> None:
    read(library)
    before, generation = Place(run=run, cache=tmp_path / "cache").tiles, library.generation
    details = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**details, "id": "renamed"}))
    read(library)
    document = library[0].document
    assert document is not None
    assert document["run"]["id"] == "renamed"
    assert library.generation > generation
    assert not before.exists()


def test_a_run_that_is_slow_to_look_at_is_looked_at_rarely(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = shelf(run, cache=tmp_path / "cache")
    monkeypatch.setattr(library_module, "SLOW_LOOK_SECONDS", 0.0)
    monkeypatch.setattr(library_module, "REST", 1e9)
    library.refresh()
    (run / "new").touch()
    library.refresh()
    assert not library.busy
    library._look_again.clear()
    library.refresh()
    assert library.busy


def test_a_refresh_does_not_wait_for_another_one(run: Path, tmp_path: Path) -> None:
    library = Library([run], cache=tmp_path / "cache", begin=never)
    with library._lock:
        library.refresh()


@pytest.mark.slow
def test_a_library_is_busy_until_what_was_read_is_shown(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a page that asks during the loading of a large analysis looks again much later only."""
    states = []

    def show(position: int, tiles: Path, *, analysis: Analysis | None) -> bool:
        states.append((library.busy, library[0].document is None))
        return show_it(position, tiles, analysis=analysis)

    show_it = library._show
    monkeypatch.setattr(library, "_show", show)
    read(library)
    assert states[-1] == (True, True)
    assert not library.busy


def test_a_run_that_cannot_be_read_says_why(library: Library, run: Path) -> None:
    (run / "run.json").write_text("{")
    read(library)
    assert library[0].problem is not None
    assert "run.json cannot be read" in library[0].problem


def test_a_deleted_run_says_so(library: Library, run: Path) -> None:
    shutil.rmtree(run)
    library.refresh()
    assert library[0].problem == f"{run} is missing or empty; give the directory of a run"
    with pytest.raises(RunDirectoryError, match="is missing or empty"):
        fingerprint(run)


def test_an_unwritable_cache_is_reported(run: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirectoryError, match="set XDG_CACHE_HOME"):
        prepare(run, tmp_path / "file" / "tiles")


def test_a_price_is_added_to_a_cached_analysis(run: Path, tmp_path: Path) -> None:
    """The same tiles serve every price."""
    bare = shelf(run, cache=tmp_path / "cache")[0].document
    dear = shelf(run, cache=tmp_path / "cache", price_per_gpu_hour=2.5)[0].document
    assert bare is not None
    assert dear is not None
    assert dear == to_document(analyze(open_run(run)), price_per_gpu_hour=2.5)
    assert bare == to_document(analyze(open_run(run)))
