"""Observer that passes windows to exporters, as the agent calls it."""

import json
import logging
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.live.windows import MS, quiet, ranks, records, statuses, window
from traincope.analysis import Analysis, Fault, FaultKind
from traincope.errors import ConfigError
from traincope.live.serve import exporters
from traincope.live.serve.exporters import Origin, Running, Source
from traincope.live.serve.exporting import Exporting
from traincope.live.window import Window
from traincope.metrics.catalogue import JOB_TIME, LAST_STEP, LEDGER, OWN_TIME, STEP_DURATION, STEP_TIMES, STEPS, WALL
from traincope.metrics.installed import INSTALL, LIVE_GROUP, NO_EXPORTERS
from traincope.metrics.sample import Distribution, Sample
from traincope.store.layout import ROWS_FILE, rank_directory
from traincope.store.side_tables.row_thinning import merged_row
from traincope.store.side_tables.rows import Row, append_rows

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
    return {
        "TRAINCOPE_METRICS": "127.0.0.1:0",
        "TRAINCOPE_METRICS_PER_RANK": "on",
        "TRAINCOPE_TARGETS": str(tmp_path / "targets"),
    }


def exporting(environment: Mapping[str, str]) -> Exporting:
    return Exporting(job=JOB, host="node-3", environment=environment)


def url(first: Window) -> str:
    return str(json.loads((first.run / "metrics-node-3.json").read_text())["prometheus"])


def steps(text: str) -> list[str]:
    return [line.rpartition(" ")[2] for line in text.splitlines() if line.startswith("traincope_steps_total{")]


def test_exporters_serve_from_the_first_window_to_the_end(
    first: Window, environment: dict[str, str], tmp_path: Path
) -> None:
    observer = exporting(environment)
    assert observer.samples() == []
    observer.observe(first)
    where = url(first)
    assert steps(urlopen(where, timeout=30).read().decode()) == ["2.0", "2.0"]
    second = window(records(ranks(2)))
    observer.observe(quiet(first, rows=second.rows, analysis=second.analysis))
    assert steps(urlopen(where, timeout=30).read().decode()) == ["3.0", "3.0"]
    path = tmp_path / "targets" / f"{JOB}-node-3.json"
    (entry,) = json.loads(path.read_text())
    assert path.stat().st_mode & 0o777 == 0o644
    assert [f"http://{target}/metrics" for target in entry["targets"]] == [where]
    observer.close()
    assert list((tmp_path / "targets").iterdir()) == []
    assert not (first.run / "metrics-node-3.json").exists()
    with pytest.raises(OSError, match="refused"):
        urlopen(where, timeout=30)
    assert not any(thread.name == "traincope-metrics" for thread in threading.enumerate())


def test_no_target_file_is_written_where_others_may_write(
    first: Window, environment: dict[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that reads targets there would scrape what any user of the machine names."""
    (tmp_path / "targets").chmod(0o1777)
    observer = exporting(environment)
    observer.observe(first)
    assert list((tmp_path / "targets").iterdir()) == []
    assert f"no target file for Prometheus in {tmp_path / 'targets'}: it can be written by others" in caplog.text
    assert urlopen(url(first), timeout=30).status == 200
    observer.close()


def test_counters_continue_after_an_agent_was_killed(first: Window, environment: dict[str, str]) -> None:
    """The killed agent's rows are on disk, including those of the current window."""
    second = replace(window(records(ranks(2))), run=first.run)
    for rank in (0, 1):
        directory = rank_directory(first.run, attempt=0, rank=rank)
        append_rows(directory, [row for row in (*first.rows, *second.rows) if row.rank == rank])
    observer = exporting(environment | {"TRAINCOPE_METRICS": "off"})
    observer.observe(second)
    assert [sample.value for sample in observer.samples() if sample.metric is STEPS] == [3, 3]
    observer.close()


def test_a_restarted_agent_counts_hourly_rows_as_their_steps(first: Window, environment: dict[str, str]) -> None:
    """Hourly rows give the same values as single rows, except for times of steps."""
    recorded = window(records(ranks(*range(6))))
    values: list[dict[tuple[str, tuple[str, ...]], float | Distribution]] = []
    for rows in (recorded.rows, _thinned(recorded.rows)):
        for rank in (0, 1):
            path = rank_directory(first.run, attempt=0, rank=rank) / ROWS_FILE
            path.unlink(missing_ok=True)
            append_rows(path.parent, [row for row in rows if row.rank == rank])
        observer = exporting(environment | {"TRAINCOPE_METRICS": "off"})
        observer.observe(quiet(first, ranks=recorded.ranks))
        values.append({(s.metric.name, s.labels): s.value for s in observer.samples() if _of_rows(s)})
        observer.close()
    one_by_one, thinned = values
    assert thinned == one_by_one
    assert thinned[STEPS.name, ("job-7", "node-3", "0")] == 6
    assert thinned[STEP_TIMES.name, ("job-7", "node-3")] == Distribution(counts=(0, 10, *[0] * 11), sum=1.0)


def _thinned(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    return tuple(
        row
        for rank in (0, 1)
        for rank_rows in [[row for row in rows if row.rank == rank]]
        for row in (rank_rows[0], merged_row(rank_rows[1:-1]), rank_rows[-1])
    )


def _of_rows(sample: Sample) -> bool:
    if sample.metric is JOB_TIME:
        return sample.labels[-1] == "productive"
    return sample.metric in (STEPS, WALL, LEDGER, STEP_TIMES, OWN_TIME, LAST_STEP, STEP_DURATION)


PODS = {"NODE_NAME": "gke-7", "POD_NAME": "job-1-0", "POD_NAMESPACE": "team", "TRAINCOPE_JOB_ID": "job-1"}
SLURM = {"SLURMD_NODENAME": "n17", "SLURM_JOB_ID": "99", "SLURM_JOB_USER": "ann"}
UUID = "6a5b0f61-2c1e-4a3b-9d0e-000000000001"


@pytest.mark.parametrize(
    ("placed", "expected"),
    [
        ({**SLURM, "USER": "root"}, {"node": "n17", "job_id": "99", "user": "ann"}),
        ({**PODS, "USER": "ann"}, {"node": "gke-7", "job_id": "job-1", "user": "ann", "pod": "job-1-0"}),
        ({}, {"node": "", "job_id": "", "user": "", "pod": "", "namespace": ""}),
    ],
    ids=["Slurm", "Kubernetes", "neither"],
)
def test_rank_info_names_the_gpu_node_job_and_user_as_other_exporters_do(
    first: Window, environment: dict[str, str], placed: dict[str, str], expected: dict[str, str]
) -> None:
    """torch gives a GPU's UUID without the prefix that NVML and DCGM give it."""
    status, other = first.ranks
    on_gpu = replace(status, info=replace(status.info, device={"name": "NVIDIA H100", "uuid": UUID}))
    observer = exporting(environment | placed)
    observer.observe(replace(first, ranks=(on_gpu, other)))
    text = urlopen(url(first), timeout=30).read().decode()
    (line,) = (line for line in text.splitlines() if line.startswith("traincope_rank_info{") and 'rank="0"' in line)
    labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
    assert {name: labels[name] for name in expected} == expected
    assert (labels["gpu"], labels["device"], labels["host"]) == (f"GPU-{UUID}", "NVIDIA H100", "node-3")
    observer.close()


def test_a_later_rank_adds_its_rows(first: Window, environment: dict[str, str]) -> None:
    directory = rank_directory(first.run, attempt=0, rank=1)
    append_rows(directory, [row for row in first.rows if row.rank == 1])
    observer = exporting(environment | {"TRAINCOPE_METRICS": "off"})
    rank_0, rank_1 = statuses(records(ranks(0, 1)).ranks)
    observer.observe(quiet(first, ranks=(rank_0,), rows=tuple(row for row in first.rows if row.rank == 0)))
    observer.observe(quiet(first, ranks=(rank_0, rank_1)))
    observer.observe(quiet(first, ranks=(rank_0, rank_1)))
    assert [sample.value for sample in observer.samples() if sample.metric is STEPS] == [2, 2]
    observer.close()


def test_without_the_run_directory_only_the_note_is_missing(
    first: Window, environment: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    observer = exporting(environment)
    observer.observe(replace(first, run=Path("/no/such/run")))
    assert "/no/such/run/metrics-node-3.json cannot be written: No such file or directory" in caplog.messages
    assert len(observer.samples()) > 10
    observer.close()


@pytest.mark.parametrize("points", [[], [EntryPoint("kafka", f"{__name__}:start_pushing", LIVE_GROUP)]])
def test_the_log_says_that_a_checkout_without_installation_has_no_exporters(
    points: list[EntryPoint],
    first: Window,
    environment: dict[str, str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Even where a package of others adds one to the checkout."""
    monkeypatch.setattr(exporters, "entry_points", lambda **_: points)
    observer = exporting(environment)
    observer.observe(first)
    observer.observe(first)
    assert caplog.messages.count(f"{NO_EXPORTERS}: {INSTALL}") == 1
    observer.close()


def test_two_jobs_on_a_node_are_two_targets(first: Window, environment: dict[str, str], tmp_path: Path) -> None:
    first_observer = exporting(environment)
    first_observer.observe(first)
    taken = url(first).rpartition(":")[2].removesuffix("/metrics")
    same_port = environment | {"TRAINCOPE_METRICS": f"127.0.0.1:{taken}"}
    other = Exporting(job=f"{JOB}-2", host="node-4", environment=same_port)
    other.observe(first)
    files = [json.loads(path.read_text()) for path in (tmp_path / "targets").iterdir()]
    assert len({entry["targets"][0] for (entry,) in files}) == 2
    first_observer.close()
    note = json.loads((first.run / "metrics-node-4.json").read_text())
    assert steps(urlopen(note["prometheus"], timeout=30).read().decode()) == ["2.0", "2.0"], "the other continues"
    other.close()


class Pushing:
    """Exporter of a third party."""

    def __init__(self, source: Source, origin: Origin) -> None:
        self.origin = origin
        self.where = "kafka://broker"
        self.source = source
        self.stopped = False
        self.received: list[Analysis] = []

    def follow(self, analysis: Analysis) -> None:
        self.received.append(analysis)

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
    point = EntryPoint(name="kafka", value=f"{__name__}:start_pushing", group=LIVE_GROUP)
    monkeypatch.setattr(exporters, "entry_points", lambda group: [*entry_points(group=group), point])
    started.clear()
    yield
    started.clear()


@pytest.mark.usefixtures("third_party")
def test_a_third_partys_exporter_is_found_by_its_entry_point(
    first: Window, environment: dict[str, str], tmp_path: Path
) -> None:
    observer = exporting(environment | {"TRAINCOPE_METRICS": "off"})
    observer.observe(first)
    (pushing,) = started
    assert pushing.origin == Origin(run="job-7", host="node-3", began_ns=0)
    assert {sample.metric.name for sample in pushing.source()} >= {"steps", "ledger"}
    note = json.loads((first.run / "metrics-node-3.json").read_text())
    assert note == {"host": "node-3", "pid": os.getpid(), "kafka": "kafka://broker"}
    assert list((tmp_path / "targets").iterdir()) == [], "Prometheus has no target"
    observer.close()
    assert pushing.stopped


@pytest.mark.usefixtures("third_party")
def test_a_following_exporter_receives_each_analysis_with_new_faults(
    first: Window, environment: dict[str, str]
) -> None:
    spike = Fault(kind=FaultKind.SPIKE, at_ns=1, ranks=(0,), what="loss jumps to 9")
    observer = exporting(environment | {"TRAINCOPE_METRICS": "off"})
    for shown in (first, quiet(first), replace(first, faults=(spike,))):
        observer.observe(shown)
    (following,) = started
    assert [analysis.faults for analysis in following.received] == [(), (spike,)]
    assert all(analysis.timeline is first.analysis.timeline for analysis in following.received if first.analysis)
    observer.close()
    observer.observe(first)
    assert len(following.received) == 2, "it was stopped"


@pytest.mark.usefixtures("third_party")
@pytest.mark.parametrize(("wish", "problem"), [("REFUSE", "kafka: the broker is not there"), ("BREAK", "broken")])
def test_an_exporter_that_fails_is_logged_and_the_others_continue(
    first: Window, environment: dict[str, str], caplog: pytest.LogCaptureFixture, wish: str, problem: str
) -> None:
    caplog.set_level(logging.WARNING)
    observer = exporting(environment | {wish: "1"})
    observer.observe(first)
    assert any(problem in message for message in caplog.messages)
    assert steps(urlopen(url(first), timeout=30).read().decode()) == ["2.0", "2.0"]
    observer.close()


def test_a_scrape_sees_complete_windows(first: Window, environment: dict[str, str]) -> None:
    """Every scrape sees complete windows: both ranks have the same number of steps."""
    observer = exporting(environment | {"TRAINCOPE_METRICS": "off"})
    observer.observe(first)
    odd: list[Sequence[float]] = []
    done = threading.Event()

    def scrape() -> None:
        while not done.is_set():
            num_steps = [float(str(sample.value)) for sample in observer.samples() if sample.metric is STEPS]
            if len(set(num_steps)) != 1:
                odd.append(num_steps)

    thread = threading.Thread(target=scrape)
    thread.start()
    for _ in range(50):
        observer.observe(replace(first, analysis=None, at_ns=MS))
    done.set()
    thread.join()
    assert odd == []
    assert {float(str(s.value)) for s in observer.samples() if s.metric is STEPS} == {102.0}
    observer.close()


def test_the_exporters_of_this_project_are_found_by_entry_point() -> None:
    received = dict(exporters.live_exporters())
    assert {"prometheus", "otlp"} <= set(received)
    assert all(callable(load()) for load in received.values())
