"""The verdict on a running job so far is that of the report."""

from pathlib import Path

import pytest

from tests.live.processes import until
from tests.live.recorded import record
from tests.live.serve.test_watching import as_if_it_ran, watcher
from traincope.analysis import analyze
from traincope.live.serve.page import render
from traincope.live.serve.so_far import Judge
from traincope.report.document.document import to_document
from traincope.report.so_far import verdict_so_far
from traincope.timeline import open_run


def test_the_page_begins_with_the_state_and_the_reports_findings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path, monkeypatch, steps=6)
    as_if_it_ran(tmp_path)
    running, *others = to_document(analyze(open_run(tmp_path)))["verdict"]
    watching, judge = watcher(tmp_path), Judge(tmp_path)
    watching.start()
    assert "being judged for the first time" in str(render(watching, judge, theme="light"))
    judge.start()
    until(lambda: judge.verdict is not None or judge.problem is not None, "a verdict")
    judge.stop()
    watching.stop()
    assert running["kind"] == "running"
    assert judge.verdict is not None, judge.problem
    assert others
    assert [finding["evidence"] for finding in judge.verdict.findings] == [finding["evidence"] for finding in others]
    shown = str(render(watching, judge, theme="light"))
    assert shown.index("Running, ") < shown.index("Verdict so far") < shown.index(others[0]["evidence"][:30])
    assert shown.index("Verdict so far") < shown.index("Step time")


def test_many_records_are_judged_by_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path, monkeypatch, steps=6)
    assert verdict_so_far(tmp_path, max_bytes=0).by_rows
    assert not verdict_so_far(tmp_path, max_bytes=1 << 30).by_rows


def test_a_run_that_cannot_be_read_is_a_sentence(tmp_path: Path) -> None:
    judge = Judge(tmp_path / "gone")
    judge.start()
    until(lambda: judge.problem is not None, "a problem")
    judge.stop()
    assert judge.verdict is None
    assert judge.problem is not None
    assert "gone" in judge.problem
