"""The page of jobs that work together: two runs recorded in turns, without the records that the page does not read."""

import json
from collections.abc import Iterator
from pathlib import Path
from time import sleep

import pytest

import traincope
from tests.viewer.library.reading import shelf
from tests.viewer.texts import texts
from traincope.cli.main import main
from traincope.events import Phase
from traincope.viewer.library.library import Library
from traincope.viewer.pages.page import Asked
from traincope.viewer.pages.workflow import PAGE
from traincope.viewer.view import View

STEPS = 4


def job(path: Path, role: str, other: str, *, workflow: str = "rlhf-7") -> Path:
    """A run that waits for another job in each step."""
    with traincope.run(path, agent=False, budget=None) as run:
        run.describe(workflow=workflow, role=role)
        for _ in range(STEPS):
            with traincope.wait_for(other):
                sleep(0.05)  # far more than the rest of a step, on a busy machine too
            run.step()
    return path


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    return job(tmp_path / "one", "trainer", "actor"), job(tmp_path / "two", "actor", "trainer")


def shown(library: Library, *, at: int = 0) -> list[object]:
    view = View(page="jobs", parameters={"run": (str(at),)})
    return PAGE.render(Asked(view=view, opened=library[at], library=library, theme="light"))  # type: ignore[return-value]


def numbers(parts: list[object]) -> Iterator[tuple[str, float]]:
    """Place in the JSON -> exact value, of all numbers on the page."""
    for part in parts:
        for child in part._traverse():  # type: ignore[attr-defined]
            if getattr(child, "data-at", None) is not None:
                yield getattr(child, "data-at"), float(child.value)


def links(parts: list[object]) -> dict[str, str]:
    """Text of each link -> its address."""
    children = [child for part in parts for child in part._traverse()]  # type: ignore[attr-defined]
    return {child.children: child.href for child in children if hasattr(child, "href")}


def test_the_page_has_the_numbers_and_sentences_of_the_report(
    runs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is rendered from the cached analyses, which have no records."""
    shelf(*runs, cache=tmp_path / "cache")
    library = shelf(*runs, cache=tmp_path / "cache")
    kept = library[0].analysis.timeline.ranks[0].main  # type: ignore[union-attr]
    assert Phase.JOB_WAIT not in kept["phase"]
    page = shown(library)
    with pytest.raises(SystemExit, match="0"):
        main(["report", *map(str, runs), "--format", "json"])
    document = json.loads(capsys.readouterr().out)
    found = dict(numbers(page))
    assert found == {
        f"/jobs/{at}/{name}": job[name]
        for at, job in enumerate(document["jobs"])
        for name in ("num_ranks", "num_steps", "wait_ratio")
    } | {
        f"/roles/{place}/parts/{at}/{name}": part[name]
        for place, role in enumerate(document["roles"])
        for at, part in enumerate(role["parts"])
        for name in ("ns", "ratio")
    }
    with pytest.raises(SystemExit, match="0"):
        main(["report", *map(str, runs), "--brief"])
    printed = " ".join(capsys.readouterr().out.split())
    sentences = [text for text in texts(page) if " of its step time: " in text]
    assert len(sentences) == 2
    assert all(sentence in printed for sentence in sentences)
    assert "rlhf-7" in texts(page)
    assert links(page) == {"trainer": "/ledger?run=0", "actor": "/ledger?run=1"}


def test_runs_of_another_workflow_are_left_out(runs: tuple[Path, Path], tmp_path: Path) -> None:
    other = job(tmp_path / "three", "critic", "actor", workflow="rlaif")
    library = shelf(*runs, other, cache=tmp_path / "cache")
    assert links(shown(library)) == {"trainer": "/ledger?run=0", "actor": "/ledger?run=1"}
    (alone,) = texts(shown(library, at=2))
    assert alone == "No other open run belongs to the workflow rlaif."


def test_runs_that_are_no_jobs_are_not_compared(runs: tuple[Path, Path], tmp_path: Path) -> None:
    """Two runs of one training, for example, that a user opens to compare them."""
    for name in ("before", "after"):
        with traincope.run(tmp_path / name, agent=False, budget=None) as run:
            for _ in range(STEPS):
                run.step()
    library = shelf(tmp_path / "before", tmp_path / "after", cache=tmp_path / "cache")
    (alone,) = texts(shown(library))
    assert alone.startswith("This run names no workflow, and waits for no other job. ")
    (one,) = texts(shown(shelf(runs[0], cache=tmp_path / "cache")))
    assert one.startswith("Only one run is open.")
