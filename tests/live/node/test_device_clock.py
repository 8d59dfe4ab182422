"""Live rows of trainings on GPUs: those of the report, on the GPUs' clocks, by marks of programs of a virtual GPU."""

import json
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from tests.live.node.test_agent import WindowLog, offline_rows, options
from tests.live.sample_table import SampleTable
from tests.timeline.device.recorded import BEGAN_NS, padded, record
from tests.virtual_gpu.actions import Program, sleep, step
from tests.virtual_gpu.programs import PROGRAMS, gradients_once
from traincope.analysis import analyze
from traincope.events import Flag
from traincope.live.metrics.folding import PER_RANK_VARIABLE
from traincope.live.node import agent as agents
from traincope.live.node.agent import Agent
from traincope.live.node.ready import MARKS_AWAITED_NS
from traincope.live.serve.exporting import Exporting
from traincope.live.serve.page import render
from traincope.live.serve.so_far import Judge
from traincope.live.serve.watching import Watcher
from traincope.live.window import Window
from traincope.metrics import catalogue
from traincope.record.session.identity import this_host
from traincope.store import RECORD_DTYPE
from traincope.store.layout import RANK_FILE, SEGMENT
from traincope.store.segments.segments import HEADER_BYTES
from traincope.timeline import LedgerClock, RankTimeline, open_run
from traincope_exporters.history import final

NUM_STEPS = 6
OF_EACH_RANK = {"TRAINCOPE_METRICS": "off", PER_RANK_VARIABLE: "on"}
SECOND = 1_000_000_000

Rows = dict[tuple[int, int], tuple[int, dict[str, int]]]


def rows_of(*windows: Window) -> Rows:
    return {(row.rank, row.step): (row.wall_ns, dict(row.terms)) for window in windows for row in window.rows}


@pytest.mark.parametrize("name", ["late peer", "gradient accumulation", "evaluation", "checkpoint"])
def test_rows_and_metrics_are_those_of_the_report(name: str, tmp_path: Path) -> None:
    run = record(padded(PROGRAMS[name]), tmp_path)
    report, log = analyze(open_run(run)), WindowLog()
    observer = Exporting(job="job", host=this_host().name, environment=OF_EACH_RANK)
    Agent(options(run), observers=(log, observer)).run()
    assert rows_of(*log.windows) == offline_rows(run)
    table, afterwards = SampleTable(observer.samples()), SampleTable(final(report))
    assert table.of(catalogue.LEDGER_CLOCK) == afterwards.of(catalogue.LEDGER_CLOCK) == {("device",): 1}
    for metric in (catalogue.LEDGER, catalogue.WALL, catalogue.RUN_AHEAD, catalogue.COLLECTIVE_WAIT):
        assert table.of(metric) == pytest.approx(afterwards.of(metric)), metric.name
    assert table.of(catalogue.RUN_AHEAD) == {
        (str(rank.rank),): pytest.approx(ahead_ns(rank) / SECOND) for rank in report.context.measured.ranks
    }


def ahead_ns(rank: RankTimeline) -> float:
    """Median run-ahead of the last step."""
    assert rank.marks is not None
    last = rank.steps[-1].number
    return median(ns for step, ns in zip(rank.marks.step, rank.marks.ahead_ns, strict=True) if step == last)


class Followed:
    """A recorded run that an agent follows as if its ranks were alive, and their marks from some step on late."""

    def __init__(self, run: Path, patch: pytest.MonkeyPatch) -> None:
        self.agent, self._patch = Agent(options(run)), patch
        self._segments: dict[Path, bytes] = {}
        for card in run.glob(f"attempt-000/rank-*/{RANK_FILE}"):
            card.write_text(json.dumps(json.loads(card.read_text()) | {"ending": None, "device": {"uuid": "GPU-1"}}))
            for path in card.parent.glob(f"*{SEGMENT}"):
                if first_mark(segment := path.read_bytes(), 0) is not None:
                    self._segments[path] = segment
                    path.chmod(0o644)

    def marks_come(self, *, below: int) -> None:
        """Marks of the steps below this one have come."""
        for path, segment in self._segments.items():
            at = first_mark(segment, below)
            known = len(segment) if at is None else HEADER_BYTES + at * RECORD_DTYPE.itemsize
            path.write_bytes(segment[:known] + bytes(len(segment) - known))

    def look(self, *, after_ns: int) -> Window:
        """Look at this time after the begin of the program."""
        self._patch.setattr(agents, "monotonic_ns", lambda: BEGAN_NS + after_ns)
        return self.agent.look()


def first_mark(segment: bytes, step: int) -> int | None:
    """Position of the first record of a mark of a step."""
    records = np.frombuffer(segment, dtype=RECORD_DTYPE, offset=HEADER_BYTES)
    at = np.flatnonzero((records["flags"] & Flag.DEVICE > 0) & (records["step"] >= step) & (records["kind"] > 0))
    return int(at[0]) if len(at) else None


def training() -> Program:
    """Six steps of two ranks that reduce gradients. Rank 1 is late. From step 3 on, the hosts are ahead."""
    return Program(
        ranks=tuple(
            tuple(
                step(number, *([sleep(300)] if number < 3 else []), *gradients_once(backward_us=us))
                for number in range(1, NUM_STEPS + 1)
            )
            for us in (30, 70)
        )
    )


@pytest.mark.slow
def test_rows_of_each_step_with_the_marks_so_far_are_those_of_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = record(padded(training()), tmp_path)
    expected, followed = offline_rows(run), Followed(run, monkeypatch)
    assert {step for _, step in expected} == set(range(NUM_STEPS + 1))
    rows: Rows = {}
    for below in range(2, NUM_STEPS + 2):
        followed.marks_come(below=below)
        window = followed.look(after_ns=(4 + below) * SECOND)
        assert rows_of(window) == {key: row for key, row in expected.items() if key not in rows and key[1] < below}
        assert window.analysis is not None
        assert window.analysis.ledger.clock is LedgerClock.DEVICE
        rows |= rows_of(window)
    assert rows == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("marked", "clock", "has_terms"),
    [(5, LedgerClock.DEVICE, False), (1, LedgerClock.HOST, True)],
    ids=["the last one", "all but one"],
)
def test_steps_whose_marks_do_not_come_have_no_terms_or_those_of_the_hosts(
    marked: int, clock: LedgerClock, has_terms: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed = Followed(record(padded(training()), tmp_path), monkeypatch)
    followed.marks_come(below=marked + 1)
    assert {step for _, step in rows_of(followed.look(after_ns=5 * SECOND))} == set(range(marked + 1))
    assert not followed.look(after_ns=MARKS_AWAITED_NS).rows
    window = followed.look(after_ns=MARKS_AWAITED_NS + SECOND)
    assert {step for _, step in rows_of(window)} == set(range(marked + 1, NUM_STEPS + 1))
    assert [bool(row.terms) for row in window.rows] == [has_terms] * len(window.rows)
    assert window.analysis is not None
    assert window.analysis.ledger.clock is clock


@pytest.mark.slow
def test_the_first_steps_of_a_gpu_wait_for_marks_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once marks did not come in time, later steps do not wait for theirs."""
    followed = Followed(record(padded(training()), tmp_path), monkeypatch)
    followed.marks_come(below=0)
    assert not followed.look(after_ns=MARKS_AWAITED_NS).rows
    window = followed.look(after_ns=MARKS_AWAITED_NS + SECOND)
    assert {step for _, step in rows_of(window)} == set(range(NUM_STEPS + 1))
    assert not any(tail.unmarked_steps() for tail in followed.agent._tails.values())


def test_the_page_of_a_job_names_the_clock_of_its_ledger(tmp_path: Path) -> None:
    run = record(padded(PROGRAMS["late peer"]), tmp_path)
    watcher = Watcher(run, attempt=0)
    watcher.observe(Agent(options(run)).look())
    assert "terms of each step on the GPUs' clocks, mean over ranks" in str(render(watcher, Judge(run), theme="light"))
