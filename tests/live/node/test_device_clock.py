"""Live rows of trainings on GPUs: those of the report, on the GPUs' clocks, by marks of programs of a virtual GPU."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.live.node.test_agent import WindowLog, offline_rows, options
from tests.live.sample_table import SampleTable
from tests.timeline.device.recorded import BEGAN_NS, padded, record
from tests.virtual_gpu.programs import PROGRAMS
from traincope.analysis import analyze
from traincope.events import Flag
from traincope.live.node import agent as agents
from traincope.live.node.agent import Agent
from traincope.live.node.ready import MARKS_AWAITED_NS
from traincope.live.serve.exporting import Exporting
from traincope.live.window import Window
from traincope.metrics import catalogue
from traincope.record.session.identity import this_host
from traincope.store import RECORD_DTYPE
from traincope.store.layout import RANK_FILE, SEGMENT, rank_directory
from traincope.store.segments.segments import HEADER_BYTES
from traincope.timeline import LedgerClock, open_run
from traincope_exporters.history import final

TWO_STEPS = "device bound"
"""The host is ahead of its GPU."""
SECOND = 1_000_000_000

Rows = dict[tuple[int, int], tuple[int, dict[str, int]]]


def rows_of(*windows: Window) -> Rows:
    return {(row.rank, row.step): (row.wall_ns, dict(row.terms)) for window in windows for row in window.rows}


@pytest.mark.parametrize("name", ["late peer", "gradient accumulation", "evaluation", "checkpoint"])
def test_rows_and_metrics_are_those_of_the_report(name: str, tmp_path: Path) -> None:
    run = record(padded(PROGRAMS[name]), tmp_path)
    report, log = analyze(open_run(run)), WindowLog()
    observer = Exporting(job="job", host=this_host().name, environment={"TRAINCOPE_METRICS": "off"})
    Agent(options(run), observers=(log, observer)).run()
    assert rows_of(*log.windows) == offline_rows(run)
    table, afterwards = SampleTable(observer.samples()), SampleTable(final(report))
    assert table.of(catalogue.LEDGER_CLOCK) == afterwards.of(catalogue.LEDGER_CLOCK) == {("device",): 1}
    for metric in (catalogue.LEDGER, catalogue.WALL, catalogue.RUN_AHEAD, catalogue.COLLECTIVE_WAIT):
        assert table.of(metric) == pytest.approx(afterwards.of(metric)), metric.name
    assert len(table.of(catalogue.RUN_AHEAD)) == len(report.ledger.ranks)


class Followed:
    """A recorded run of one rank that an agent follows as if the rank were alive and its marks of step 2 late."""

    def __init__(self, run: Path, patch: pytest.MonkeyPatch) -> None:
        directory = rank_directory(run, attempt=0, rank=0)
        card = json.loads((directory / RANK_FILE).read_text())
        (directory / RANK_FILE).write_text(json.dumps(card | {"ending": None}))
        self.agent, self._patch = Agent(options(run)), patch
        self._segment, self._whole = next(
            (path, segment)
            for path in directory.glob(f"*{SEGMENT}")
            if first_mark(segment := path.read_bytes(), 2) is not None
        )
        at = first_mark(self._whole, 2)
        assert at is not None
        at = HEADER_BYTES + at * RECORD_DTYPE.itemsize
        self._segment.chmod(0o644)
        self._segment.write_bytes(self._whole[:at] + bytes(len(self._whole) - at))

    def marks_come(self) -> None:
        self._segment.write_bytes(self._whole)

    def look(self, *, after_ns: int) -> Window:
        """Look at this time after the begin of the program."""
        self._patch.setattr(agents, "monotonic_ns", lambda: BEGAN_NS + after_ns)
        return self.agent.look()


def first_mark(segment: bytes, step: int) -> int | None:
    """Position of the first record of a mark of a step."""
    records = np.frombuffer(segment, dtype=RECORD_DTYPE, offset=HEADER_BYTES)
    at = np.flatnonzero((records["flags"] & Flag.DEVICE > 0) & (records["step"] >= step) & (records["kind"] > 0))
    return int(at[0]) if len(at) else None


def test_a_step_waits_for_the_marks_of_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = record(padded(PROGRAMS[TWO_STEPS], lead_us=500), tmp_path)
    expected = offline_rows(run)
    assert {step for _, step in expected} == {0, 1, 2}
    followed = Followed(run, monkeypatch)
    before = followed.look(after_ns=5 * SECOND)
    assert rows_of(before) == {key: row for key, row in expected.items() if key[1] < 2}
    assert not followed.look(after_ns=6 * SECOND).rows
    followed.marks_come()
    after = followed.look(after_ns=7 * SECOND)
    assert rows_of(before, after) == expected
    assert after.analysis is not None
    assert after.analysis.ledger.clock is LedgerClock.DEVICE


def test_a_step_whose_marks_do_not_come_has_no_terms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    followed = Followed(record(padded(PROGRAMS[TWO_STEPS], lead_us=500), tmp_path), monkeypatch)
    followed.look(after_ns=5 * SECOND)
    assert not followed.look(after_ns=MARKS_AWAITED_NS).rows
    window = followed.look(after_ns=MARKS_AWAITED_NS + SECOND)
    ((rank, step), (_, terms)) = next(iter(rows_of(window).items()))
    assert (rank, step, terms) == (0, 2, {})
