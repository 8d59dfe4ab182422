"""A finished run at the collector: together with the pushed spans it is one trace."""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.exporters.otlp.receiver import collector
from tests.live.node.test_agent import here
from tests.live.recorded import rank_of
from tests.live.serve.test_tile_handoff import change
from traincope import analyze, open_run
from traincope.errors import ServerError
from traincope.live.serve import exporters, finishing
from traincope.store.layout import RANK_FILE
from traincope.timeline import Timeline
from traincope_exporters.otlp.spans import spans


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return here("demo", tmp_path / "run")


def agent(run: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "traincope.cli.commands.agent", str(run)]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=120, env={**os.environ, **environment}
    )


def test_at_the_end_every_span_has_a_parent_and_the_exported_ids(run: Path) -> None:
    with collector("grpc") as received:
        agent(run, TRAINCOPE_OTLP=received.url)
    sent = {span.span_id: span for _, span in received.each_span()}
    assert [span.name for span in sent.values() if span.parent_span_id not in sent] == ["run"]
    names = [span.name for span in sent.values()]
    assert (names.count("attempt"), names.count("rank"), names.count("step")) == (1, 4, 4)
    exported = {span.context.span_id: span for span in spans(analyze(open_run(run)))}
    same = {span_id: exported[int.from_bytes(span_id, "big")] for span_id in sent}
    assert {span_id: span.name for span_id, span in same.items()} == {
        span_id: span.name for span_id, span in sent.items()
    }
    above = [span_id for span_id, span in sent.items() if span.name in ("run", "attempt", "rank")]
    assert [(sent[span].start_time_unix_nano, sent[span].end_time_unix_nano) for span in above] == [
        (same[span].start_time, same[span].end_time) for span in above
    ]


def test_a_missing_collector_is_one_line_in_the_log(run: Path) -> None:
    ended = agent(run, TRAINCOPE_OTLP="http://127.0.0.1:9", OTEL_EXPORTER_OTLP_TIMEOUT="0.3")
    assert "otlp: no collector at http://127.0.0.1:9" in ended.stderr
    assert "ledger rows written" in ended.stdout


Timelines = list[Timeline]


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Timelines:
    """Runs passed to an exporter of a third party."""
    received: Timelines = []
    taken: dict[str, Callable[[], exporters.Finish]] = {"theirs": lambda: lambda _: received.append}
    monkeypatch.setattr(finishing, "finishing_exporters", taken.items)
    return received


def test_a_run_is_exported_once_by_the_agent_of_rank_0(run: Path, taken: Timelines) -> None:
    change(rank_of(run, 0) / RANK_FILE, host="another")
    finishing.finish(run, attempt=0)
    assert taken == []
    here_again = json.loads((rank_of(run, 1) / RANK_FILE).read_text())["host"]
    change(rank_of(run, 0) / RANK_FILE, host=here_again)
    finishing.finish(run, attempt=0)
    assert [timeline.run.path for timeline in taken] == [run]


def test_a_run_is_not_exported_while_a_rank_may_still_write(run: Path, taken: Timelines) -> None:
    change(rank_of(run, 2) / RANK_FILE, host="another", ending=None)
    finishing.finish(run, attempt=0, patience_seconds=0)
    assert taken == []


def test_a_run_that_is_too_large_is_not_exported(
    run: Path, taken: Timelines, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(finishing, "MAX_RECORDS", 1000)
    finishing.finish(run, attempt=0)
    assert taken == []
    assert "is too large for the exporters of finished runs" in caplog.text


def test_a_failing_exporter_does_not_affect_the_others(
    run: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    received: Timelines = []

    def refuses(_: Timeline) -> None:
        raise ServerError("nobody there")

    def breaks(_: Timeline) -> None:
        raise ZeroDivisionError

    ways = {"one": refuses, "two": breaks, "three": received.append}
    monkeypatch.setattr(
        finishing, "finishing_exporters", lambda: [(name, lambda way=way: lambda _: way) for name, way in ways.items()]
    )
    with caplog.at_level(logging.WARNING):
        finishing.finish(run, attempt=0)
    assert len(received) == 1
    assert "one: nobody there" in caplog.text
