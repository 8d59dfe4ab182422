"""From windows to what is served, as the agent calls it."""

import json
import logging
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.live.windows import MS, quiet, ranks, records, statuses, window
from traincope.analysis import Analysis, Fault, FaultKind
from traincope.errors import ConfigError
from traincope.live.exporting import Exporting
from traincope.live.window import Window
from traincope.metrics import (
    JOB_TIME,
    LAST_STEP,
    LEDGER,
    OWN_TIME,
    STEP_DURATION,
    STEP_TIMES,
    STEPS,
    WALL,
    Distribution,
    Sample,
)
from traincope.store.layout import ROWS_FILE, rank_directory
from traincope.store.rows import Row, append_rows
from traincope.store.thinning import summed
from traincope_exporters import live
from traincope_exporters.live import Origin, Running, Source

JOB = "traincope-0-abc-000"


@pytest.fixture
def first(tmp_path: Path) -> Window:
    run = tmp_path / "run"
    for rank in (0, 1):
        rank_directory(run, attempt=0, rank=rank).mkdir(parents=True)
    return replace(window(records(ranks(0, 1))), run=run)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "targets").mkdir()
    return {"TRAINCOPE_METRICS": "127.0.0.1:0", "TRAINCOPE_TARGETS": str(tmp_path / "targets")}


def exporting(environment: Mapping[str, str]) -> Exporting:
    return Exporting(job=JOB, host="node-3", environment=environment)


def url(first: Window) -> str:
    return str(json.loads((first.run / "metrics-node-3.json").read_text())["prometheus"])


def steps(text: str) -> list[str]:
    return [line.rpartition(" ")[2] for line in text.splitlines() if line.startswith("traincope_steps_total{")]


def test_it_serves_from_the_first_window_to_the_end_and_leaves_nothing(
    first: Window, environment: dict[str, str], tmp_path: Path
) -> None:
    observer = exporting(environment)
    assert observer.samples() == []
    observer.observed(first)
    where = url(first)
    assert steps(urlopen(where, timeout=30).read().decode()) == ["2.0", "2.0"]
    second = window(records(ranks(2)))
    observer.observed(quiet(first, rows=second.rows, analysis=second.analysis))
    assert steps(urlopen(where, timeout=30).read().decode()) == ["3.0", "3.0"]
    (entry,) = json.loads((tmp_path / "targets" / f"{JOB}-node-3.json").read_text())
    assert [f"http://{target}/metrics" for target in entry["targets"]] == [where]
    observer.close()
    assert list((tmp_path / "targets").iterdir()) == []
    assert not (first.run / "metrics-node-3.json").exists()
    with pytest.raises(OSError, match="refused"):
        urlopen(where, timeout=30)
    assert not any(thread.name == "traincope-metrics" for thread in threading.enumerate())


def test_an_agent_that_was_killed_goes_on_where_it_was(first: Window, environment: dict[str, str]) -> None:
    """Its rows are on disk, those of the window that is being shown among them."""
    second = replace(window(records(ranks(2))), run=first.run)
    for rank in (0, 1):
        directory = rank_directory(first.run, attempt=0, rank=rank)
        append_rows(directory, [row for row in (*first.rows, *second.rows) if row.rank == rank])
    observer = exporting(environment | {"TRAINCOPE_METRICS": "off"})
    observer.observed(second)
    assert [sample.value for sample in observer.samples() if sample.metric is STEPS] == [3, 3]
    observer.close()


def test_an_agent_begun_anew_counts_rows_of_an_hour_as_the_steps_they_are_of(
    first: Window, environment: dict[str, str]
) -> None:
    """Beside the same rows one by one it says the same, but of the instants of steps."""
    made = window(records(ranks(*range(6))))
    told = []
    for rows in (made.rows, _thinned(made.rows)):
        for rank in (0, 1):
            path = rank_directory(first.run, attempt=0, rank=rank) / ROWS_FILE
            path.unlink(missing_ok=True)
            append_rows(path.parent, [row for row in rows if row.rank == rank])
        observer = exporting(environment | {"TRAINCOPE_METRICS": "off"})
        observer.observed(quiet(first, ranks=made.ranks))
        told.append({(one.metric.name, one.labels): one.value for one in observer.samples() if _of_rows(one)})
        observer.close()
    one_by_one, thinned = told
    assert thinned == one_by_one
    assert thinned[STEPS.name, ("job-7", "node-3", "0")] == 6
    assert thinned[STEP_TIMES.name, ("job-7", "node-3")] == Distribution(counts=(0, 10, *[0] * 11), sum=1.0)


def _thinned(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    return tuple(
        row
        for rank in (0, 1)
        for own in [[row for row in rows if row.rank == rank]]
        for row in (own[0], summed(own[1:-1]), own[-1])
    )


def _of_rows(one: Sample) -> bool:
    if one.metric is JOB_TIME:
        return one.labels[-1] == "productive"
    return one.metric in (STEPS, WALL, LEDGER, STEP_TIMES, OWN_TIME, LAST_STEP, STEP_DURATION)


def test_a_rank_that_is_seen_later_brings_its_rows(first: Window, environment: dict[str, str]) -> None:
    directory = rank_directory(first.run, attempt=0, rank=1)
    append_rows(directory, [row for row in first.rows if row.rank == 1])
    observer = exporting(environment | {"TRAINCOPE_METRICS": "off"})
    rank_0, rank_1 = statuses(records(ranks(0, 1)).ranks)
    observer.observed(quiet(first, ranks=(rank_0,), rows=tuple(row for row in first.rows if row.rank == 0)))
    observer.observed(quiet(first, ranks=(rank_0, rank_1)))
    observer.observed(quiet(first, ranks=(rank_0, rank_1)))
    assert [sample.value for sample in observer.samples() if sample.metric is STEPS] == [2, 2]
    observer.close()


def test_a_run_directory_that_has_gone_costs_its_note_alone(
    first: Window, environment: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    observer = exporting(environment)
    observer.observed(replace(first, run=Path("/no/such/run")))
    assert "/no/such/run/metrics-node-3.json cannot be written: No such file or directory" in caplog.messages
    assert len(observer.samples()) > 10
    observer.close()


def test_two_jobs_on_a_node_are_two_targets(first: Window, environment: dict[str, str], tmp_path: Path) -> None:
    one = exporting(environment)
    one.observed(first)
    taken = url(first).rpartition(":")[2].removesuffix("/metrics")
    same_port = environment | {"TRAINCOPE_METRICS": f"127.0.0.1:{taken}"}
    other = Exporting(job=f"{JOB}-2", host="node-4", environment=same_port)
    other.observed(first)
    files = [json.loads(path.read_text()) for path in (tmp_path / "targets").iterdir()]
    assert len({entry["targets"][0] for (entry,) in files}) == 2
    one.close()
    told = json.loads((first.run / "metrics-node-4.json").read_text())
    assert steps(urlopen(told["prometheus"], timeout=30).read().decode()) == ["2.0", "2.0"], "the other goes on"
    other.close()


class Pushing:
    """A third party's exporter."""

    def __init__(self, source: Source, origin: Origin) -> None:
        self.origin = origin
        self.where = "kafka://broker"
        self.source = source
        self.stopped = False
        self.found: list[Analysis] = []

    def follow(self, analysis: Analysis) -> None:
        self.found.append(analysis)

    def stop(self) -> None:
        self.stopped = True


started: list[Pushing] = []


def start_pushing(source: Source, *, origin: Origin, environment: Mapping[str, str]) -> Running | None:
    if "REFUSE" in environment:
        raise ConfigError("the broker is not there")
    if "BREAK" in environment:
        raise KeyError("broken")
    started.append(Pushing(source, origin))
    return started[-1]


@pytest.fixture
def third_party(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    point = EntryPoint(name="kafka", value=f"{__name__}:start_pushing", group=live.GROUP)
    monkeypatch.setattr(live, "entry_points", lambda group: [point] if group == live.GROUP else [])
    started.clear()
    yield
    started.clear()


@pytest.mark.usefixtures("third_party")
def test_a_third_partys_exporter_is_found_by_its_entry_point(
    first: Window, environment: dict[str, str], tmp_path: Path
) -> None:
    observer = exporting(environment | {"TRAINCOPE_METRICS": "off"})
    observer.observed(first)
    (pushing,) = started
    assert pushing.origin == Origin(run="job-7", host="node-3", began_ns=0)
    assert {sample.metric.name for sample in pushing.source()} >= {"steps", "ledger"}
    note = json.loads((first.run / "metrics-node-3.json").read_text())
    assert note == {"host": "node-3", "pid": os.getpid(), "kafka": "kafka://broker"}
    assert list((tmp_path / "targets").iterdir()) == [], "nothing is there for a Prometheus"
    observer.close()
    assert pushing.stopped


@pytest.mark.usefixtures("third_party")
def test_an_exporter_that_follows_is_shown_what_each_look_found_and_of_faults_the_new_ones(
    first: Window, environment: dict[str, str]
) -> None:
    spike = Fault(kind=FaultKind.SPIKE, at_ns=1, ranks=(0,), what="loss jumps to 9")
    observer = exporting(environment | {"TRAINCOPE_METRICS": "off"})
    for shown in (first, quiet(first), replace(first, faults=(spike,))):
        observer.observed(shown)
    (following,) = started
    assert [one.faults for one in following.found] == [(), (spike,)]
    assert all(one.timeline is first.analysis.timeline for one in following.found if first.analysis)
    observer.close()
    observer.observed(first)
    assert len(following.found) == 2, "it has been stopped"


@pytest.mark.usefixtures("third_party")
@pytest.mark.parametrize(("wish", "said"), [("REFUSE", "kafka: the broker is not there"), ("BREAK", "broken")])
def test_one_that_cannot_begin_says_so_and_the_others_go_on(
    first: Window, environment: dict[str, str], caplog: pytest.LogCaptureFixture, wish: str, said: str
) -> None:
    caplog.set_level(logging.WARNING)
    observer = exporting(environment | {wish: "1"})
    observer.observed(first)
    assert any(said in message for message in caplog.messages)
    assert steps(urlopen(url(first), timeout=30).read().decode()) == ["2.0", "2.0"]
    observer.close()


def test_scrapes_and_windows_do_not_disturb_each_other(first: Window, environment: dict[str, str]) -> None:
    """Every scrape sees whole windows: both ranks have as many steps."""
    observer = exporting(environment | {"TRAINCOPE_METRICS": "off"})
    observer.observed(first)
    odd: list[Sequence[float]] = []
    done = threading.Event()

    def scrape() -> None:
        while not done.is_set():
            seen = [float(str(sample.value)) for sample in observer.samples() if sample.metric is STEPS]
            if len(set(seen)) != 1:
                odd.append(seen)

    thread = threading.Thread(target=scrape)
    thread.start()
    for _ in range(50):
        observer.observed(replace(first, analysis=None, at_ns=MS))
    done.set()
    thread.join()
    assert odd == []
    assert {float(str(s.value)) for s in observer.samples() if s.metric is STEPS} == {102.0}
    observer.close()


def test_the_exporters_of_this_project_are_found_without_being_installed() -> None:
    found = dict(live.found())
    assert set(live.IN_TREE) <= set(found)
    assert all(callable(load()) for load in found.values())
