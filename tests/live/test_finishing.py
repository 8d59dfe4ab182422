"""A run that is over, to a collector: with what was pushed while it ran it is one trace."""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.exporters.receiver import collector
from tests.live.recorded import rank_of
from tests.live.test_agent import here
from tests.live.test_leaving import change
from traincope import analyze, open_run
from traincope.errors import ServerError
from traincope.live import finishing
from traincope.store.layout import RANK_FILE
from traincope.timeline import Timeline
from traincope_exporters import live
from traincope_exporters.otlp.spans import spans


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return here("demo", tmp_path / "run")


def agent(run: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "traincope.cli.agent", str(run)]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=120, env={**os.environ, **environment}
    )


def test_at_the_end_every_span_has_its_parent_and_the_ids_of_the_exported_run(run: Path) -> None:
    with collector("grpc") as found:
        agent(run, TRAINCOPE_OTLP=found.url)
    sent = {span.span_id: span for _, span in found.each_span()}
    assert [span.name for span in sent.values() if span.parent_span_id not in sent] == ["run"]
    names = [span.name for span in sent.values()]
    assert (names.count("attempt"), names.count("rank"), names.count("step")) == (1, 4, 4)
    exported = {one.context.span_id: one for one in spans(analyze(open_run(run)))}
    same = {span_id: exported[int.from_bytes(span_id, "big")] for span_id in sent}
    assert {span_id: one.name for span_id, one in same.items()} == {span_id: one.name for span_id, one in sent.items()}
    above = [span_id for span_id, span in sent.items() if span.name in ("run", "attempt", "rank")]
    assert [(sent[one].start_time_unix_nano, sent[one].end_time_unix_nano) for one in above] == [
        (same[one].start_time, same[one].end_time) for one in above
    ]


def test_a_collector_that_is_gone_is_a_line_in_the_log(run: Path) -> None:
    ended = agent(run, TRAINCOPE_OTLP="http://127.0.0.1:9", OTEL_EXPORTER_OTLP_TIMEOUT="0.3")
    assert "otlp: no collector took the spans at http://127.0.0.1:9" in ended.stderr
    assert "ledger rows written" in ended.stdout


Told = list[Timeline]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    """What an exporter of somebody's is given."""
    found: Told = []
    taken: dict[str, Callable[[], live.Finish]] = {"theirs": lambda: lambda _: found.append}
    monkeypatch.setattr(finishing, "finishing", taken.items)
    return found


def test_it_is_told_once_and_by_the_agent_of_rank_0s_host(run: Path, told: Told) -> None:
    change(rank_of(run, 0) / RANK_FILE, host="another")
    finishing.finish(run, attempt=0)
    assert told == []
    here_again = json.loads((rank_of(run, 1) / RANK_FILE).read_text())["host"]
    change(rank_of(run, 0) / RANK_FILE, host=here_again)
    finishing.finish(run, attempt=0)
    assert [timeline.run.path for timeline in told] == [run]


def test_while_a_rank_of_another_host_may_still_write_it_is_not_told(run: Path, told: Told) -> None:
    change(rank_of(run, 2) / RANK_FILE, host="another", ending=None)
    finishing.finish(run, attempt=0, patience_seconds=0)
    assert told == []


def test_a_run_that_is_too_large_to_be_read_whole_is_not(
    run: Path, told: Told, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(finishing, "MOST_RECORDS", 1000)
    finishing.finish(run, attempt=0)
    assert told == []
    assert "is too much to be read whole" in caplog.text


def test_whoever_fails_costs_the_others_nothing(
    run: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found: Told = []

    def refuses(_: Timeline) -> None:
        raise ServerError("nobody there")

    def breaks(_: Timeline) -> None:
        raise ZeroDivisionError

    ways = {"one": refuses, "two": breaks, "three": found.append}
    monkeypatch.setattr(
        finishing, "finishing", lambda: [(name, lambda way=way: lambda _: way) for name, way in ways.items()]
    )
    with caplog.at_level(logging.WARNING):
        finishing.finish(run, attempt=0)
    assert len(found) == 1
    assert "one: nobody there" in caplog.text
