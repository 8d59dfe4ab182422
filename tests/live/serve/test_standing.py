"""MFU and goodput that the agent leaves for lists of runs."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.live.windows import quiet, ranks, records, window
from traincope.live.serve import standing
from traincope.live.serve.exporting import Exporting
from traincope.live.serve.standing import Standing
from traincope.metrics.catalogue import GOODPUT
from traincope.metrics.sample import Sample
from traincope.store.layout import STANDING_FILE, rank_directory


def test_the_file_has_mfu_and_goodput_once_a_minute_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model's FLOPs take a tenth of each step at the peak."""
    now = 1_000.0
    monkeypatch.setattr(standing, "monotonic", lambda: now)
    for rank in (0, 1):
        rank_directory(tmp_path, attempt=0, rank=rank).mkdir(parents=True)
    look = replace(window(records(ranks(0, 1, 2))), run=tmp_path)
    exporting = Exporting(job="job", host="node-3", environment={"TRAINCOPE_METRICS": "off"})
    goodput = Sample(metric=GOODPUT, labels=("job-7", "node-3"), value=0.9)
    observer = Standing(lambda: [*exporting.samples(), goodput])
    path = rank_directory(tmp_path, attempt=0, rank=0) / STANDING_FILE

    def content_after(**changes: bool) -> dict[str, float] | None:
        path.unlink(missing_ok=True)
        observer.observe(replace(quiet(look), **changes))
        return json.loads(path.read_text()) if path.exists() else None

    exporting.observe(look)
    first = content_after()
    assert first == pytest.approx({"mfu": 0.1, "goodput": 0.9})
    now += 59
    assert content_after() is None
    assert content_after(last=True) == first
    assert list(rank_directory(tmp_path, attempt=0, rank=1).iterdir()) == []
    exporting.close()
